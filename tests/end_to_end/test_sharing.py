"""Which worktree a pull request's turn runs in: the issue's that it closes, or its own; never somebody else's work."""

from bot.simulated.github.faults import GraphQLError
from tests.end_to_end.world import Talk, World

IN_THE_ISSUES = "This ran in the worktree of #1, which this pull request closes."


async def an_issue_with_work(world: World) -> Talk:
    """Issue 1, whose branch holds a commit of the bot."""
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file, +1 −0")
    return issue


async def test_a_pull_request_that_fixes_an_issue_shares_its_worktree(world: World) -> None:
    await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot append hello.txt: world")

    await pull.hears(IN_THE_ISSUES, "1 file, +1 −0")

    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nworld"
    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1, 2])]
    assert await world.sessions("number", "active") == [(1, True), (2, True)]


async def test_closing_references_that_github_knows_late_are_waited_for(world: World) -> None:
    await an_issue_with_work(world)
    world.github.late_closing_references = True
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    asked = len(world.github.requests)
    await pull.says("@threadtree-bot say here")

    def asked_github() -> bool:
        return any(request.path == "/graphql" for request in world.github.requests[asked:])

    await world.github.wait_for(asked_github)
    pull.pull.closing_references_indexed = True

    await pull.hears("here")
    assert await world.worktrees("conversations") == [[1, 2]]


async def test_a_pull_request_on_the_issues_branch_shares_it_even_if_it_names_no_issue(world: World) -> None:
    await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "No reference", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say here")

    await pull.hears("here")

    assert await world.worktrees("conversations") == [[1, 2]]


async def test_a_failing_lookup_of_closing_references_means_none_and_never_an_error(world: World) -> None:
    await an_issue_with_work(world)
    await world.maria.pushes("feature", {"a.txt": "a\n"})
    pull = await world.maria.opens_pull("Feature", "Fixes #1", head="feature")
    world.faults.add(GraphQLError(), path="/graphql", times=None)
    await pull.says("@threadtree-bot write b.txt: b")

    await pull.hears("1 file, +1 −0")

    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1]), ("feature", [2])]


async def test_a_pull_request_with_another_head_gets_its_own_worktree(world: World) -> None:
    await an_issue_with_work(world)
    await world.maria.pushes("feature", {"a.txt": "a\n"})
    pull = await world.maria.opens_pull("Another way", "Fixes #1", head="feature")
    await pull.says("@threadtree-bot append a.txt: b")

    await pull.hears("on [`feature`]", "1 file, +1 −0")

    assert (await world.files("feature"))["a.txt"] == "a\nb"
    assert "hello.txt" not in await world.files("feature")
    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1]), ("feature", [2])]


async def test_of_two_closed_issues_the_one_on_the_head_branch_shares_its_worktree(world: World) -> None:
    first = await an_issue_with_work(world)
    second = await world.maria.opens_issue("Greet more people")
    await second.says("@threadtree-bot write more.txt: more")
    await second.hears("1 file")
    pull = await world.maria.opens_pull(
        "Greet", f"Fixes #{first.number}, fixes #{second.number}", head="threadtree/issue-2"
    )
    await pull.says("@threadtree-bot say here")

    await pull.hears("here", "This ran in the worktree of #2")

    assert await world.worktrees("conversations") == [[1], [2, 3]]


async def test_an_issue_and_its_pull_request_never_run_at_once(world: World) -> None:
    issue = await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    other = await world.maria.opens_issue("Elsewhere")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay First.")
    await issue.sees_working()
    await pull.says("@threadtree-bot say Second.")
    await pull.sees("Queued. One request is ahead of this one.")

    # A later turn elsewhere is claimed, so the one that waits was passed over.
    await other.says("@threadtree-bot say Meanwhile.")
    await other.hears("Meanwhile.")
    assert [state for number, state in await world.turns("number", "state")][1:] == ["running", "queued", "done"]

    gate.open()
    await issue.hears("First.")
    await pull.hears("Second.")


async def test_a_fork_gets_its_edits_as_a_patch_and_nothing_is_pushed(world: World) -> None:
    fork = await world.github.fork(world.repository, world.olaf.user)
    await world.olaf.pushes("idea", {"idea.txt": "mine\n"}, to=fork)
    pull = await world.olaf.opens_pull("An idea", head="idea", fork=fork)
    before = await world.branches(), await fork.git.branches()
    await pull.says("@threadtree-bot append idea.txt: better", by=world.maria)

    await pull.hears("The edits as a patch", "+better", " mine")

    assert (await world.branches(), await fork.git.branches()) == before
    assert await world.worktrees("branch", "start_kind") == [(None, "detached")]


async def test_a_fork_whose_head_moved_after_the_request_is_refused(world: World) -> None:
    fork = await world.github.fork(world.repository, world.olaf.user)
    await world.olaf.pushes("idea", {"idea.txt": "mine\n"}, to=fork)
    pull = await world.olaf.opens_pull("An idea", head="idea", fork=fork)
    gate = world.gate()
    await pull.says(f"@threadtree-bot wait {gate}\nsay Looked.", by=world.maria)
    await pull.sees_working()
    await pull.says("@threadtree-bot say Looked again.", by=world.maria)
    await pull.sees("Queued. One request is ahead")

    await world.olaf.pushes("idea", {"evil.txt": "evil\n"}, to=fork)
    gate.open()

    await pull.hears("Looked.")
    await pull.hears("**This was not started.**", "The pull request has changed since you asked")
    assert await world.turns("state") == ["done", "refused"]


async def test_a_later_request_on_a_fork_runs_at_its_new_head(world: World) -> None:
    fork = await world.github.fork(world.repository, world.olaf.user)
    await world.olaf.pushes("idea", {"idea.txt": "first\n"}, to=fork)
    pull = await world.olaf.opens_pull("An idea", head="idea", fork=fork)
    await pull.says("@threadtree-bot say Looked.", by=world.maria)
    await pull.hears("Looked.")
    await world.olaf.pushes("idea", {"idea.txt": "second\n"}, to=fork)

    await pull.says("@threadtree-bot append idea.txt: third", by=world.maria)

    await pull.hears("+third", " second")


async def test_a_pull_request_from_a_protected_branch_is_never_pushed(world: World) -> None:
    await world.maria.pushes("release", {"a.txt": "a\n"})
    world.repository.protect("release")
    pull = await world.maria.opens_pull("Release", head="release")
    before = await world.branches()
    await pull.says("@threadtree-bot append a.txt: b")

    await pull.hears("The edits as a patch", "+b")

    assert await world.branches() == before
