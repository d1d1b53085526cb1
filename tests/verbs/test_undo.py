"""`/undo`: what the last request changed is taken back, and nothing else."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from bot.model import Saved
from bot.thread.tracking import TurnResult
from bot.verbs import undo
from tests.support.git_repositories import git
from tests.support.world import Talk, World
from tests.unit.test_whole_comments import ASKED, RAN, as_posted, hostile, is_inert

CHANGE = undo.ChangeOfTurn(27, "tom", "1f0c2d4", "threadtree/issue-7", "9b3e5a6")
COMMITS = [f"{n:07x}f Mend `total` of @octocat, fixes #{n}" for n in range(12, 0, -1)]
COMMENTS: dict[str, str | TurnResult] = {
    "undo": replace(RAN, answer=undo.taken_back(CHANGE, None, COMMITS), steps=(), read=(), model=None, cost_usd=None),
    "undo-of-a-merge": TurnResult("refused", undo.has_merged(CHANGE, "main"), asked=ASKED),
    "undo-of-unpushed-work": undo.taken_back(replace(CHANGE, pushed_to=None), Saved(1, 2)),
    "undo-of-commits-elsewhere": undo.taken_back(replace(CHANGE, pushed_to="threadtree/issue-7-turn-27"), None),
    "undo-in-conflict": TurnResult("refused", undo.conflicts(CHANGE, ["src/cart.py", "README.md"]), asked=ASKED),
}


async def changed(world: World, *requests: str) -> Talk:
    """Open an issue whose requests each push a change."""
    issue = await world.maria.opens_issue("Greet people")
    for request in requests:
        await issue.says(f"@threadtree-bot {request}")
        await issue.hears("**Changed**")
    return issue


def said(heard: str) -> str:
    return heard.partition("\n\n---")[0]


def took_back(turn: int, *subjects: str) -> str:
    """Return a pattern of what is said, with the names of the commits."""
    listed = "\n".join(f"- `[0-9a-f]{{7}}` `{re.escape(subject)}`" for subject in subjects)
    return rf"Took back by one commit what turn {turn} \(maria's request\) pushed:\n\n{listed}"


async def test_one_request_after_the_other_is_taken_back_by_a_commit_each_and_the_agent_hears_of_it(
    world: World,
) -> None:
    issue = await changed(
        world, "write hello.txt: hello\ncommit Say hello\nwrite hello.txt: hello again", "write more.txt: more"
    )

    asked = await issue.says("/undo")
    heard = await issue.hears("**Changed**", "1 file +0 −1")

    assert re.fullmatch(took_back(2, "Greet people"), said(heard))
    assert asked.reactions == ["👀"]
    assert sorted(await world.files("threadtree/issue-1")) == ["README.md", "hello.txt"]

    await issue.says("@threadtree-bot /undo")
    assert re.fullmatch(took_back(1, "Greet people", "Say hello"), said(await issue.hears("1 file +0 −1")))
    message = await world.repository.git.run("log", "-1", "--format=%B", "threadtree/issue-1")
    assert message.count("This reverts commit ") == 2
    assert sorted(await world.files("threadtree/issue-1")) == ["README.md"]

    await issue.says("/undo")
    await issue.hears("**Not started:**", "There is nothing to take back")

    await issue.says("@threadtree-bot save prompt prompt.txt")
    await issue.hears()
    [path] = await world.worktrees("path")
    assert "Took back by one commit what turn 1" in (world.text_of(path, "prompt.txt") or "")


async def test_work_that_was_not_pushed_goes_after_a_rescue_and_pushed_work_stays(world: World) -> None:
    issue = await changed(world, "write hello.txt: hello")
    await issue.says("@threadtree-bot write half.txt: half\nfail too hard")
    await issue.hears("**Failed:**")
    [path] = await world.worktrees("path")

    await issue.says("/undo")

    heard = await issue.hears()
    assert "NOTE" not in heard, "what was left is what was taken back"
    assert heard.startswith(
        "Took back what turn 2 (maria's request) left here.\n\n"
        "Work that was not on GitHub was rescued first: 1 uncommitted file. `/worktree restore` brings it back.\n\n"
    )
    assert (world.text_of(path, "half.txt"), world.text_of(path, "hello.txt")) == (None, "hello\n")
    await issue.says("/worktree restore")
    await issue.hears("restored")
    assert world.text_of(path, "half.txt") == "half\n"


async def test_later_commits_of_people_stay_and_a_conflict_is_named(world: World) -> None:
    issue = await changed(world, "write hello.txt: hello", "write bye.txt: bye")
    await world.maria.pushes("threadtree/issue-1", {"hello.txt": "hello, by hand\n"})

    await issue.says("/undo")
    await issue.hears("Took back by one commit what turn 2")
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello, by hand"

    await issue.says("/undo")
    await issue.hears("**Not started:**", "Later commits changed the same lines as turn 1", "`hello.txt`")
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello, by hand"


async def test_a_merge_of_the_agent_that_looks_like_one_of_the_bot_is_taken_back_too(world: World) -> None:
    issue = await changed(world, "write hello.txt: hello")
    gate = world.gate()
    await issue.says(f"@threadtree-bot write more.txt: more\ncommit More\nwrite evil.txt: evil\nwait {gate}")
    await issue.sees("Last step: `Wait for")
    [path] = await world.worktrees("path")
    like = "Merge branch 'threadtree/issue-1' of origin into threadtree/issue-1"
    git(Path(path), "add", "evil.txt")
    made = git(Path(path), "commit-tree", git(Path(path), "write-tree"), "-p", "HEAD", "-p", "HEAD~1", "-m", like)
    git(Path(path), "reset", "--hard", "-q", made)
    gate.open()
    await issue.hears("**Changed**", "2 files +2")

    await issue.says("/undo")
    await issue.hears("Took back by one commit what turn 2", "2 files +0 −2")
    assert sorted(await world.files("threadtree/issue-1")) == ["README.md", "hello.txt"]


@pytest.mark.parametrize("known_by", ["the clone", "the row"])
async def test_what_people_pushed_while_the_agent_worked_stays(world: World, known_by: str) -> None:
    issue = await changed(world, "write hello.txt: hello")
    gate = world.gate()
    await issue.says(f"@threadtree-bot write more.txt: more\nwait {gate}")
    await issue.sees_working()
    await world.maria.pushes("threadtree/issue-1", {"by-hand.txt": "by hand\n"})
    gate.open()
    await issue.hears("**Changed**")
    if known_by == "the clone":  # the process was killed right after the push
        await world.database.execute("update turns set met_push = false")
    else:  # the clone was fetched anew
        clone = world.data_dir / "repos" / "acme" / "shop.git"
        git(clone, "update-ref", "-d", git(clone, "for-each-ref", "--format=%(refname)", "refs/threadtree/merged/"))

    await issue.says("/undo")
    await issue.hears("Took back by one commit what turn 2", "1 file +0 −1")
    assert sorted(await world.files("threadtree/issue-1")) == ["README.md", "by-hand.txt", "hello.txt"]


async def test_commits_of_the_base_that_were_merged_are_not_taken_back(world: World) -> None:
    issue = await changed(world, "write hello.txt: hello")
    await world.maria.pushes("main", {"README.md": "read this\n"})
    await issue.says("/update")
    await issue.hears("Merged 1 commit of `main`")
    merged = await world.branches()

    await issue.says("/undo")
    await issue.hears("**Not started:**", "Commits of `main` came with turn 2 (maria's request).", "Ask the agent")
    assert await world.branches() == merged


async def test_what_went_to_a_branch_of_its_own_is_dropped_here_and_named(world: World) -> None:
    issue, gate = await changed(world, "write hello.txt: hello"), world.gate()
    await issue.says(f"@threadtree-bot write hello.txt: bot\nwait {gate}")
    await issue.sees_working()
    await world.maria.pushes("threadtree/issue-1", {"hello.txt": "by hand\n"})
    gate.open()
    await issue.hears("threadtree/issue-1-turn-2")

    await issue.says("/undo")
    heard = await issue.hears("left here. Its commits are still on `threadtree/issue-1-turn-2`.")
    assert "NOTE" not in heard, "nothing is unusual, and no agent worked on it"
    [path] = await world.worktrees("path")
    assert world.text_of(path, "hello.txt") == "by hand\n"


async def test_without_files_nothing_is_queued(world: World) -> None:
    issue = await world.maria.opens_issue("Nothing yet")
    await issue.says("/undo")
    await issue.hears("There is nothing to take back")
    assert await world.turns() == []


@pytest.mark.parametrize("name", COMMENTS)
def test_a_comment_reads_as_it_is_kept(name: str, matches_snapshot: Callable[[str, str], None]) -> None:
    matches_snapshot(name, as_posted(COMMENTS[name]))


@given(hostile, hostile)
def test_nothing_foreign_is_live_in_what_it_says(foreign: str, other: str) -> None:
    assert is_inert(as_posted(TurnResult("done", answer=undo.taken_back(CHANGE, None, [f"abc {foreign}", other]))))
    assert is_inert(as_posted(TurnResult("refused", undo.conflicts(CHANGE, [foreign, other]))))
