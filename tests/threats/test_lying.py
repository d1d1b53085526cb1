"""What an agent writes is no path, no name, no marker and no size that the host relies on: all that a host does with a
worktree goes well, or is refused, and a person can always reset it."""

import asyncio
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.redaction import Redactor
from bot.tree.clone import importing
from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import require_checkout
from bot.tree.clone.clone import CloneLock, clone_lock
from bot.tree.clone.fetch import fetch
from bot.tree.commit import commit_all, return_to_branch
from bot.tree.git.errors import GitError
from bot.tree.guard import Guard
from bot.tree.merge import commit_tree, merged_tree
from bot.tree.push import Push, Pushed, push
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.restore import restore
from bot.tree.reset import WasReset, reset
from bot.tree.summary import last_change, summarize
from bot.tree.sync import sync
from tests.support.git_repositories import (
    BOT,
    LABEL,
    RESCUE,
    SANDBOXES,
    SEARCH_PATH,
    GitRepositories,
    git,
    output,
    unchecked,
)
from tests.support.patience import PATIENCE_SECONDS

MORNING = datetime(2025, 1, 2, tzinfo=UTC)
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
GUARD = Guard(frozenset({"main"}), Redactor(["canary-8f2c61d0"]), ("main",), allow_workflow_changes=False)


@dataclass(slots=True)
class Victim:
    """A bot's machine, and the worktree of the agent that attacks it; `branch` changes with a reset."""

    world: GitRepositories
    branch: str
    minutes: int = 0

    @property
    def worktree(self) -> Path:
        return self.world.path

    @property
    def state(self) -> Path:
        return self.world.state

    @property
    def refs(self) -> Path:
        """The folder of refs that the agent can write."""
        return self.world.view().refs

    @property
    def others(self) -> list[Path]:
        return [self.worktree.with_name("issue-2") / "notes.txt", self.world.root / "data" / "key.pem"]

    def unharmed(self) -> bool:
        return all(other.read_text() == "precious" for other in self.others)

    def label(self) -> RescueLabel:
        self.minutes += 1
        return RescueLabel(1, self.branch, (1,), MORNING + timedelta(minutes=self.minutes))


@pytest.fixture(params=SANDBOXES)
async def victim(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Victim]:
    world = await GitRepositories.make(tmp_path, request.param, {"docs/a": "1"}).with_worktree()
    await world.created(IssueBranch(2), world.path.with_name("issue-2"))
    victim = Victim(world, "threadtree/issue-1")
    for other in victim.others:
        other.write_text("precious")
    yield victim
    # pytest deletes by recursion, which the deepest folders here are made against.
    output(["rm", "-rf", str(tmp_path / "data")], tmp_path, {"PATH": SEARCH_PATH})


async def deliver(victim: Victim, lock: CloneLock) -> None:
    """Do what follows a turn, and prepare the next one. Any refusal is fine."""
    world, branch = victim.world, victim.branch

    async def check(commit: str, target: str) -> None:
        await GUARD.check(await require_checkout(lock, world.path), branch, commit, target)

    await return_to_branch(await require_checkout(lock, world.path), branch, LABEL)
    await commit_all(await require_checkout(lock, world.path), "the turn", BOT, None)
    await push(await require_checkout(lock, world.path), Push(branch, f"{branch}-turn-1", BOT), check)
    await fetch(lock)
    await sync(await require_checkout(lock, world.path), branch, RESCUE)


async def the_host_survives(victim: Victim, *, delivered: bool = True) -> None:
    """Do all that the host does with a worktree. It ends reset."""
    world = victim.world
    other = world.path.with_name("issue-2")
    async with asyncio.timeout(PATIENCE_SECONDS):
        seen = await summarize(world.clone, {world.path: victim.branch, other: None})
        assert len(seen) == 2
        assert seen[other].changed_files == 1
        last_change(world.clone, world.path)
        async with clone_lock(world.clone) as lock:
            try:
                await deliver(victim, lock)
            except GitError:
                assert not delivered
            after = await reset(lock, world.path, IssueBranch(1), victim.label())
            assert isinstance(after, WasReset), after
            victim.branch = after.branch or ""
            if after.rescue is not None or after.kept is not None:
                sha = after.rescue.sha if after.rescue else None
                await restore(lock, world.path, victim.branch, sha, after.kept, victim.minutes)
                again = await reset(lock, world.path, IssueBranch(1), victim.label())
                assert isinstance(again, WasReset), again
                victim.branch = again.branch or ""
    assert victim.unharmed()


def index_of(names: list[str]) -> bytes:
    """Return an index with these names, also such as git never writes: https://git-scm.com/docs/index-format."""
    entries = b""
    for name in sorted(names, key=os.fsencode):
        raw = os.fsencode(name)
        facts = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0)
        one = (
            facts + bytes.fromhex("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391") + struct.pack(">H", min(len(raw), 0xFFF))
        )
        one += raw
        entries += one + b"\0" * (8 - len(one) % 8)
    content = b"DIRC" + struct.pack(">2I", 2, len(names)) + entries
    return content + hashlib.sha1(content).digest()  # noqa: S324


def names_that_lead_out(victim: Victim) -> None:
    names = ["../issue-2/notes.txt", "../../../../key.pem", str(victim.others[1]), ".git/config", "a/./b", "n" * 5000]
    (victim.state / "index").write_bytes(index_of([*names, "README.md"]))


def folder_that_became_a_file(victim: Victim) -> None:
    (victim.worktree / "docs" / "a").unlink()
    (victim.worktree / "docs").rmdir()
    (victim.worktree / "docs").write_text("one file now")


def folders_deeper_than_a_program_can_go(victim: Victim) -> None:
    for top in (victim.state / "refs", victim.refs / "heads"):
        top.mkdir(exist_ok=True)
        place = os.open(top, os.O_RDONLY)
        for _ in range(1100):
            os.mkdir("d", dir_fd=place)
            above, place = place, os.open("d", os.O_RDONLY, dir_fd=place)
            os.close(above)
        os.close(place)


def directories_in_the_place_of_locks(victim: Victim) -> None:
    names = ("index.lock", "HEAD.lock", "threadtree-index.lock", "threadtree-git-mine", "refs/bisect/bad.lock")
    locks = [victim.state / name for name in names]
    if victim.world.clone.git.sandbox.isolates:
        common = victim.world.view().common
        locks += [victim.refs / f"heads/{victim.branch}.lock", common / "packed-refs.lock", common / "config.lock"]
    for lock in locks:
        (lock / "inside").mkdir(parents=True)
        lock.chmod(0)


def pipes_and_links_in_the_place_of_gits_files(victim: Victim) -> None:
    (victim.state / "logs").mkdir(exist_ok=True)
    for name in ("MERGE_AUTOSTASH", "REBASE_HEAD", "logs/HEAD"):
        (victim.state / name).unlink(missing_ok=True)
        os.mkfifo(victim.state / name)
    (victim.state / "REVERT_HEAD").symlink_to(victim.others[1])
    (victim.worktree / "README.md").unlink()
    for name in (".gitignore", ".gitattributes", "docs/.gitignore", "README.md"):
        os.mkfifo(victim.worktree / name)
    (victim.worktree / "link").symlink_to(victim.others[1])


def marks_of_a_restore(victim: Victim) -> None:
    """Once they were in the worktree's state: they made the host take everything there for its own half-done work."""
    nested = victim.worktree / "nested"
    victim.world.agent("init", "-q", "nested")
    (nested / ".git" / "modules").symlink_to(victim.others[0].parent)
    for name in ("threadtree-restoring", "restoring"):
        (victim.state / name).write_text("1")
    names_that_lead_out(victim)


def stash_with_endless_words(victim: Victim) -> None:
    (victim.worktree / "README.md").write_text("stashed")
    made = victim.world.agent("stash", "create")
    (victim.worktree / "subject").write_text("long words " * 30_000)
    tree = victim.world.agent("rev-parse", f"{made}^{{tree}}")
    parents = [word for parent in ("1", "2") for word in ("-p", f"{made}^{parent}")]
    long = victim.world.agent("commit-tree", tree, *parents, "-F", "subject")
    victim.world.agent("stash", "store", "-m", f"On {victim.branch}: x", long)
    (victim.worktree / "subject").unlink()


ATTACKS: list[tuple[Callable[[Victim], None], bool]] = [
    (folder_that_became_a_file, True),
    (names_that_lead_out, False),
    (directories_in_the_place_of_locks, True),
    (pipes_and_links_in_the_place_of_gits_files, False),
    (marks_of_a_restore, False),
    (stash_with_endless_words, True),
    # The last, since git is slow in such folders until their end.
    (folders_deeper_than_a_program_can_go, False),
]


async def test_nothing_that_an_agent_writes_leads_the_host_astray(victim: Victim) -> None:
    problems: list[Exception] = []
    for attack, delivered in ATTACKS:
        attack(victim)
        try:
            await the_host_survives(victim, delivered=delivered)
        except Exception as problem:  # noqa: BLE001 - one run shows all of them
            problem.add_note(f"the attack: {attack.__name__}")
            problems.append(problem)
    if problems:
        raise ExceptionGroup("attacks that worked", problems)
    (victim.worktree / "ordinary").write_text("work")
    async with clone_lock(victim.world.clone) as lock:
        await deliver(victim, lock)
    assert git(victim.world.remote, "show", f"{victim.branch}:ordinary") == "work"


@pytest.mark.parametrize("victim", ["bwrap"], indirect=True)
async def test_trees_that_stand_for_endless_files_are_not_let_in(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MAX_FILES", 5000)
    tree = victim.world.agent("rev-parse", "HEAD^{tree}")
    for _ in range(4):
        listed = "".join(f"040000 tree {tree}\t{name}\n" for name in "0123456789")
        (victim.worktree / "listed").write_text(listed)
        tree = victim.world.agent("-c", "alias.make=!git mktree < listed", "make")
    (victim.worktree / "listed").unlink()
    bomb = victim.world.agent("commit-tree", "-p", "HEAD", "-m", "bomb", tree)
    victim.world.agent("update-ref", "HEAD", bomb)
    before = await victim.world.clone.commit_at(f"refs/heads/{victim.branch}")
    async with clone_lock(victim.world.clone) as lock:
        for _ in range(2):
            with pytest.raises(GitError, match="more than 5000 files"):
                await importing.import_commits(await require_checkout(lock, victim.worktree), victim.branch)
    assert await victim.world.clone.commit_at(f"refs/heads/{victim.branch}") == before
    victim.world.agent("update-ref", "HEAD", before or "")
    (victim.worktree / "small").write_text("1")
    async with clone_lock(victim.world.clone) as lock:
        await commit_all(await require_checkout(lock, victim.worktree), "the turn", BOT, None)
        assert await push(
            await require_checkout(lock, victim.worktree), Push(victim.branch, "x", BOT), unchecked
        ) == Pushed("pushed")


@pytest.mark.parametrize("victim", ["bwrap"], indirect=True)
async def test_an_object_under_the_name_of_another_changes_no_merge_of_the_host(victim: Victim) -> None:
    world = victim.world
    (victim.worktree / "a.txt").write_text("a")
    async with clone_lock(world.clone) as lock:
        await deliver(victim, lock)
    theirs = world.someone_pushes("main", {"b.txt": "b"})
    (victim.worktree / "listed").write_text(f"100644 blob {EMPTY_BLOB}\tpwned\n")
    fake = world.agent(
        "-c", "alias.make=!git hash-object -w --stdin < /dev/null > /dev/null; git mktree < listed", "make"
    )
    (victim.worktree / "listed").unlink()
    async with clone_lock(world.clone) as lock:
        await fetch(lock)
        tree = (await world.clone.run("rev-parse", f"{theirs}^{{tree}}")).text
        objects = world.view().common / "objects"
        (objects / tree[:2]).mkdir(exist_ok=True)
        (objects / tree[:2] / tree[2:]).write_bytes((objects / fake[:2] / fake[2:]).read_bytes())
        checkout = await require_checkout(lock, world.path)
        ours = checkout.commit or ""
        lie = (await checkout.git("merge-tree", "--write-tree", ours, theirs)).text
        assert "pwned" in (await checkout.git("ls-tree", "--name-only", lie)).text, "the sandbox was lied to"
        merged = await merged_tree(world.clone, ours, theirs)
        assert isinstance(merged, str)
        made = await commit_tree(checkout, merged, (ours, theirs), "Merge\n", BOT)
        assert await check_out(checkout, victim.branch, made)
    names = git(world.clone.path, "ls-tree", "--name-only", made).split()
    assert names == ["README.md", "a.txt", "b.txt", "docs"]
