"""`/reset` and `/worktree …`, and the answers that people read."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from bot import failpoints
from bot.node.context import NodeContext
from bot.serve.parts import node_context
from bot.serve.turns import until_ended
from bot.store import turns
from bot.store.turns import EndOfTurn
from bot.thread import worktree_replies
from bot.thread.formatting import plain
from bot.turn import request_rows as requests
from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git
from tests.support.patience import until_true
from tests.support.world import Talk, World


async def an_issue(world: World, title: str = "Greet people") -> Talk:
    """Open an issue with one pushed commit and one uncommitted file."""
    issue = await world.maria.opens_issue(title)
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file +1 −0")
    await issue.says("@threadtree-bot write half.txt: half\nfail too hard")
    await issue.hears("**Failed:**")
    return issue


def answer(heard: str) -> str:
    """Return the text without the marker."""
    return heard.partition("\n\n<!--")[0]


def exists(path: str) -> bool:
    return Path(path).exists()


# Immediate answers


async def test_worktree_without_a_verb_lists_the_verbs(world: World) -> None:
    issue = await world.maria.opens_issue("Typing")
    said = await issue.says("/worktree")

    heard = await issue.hears("`/worktree list`", "`/worktree restore`", "rescued before anything is reset or removed")
    assert said.reactions == ["👀"]
    await issue.says("@threadtree-bot /worktree lst please")
    assert answer(await issue.hears()) == answer(heard)
    assert await world.turns() == []


async def test_every_verb_without_a_worktree_says_so(world: World) -> None:
    world.repository.allow(world.maria.user, "admin")
    issue = await world.maria.opens_issue("Nothing yet")

    for command, nothing in {
        "/reset": "There is no worktree here, so there is nothing to reset. The next request makes one.",
        "/worktree reset": "There is no worktree here, so there is nothing to reset. The next request makes one.",
        "/worktree remove": "There is no worktree here, so there is nothing to remove. The next request makes one.",
        "/worktree restore": "This thread has no rescued work, so there is nothing to restore.",
        "/worktree list": ("There is no worktree here; the next request makes one.\n\nThere is no rescued work."),
        "/worktree prune": ("There is nothing to prune: every worktree of this repository belongs to an open thread."),
    }.items():
        await issue.says(command)
        assert answer(await issue.hears()) == nothing
    assert await world.worktrees() == []


# Reset


async def test_reset_starts_files_and_conversation_again_and_rescues_the_work(world: World) -> None:
    issue = await an_issue(world)
    [path] = await world.worktrees("path")

    said = await issue.says("/reset")

    heard = await issue.hears("The worktree was reset. It is now on `threadtree/issue-1-2`, which starts from `main`")
    assert answer(heard) == (
        "The worktree was reset. It is now on `threadtree/issue-1-2`, which starts from `main`; `threadtree/issue-1` "
        "is unchanged. The next request starts a new conversation with the agent.\n\n"
        "Work that was not on GitHub was rescued first: 1 uncommitted file. `/worktree restore` brings it back."
    )
    assert said.reactions == ["👀"]
    assert (world.text_of(path, "half.txt"), world.text_of(path, "hello.txt")) == (None, None)
    assert await world.sessions("active", "end_reason") == [(False, "worktree-reset")]

    await issue.says("@threadtree-bot recall\nwrite other.txt: other")
    await issue.hears("I remember: nothing.")
    files = await world.files("threadtree/issue-1-2")
    assert sorted(files) == ["README.md", "other.txt"]
    assert "hello.txt" in await world.files("threadtree/issue-1"), "the old branch stays"


async def test_branches_begin_with_the_prefix_also_after_a_reset_and_beside_its_folder(a_world: Worlds) -> None:
    async with a_world({"BRANCH_PREFIX": "bot/work/"}) as world:
        issue = await world.maria.opens_issue("Greet", "@threadtree-bot write hello.txt: hello")
        await issue.hears("Changed", "`bot/work/issue-1`")
        await issue.says("/reset")
        await issue.hears(
            "It is now on `bot/work/issue-1-2`, which starts from `main`; `bot/work/issue-1` is unchanged."
        )
        assert set(await world.branches()) == {"main", "bot/work/issue-1"}

        bank = await world.github.create_repository("acme/bank", {"README.md": "# bank\n"})
        bank.allow(world.maria.user, "write")
        await world.maria.pushes("bot", {"a.txt": "a"}, to=bank)
        other = await world.maria.opens_issue("Pay", "@threadtree-bot write b.txt: b", repository=bank)
        await other.hears("This thread's branch is `bot-work-issue-1`, because the repository has a branch `bot`.")
        assert set(await bank.git.branches()) == {"main", "bot", "bot-work-issue-1"}


async def test_reset_waits_for_the_running_request_and_says_so(world: World) -> None:
    gate = world.gate()
    issue = await world.maria.opens_issue("Busy")
    await issue.says(f"@threadtree-bot wait {gate}\nwrite a.txt: a\nsay Finished.")
    await issue.sees_working()

    said = await issue.says("/reset")
    await said.gets("👀")
    await issue.sees("Queued. One request is ahead of this one.")
    await issue.says("@threadtree-bot recall\nsay Later.")
    await world.until("array_agg(state order by id) = '{running,queued,queued}' from turns")
    gate.open()

    await issue.hears("Finished.")
    await issue.hears("The worktree was reset.")
    await issue.hears("Later.")
    assert (await world.worktrees("branch")) == ["threadtree/issue-1-2"]


async def test_reset_and_remove_name_the_other_threads(world: World) -> None:
    await an_issue(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")
    await pull.hears("here")

    await pull.says("/reset")

    await pull.hears("The next requests here and in #1 start a new conversation with the agent.")
    assert await world.sessions("number", "end_reason") == [(1, "worktree-reset"), (2, "worktree-reset")]

    await pull.says("/worktree remove")

    await pull.hears("The worktree was removed. The next request makes a new one. It was also used by #1.")
    assert await world.worktrees("state", "conversations") == [("removed", [])]


# Restore


# Work that no commit can hold


@pytest.fixture
async def sandboxed_world(a_world: Worlds, sandbox_settings: dict[str, str]) -> AsyncIterator[World]:
    """Yield a world whose agents work in a sandbox, if there is one here."""
    async with a_world(sandbox_settings) as world:
        yield world


async def an_issue_with_a_repository_inside(world: World) -> tuple[Talk, str]:
    """Add an unpushed commit and an uncommitted file; return the worktree's path."""
    issue = await world.maria.opens_issue("Two in one")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +1 −0")
    await issue.says("@threadtree-bot write a.txt: a\ncommit Mine\nwrite half.txt: half\nfail too hard")
    await issue.hears("**Failed:**")
    [path] = await world.worktrees("path")
    git(Path(path), "init", "-q", "inside")
    inside = Path(path, "inside")
    inside.joinpath("b.txt").write_text("b\n")
    git(inside, "add", "b.txt")
    git(inside, "commit", "-q", "-m", "Its own")
    inside.joinpath("b.txt").write_text("changed\n")
    return issue, path


def is_all_there(path: str) -> bool:
    inside = Path(path, "inside")
    return (
        {name: Path(path, name).read_text() for name in ("a.txt", "half.txt")} == {"a.txt": "a\n", "half.txt": "half\n"}
        and git(inside, "log", "--format=%s") == "Its own"
        and git(inside, "status", "--porcelain") == " M b.txt"
        and git(inside, "diff").endswith("-b\n+changed")
    )


async def test_restore_brings_back_a_repository_inside_and_the_commits(sandboxed_world: World) -> None:
    issue, path = await an_issue_with_a_repository_inside(sandboxed_world)
    await issue.says("/worktree remove")
    await issue.hears("was rescued first: the whole directory. `/worktree restore` brings it back.")
    assert not exists(path)

    await issue.says("/worktree restore")

    assert answer(await issue.hears()) == ("The whole directory and 1 commit were restored on `threadtree/issue-1`.")
    assert is_all_there(path)
    await issue.says("/worktree restore")
    assert answer(await issue.hears()) == "All rescued work is there already."
    rescues = await sandboxed_world.database.fetch("select kept, restored_at is not null from rescues")
    assert [tuple(row) for row in rescues] == [(None, True)], "nothing is kept of the directory, which is back"


async def test_a_reopened_thread_gets_the_nested_repository_back(sandboxed_world: World) -> None:
    issue, path = await an_issue_with_a_repository_inside(sandboxed_world)
    await issue.closes()
    await sandboxed_world.quiet()
    assert not exists(path)
    await issue.says("/worktree restore")
    await issue.hears("This thread is closed", "Reopen it")

    await issue.reopens()
    await issue.says("@threadtree-bot fail again")

    await issue.hears("The whole directory and 1 commit were restored before this request.")
    assert is_all_there(path)
    await issue.says("/worktree list")
    assert "whole directory" not in await issue.hears("commit")
    await issue.says("/worktree restore")
    assert answer(await issue.hears()) == "All rescued work is there already."


async def test_a_kept_directory_does_not_undo_newer_commits_and_is_offered_no_more_once_it_is_gone(
    world: World,
) -> None:
    issue, path = await an_issue_with_a_repository_inside(world)
    await issue.says("/worktree remove")
    await issue.hears("the whole directory")
    await issue.says("@threadtree-bot write c.txt: c")
    await issue.hears("1 file +1 −0")
    kept = await world.database.fetchval("select kept from rescues where kept is not null")

    await issue.says("/worktree restore")

    await issue.hears(
        "The rescued work was not restored", f"The whole directory is on the bot's machine as `kept/{kept}`"
    )
    assert not exists(f"{path}/inside")
    await world.database.execute("update rescues set ref = null")
    shutil.rmtree(world.data_dir / "kept" / kept)

    await issue.says("/worktree restore")

    said = await issue.hears("The rescued work was not restored: the directory that was kept is not there any more.")
    assert "still rescued" not in said
    assert kept not in said
    await issue.says("/worktree restore")
    assert answer(await issue.hears()) == worktree_replies.NOTHING_TO_RESTORE


async def test_rescued_work_stays_rescued_while_newer_work_conflicts(world: World) -> None:
    issue = await an_issue(world)
    await issue.says("/reset")
    await issue.hears("was reset")
    await issue.says("@threadtree-bot write half.txt: other\nfail too hard")
    await issue.hears("**Failed:**")
    [path] = await world.worktrees("path")

    await issue.says("/worktree restore")

    await issue.hears("The rescued work was not restored", "half.txt", "It is still rescued.")
    assert world.text_of(path, "half.txt") == "other\n"
    Path(path, "half.txt").unlink()  # noqa: ASYNC240
    await issue.says("/retry")
    await issue.hears("1 file and 1 commit were restored on `threadtree/issue-1-2`.")


# Remove


async def test_remove_rescues_and_the_next_request_makes_a_new_worktree(world: World) -> None:
    issue = await an_issue(world)
    [path] = await world.worktrees("path")

    await issue.says("/worktree remove")

    assert answer(await issue.hears()) == (
        "The worktree was removed. The next request makes a new one.\n\n"
        "Work that was not on GitHub was rescued first: 1 uncommitted file. `/worktree restore` brings it back."
    )
    assert not exists(path)
    assert await world.sessions("end_reason") == ["worktree-removed"]
    await issue.says("@threadtree-bot recall\nappend hello.txt: more")
    await issue.hears("I remember: nothing.")
    assert (await world.files("threadtree/issue-1")) == {"README.md": "# shop", "hello.txt": "hello\nmore"}
    assert world.text_of(path, "half.txt") is None, "it was put away on purpose"


# List


async def test_list_shows_the_worktree_and_its_rescues(world: World) -> None:
    issue = await an_issue(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")
    await pull.hears("here")
    await issue.says("/worktree list")
    await issue.hears(
        "This thread's worktree is on `threadtree/issue-1`. #2 uses it too. It was last used",
        "There is no rescued work.",
    )

    await issue.says("@threadtree-bot write more.txt: more\nfail too hard")
    await issue.hears("**Failed:**")
    await issue.says("/reset")
    await issue.hears("was reset")
    world.clock.move(7200)
    await pull.says("/worktree list")

    await pull.hears(
        "This thread's worktree is on `threadtree/issue-1-2`. #1 uses it too.",
        "Rescued work, newest first:\n\n1. 1 uncommitted file, ",
        ", 2 h 0 min ago",
        "`/worktree restore` restores the first.",
    )


# Prune


async def test_prune_removes_only_worktrees_of_closed_threads(world: World) -> None:
    closed = await an_issue(world, "Done")
    open_one = await world.maria.opens_issue("Open")
    await open_one.says("@threadtree-bot write b.txt: b")
    await open_one.hears("1 file +1 −0")
    await closed.closes()
    await world.quiet()
    await world.database.execute("update worktrees set state = 'ready' where start_number = 1")
    await world.database.execute("update conversations set worktree_id = 1 where number = 1")

    await open_one.says("/worktree prune")
    refused = "`/worktree prune` touches other threads and needs the role maintain or admin; your role is write."
    assert answer(await open_one.hears()) == f"Nothing was removed. {refused}"
    world.repository.allow(world.maria.user, "maintain")
    await open_one.says("/worktree prune")

    await open_one.hears("Removing 1 worktree of closed threads. Work that is not on GitHub is rescued first.")
    await world.quiet()
    assert await world.worktrees("state") == ["removed", "ready"]


# Commands of an operator


async def operate(
    world: World, ctx: NodeContext, worktree: int, verb: str, waits: list[str] | None = None
) -> EndOfTurn:
    """Ask as `threadtree worktrees …` does; return how it ended. `waits` hears that a worker is waited for."""
    async with ctx.pool.acquire() as connection, connection.transaction():
        asked = verb, f"worktrees {verb} {worktree}", "the operator", ctx.clock()
        turn = await requests.enqueue_for_operator(connection, worktree, *asked)
    on_wait = partial((waits if waits is not None else []).append, "")
    return await until_ended(ctx, world.pair.settings, lambda: turns.end_of(ctx.pool, turn), on_wait)


async def test_an_operator_resets_removes_and_restores(world: World, database_url: str) -> None:
    await an_issue(world)
    [(worktree, path)] = await world.worktrees("id", "path")
    async with node_context(world.pair.settings, database_url) as ctx:
        reset = await operate(world, ctx, worktree, "reset")
        assert reset.state == "done"
        assert "1 uncommitted file" in reset.words
        assert world.text_of(path, "half.txt") is None

        removed = await operate(world, ctx, worktree, "remove")
        assert removed.words == "The worktree was removed. The next request makes a new one."
        assert not exists(path)
        reset = await operate(world, ctx, worktree, "reset")
        assert (reset.state, reset.words) == (
            "failed",
            "The worktree was not reset: it is removed. The next request makes a new one.",
        )

        restored = await operate(world, ctx, worktree, "restore")
        assert plain(restored.words) == "1 file was restored on threadtree/issue-1."
    assert (world.text_of(path, "half.txt"), world.text_of(path, "hello.txt")) == ("half\n", "hello\n")
    assert await world.worktrees("state", "branch", "conversations") == [("ready", "threadtree/issue-1", [1])]


async def test_an_operator_waits_for_the_running_request(world: World, database_url: str) -> None:
    gate = world.gate()
    issue = await world.maria.opens_issue("Busy")
    await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.")
    await issue.sees_working()

    async with node_context(world.pair.settings, database_url) as ctx:
        waits: list[str] = []
        resetting = asyncio.create_task(operate(world, ctx, 1, "reset", waits))
        await until_true(lambda: bool(waits))
        assert await world.turns("state") == ["running"]
        await issue.says("/status")
        await issue.hears("Queued: `reset` (asked by the operator).")
        gate.open()
        assert (await resetting).state == "done"

    assert len(waits) == 1, "it is said once"
    await issue.hears("Finished.")


async def test_an_operator_goes_on_with_what_a_dead_process_began(world: World, database_url: str) -> None:
    issue = await world.maria.opens_issue("Dead")
    await issue.says("@threadtree-bot write half.txt: half\nfail too hard")
    await issue.hears("**Failed:**")
    async with world.database.transaction():
        asked = "remove", "worktrees remove 1", "somebody", world.clock()
        await requests.enqueue_for_operator(world.database, 1, *asked)
        await world.database.execute(
            "update turns set state = 'running', claim = gen_random_uuid(), worker = 'gone', started_at = now()"
            " where state = 'queued'"
        )

    async with node_context(world.pair.settings, database_url) as ctx:
        restored = await operate(world, ctx, 1, "restore")

    assert plain(restored.words) == "1 file was restored on threadtree/issue-1."
    assert await world.database.fetchval("select array_agg(state order by id) from turns") == ["failed", "done", "done"]


async def test_an_operator_can_work_without_credentials(world: World, database_url: str) -> None:
    settings = world.pair.settings.model_copy(update={"github_token": None})

    async with node_context(settings, database_url) as ctx:
        assert ctx.github is None
        assert ctx.git.remote_config == ()


async def test_an_interrupted_removal_ends_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    issue = await an_issue(world)
    [path] = await world.worktrees("path")

    def cut_off_once(name: str) -> None:
        if name == "worktree-changed":
            monkeypatch.undo()
            raise asyncio.CancelledError

    monkeypatch.setattr(failpoints, "listener", cut_off_once)
    await issue.says("/worktree remove")

    await issue.hears("The worktree was removed.", "was rescued first: 1 uncommitted file")
    await world.quiet()
    assert failpoints.listener is not cut_off_once
    assert not exists(path)
    assert await world.worktrees("state", "conversations") == [("removed", [])]
    assert await world.database.fetchval("select count(*) from rescues") == 1
