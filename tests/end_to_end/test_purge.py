"""After a turn: WORKTREE_PURGE_ON_SUCCESS, old sessions, and the metadata beside the worktree."""

from datetime import timedelta
from pathlib import Path

import pytest

from bot.simulated.github.faults import FailBefore
from bot.tree.clone.metadata import Metadata
from bot.tree.commit import MAX_FILE_BYTES
from tests.end_to_end.conftest import Worlds
from tests.support.world import World


@pytest.fixture
def settings(sandbox_settings: dict[str, str]) -> dict[str, str]:
    """Return settings that purge."""
    return {"WORKTREE_PURGE_ON_SUCCESS": "true", **sandbox_settings}


def noted(path: str) -> Metadata:
    """Return the metadata beside a worktree."""
    found = Metadata.read(Path(path))
    assert isinstance(found, Metadata)
    return found


def is_there(path: str) -> bool:
    """Return whether anything is at a worktree's path."""
    return Path(path).exists()


def checkout_at(path: str) -> int:
    """Return a value that differs between two checkouts at a path."""
    return Path(path, ".git").stat().st_ctime_ns


def put(file: Path, size_bytes: int) -> None:
    """Write a file atomically."""
    making = file.parent.with_name("making")
    making.write_bytes(b"0" * size_bytes)
    making.rename(file)


async def registered(world: World) -> int:
    """Return the number of worktrees in git's records."""
    [clone] = world.data_dir.glob("repos/acme/*.git")
    return len(list(clone.glob("worktrees/*")))


async def test_a_done_turn_leaves_no_worktree_and_the_next_continues_its_session(
    a_world: Worlds, settings: dict[str, str]
) -> None:
    async with a_world(settings) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: one\nremember blue")
        await issue.hears("I will remember blue.", "**Changed**")
        await world.quiet()

        [path] = await world.worktrees("path")
        assert await world.worktrees("state", "removal", "conversations") == [("removed", "purged", [1])]
        assert not is_there(path)
        assert not Metadata.file(Path(path)).exists()
        assert await registered(world) == 0
        assert await world.sessions("active") == [True]

        await issue.says("@threadtree-bot append a.txt: more\nrecall")
        assert "worktree" not in await issue.hears("I remember: blue.", "**Changed**")
        await world.quiet()

        assert (await world.files("threadtree/issue-1"))["a.txt"].splitlines() == ["one", "more"]
        assert await world.worktrees("path", "state") == [(path, "removed")]
        assert await world.sessions("active") == [True], "one session all the time"


async def test_a_worktree_with_a_file_that_was_not_committed_stays(a_world: Worlds, settings: dict[str, str]) -> None:
    async with a_world(settings) as world:
        issue = await world.maria.opens_issue("A big one")
        await issue.says("@threadtree-bot write a.txt: one\nwait big.bin\nsay Done so.")
        await world.until("exists (select from worktrees where state = 'ready')")
        [path] = await world.worktrees("path")
        put(Path(path, "big.bin"), MAX_FILE_BYTES + 1)

        await issue.hears("Done so.", "Not committed, because")

        await world.quiet()
        assert await world.worktrees("state", "removal") == [("ready", None)]
        assert is_there(path)


async def test_a_failed_turn_leaves_the_worktree(a_world: Worlds) -> None:
    async with a_world({"WORKTREE_PURGE_ON_SUCCESS": "true"}) as world:
        issue = await world.maria.opens_issue("Trouble")
        await issue.says("@threadtree-bot fail as asked")
        await issue.hears("**Failed:**")
        await world.quiet()
        assert await world.worktrees("state") == ["ready"]


async def test_a_worktree_with_a_queued_request_stays_until_it_is_done(a_world: Worlds) -> None:
    async with a_world({"WORKTREE_PURGE_ON_SUCCESS": "true"}) as world:
        issue, gate, second = await world.maria.opens_issue("Two"), world.gate(), world.gate()
        await issue.says(f"@threadtree-bot write ignored.txt: x\nwait {gate}\nsay One.")
        await issue.says(f"@threadtree-bot wait {second}\nsay Two.")
        await issue.sees("Queued. One request is ahead")
        await world.until("exists (select from worktrees where state = 'ready')")
        [path] = await world.worktrees("path")
        checkout = checkout_at(path)
        gate.open()
        await issue.hears("One.")
        await world.until("exists (select from turns where state = 'running' and id = 2)")

        assert checkout_at(path) == checkout

        second.open()
        await issue.hears("Two.")
        await world.quiet()
        assert not is_there(path)


async def test_each_run_is_counted_in_the_metadata_even_if_it_failed_early(world: World) -> None:
    issue = await world.maria.opens_issue("Counting")
    await issue.says("@threadtree-bot say One.")
    await issue.hears("One.")
    [path] = await world.worktrees("path")
    first = noted(path)
    assert (first.execution_count, first.last_error) == (1, None)

    world.faults.add(FailBefore(400), path="*/info/refs", times=None)
    world.clock.move(60)
    await issue.says("@threadtree-bot say Two.")
    await issue.hears("**Failed:**")

    second = noted(path)
    assert second.execution_count == 2
    assert second.last_error is not None
    assert "The bot could not carry this out" in second.last_error
    assert second.updated_at - first.updated_at >= timedelta(seconds=60)
    [active] = await world.worktrees("updated_at")
    assert active == (await world.turns("finished_at"))[-1], "an activity by the row too"

    world.faults.clear()
    await issue.says("@threadtree-bot say Three.")
    await issue.hears("Three.")
    assert (noted(path).execution_count, noted(path).last_error) == (3, None)
