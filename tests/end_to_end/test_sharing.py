"""The worktree of a pull request's turn: that of the issue it closes, or its own, but never one with other work."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from bot.simulated.github.faults import GraphQLError
from bot.turn import assign_worktree
from tests.support.world import Talk, World

IN_THE_ISSUES = "This request worked on the files of #1, which this pull request closes."
ON_ITS_OWN = "so this request worked on files of its own on `feature`."
NOT_TOLD = (
    "GitHub did not say which issues this pull request closes, so this request worked on files of its own. The next "
    "request asks again."
)
IN_THE_ISSUES_BY_NOW = (
    "GitHub says by now that this pull request closes #1, so this request worked on the files of #1, in a new "
    "conversation with the agent."
)
SWITCHED = "The files of #1 were switched from `threadtree/issue-1` to `feature` for this request."
TOLD = "now shares this thread's worktree and switched it to its branch `feature`."

SEEN_BEFORE_DECIDED = """
-- 👀 is written by a transaction that began earlier.
select bool_and(o.created_at < t.created_at)
from outbox o join turns t using (conversation_id) where o.kind = 'reaction'
"""


async def an_issue_with_work(world: World) -> Talk:
    """Open issue 1; its branch gets a commit of the bot."""
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +1 −0")
    return issue


async def a_pull_request_that_goes_on(world: World, body: str = "Fixes #1") -> Talk:
    """Open a pull request of the branch `feature`, which has the issue's commits and one of maria's."""
    await world.maria.pushes("feature", {"more.txt": "more\n"}, base="threadtree/issue-1")
    return await world.maria.opens_pull("Go on", body, head="feature")


async def test_a_pull_request_that_fixes_an_issue_shares_its_worktree(world: World) -> None:
    await an_issue_with_work(world)
    pull = await world.maria.opens_pull("Greet", "Fixes #1", head="threadtree/issue-1")
    await pull.says("@threadtree-bot append hello.txt: world")

    answer = await pull.hears("1 file +1 −0")

    assert "[!NOTE]" not in answer, "it is the issue's own branch"
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nworld"
    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1, 2])]
    assert await world.sessions("number", "active") == [(1, True), (2, True)]


async def test_late_closing_references_are_awaited(world: World) -> None:
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


async def test_a_lookup_of_closing_references_that_fails_means_none_and_never_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assign_worktree, "CLOSING_REFERENCES_SECONDS", 0.5)
    await an_issue_with_work(world)
    await world.maria.pushes("feature", {"a.txt": "a\n"})
    pull = await world.maria.opens_pull("Feature", "Fixes #1", head="feature")
    world.faults.add(GraphQLError(), path="/graphql", times=None)
    await pull.says("@threadtree-bot write b.txt: b")

    await pull.hears("1 file +1 −0", NOT_TOLD)

    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1]), ("feature", [2])]
    assert await world.database.fetchval(SEEN_BEFORE_DECIDED)


async def test_a_lookup_that_failed_is_made_again_and_then_the_issues_worktree_is_shared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = await an_issue_with_work(world)
    pull = await a_pull_request_that_goes_on(world)
    with monkeypatch.context() as patched:
        patched.setattr(assign_worktree, "CLOSING_REFERENCES_SECONDS", 0)
        await pull.says("@threadtree-bot write left.txt: left\nfail It broke.")
        await pull.hears("It broke.", NOT_TOLD)

    await pull.says("@threadtree-bot write two.txt: two")
    answer = await pull.hears("2 files +2 −0")
    assert "GitHub " not in answer, "it is said once, and it had uncommitted work"
    assert (await world.worktrees("conversations"))[1] == [2]
    await pull.says("@threadtree-bot recall\nwrite three.txt: three")

    await pull.hears("1 file +1 −0", IN_THE_ISSUES_BY_NOW, SWITCHED)
    await issue.hears(f"#2 {TOLD}")
    await world.quiet()
    assert await world.worktrees("branch", "conversations", "state") == [
        ("feature", [1, 2], "ready"),
        ("feature", [], "removed"),
    ]
    assert (await world.files("feature"))["three.txt"] == "three"
    await pull.says("@threadtree-bot write four.txt: four")
    assert "GitHub says" not in await pull.hears("1 file +1 −0")


async def test_a_pull_request_with_the_issues_commits_shares_its_worktree(world: World) -> None:
    issue = await an_issue_with_work(world)
    pull = await a_pull_request_that_goes_on(world)
    before = (await world.branches())["threadtree/issue-1"]
    [path] = await world.worktrees("path")
    with capture_logs() as logged:
        await pull.says("@threadtree-bot append hello.txt: world")
        await pull.sees(IN_THE_ISSUES)
    [shared] = [line for line in logged if line["event"] == "worktree-shared"]
    assert (shared["worktree"], shared["switch_to"]) == (1, "feature")

    await pull.hears(IN_THE_ISSUES, SWITCHED, "**Changed** [`feature`]", "1 file +1 −0")
    await issue.hears(f"#2 {TOLD}", "`threadtree/issue-1` is unchanged.")

    assert (await world.files("feature")).keys() == {"README.md", "hello.txt", "more.txt"}
    assert (await world.branches())["threadtree/issue-1"] == before
    assert await world.worktrees("path", "branch", "conversations") == [(path, "feature", [1, 2])]

    await issue.says("/status")
    await issue.hears("Branch [`feature`](", "Files shared with #2")
    await issue.says("@threadtree-bot recall\nwrite last.txt: last")
    await issue.hears("**Changed** [`feature`]", "1 file +1 −0")
    await pull.says("@threadtree-bot append last.txt: and least")
    assert "were switched from" not in await pull.hears("**Changed** [`feature`]")
    assert (await world.files("feature"))["last.txt"] == "last\nand least"


@asynccontextmanager
async def all_hands_busy(world: World) -> AsyncIterator[None]:
    """Block the repository's turns: two other threads use its whole limit."""
    gate = world.gate()
    others = [await world.maria.opens_issue("Elsewhere", f"@threadtree-bot wait {gate}\nsay Done.") for _ in range(2)]
    for other in others:
        await other.sees_working()
    yield
    gate.open()
    for other in others:
        await other.hears("Done.")


async def test_an_issue_that_asks_before_the_switch_keeps_its_worktree(world: World) -> None:
    issue = await an_issue_with_work(world)
    async with all_hands_busy(world):
        pull = await a_pull_request_that_goes_on(world)
        await pull.says("@threadtree-bot write of-pull.txt: a")
        await pull.sees("Queued.")
        await pull.says("/status")
        await pull.hears("Queued: [maria's request](", "Branch `feature`")
        await issue.says("/status")
        await issue.hears("Branch [`threadtree/issue-1`](", "1 commit ahead of `main`, 0 behind")
        await issue.says("@threadtree-bot write of-issue.txt: b")
        await issue.sees("Queued.")

    answer = await pull.hears(f"The files of #1 are in use by another request, {ON_ITS_OWN}", "**Changed** [`feature`]")
    assert IN_THE_ISSUES not in answer
    await issue.hears("**Changed** [`threadtree/issue-1`]")
    done = [(number, "done") for number in (1, 1, 2, 3, 4)]
    assert sorted(await world.turns("number", "state")) == done


async def test_a_pull_request_without_the_issues_commits_gets_its_own_worktree(world: World) -> None:
    await an_issue_with_work(world)
    await world.maria.pushes("feature", {"a.txt": "a\n"})
    pull = await world.maria.opens_pull("Another way", "Fixes #1", head="feature")
    await pull.says("@threadtree-bot append a.txt: b")

    answer = await pull.hears(
        f"The files of #1 have commits that this pull request does not have, {ON_ITS_OWN}",
        "**Changed** [`feature`]",
        "1 file +1 −0",
    )

    assert IN_THE_ISSUES not in answer
    assert (await world.files("feature"))["a.txt"] == "a\nb"
    assert "hello.txt" not in await world.files("feature")
    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1]), ("feature", [2])]
    await pull.says("@threadtree-bot say Again.")
    assert "its own" not in await pull.hears("Again.")


async def test_an_issues_worktree_lost_before_the_switch_stays_with_the_issue(world: World) -> None:
    issue = await an_issue_with_work(world)
    pull = await a_pull_request_that_goes_on(world)
    shutil.rmtree(*await world.worktrees("path"))
    await pull.says("@threadtree-bot say Here.")

    await pull.hears(f"The files of #1 are missing, {ON_ITS_OWN}")

    await issue.says("@threadtree-bot say Back.")
    await issue.hears("Back.", "This thread's files were missing and were checked out again from `threadtree/issue-1`")


async def test_an_issue_whose_branch_is_checked_out_for_its_pull_request_works_there(world: World) -> None:
    await world.maria.opens_issue("Greet people")
    await world.maria.pushes("threadtree/issue-1", {"hello.txt": "hello\n"})
    issue = world.talks[0]
    pull = await world.maria.opens_pull("Greet", head="threadtree/issue-1")
    await pull.says("@threadtree-bot say Here.")
    await pull.hears("Here.")

    await issue.says("@threadtree-bot append hello.txt: world")

    await issue.hears("This request worked on the files of #2, which are on `threadtree/issue-1` too.", "1 file +1 −0")
    assert [numbers for numbers in await world.worktrees("conversations") if numbers] == [[1, 2]]


async def test_a_fork_gets_its_edits_as_a_patch_at_its_head_of_now_and_nothing_is_pushed(world: World) -> None:
    fork = await world.github.fork(world.repository, world.olaf.user)
    await world.olaf.pushes("idea", {"idea.txt": "mine\n"}, to=fork)
    pull = await world.olaf.opens_pull("An idea", head="idea", fork=fork)
    before = await world.branches(), await fork.git.branches()
    await pull.says("@threadtree-bot append idea.txt: better", by=world.maria)

    await pull.hears("The edits as a patch", "+better", " mine")

    assert (await world.branches(), await fork.git.branches()) == before
    assert await world.worktrees("branch", "start_kind") == [(None, "detached")]
    await world.olaf.pushes("idea", {"idea.txt": "second\n"}, to=fork)
    await pull.says("@threadtree-bot append idea.txt: third", by=world.maria)
    await pull.hears("+third", " second")


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
    await pull.hears("**Not started:**", "The pull request has changed since you asked")
    assert await world.turns("state") == ["done", "refused"]


async def test_a_fork_pushed_before_the_request_was_decided_is_refused(world: World) -> None:
    fork = await world.github.fork(world.repository, world.olaf.user)
    await world.olaf.pushes("idea", {"idea.txt": "mine\n"}, to=fork)
    pull = await world.olaf.opens_pull("An idea", head="idea", fork=fork)
    world.faults.hold_webhooks("*comment", times=None)
    await pull.says("@threadtree-bot say Looked.", by=world.maria)
    await world.maria.person.review_comment(pull.pull, "idea.txt", 1, "@threadtree-bot say Looked.")
    reviewed = pull.pull.head_sha

    world.clock.move(2)
    await world.olaf.pushes("idea", {"evil.txt": "evil\n"}, to=fork)
    world.faults.release()

    first, second = await pull.hears_all()
    assert "has changed since you asked. " in first
    assert f"has changed since you asked (it was at `{reviewed[:10]}`)" in second
    assert await world.turns("state") == ["refused", "refused"]
