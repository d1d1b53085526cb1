"""Unused worktrees are removed automatically, and no work is lost."""

from contextlib import AsyncExitStack
from pathlib import Path

from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

DAY_SECONDS = 86400
OFTEN = {"SWEEP_INTERVAL_SECONDS": "0.5"}


async def an_issue_with_work(world: World) -> Talk:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file +1 −0")
    return issue


async def test_an_unused_worktree_is_removed_and_the_next_request_creates_it_again(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        issue = await an_issue_with_work(world)
        [path] = await world.worktrees("path")

        world.clock.move(91 * DAY_SECONDS)
        await world.until("exists (select from worktrees where state = 'removed')")

        assert await world.worktrees("state", "removal", "conversations") == [("removed", "retention", [])]
        assert left_of(path) == []
        await issue.says("@threadtree-bot write more.txt: again")
        await issue.hears("1 file +1 −0")
        assert (await world.files("threadtree/issue-1")).keys() == {"README.md", "hello.txt", "more.txt"}


async def test_with_pruning_switched_off_worktrees_stay_and_sessions_go(a_world: Worlds) -> None:
    async with a_world({**OFTEN, "WORKTREE_PRUNE_ENABLED": "false"}) as world:
        issue = await an_issue_with_work(world)
        await issue.says("@threadtree-bot /reset-context")
        await issue.hears("AI context reset.")

        world.clock.move(1000 * DAY_SECONDS)
        await world.until("not exists (select from sessions)")

        assert await world.worktrees("state") == ["ready"]
        assert await world.turns("state", "session_id") == [("done", None)]


async def test_a_long_sweep_delays_no_heartbeat_and_no_shutdown(a_world: Worlds) -> None:
    async with AsyncExitStack() as stack, a_world(OFTEN) as world:
        await an_issue_with_work(world)
        await stack.enter_async_context(world.busy_clone())
        for _ in range(2):
            last = await world.database.fetchval("select heartbeat_at from nodes")
            await world.until(f"exists (select from nodes where heartbeat_at > '{last}')")


def write(worktree: str, name: str) -> None:
    """Leave a file in the worktree, as a person does."""
    Path(worktree, name).write_text("by hand\n")


def left_of(worktree: str) -> list[Path]:
    """Return which of the directory and its metadata exist."""
    return sorted(Path(worktree).parent.glob(f"{Path(worktree).name}*"))


def forget(worktree: str) -> None:
    """Delete the metadata."""
    Path(f"{worktree}.json").unlink()
