"""What is never pushed: each rule against what an agent can commit, merge and hide."""

import asyncio
import base64
import time
from pathlib import Path
from typing import cast
from urllib.parse import quote

import pytest

from bot.redaction import Redactor
from bot.thread.notices import PushRule
from bot.tree import guard
from bot.tree.commit import Committed
from bot.tree.guard import Guard
from bot.tree.push import Push, Pushed
from tests.support.git_repositories import BOT, GitRepositories, git

BRANCH = "threadtree/issue-1"
WORKFLOW = ".github/workflows/ci.yml"
SECRET = "canary-8f2c61d0-77aa"


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    world = GitRepositories.make(tmp_path, "bwrap")
    world.someone_pushes("main", {WORKFLOW: "on: push\n"})
    await world.created()
    return world


@pytest.fixture
async def small(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path).with_worktree()


def guard_with(**rules: object) -> Guard:
    return Guard(
        **{
            "protected": frozenset({"main"}),
            "redactor": Redactor([SECRET]),
            "bases": ("main",),
            "allow_workflow_changes": False,
            **rules,
        }  # type: ignore[arg-type]
    )


async def nobody_stops() -> None:
    pass


async def pushed(world: GitRepositories, guard: Guard | None = None, target: str = BRANCH) -> Pushed:
    async with world.open() as tree:
        return await tree.push(Push(target, f"{target}-turn-7", BOT), guard or guard_with(), nobody_stops)


async def committed(world: GitRepositories) -> Committed:
    async with world.open() as tree:
        return await tree.commit("the turn", BOT, None)


async def withheld(world: GitRepositories, guard: Guard | None = None) -> tuple[PushRule, tuple[str, ...]]:
    """Push, which must be forbidden; return the rule and the names, after a look at GitHub."""
    before = git(world.remote, "for-each-ref")
    result = await pushed(world, guard)
    assert git(world.remote, "for-each-ref") == before
    assert (result.how, result.rule is None) == ("withheld", False)
    return cast(PushRule, result.rule), result.names


def commits(world: GitRepositories, files: dict[str, str]) -> str:
    for name in files:
        (world.path / name).parent.mkdir(parents=True, exist_ok=True)
    return world.agent_commits(files)


async def test_workflows_are_compared_as_trees_and_not_only_by_commits(world: GitRepositories) -> None:
    old = git(world.person, "rev-parse", "HEAD")
    world.someone_pushes("main", {WORKFLOW: "on: push # mended\n"})
    other = world.someone_pushes("other", {".github/workflows/other.yml": "on: push\n"}, start="origin/main")
    await world.update()
    world.agent("merge", "-q", "--no-edit", "origin/main")
    honest = commits(world, {"a": "1"})

    # What came with the base is on GitHub already.
    assert (await pushed(world)).how == "pushed"
    assert world.remote_tip(BRANCH) == honest

    def joined(parent: str, workflow: str | None = None) -> None:
        """Merge a published commit with any tree: no commit in between changes the file."""
        world.agent("reset", "-q", "--hard", honest)
        world.agent("checkout", "-q", parent, "--", ".github")
        if workflow is not None:
            (world.path / WORKFLOW).write_text(workflow)
            world.agent("add", "-A")
        tree = world.agent("write-tree")
        commit = world.agent("commit-tree", "-p", honest, "-p", parent, "-m", "join", tree)
        world.agent("reset", "-q", "--hard", commit)

    joined(old)
    assert await withheld(world) == ("workflow-files", (WORKFLOW,))
    joined(other)
    assert await withheld(world) == ("workflow-files", (".github/workflows/other.yml",))
    joined(other, "on: evil\n")
    assert (await withheld(world))[1] == (WORKFLOW, ".github/workflows/other.yml")

    # A merge that another commit hides again, and a commit that another one reverts.
    joined(old)
    world.agent("checkout", "-q", honest, "--", ".github")
    world.agent("commit", "-q", "-m", "back")
    assert await withheld(world) == ("workflow-files", (WORKFLOW,))
    world.agent("reset", "-q", "--hard", honest)
    commits(world, {".GitHub/Actions/a/action.yml": "x"})
    world.agent("rm", "-q", "-r", ".GitHub")
    world.agent("commit", "-q", "-m", "back")
    assert await withheld(world) == ("workflow-files", (".GitHub/Actions/a/action.yml",))

    world.agent("reset", "-q", "--hard", honest)
    commits(world, {"b": "1"})
    assert (await pushed(world)).how == "pushed"


async def test_a_folder_of_workflows_becomes_no_link_and_no_submodule(small: GitRepositories) -> None:
    (small.path / ".github").mkdir()
    (small.path / ".github" / "workflows").symlink_to("../evil")
    small.agent("add", "-A")
    small.agent("commit", "-q", "-m", "link")
    assert await withheld(small) == ("workflow-files", (".github/workflows",))


async def test_a_merge_of_simultaneous_work_is_checked_again(small: GitRepositories) -> None:
    """What GitHub's branch got meanwhile is on GitHub already, also its workflows."""
    commits(small, {"mine": "1"})
    theirs = small.someone_pushes(BRANCH, {WORKFLOW: "on: push\n"}, start="origin/main")
    asked = list[str]()

    async def may_go() -> None:
        asked.append(small.remote_tip(BRANCH))

    async with small.open() as tree:
        assert await tree.push(Push(BRANCH, "x", BOT), guard_with(), may_go) == Pushed("merged")
    assert asked == [theirs, theirs]


async def test_a_protected_branch_is_never_pushed_also_when_parking(small: GitRepositories) -> None:
    small.agent_commits({"README.md": "mine\n"})
    small.someone_pushes(BRANCH, {"README.md": "theirs\n"}, start="origin/main")
    assert await withheld(small, guard_with(protected=frozenset({f"{BRANCH}-turn-7"}))) == ("protected-branch", ())
    assert (await pushed(small)).how == "parked"


async def test_a_submodule_at_a_commit_that_is_published_nowhere_is_withheld(world: GitRepositories) -> None:
    world.agent("clone", "-q", "../../../../repos/octo/hello.git", "sub")
    world.agent("-C", "sub", "checkout", "-q", world.remote_tip("main"))
    world.agent("add", "sub")
    world.agent("commit", "-q", "-m", "a submodule")
    assert (await pushed(world)).how == "pushed"

    # The bot itself commits neither what is changed inside nor a commit that only this worktree has; it names both.
    (world.path / "sub" / "stray").write_text("1")
    assert await committed(world) == Committed(None, {"large": ("sub",)})
    (world.path / "sub" / "stray").unlink()
    world.agent("-C", "sub", "commit", "-q", "--allow-empty", "-m", "only here")
    assert await committed(world) == Committed(None, {"large": ("sub",)})
    world.agent("commit", "-q", "-a", "-m", "moved")
    assert await withheld(world) == ("submodule", ("sub",))

    # A commit of the repository itself is none of the submodule's, and a name proves nothing.
    world.agent("reset", "-q", "--hard", "HEAD~1")
    world.agent("update-index", "--add", "--cacheinfo", f"160000,{world.agent('rev-parse', 'HEAD')},empty")
    world.agent("commit", "-q", "-m", "not checked out")
    (world.path / "empty").mkdir(exist_ok=True)
    assert await withheld(world) == ("submodule", ("empty",))


@pytest.mark.parametrize(
    "spelled",
    [SECRET, quote(SECRET).replace("c", "%63"), base64.b64encode(f"user:{SECRET}".encode()).decode()],
)
async def test_a_secret_is_found_wherever_a_push_would_send_it(small: GitRepositories, spelled: str) -> None:
    base = commits(small, {"clean": "1"})
    small.agent("commit", "-q", "--allow-empty", "-m", spelled)
    message = small.agent("rev-parse", "HEAD")
    small.agent("reset", "-q", "--hard", base)
    named = commits(small, {spelled: "1"})
    small.agent("reset", "-q", "--hard", base)
    commits(small, {"data": "x" * 70_000 + spelled})
    for commit in (message, named, commits(small, {"data": "the next commit hides it"})):
        small.agent("reset", "-q", "--hard", commit)
        assert await withheld(small) == ("secret", ())
    # To show another object in its place is of no use.
    small.agent("reset", "-q", "--hard", message)
    small.agent("replace", message, base)
    assert await withheld(small) == ("secret", ())
    small.agent("reset", "-q", "--hard", base)
    assert (await pushed(small)).how == "pushed"


async def test_more_than_can_be_searched_is_withheld(small: GitRepositories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_SEARCHED_BYTES", 100_000)
    commits(small, {"data": "x" * 200_000})
    assert await withheld(small) == ("too-much", ())


async def test_more_merges_than_can_be_examined_are_withheld(
    small: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_MOST_MERGES", 2)
    start = small.agent("rev-parse", "HEAD")
    for number in range(2):
        commits(small, {"data": str(number)})
        side = small.agent("commit-tree", "HEAD^{tree}", "-p", start, "-m", "side")
        small.agent("merge", "-q", "--no-ff", "-s", "ours", "-m", "joined", side)
    assert await withheld(small) == ("too-much", ())
    assert (await pushed(small, guard_with(allow_workflow_changes=True))).how == "pushed"


async def test_other_work_goes_on_while_commits_are_searched(small: GitRepositories) -> None:
    commits(small, {"data": "1234,5678\n" * 2_000_000})
    pauses: list[float] = []

    async def beat() -> None:
        while True:
            # What the loop's own thread computed: a busy machine may give it no time at all.
            began = time.thread_time()
            await asyncio.sleep(0.005)
            pauses.append(time.thread_time() - began)

    beating = asyncio.create_task(beat())
    assert (await pushed(small)).how == "pushed"
    beating.cancel()
    assert max(pauses) < 0.5


async def test_what_changed_between_two_commits_is_counted(small: GitRepositories) -> None:
    before = git(small.clone.path, "rev-parse", "refs/remotes/origin/main")
    after = small.agent_commits({"README.md": "one\ntwo\n", "1 file changed": "x\n", "new": "y\n"})
    await small.bring_home()
    assert await small.clone.count_changes(before, after) == (3, 4, 1)


LFS = {".gitattributes": "*.bin filter=lfs -text\nsecret/** filter=git-crypt\n", "a.bin": "version 1\n", "b": "plain\n"}


@pytest.fixture
async def filtered(tmp_path: Path) -> GitRepositories:
    world = GitRepositories.make(tmp_path, "bwrap")
    world.someone_pushes("main", LFS)
    await world.created()
    return world


@pytest.mark.parametrize("name", ["a.bin", "folder/new.bin", "secret/key"])
async def test_raw_content_under_a_filter_is_not_pushed(filtered: GitRepositories, name: str) -> None:
    commits(filtered, {name: "raw"})
    assert await withheld(filtered) == ("filter", (name,))


async def test_raw_content_of_an_earlier_commit_is_found(filtered: GitRepositories) -> None:
    commits(filtered, {"a.bin": "raw"})
    commits(filtered, {"a.bin": LFS["a.bin"]})
    assert await withheld(filtered) == ("filter", ("a.bin",))


async def test_a_commit_that_takes_the_filter_away_does_not_help(filtered: GitRepositories) -> None:
    commits(filtered, {".gitattributes": "", "a.bin": "raw"})
    assert await withheld(filtered) == ("filter", ("a.bin",))


async def test_a_filter_that_the_commit_adds_counts(filtered: GitRepositories) -> None:
    commits(
        filtered, {"sub/.gitattributes": "[attr]x filter=lfs\n", ".gitattributes": "*.txt filter=x\n", "n.txt": "raw"}
    )
    assert await withheld(filtered) == ("filter", ("n.txt",))


async def test_a_file_under_a_filter_can_be_moved_and_deleted(filtered: GitRepositories) -> None:
    filtered.agent("mv", "a.bin", "moved.bin")
    done = await committed(filtered)
    assert done == Committed(filtered.agent("rev-parse", "HEAD"), {})
    filtered.agent("rm", "-q", "moved.bin")
    commits(filtered, {"c.txt": "text"})
    assert await pushed(filtered) == Pushed("pushed")


async def test_content_under_a_filter_is_left_out_of_the_commit(filtered: GitRepositories) -> None:
    for name in ("a.bin", "new.bin", "line\nbreak.bin", "b"):
        (filtered.path / name).write_text("raw")
    filtered.agent("add", "new.bin")
    done = await committed(filtered)
    assert {why: set(names) for why, names in done.left_out.items()} == {
        "filter": {"a.bin", "new.bin", "line\nbreak.bin"}
    }
    assert await pushed(filtered) == Pushed("pushed")
    assert git(filtered.remote, "show", f"{BRANCH}:a.bin") == LFS["a.bin"].strip()
    assert (filtered.path / "a.bin").read_text() == "raw"
