"""What is pushed is signed, or signed off, and nothing else of it changes: each way to sign, for all that is pushed."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from bot import refs
from bot.tree import signing
from bot.tree.git.errors import GitError
from bot.tree.git.runner import Identity
from bot.tree.push import Push, Pushed, push
from bot.tree.signing import Signing, remade
from tests.support.git_repositories import BOT, LABEL, PERSON, RESCUE, GitRepositories, git, unchecked
from tests.support.ssh import new_key

BRANCH = "threadtree/issue-1"
ALICE = Identity("Alice", "alice@example.com")
SIGN_OFF = f"Signed-off-by: {BOT}"
How = Literal["off", "ssh", "github"]


@dataclass(slots=True)
class Signer:
    """A worktree whose branch is pushed signed; GitHub is the remote itself, where it is to make commits."""

    world: GitRepositories
    how: How
    signing: Signing = field(init=False)
    signers: Path = field(init=False)
    created: int = 0

    def __post_init__(self) -> None:
        key, public = new_key(self.world.root / "key")
        self.signers = self.world.root / "signers"
        by = "noreply@github.com" if self.how == "github" else BOT.email
        self.signers.write_text(f"{by} {public}\n")
        own = key if self.how == "ssh" else None
        self.signing = Signing(self.how, own, signs_off=True, create=self.create)

    async def create(self, message: str, tree: str, parents: Sequence[str]) -> str:
        """Do what GitHub does for an App."""
        self.created += 1
        assert git(self.world.remote, "for-each-ref", refs.UPLOADED_PREFIX)
        people = {"GIT_AUTHOR_NAME": BOT.name, "GIT_AUTHOR_EMAIL": BOT.email}
        people |= {"GIT_COMMITTER_NAME": "GitHub", "GIT_COMMITTER_EMAIL": "noreply@github.com"}
        key = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={self.world.root / 'key'}")
        named = [word for parent in parents for word in ("-p", parent)]
        made = await asyncio.create_subprocess_exec(
            *("git", *key, "commit-tree", "-S", tree, *named),
            cwd=self.world.remote,
            env={"PATH": os.environ["PATH"]} | people,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return (await made.communicate(message.encode()))[0].decode().strip()

    async def push(self, check: object = unchecked, began: str | None = None, *, is_linear: bool = False) -> Pushed:
        async with self.world.open() as tree:
            of = (BRANCH, f"{BRANCH}-turn-7", BOT, began, ("main",), is_linear, RESCUE)
            wanted = Push(*of, signing=self.signing)
            return await push(await tree.checkout(), wanted, check)  # type: ignore[arg-type]

    async def commit(self, name: str, content: str = "1\n") -> str:
        """Let the host commit a file."""
        (self.world.path / name).write_text(content)
        async with self.world.open() as tree:
            made = await tree.commit(f"Write {name}\n\n#1 is no comment", BOT, ALICE)
        assert made.sha is not None
        return made.sha

    def tip(self, branch: str = BRANCH) -> str:
        return self.world.remote_tip(branch)

    def log(self, line: str, *revisions: str) -> list[str]:
        return git(self.world.remote, "log", "-z", "--topo-order", f"--format={line}", *revisions).split("\0")[:-1]

    def is_right(self, *commits: str) -> None:
        """Check all of these commits of GitHub: signature, people, trailers, and that both sides are the same."""
        shown = ("-c", f"gpg.ssh.allowedSignersFile={self.signers}", "log", "--no-walk", "-z", "--format=%G?|%cn|%B")
        for one in git(self.world.remote, *shown, *commits).split("\0")[:-1]:
            letter, committer, message = one.split("|", 2)
            expected = {"off": ("N", BOT.name), "ssh": ("G", BOT.name), "github": ("G", "GitHub")}
            assert (letter, committer) == expected[self.how], message
            assert message.count(SIGN_OFF) == 1
        assert self.world.agent("rev-parse", "HEAD") == git(self.world.clone.path, "rev-parse", BRANCH)
        assert self.world.agent("status", "--porcelain") == ""
        assert git(self.world.remote, "for-each-ref", refs.UPLOADED_PREFIX) == ""

    def pushed(self, before: str | None = None) -> list[str]:
        """Return what is new on GitHub, which is right; what was published before stays."""
        new = self.log("%H", BRANCH, f"^{before or 'main'}", "^main")
        self.is_right(*new)
        if before is not None:
            git(self.world.remote, "merge-base", "--is-ancestor", before, BRANCH)
        return new


@pytest.fixture(params=["off", "ssh", "github"])
async def signer(request: pytest.FixtureRequest, tmp_path: Path) -> Signer:
    world = GitRepositories.make(tmp_path, "bwrap")
    await world.created()
    return Signer(world, request.param)


async def test_all_that_is_pushed_is_signed_and_what_was_published_stays(signer: Signer) -> None:
    world, on = signer.world, signer.signing

    # What was published before stays as it was.
    signer.signing = Signing()
    first = await signer.commit("unsigned")
    assert await signer.push() == Pushed("pushed")
    assert signer.tip() == first
    signer.signing = on

    # The host's commit, beside those of the agent with another author: order, messages, authors.
    agents = world.agent_commits({"a": "1\n"})
    world.agent("commit", "-q", "--allow-empty", "-m", "Fix it\n\nSee: #7\nReviewed-by: Bob <bob@example.com>")
    await signer.commit("b")
    left = world.path / "left-out"
    left.write_text("uncommitted\n")
    assert await signer.push() == Pushed("pushed")
    left.unlink()
    assert [one.partition("\n")[0] for one in signer.log("%B", BRANCH, f"^{first}")] == [
        "Write b",
        "Fix it",
        "the agent's work",
    ]
    signer.pushed(first)
    message = signer.log("%B", f"{BRANCH}^", "--max-count=1")[0]
    co_author = [f"Co-authored-by: {PERSON['GIT_AUTHOR_NAME']} <{PERSON['GIT_AUTHOR_EMAIL']}>"]
    trailers = [
        "See: #7",
        "Reviewed-by: Bob <bob@example.com>",
        *(co_author if signer.how == "github" else []),
        SIGN_OFF,
    ]
    assert message.splitlines() == ["Fix it", "", *trailers]
    own = BOT.name if signer.how == "github" else PERSON["GIT_AUTHOR_NAME"]
    assert signer.log("%an", BRANCH, f"^{first}") == [BOT.name, own, own]
    host = signer.log("%B", BRANCH, "--max-count=1")[0].splitlines()
    assert host == ["Write b", "", "#1 is no comment", "", f"Co-authored-by: {ALICE}", SIGN_OFF]
    assert remade(world.clone, agents) == signer.log("%H", BRANCH, f"^{first}")[-1]

    # Nothing is left to push, and nothing is made anew.
    created = signer.created
    assert await signer.push() == Pushed("nothing")
    assert signer.created == created

    # A merge of the base, as /update makes it.
    before, base = signer.tip(), world.someone_pushes("main", {"base": "1\n"})
    await world.update()
    async with world.open() as tree:
        assert await tree.merge(BRANCH, base, "Merge branch 'main'\n", BOT) == "merged"
    assert await signer.push() == Pushed("pushed")
    [merge] = signer.pushed(before)
    assert signer.log("%P", merge, "--max-count=1") == [f"{before} {base}"]

    # What /undo makes: what the turn pushed is found by its commits.
    async with world.open() as tree:
        made = await tree.revert(merge, f"{before}~1", before, "Take back turn 1\n", BOT)
        assert isinstance(made, str)
        assert await tree.check_out(BRANCH, made)
    assert await signer.push() == Pushed("pushed")
    signer.pushed(merge)
    assert not (world.path / "b").exists()

    # What is shown beside the branch, twice.
    for content in (b"1", b"2"):
        async with world.open() as tree:
            beside = f"{BRANCH}-pictures"
            shown = await tree.push_beside(beside, {"a.png": content}, BOT, "Show", signer.signing)
        assert shown == signer.tip(beside)
        signer.is_right(shown)

    # Somebody pushes meanwhile: the host's own merge is known by its new name.
    before = signer.tip()
    await signer.commit("mine")
    theirs = world.someone_pushes(BRANCH, {"theirs": "1\n"})
    assert await signer.push() == Pushed("merged")
    merge, mine = signer.log("%H", BRANCH, f"^{theirs}")
    signer.is_right(merge, mine)
    async with world.open() as tree:
        assert await tree.last_of_its_own(merge, is_merge=False) == mine

    # The same where the branch takes no merges: it goes on top.
    await signer.commit("linear")
    theirs = world.someone_pushes(BRANCH, {"more": "1\n"})
    assert await signer.push(is_linear=True) == Pushed("merged")
    [mine] = signer.log("%H", BRANCH, f"^{theirs}")
    signer.is_right(mine)

    # What does not merge is parked, and both sides know it as it is there.
    await signer.commit("README.md", "mine\n")
    world.someone_pushes(BRANCH, {"README.md": "theirs\n"})
    assert await signer.push() == Pushed("parked", f"{BRANCH}-turn-7")
    signer.is_right(signer.tip(f"{BRANCH}-turn-7"))
    assert signer.tip(f"{BRANCH}-turn-7") == git(world.clone.path, "rev-parse", BRANCH)


async def test_who_was_replaced_while_it_signed_pushes_nothing_and_the_next_one_pushes_it_once(signer: Signer) -> None:
    class LostError(Exception):
        pass

    asked = list[str]()

    async def lost(commit: str, target: str) -> None:
        asked.append(commit)
        if len(asked) == 2:
            raise LostError

    began = await signer.commit("a")
    await signer.commit("b")
    with pytest.raises(LostError):
        await signer.push(lost)
    assert git(signer.world.remote, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert len(set(asked)) == 2, "what is pushed is checked, and not only what was signed"

    async with signer.world.open() as tree:
        began = tree.remade(began)
    assert await signer.push(began=began) == Pushed("pushed")
    assert len(signer.pushed()) == 2
    if signer.how != "github":
        assert signer.tip() == asked[1], "signed again, a commit is the same"
        assert signer.log("%H", f"{BRANCH}~1", "--max-count=1") == [began]


async def test_a_rescue_from_before_the_signing_comes_back_on_top_of_the_signed_commits(signer: Signer) -> None:
    world = signer.world
    await signer.commit("a", "one\ntwo\nthree\nfour\n")
    (world.path / "half").write_text("half\n")
    async with world.open() as tree:
        rescued, why = await tree.save(LABEL)
        assert rescued is not None
        assert why is None
        await tree.drop_changes(rescued.sha)
    await signer.commit("a", "one\ntwo\nthree\nFOUR\n")
    assert await signer.push() == Pushed("pushed")
    assert len(signer.pushed()) == 2

    async with world.open() as tree:
        restored = await tree.restore(BRANCH, rescued.sha, None, 1)
    assert (restored.back.files, restored.back.commits, restored.elsewhere) == (1, 0, ())
    assert (world.path / "a").read_text() == "one\ntwo\nthree\nFOUR\n"
    assert world.agent("status", "--porcelain") == "?? half"


async def test_a_key_that_is_gone_withholds_the_push_and_names_no_file(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path, "bwrap")
    await world.created()
    signer = Signer(world, "ssh")
    mine = world.agent_commits({"a": "1"})
    (tmp_path / "key").unlink()
    with pytest.raises(GitError, match="SIGNING_KEY_PATH") as caught:
        await signer.push()
    assert str(tmp_path) not in str(caught.value)
    assert git(world.remote, "branch", "--list").split() == ["*", "main"]
    assert world.agent("rev-parse", "HEAD") == mine


async def test_commits_of_another_than_asked_for_are_not_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub, or who sits between, answers with some other commit; and what asks for many asks slowly."""
    monkeypatch.setattr(signing, "PAUSE_SECONDS", 0)
    world = GitRepositories.make(tmp_path, "bwrap")
    await world.created()
    signer = Signer(world, "github")
    for number in range(signing.AT_ONCE + 1):
        world.agent_commits({"a": f"{number}\n"})

    async def another(message: str, tree: str, parents: Sequence[str]) -> str:
        return world.remote_tip("main")

    right, signer.signing = signer.signing, replace(signer.signing, create=another)
    with pytest.raises(GitError, match="not those that were asked for"):
        await signer.push()
    assert git(world.remote, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    signer.signing = right
    assert await signer.push() == Pushed("pushed")
    assert len(signer.pushed()) == signing.AT_ONCE + 1
