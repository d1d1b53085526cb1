"""`/pr` and AUTO_PULL_REQUEST: one pull request for the thread's branch, and what people read where there is none."""

import re
from collections.abc import Callable

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
    described = "<!-- threadtree:description -->\nThe total of an empty cart is 0 now, @\u2060olaf.\n\n"
    described += f"Requested by maria ([request]({asked})).\n\nCloses #1.\n<!-- /threadtree:description -->"
    assert pull.body == described, "the agent left none"
    world.clock.move(1)
    await issue.says("/pr draft Another title")
    await issue.hears("The pull request [#2](", "is open for this branch already.")
    assert opened(world) == [pull]

    # The new pull request goes on in the worktree of the issue, and the issue's answers link it.
    talk = world.listen(pull, world.maria)
    await talk.says("@threadtree-bot append cart.py: # done")
    await talk.hears("**Changed** [`threadtree/issue-1`]")
    assert await world.worktrees("branch", "conversations") == [("threadtree/issue-1", [1, 2])]
    await talk.says("/pr")
    await talk.hears("This thread is a pull request already")
    await issue.says("@threadtree-bot append cart.py: # really")
    await issue.hears("[Pull request #2](")


async def test_pr_waits_for_the_running_request_and_follows_the_template_with_title_and_draft(world: World) -> None:
    template = {".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE, "docs/pull_request_template.md": "Not this one."}
    await world.maria.pushes("main", template)
    issue = await world.maria.opens_issue("Empty carts")
    gate, left = world.gate(), "describe Title: Count them\\n\\nAn empty cart has the total 0. Fixes #9."
    await issue.says(f"@threadtree-bot wait {gate}\nwrite cart.py: total = 0\nsay It is 0 now.\n{left}")
    await issue.sees_working()
    await issue.says("/pr draft Carts: @olaf, count them")
    await issue.sees("Queued. One request is ahead of this one.")
    gate.open()
    await issue.hears("**Changed**")
    await issue.hears("Opened the draft pull request [#2](")

    [pull] = opened(world)
    assert (pull.title, pull.draft) == ("Carts: olaf, count them", True), "a person gave the title"
    begin = "<!-- threadtree:description -->\n## Description\n\nAn empty cart has the total 0. Fixes\u2060 #9.\n\n"
    end = (
        "<!-- What does it change? -->\n\n## Related issue\n\nFixes #1\n\n- [ ] Tests pass\n"
        "<!-- /threadtree:description -->"
    )
    assert (pull.body or "").startswith(f"{begin}Requested by maria ([request](")
    assert (pull.body or "").endswith(end)
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
    world.faults.add(FailBefore(403), method="POST", path="/repositories/*/pulls", times=None)
    await issue.says("/pr")
    await issue.hears("The pull request was not opened. GitHub says: ", "[Open it yourself](", "quick_pull=1")
    world.faults.clear()

    await issue.says("/pr draft")
    await issue.hears("Opened the pull request [#2](", "does not allow draft pull requests")
    [pull] = opened(world)
    assert not pull.draft


@pytest.mark.parametrize("fault", [DropAfter(), SecondaryRateLimit(retry_after=30)])
async def test_a_failure_between_the_request_and_its_answer_opens_one_pull_request(world: World, fault: Fault) -> None:
    issue = await changed(world)
    world.faults.add(fault, method="POST", path="/repositories/*/pulls")

    await issue.says("/pr")

    await issue.hears("Opened the pull request [#2](")
    assert len(opened(world)) == 1


async def test_github_that_stays_away_is_told_unless_its_last_failure_opened_one(world: World) -> None:
    issue = await changed(world)
    world.faults.add(FailBefore(502), method="POST", path="/repositories/*/pulls", times=None)
    await issue.says("/pr")
    await issue.hears("GitHub cannot take it at the moment.", "Write `/pr` again later", "[open it yourself](")
    world.faults.clear()
    assert opened(world) == []

    world.faults.add(FailBefore(502), method="POST", path="/repositories/*/pulls", times=3)
    world.faults.add(FailAfter(502), method="POST", path="/repositories/*/pulls")
    await issue.says("/pr")
    await issue.hears("Opened the pull request [#2](")


async def test_the_first_push_opens_a_pull_request_where_the_operator_wants_that(a_world: Worlds) -> None:
    async with a_world({"AUTO_PULL_REQUEST": "draft"}) as world:
        world.faults.add(FailAfter(502), method="POST", path="/repositories/*/pulls")
        issue = await changed(world)
        [pull] = opened(world)
        assert (pull.number, pull.draft, pull.title) == (2, True, "Empty carts")
        assert f"[Pull request #2]({world.github.server_url}/acme/shop/pull/2)" in issue.from_bot[0].body

        await world.maria.person.close(pull)
        await issue.says("@threadtree-bot append cart.py: # more")
        assert "[Open a pull request](" in await issue.hears("**Changed**"), "a person closed it"
        assert opened(world) == [pull]


async def test_its_text_is_the_net_change_after_each_push_and_people_keep_what_they_wrote(
    a_world: Worlds, matches_snapshot: Callable[[str, str], None]
) -> None:
    """What a reviewer reads after each of five pushes."""
    template = "## What and why\n<!-- Be brief. -->\n\n## How was it tested?\n\n- [ ] Tests pass\n"
    async with a_world({"AUTO_PULL_REQUEST": "ready"}) as world:
        await world.maria.pushes("main", {".github/pull_request_template.md": template})
        issue = await world.maria.opens_issue("Login fails on Safari", "It drops the cookie.")
        texts = list[str]()

        async def read(when: str) -> str:
            text = f"{pull.title}\n\n{pull.body}".replace(world.github.server_url, "https://github.example")
            texts.append(f"=== {when}\n{re.sub(r'#issuecomment-[0-9]+', '#issuecomment-1', text)}")
            return pull.body or ""

        await issue.says(
            "@threadtree-bot write session.py: SameSite=None\n"
            "say Safari drops the cookie. I set `SameSite=None; Secure`, @olaf. Fixes #9."
        )
        await issue.hears("**Changed**", "[Pull request #2](")
        [pull] = opened(world)
        assert not pull.draft
        body = await read("the first push; the agent left no text, so it is made from the answer and the commits")
        before, after = "For @olaf:\r\n\r\n", "\r\n\r\nDeploy on *Monday*,\ttogether with #9.  "
        await world.maria.person.edit(pull, before + body + after)

        await issue.says(
            "@threadtree-bot write session.py: SameSite=Lax\nsay I changed it to Lax.\n"
            "describe Title: Set SameSite=Lax on the session cookie\\n\\n"
            "## What and why\\nSafari drops a cookie without `SameSite`. It is `Lax` now, fixes #9, thanks @olaf.\\n\\n"
            "## How was it tested?\\n`pytest tests/test_session.py`: 3 passed.\\n\\n- [x] Tests pass"
        )
        await issue.hears("**Changed**")
        body = await read("the second push, after people wrote around the marks")
        assert body.startswith(before)
        assert body.endswith(after)
        world.maria.person.acts.edit_thread(world.maria.user, pull, title="Keep Safari logged in")

        talk = world.listen(pull, world.maria)
        await talk.says(
            "@threadtree-bot write test_session.py: assert True\n"
            "describe Title: Never seen\\n\\nSets `SameSite=Lax`, and tests it.\\n\\n```\\n1 passed"
        )
        await talk.hears("**Changed**")
        body = await read("the third push, by the pull request, after a person changed the title; no template")
        await world.maria.person.edit(pull, body.replace("tests it", "tests it on *iOS*"))

        await talk.says("@threadtree-bot append session.py: # 1")
        await talk.hears(
            "The description of #2 was edited by hand, so it is left as it is. To have it written again, delete the "
            "text between its two `threadtree:description` marks."
        )
        body = await read("the fourth push, after a person changed what is between the marks")
        await issue.says("@threadtree-bot append session.py: # 2")
        assert "edited by hand" not in await issue.hears("**Changed**"), "it is said once"

        marks = re.compile("(?<=description -->).*(?=<!-- /)", re.DOTALL)
        await world.maria.person.edit(pull, marks.sub("\r\n", body))
        await talk.says("@threadtree-bot append session.py: # 3\ndescribe Title: No\\n\\nIt is *Lax* now.")
        await talk.hears("**Changed**")
        await read("the sixth push, after a person emptied it")
        matches_snapshot("pull-request-texts", "\n\n".join(texts))
        assert await world.turns("state") == ["done"] * 6


async def test_the_agent_is_asked_for_the_text_of_a_pull_request_that_the_bot_has_or_will_have(world: World) -> None:
    await world.maria.pushes("main", {".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE})
    issue = await world.maria.opens_issue("Empty carts")
    await issue.says("@threadtree-bot echo prompt")
    prompt = await issue.hears("THREADTREE_OUT/pull_request.md")
    assert "origin/main:.github/PULL_REQUEST_TEMPLATE.md" in prompt
    await issue.says("@threadtree-bot /plan echo prompt")
    assert "pull_request.md" not in await issue.hears("echo prompt")
    await world.maria.pushes("topic", {"topic.txt": "topic"})
    talk = await world.maria.opens_pull("Mine", head="topic")
    await talk.says("@threadtree-bot echo prompt")
    assert "pull_request.md" not in await talk.hears("echo prompt")


MORE = "@threadtree-bot append cart.py: # more\nsay More.\ndescribe Title: Count carts\\n\\nCounts *all* carts."


async def test_a_merge_of_the_base_keeps_the_text_and_a_push_without_one_lists_the_commits(a_world: Worlds) -> None:
    async with a_world({"AUTO_PULL_REQUEST": "ready"}) as world:
        issue = await changed(world, f"{WORK}\n{MORE.partition(chr(10))[2]}")
        [pull] = opened(world)
        await world.maria.pushes("main", {"theirs.txt": "theirs\n"})
        await issue.says("/update")
        await issue.hears("Merged 1 commit of `main` without conflicts.")
        assert "Counts *all* carts." in (pull.body or "")

        await issue.says("@threadtree-bot append cart.py: # more\nsay More.")
        await issue.hears("More.")
        assert "Commits:\n\n- `Empty carts`\n- `Empty carts`" in (pull.body or "")
        assert pull.title == "Count carts"


async def test_a_failure_while_the_text_is_written_leaves_it_written_once(a_world: Worlds) -> None:
    async with a_world({"AUTO_PULL_REQUEST": "ready"}) as world:
        issue = await changed(world)
        world.faults.add(DropAfter(), method="PATCH", path="/repositories/*/pulls/2")
        await issue.says(MORE)
        await issue.hears("More.", "[Pull request #2](")
        [pull] = opened(world)
        assert "Counts *all* carts." in (pull.body or "")
        assert len(pull.revisions) == 2


async def test_a_text_that_github_refuses_or_that_cannot_be_read_holds_up_no_answer(a_world: Worlds) -> None:
    async with a_world({"AUTO_PULL_REQUEST": "ready"}) as world:
        issue = await changed(world)
        world.faults.add(FailBefore(403), method="PATCH", path="/repositories/*/pulls/2", times=None)
        await issue.says(MORE)
        await issue.hears("More.", "[Pull request #2](")
        world.faults.clear()
        await issue.says("@threadtree-bot append cart.py: # last\nsay Last.\nout pull_request.md/file: no file")
        await issue.hears("Last.", "Left out: the agent's description of the pull request.", "[Pull request #2](")
        [pull] = opened(world)
        assert "Commits:\n\n- " in (pull.body or "")


async def test_an_agent_that_mends_what_the_check_found_may_correct_its_text(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world({**sandbox_settings, "AUTO_PULL_REQUEST": "ready"}) as world:
        await world.maria.pushes("main", {".threadtree/check": "#!/bin/sh\ntest ! -e cart.py || test -e more.py\n"})
        issue = await world.maria.opens_issue("Empty carts")
        await issue.says(
            f"{WORK}\ndescribe Title: Count\\n\\nCounts.\nmend write more.py: x\\ndescribe Counts more.\\nsay Mended."
        )
        await issue.hears("**After the check**\n\nMended.")
        [pull] = opened(world)
        assert "description -->\nCounts more.\n" in (pull.body or "")
