"""Closing always cleans, whoever closes and in whatever order the events come; work that is nowhere else stays."""

from pathlib import Path

from tests.end_to_end.world import Talk, World


async def an_issue_with_work(world: World) -> Talk:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file, +1 −0")
    return issue


async def everything_is_gone(world: World) -> bool:
    """Whether no session is active and no worktree is left, in the rows and on the disk."""
    await world.quiet()
    paths = [Path(path) for path in await world.worktrees("path")]
    states = set(await world.worktrees("state"))
    return (
        states == {"removed"} and not any(path.exists() for path in paths) and not any(await world.sessions("active"))
    )


async def test_closing_an_issue_ends_its_session_and_removes_its_worktree(world: World) -> None:
    issue = await an_issue_with_work(world)
    [path] = await world.worktrees("path")
    folder = str(Path(path).parent)
    assert world.text_of(path, "hello.txt") == "hello\n"
    assert world.text_of(folder, "issue-1.json") is not None

    await issue.closes()

    assert await everything_is_gone(world)
    assert await world.sessions("end_reason") == ["conversation-closed"]
    assert world.text_of(folder, "issue-1.json") is None
    assert "threadtree/issue-1" in await world.branches(), "what was pushed stays on GitHub"


async def test_an_outsider_who_closes_cleans_as_well(world: World) -> None:
    issue = await an_issue_with_work(world)

    await issue.closes(by=world.olaf)

    assert await everything_is_gone(world)


async def test_closing_ends_the_running_and_the_waiting_turns(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.says("@threadtree-bot hang")
    await issue.sees_working()
    await issue.says("@threadtree-bot say never")
    await issue.sees("Queued. One request is ahead")
    world.clock.move(5)

    await issue.closes()

    heard = await issue.hears_all()
    assert ["**Stopped.** The thread was closed." in text for text in heard] == [True, True]
    assert await world.turns("state") == ["done", "stopped", "stopped"]
    assert await everything_is_gone(world)


async def test_merging_the_pull_request_closes_both_and_removes_the_shared_worktree(world: World) -> None:
    await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")
    await pull.hears("here")

    await pull.merges()

    assert await everything_is_gone(world)
    assert await world.sessions("number", "end_reason") == [(1, "conversation-closed"), (2, "conversation-closed")]


async def test_the_issue_may_close_before_its_pull_request(world: World) -> None:
    await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")
    await pull.hears("here")
    world.faults.hold_webhooks("pull_request", "closed")

    await pull.merges()
    await world.quiet()
    assert await world.worktrees("state") == ["ready"], "the pull request still needs it"
    world.faults.release()

    assert await everything_is_gone(world)


async def test_a_worktree_stays_while_one_of_its_conversations_is_open(world: World) -> None:
    issue = await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")
    await pull.hears("here")

    await issue.closes()

    await world.quiet()
    assert await world.worktrees("state") == ["ready"]
    assert await world.sessions("number", "active") == [(1, False), (2, True)]


async def test_close_with_a_comment_runs_the_comment(world: World) -> None:
    issue = await an_issue_with_work(world)

    await issue.closes("@threadtree-bot append hello.txt: bye")

    await issue.hears("1 file, +1 −0")
    assert await everything_is_gone(world)


async def test_close_with_a_comment_runs_it_also_when_the_close_arrives_first(world: World) -> None:
    issue = await an_issue_with_work(world)
    world.faults.hold_webhooks("issue_comment", "created")

    await issue.closes("@threadtree-bot append hello.txt: bye")
    assert await everything_is_gone(world)
    world.faults.release()

    await issue.hears("1 file, +1 −0")
    assert await everything_is_gone(world)
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nbye"


async def test_a_mention_on_a_closed_thread_runs_and_then_the_worktree_goes_again(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.closes()
    assert await everything_is_gone(world)
    world.clock.move(3600)

    await issue.says("@threadtree-bot append hello.txt: more")

    await issue.hears("1 file, +1 −0")
    assert await everything_is_gone(world)
    assert await world.sessions("end_reason") == ["conversation-closed"] * 2
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nmore"


async def test_a_reopened_thread_starts_a_new_session_and_goes_on_from_its_branch(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.closes()
    assert await everything_is_gone(world)

    await issue.reopens()
    await issue.says("@threadtree-bot recall\nappend hello.txt: more")

    await issue.hears("I remember: nothing.")
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nmore"
    assert await world.sessions("active") == [False, True]
    assert await world.worktrees("state") == ["removed", "ready"]


async def test_uncommitted_work_keeps_the_worktree_when_the_thread_closes(world: World) -> None:
    issue = await world.maria.opens_issue("Half done")
    await issue.says("@threadtree-bot write half.txt: half\nfail too hard")
    await issue.hears("**This failed.**")

    await issue.closes()

    await world.quiet()
    [(path, state)] = await world.worktrees("path", "state")
    assert (world.text_of(path, "half.txt"), state) == ("half\n", "ready")
    assert await world.sessions("active") == [False]


async def test_closing_a_thread_that_never_spoke_to_the_bot_does_nothing(world: World) -> None:
    issue = await world.maria.opens_issue("Private talk")

    await issue.closes()

    await world.quiet()
    assert (await world.worktrees(), await world.sessions()) == ([], [])


async def test_a_transferred_issue_counts_as_closed(world: World) -> None:
    issue = await an_issue_with_work(world)
    elsewhere = await world.github.create_repository("acme/bank")

    await world.maria.person.transfer(issue.thread, elsewhere)

    assert await everything_is_gone(world)
