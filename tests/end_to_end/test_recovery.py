"""Failures of worktrees, agents and pushes are visible: the thread is told, and the work is kept."""

import shutil

import pytest
from structlog.testing import capture_logs

from bot.thread import notices
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World


async def an_issue_with_work(world: World) -> Talk:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file +1 −0")
    return issue


async def test_a_worktree_deleted_by_hand_is_made_again_at_the_same_path(world: World) -> None:
    issue = await an_issue_with_work(world)
    [path] = await world.worktrees("path")
    shutil.rmtree(path)
    with capture_logs() as logs:
        await issue.says("@threadtree-bot recall\nappend hello.txt: again")
        await issue.hears(
            "This thread's files were missing and were checked out again from `threadtree/issue-1`",
            notices.CONTEXT_ENDED,
            "I remember: nothing.",
        )
    [line] = [line for line in logs if line["event"] == "worktree-missing"]
    assert path.endswith(line["path"])
    assert (line["why"], line["log_level"]) == ("the directory is gone", "warning")
    assert world.text_of(path, "hello.txt") == "hello\nagain\n"
    assert await world.worktrees("path", "state") == [(path, "ready")]
    assert await world.sessions("active", "end_reason") == [(False, "worktree-missing"), (True, None)]


async def test_an_agent_that_lost_its_session_starts_a_new_one_and_says_so(world: World) -> None:
    issue = await an_issue_with_work(world)
    [store] = (world.data_dir / "homes").glob("*/.scripted-agent")
    shutil.rmtree(store)

    await issue.says("@threadtree-bot recall")

    await issue.hears("The agent could not resume its earlier conversation", "I remember: nothing.")
    assert await world.sessions("active", "end_reason") == [(False, "agent-lost"), (True, None)]


async def test_an_agent_that_does_not_finish_ends_the_turn_with_reason_and_next_step(world: World) -> None:
    issue = await world.maria.opens_issue("Trouble")
    await issue.says("@threadtree-bot write half.txt: half\nfail no more credit")
    answer = await issue.hears("**Failed:** ", "o more credit", "The work so far is kept.", "/retry")
    assert ".." not in answer
    await issue.says("@threadtree-bot empty")
    answer = await issue.hears("**Failed:** ", "without an answer", "The work so far is kept.", "/retry")
    assert ".." not in answer
    await issue.says(f"@threadtree-bot stderr no ``` left on device {world.github.bot_token}\ncrash 3")
    answer = await issue.hears("**Failed:**", "The end of the agent's error output", "left on device [redacted]")
    assert world.github.bot_token not in answer

    assert await world.turns("state") == ["failed"] * 3
    assert "threadtree/issue-1" not in await world.branches(), "only what is done is pushed"
    [path] = await world.worktrees("path")
    assert world.text_of(path, "half.txt") == "half\n"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("TURN_TIMEOUT_SECONDS", "The agent was still working after 1 s"),
        ("TURN_IDLE_TIMEOUT_SECONDS", "silent for 1 s"),
    ],
)
async def test_a_turn_over_its_time_ends_and_names_the_setting(a_world: Worlds, setting: str, reason: str) -> None:
    async with a_world({setting: "1"}) as world:
        issue = await world.maria.opens_issue("Endless")
        await issue.says("@threadtree-bot hang")

        await issue.hears("**Timed out:**", reason, f"`{setting}`", "/retry")
        assert await world.turns("state") == ["timed-out"]


async def test_an_agent_that_cannot_start_ends_the_turn_visibly(a_world: Worlds) -> None:
    async with a_world({"AGENT_COMMAND": shutil.which("false") or ""}) as world:
        issue = await world.maria.opens_issue("No agent")
        await issue.says("@threadtree-bot say hello")

        await issue.hears("**Failed:**", "The agent could not start")


async def test_a_repository_without_a_commit_is_refused_with_advice(world: World) -> None:
    empty = await world.github.world.create_repository("acme/empty", default_branch="main", private=True)
    empty.allow(world.github.bot, "write")
    empty.allow(world.maria.user, "write")
    issue = await world.maria.opens_issue("First!", "@threadtree-bot say hello", repository=empty)

    await issue.hears("**Not started:**", "The bot could not prepare the files", "commit")
    assert await world.turns("state") == ["refused"]


async def test_failed_and_stopped_turns_have_their_cost_too(world: World) -> None:
    issue = await world.maria.opens_issue("Spend in vain")
    await issue.says("@threadtree-bot cost 0.10\nfail No.")
    await issue.hears("**Failed:**", "$0.10")
    await issue.says(f"@threadtree-bot cost 0.35\nwait {world.gate()}")
    await issue.sees("Wait for")
    await issue.says("/stop")
    assert "$0.25" in "".join(await issue.hears_all())
    await issue.says("@threadtree-bot cost 0.40\nsay Done.")
    await issue.hears("Done.", "$0.05")
