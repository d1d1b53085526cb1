"""Closing always cleans up, for every closer and every order of events; rescued work comes back."""

from pathlib import Path

from tests.end_to_end.test_confirmed_requests import forge
from tests.support.world import Talk, World


async def an_issue_with_work(world: World) -> Talk:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file +1 −0")
    return issue


async def everything_is_gone(world: World) -> bool:
    """Return whether no session is active and no worktree is left, in the rows and on disk."""
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


async def test_closing_ends_running_and_queued_turns(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.says("@threadtree-bot hang")
    await issue.sees_working()
    await issue.says("@threadtree-bot say never")
    await issue.sees("Queued. One request is ahead")
    world.clock.move(5)

    await issue.closes()

    heard = await issue.hears_all()
    assert ["**Stopped** because the thread was closed." in text for text in heard] == [True, True]
    assert await world.turns("state") == ["done", "stopped", "stopped"]
    assert await everything_is_gone(world)


async def test_a_repository_that_was_deleted_ends_as_its_threads_do(world: World) -> None:
    await an_issue_with_work(world)
    [path] = await world.worktrees("path")
    Path(path, "half.txt").write_text("half")  # noqa: ASYNC240
    about = {"id": world.repository.id, "name": "shop", "owner": {"login": "acme"}, "default_branch": "main"}
    await forge(world, "repository", action="deleted", repository=about)
    await world.quiet()
    assert await world.sessions("active") == [True], "GitHub still shows it"

    world.github.delete_repository(world.repository)

    assert await everything_is_gone(world)
    assert await world.database.fetchval("select array_agg(files) from rescues") == [1]


async def test_merging_closes_both_threads_and_the_worktree_goes_with_the_last_of_them(world: World) -> None:
    await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")
    await pull.hears("here")
    world.faults.hold_webhooks("pull_request", "closed")

    await pull.merges()
    await world.quiet()
    assert await world.worktrees("state") == ["ready"], "the pull request still needs it"
    assert await world.sessions("number", "active") == [(1, False), (2, True)]

    world.faults.release()
    assert await everything_is_gone(world)
    assert await world.sessions("number", "end_reason") == [(1, "conversation-closed"), (2, "conversation-closed")]


async def test_close_with_a_comment_runs_it_also_when_the_close_arrives_first(world: World) -> None:
    issue = await an_issue_with_work(world)
    world.faults.hold_webhooks("issue_comment", "created")

    await issue.closes("@threadtree-bot append hello.txt: bye")
    assert await everything_is_gone(world)
    world.faults.release()

    await issue.hears("1 file +1 −0")
    assert await everything_is_gone(world)
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nbye"


async def test_a_comment_that_arrives_after_the_close_of_its_unknown_thread_leaves_no_worktree(world: World) -> None:
    issue = await world.maria.opens_issue("Greet people")
    world.faults.hold_webhooks("issue_comment", "created")

    await issue.closes("@threadtree-bot write hello.txt: hello")
    await world.quiet()
    world.faults.release()

    await issue.hears("1 file +1 −0")
    assert await everything_is_gone(world)


# Work that was nowhere else when the thread closed


async def an_issue_with_unsaved_work(world: World) -> Talk:
    """Make a pushed commit, an unpushed commit and an uncommitted file."""
    issue = await an_issue_with_work(world)
    await issue.says("@threadtree-bot append hello.txt: unpushed\ncommit More\nwrite half.txt: half\nfail too hard")
    await issue.hears("**Failed:**")
    return issue


async def test_after_a_reopening_the_next_request_starts_with_the_rescued_work(world: World) -> None:
    issue = await an_issue_with_unsaved_work(world)
    [path] = await world.worktrees("path")
    await issue.closes(by=world.olaf)
    assert await everything_is_gone(world)
    row = await world.database.fetchrow("select conversations, removal, branch, files, commits from rescues")
    assert tuple(row) == ([1], "closed", "threadtree/issue-1", 1, 1)

    await issue.reopens()
    await issue.says("@threadtree-bot recall\nappend hello.txt: again")
    heard = await issue.hears("I remember: nothing.")
    assert "This thread's files had been removed. 1 file and 1 commit were restored before this request." in heard
    files = await world.files("threadtree/issue-1")
    assert (files["hello.txt"], files["half.txt"]) == ("hello\nunpushed\nagain", "half")
    assert await world.worktrees("path", "state", "conversations") == [(path, "ready", [1])]

    await issue.says("@threadtree-bot say once only")
    assert "restored before" not in await issue.hears("once only")


async def test_a_pull_request_gets_its_work_back_when_its_deleted_branch_is_restored(world: World) -> None:
    pushed = await world.maria.pushes("feature", {"f.txt": "f\n"})
    pull = await world.maria.opens_pull("Feature", head="feature")
    await pull.says("@threadtree-bot write g.txt: g\ncommit More\nwrite half.txt: half\nfail too hard")
    await pull.hears("**Failed:**")
    await pull.closes()
    assert await everything_is_gone(world)
    await world.repository.git.run("update-ref", "-d", "refs/heads/feature")
    await pull.says("@threadtree-bot say on we go")
    await pull.hears("on we go", "1 file was restored", "`feature` is no longer on GitHub", "+g\n", "+half\n")
    assert "feature" not in await world.branches()
    assert await everything_is_gone(world)
    await world.repository.git.run("update-ref", "refs/heads/feature", pushed)

    await pull.says("@threadtree-bot say on we go")

    await pull.hears("on we go", "restored before this request.")
    assert await world.files("feature") == {"README.md": "# shop", "f.txt": "f", "g.txt": "g", "half.txt": "half"}


async def test_work_that_conflicts_with_newer_commits_stays_rescued_and_the_reply_says_so(world: World) -> None:
    issue = await world.maria.opens_issue("Two ways")
    await issue.says("@threadtree-bot write a.txt: one")
    await issue.hears("1 file +1 −0")
    await issue.says("@threadtree-bot write a.txt: two\nfail too hard")
    await issue.hears("**Failed:**")
    await issue.closes()
    assert await everything_is_gone(world)
    await world.maria.pushes("threadtree/issue-1", {"a.txt": "three\n"})

    await issue.reopens()
    await issue.says("@threadtree-bot append b.txt: b")

    await issue.hears("The work that was rescued earlier was not restored", "a.txt", "`/worktree restore`")
    assert (await world.files("threadtree/issue-1"))["a.txt"] == "three"


async def test_a_turn_on_a_closed_thread_gets_the_work_and_the_worktree_is_removed_again(world: World) -> None:
    issue = await an_issue_with_unsaved_work(world)
    await issue.closes()
    assert await everything_is_gone(world)
    world.clock.move(3600)

    await issue.says("@threadtree-bot say just a word")

    await issue.hears("just a word", "1 file and 1 commit were restored before this request.")
    assert await everything_is_gone(world)
    assert (await world.files("threadtree/issue-1"))["half.txt"] == "half"


async def test_close_with_a_comment_gets_the_work_although_the_removal_continues(world: World) -> None:
    issue = await an_issue_with_unsaved_work(world)
    world.faults.hold_webhooks("issue_comment", "created")
    rescues = world.database.transaction()
    await rescues.start()
    # The end of the removal, which records a rescue, waits for this lock.
    await world.database.execute("lock table rescues in exclusive mode")
    await issue.closes("@threadtree-bot say one last thing")
    await world.until("exists (select from worktrees where removal_began)")
    world.faults.release()
    await world.until("exists (select from turns where state = 'queued')")
    await rescues.rollback()

    await issue.hears("one last thing", "1 file and 1 commit were restored before this request.")
    assert await everything_is_gone(world)
    assert (await world.files("threadtree/issue-1"))["half.txt"] == "half"


async def test_close_with_a_comment_keeps_the_work_where_the_removal_has_not_begun(world: World) -> None:
    issue = await an_issue_with_unsaved_work(world)
    world.faults.hold_webhooks("issue_comment", "created")
    async with world.busy_clone():
        await issue.closes("@threadtree-bot say one last thing")
        await world.until("exists (select from worktrees where state = 'removing')")
        world.faults.release()
        await world.until("exists (select from turns where state in ('queued', 'running'))")

    assert "restored" not in await issue.hears("one last thing")
    assert await everything_is_gone(world)
    assert (await world.files("threadtree/issue-1"))["half.txt"] == "half"


async def test_a_reset_that_has_changed_nothing_is_stopped_when_the_thread_closes(world: World) -> None:
    issue = await an_issue_with_work(world)
    async with world.busy_clone():
        await issue.says("/reset\n/reset")
        await world.until("'running' = (select state from turns where id = 2)")
        world.clock.move(5)
        await issue.closes()
        await world.until("exists (select from conversations where state = 'closed')")

    heard = await issue.hears_all()
    assert ["**Stopped** because the thread was closed." in text for text in heard] == [True, True]
    assert await everything_is_gone(world)


async def test_closing_a_thread_without_a_request_does_nothing(world: World) -> None:
    issue = await world.maria.opens_issue("Private talk")

    await issue.closes()

    await world.quiet()
    assert (await world.worktrees(), await world.sessions()) == ([], [])
