"""`/pr` and AUTO_PULL_REQUEST: one pull request for the thread's branch, and what people read where there is none."""

import re

import httpx
import pytest

from bot.simulated.github.faults import DropAfter, FailAfter, FailBefore, Fault, SecondaryRateLimit
from bot.simulated.github.model import Pull
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

WORK = "@threadtree-bot write cart.py: total = 0\nsay The total of an empty cart is 0 now, @olaf."
TEMPLATE = "## Description\n\n<!-- What does it change? -->\n\n## Related issue\n\nFixes #(issue)\n\n- [ ] Tests pass\n"


def opened(world: World) -> list[Pull]:
    return [pull for pull in world.repository.pulls if pull.author.id == world.github.bot.id]


async def changed(world: World, request: str = WORK, title: str = "Empty carts") -> Talk:
    issue = await world.maria.opens_issue(title, "The total is None.")
    await issue.says(request)
    await issue.hears("**Changed** [`threadtree/issue-1`]")
    return issue


async def test_pr_opens_one_with_what_the_agent_did_and_links_it_the_second_time(world: World) -> None:
    issue = await world.maria.opens_issue("Empty carts", "The total is None.")
    request = await issue.says(f"{WORK}\nsay Commit: Count empty carts")
    answer = await issue.hears("**Changed** [`threadtree/issue-1`]", "[Open a pull request](")
    assert "/compare/main...threadtree/issue-1?quick_pull=1&title=Count%20empty%20carts&body=The%20total" in answer
    assert "Closes%20%231" in answer
    async with httpx.AsyncClient() as browser:
        branch, diff, page = [
            (await browser.get(url)).raise_for_status().text
            for url in re.findall(r"]\((http[^)]*/(?:tree|compare)/[^)]*)\)", answer)
        ]
    assert "cart.py" in branch
    assert "+total = 0" in diff
    assert "Count empty carts" in page

    await issue.says("/pr")
    await issue.hears(f"Opened the pull request [#2]({world.github.server_url}/acme/shop/pull/2).")

    [pull] = opened(world)
    asked = f"{world.github.server_url}/acme/shop/issues/1#issuecomment-{request.comment.id}"
    assert (pull.title, pull.draft, pull.base_ref) == ("Count empty carts", False, "main")
    assert pull.body == (
        f"The total of an empty cart is 0 now, @\u2060olaf.\n\nRequested by maria ([request]({asked})).\n\nCloses #1."
    )
    await issue.says("/pr draft Another title")
    await issue.hears("The pull request [#2](", "is open for this branch already.")
    assert opened(world) == [pull]

    # The new pull request goes on in the worktree of the issue, and the issue's answers link it.
    talk = world.listen(pull, world.maria)
    await talk.says("@threadtree-bot append cart.py: # done")
    await talk.hears("on the files of #1", "**Changed** [`threadtree/issue-1`]")
    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1, 2])]
    await talk.says("/pr")
    await talk.hears("This thread is a pull request already")
    await issue.says("@threadtree-bot append cart.py: # really")
    await issue.hears("[Pull request #2](")


async def test_pr_waits_for_the_running_request_and_follows_the_template_with_title_and_draft(world: World) -> None:
    template = {".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE, "docs/pull_request_template.md": "Not this one."}
    await world.maria.pushes("main", template)
    issue = await world.maria.opens_issue("Empty carts")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nwrite cart.py: total = 0\nsay It is 0 now. Fixes #9.")
    await issue.sees_working()
    await issue.says("/pr draft Carts: @olaf, count them")
    await issue.hears("Queued: the pull request will be opened after the request ahead of it.")
    gate.open()
    await issue.hears("**Changed**")
    await issue.hears("Opened the draft pull request [#2](")

    [pull] = opened(world)
    assert (pull.title, pull.draft) == ("Carts: olaf, count them", True)
    described = pull.body or ""
    assert described.startswith("## Description\n\nIt is 0 now. ")
    assert described.endswith("<!-- What does it change? -->\n\n## Related issue\n\nFixes #1\n\n- [ ] Tests pass")
    assert [one.number for one in world.maria.person.acts.closing_issues(pull)] == [1], "only the issue itself"


async def test_pr_says_why_there_is_nothing_to_open(world: World) -> None:
    issue = await world.maria.opens_issue("Empty carts")
    await issue.says("/pr")
    await issue.hears("There is no branch here yet")
    await issue.says("@threadtree-bot say I only looked.")
    await issue.hears("I only looked.")
    await issue.says("/pr please")
    await issue.hears("`threadtree/issue-1` is not on GitHub")

    await issue.says(WORK)
    await issue.hears("**Changed**")
    tip = (await world.branches())["threadtree/issue-1"]
    await world.repository.git.run("update-ref", "refs/heads/main", tip)
    await issue.says("/pr")
    await issue.hears("`threadtree/issue-1` has no commits that `main` lacks")


async def test_pr_after_a_squash_merge_names_the_pull_request_that_was_merged(world: World) -> None:
    issue = await changed(world)
    await issue.says("/pr ready Count empty carts")
    await issue.hears("Opened the pull request [#2](")
    [pull] = opened(world)
    await world.maria.person.merge(pull, "squash")
    await issue.reopens()
    await issue.says("/pr")
    await issue.hears("`threadtree/issue-1` was merged with [#2](")


async def test_a_repository_without_drafts_gets_one_that_is_ready_and_refusals_are_told(world: World) -> None:
    world.repository.allows_drafts = False
    issue = await changed(world)
    world.faults.add(FailBefore(403), method="POST", path="/repos/acme/shop/pulls")
    await issue.says("/pr")
    await issue.hears("The pull request was not opened. GitHub says: ", "[Open it yourself](", "quick_pull=1")

    await issue.says("/pr draft")
    await issue.hears("Opened the pull request [#2](", "does not allow draft pull requests")
    [pull] = opened(world)
    assert not pull.draft


@pytest.mark.parametrize(
    "fault",
    [FailAfter(502), DropAfter(), FailBefore(502), SecondaryRateLimit(retry_after=30), SecondaryRateLimit(None)],
)
async def test_a_failure_between_the_request_and_its_answer_opens_one_pull_request(world: World, fault: Fault) -> None:
    issue = await changed(world)
    world.faults.add(fault, method="POST", path="/repos/acme/shop/pulls")

    await issue.says("/pr")

    await issue.hears("Opened the pull request [#2](")
    assert len(opened(world)) == 1


async def test_github_that_stays_away_is_told_unless_its_last_failure_opened_one(world: World) -> None:
    issue = await changed(world)
    world.faults.add(FailBefore(502), method="POST", path="/repos/acme/shop/pulls", times=None)
    await issue.says("/pr")
    await issue.hears("GitHub cannot take it at the moment.", "Write `/pr` again later", "[open it yourself](")
    world.faults.clear()
    assert opened(world) == []

    world.faults.add(FailBefore(502), method="POST", path="/repos/acme/shop/pulls", times=3)
    world.faults.add(FailAfter(502), method="POST", path="/repos/acme/shop/pulls")
    await issue.says("/pr")
    await issue.hears("Opened the pull request [#2](")


@pytest.mark.parametrize(("setting", "draft"), [("draft", True), ("ready", False)])
async def test_the_first_push_opens_a_pull_request_where_the_operator_wants_that(
    a_world: Worlds, setting: str, draft: bool
) -> None:
    async with a_world({"AUTO_PULL_REQUEST": setting}) as world:
        world.faults.add(FailAfter(502), method="POST", path="/repos/acme/shop/pulls")
        issue = await changed(world)
        [pull] = opened(world)
        assert (pull.number, pull.draft, pull.title) == (2, draft, "Empty carts")
        assert f"[Pull request #2]({world.github.server_url}/acme/shop/pull/2)" in issue.from_bot[0].body

        await world.maria.person.close(pull)
        await issue.says("@threadtree-bot append cart.py: # more")
        assert "[Open a pull request](" in await issue.hears("**Changed**"), "a person closed it"
        assert opened(world) == [pull]
