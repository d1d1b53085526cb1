"""What waits for a person at the end: a pull request, a check that failed, and a plan; the pages show them."""

import httpx

from bot.demo.stage import Stage

CHECK = r"""#!/bin/sh
# Three tests of the shop. The report gives the answer its numbers and names.
failed=0
try() {
    name=$1
    shift
    if "$@"; then result=; else result='<failure/>' failed=1; fi
    cases="$cases<testcase classname=\"shop\" name=\"$name\">$result</testcase>"
}
each_day_once() { test -z "$(cut -d: -f1 hours.txt | sort | uniq -d)"; }
try greets_customers grep -q Welcome hello.txt
try opens_at_nine grep -q 'Friday: 9 to' hours.txt
try names_each_day_once each_day_once
echo "<testsuite>$cases</testsuite>" >"$THREADTREE_REPORTS/shop.xml"
exit $failed
"""
HOURS = "Monday to Friday: 9 to 17\n"


async def tell(stage: Stage) -> None:
    """Tell all steps in order, after the other stories; their threads stay open. Raises StoryBrokeError."""
    await _a_check_passes(stage)
    await _a_check_fails(stage)
    await _a_plan_waits(stage)
    await _the_bot_says_what_waits(stage)


async def _a_check_passes(stage: Stage) -> None:
    stage.report.step("The repository gets a check, and the next result passes it")
    files = {".threadtree/check": CHECK, "hours.txt": HOURS}
    await stage.maria.push(stage.repository, "main", files, "Check the shop")
    stage.report.did("maria pushed .threadtree/check to main")
    issue = await stage.maria.open_issue(stage.repository, "Open on Saturdays", "From 10 to 14.")
    await stage.says(stage.maria, issue, f"{stage.bot} Please add “Saturday: 10 to 14” to hours.txt.")
    answer = await stage.answer(issue, turn=10)
    stage.report.check("the answer has the check's result", "\ncheck passed · 3 tests" in answer.body, answer.body)
    await stage.says(stage.maria, issue, "/pr")
    await stage.answer(issue, turn=11)
    pulls = [thread for thread in stage.repository.threads.values() if thread.title == issue.title]
    stage.report.check("a pull request is open", len(pulls) == 2, pulls)


async def _a_check_fails(stage: Stage) -> None:
    stage.report.step("A result fails the check")
    issue = await stage.maria.open_issue(stage.repository, "Stay open longer", "Until 20, on all days of the week.")
    await stage.says(stage.maria, issue, f"{stage.bot} Please write “Monday to Friday: 10 to 20” into hours.txt.")
    answer = await stage.answer(issue, turn=12)
    stage.report.check("the answer says so", "**check failed** · 1 of 3 tests" in answer.body, answer.body)
    stage.report.check("and names what failed", "shop.opens_at_nine" in answer.body, answer.body)


async def _a_plan_waits(stage: Stage) -> None:
    stage.report.step("A request is planned first")
    issue = await stage.maria.open_issue(stage.repository, "Sell gift cards", "For birthdays.")
    await stage.says(stage.maria, issue, "/plan Let our customers buy gift cards.")
    answer = await stage.answer(issue, turn=13)
    stage.report.check("the answer is a plan", "Say on the first page that customers can buy gift" in answer.body)
    branches = await stage.git("branch", "--list", f"threadtree/issue-{issue.number}")
    stage.report.check("no file was changed", not branches, branches)


async def _the_bot_says_what_waits(stage: Stage) -> None:
    stage.report.step("What waits for maria")
    token = stage.pair.settings.admin_token
    allowed = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    async with httpx.AsyncClient(base_url=stage.pair.url, headers=allowed, trust_env=False) as client:
        told = await client.get("/api/waiting")
    waits = [(one["title"], one["waits_for"]) for one in told.raise_for_status().json()["items"]]
    stage.report.check(
        "three things, the oldest first", [what for _, what in waits] == ["review", "retry", "approve"], waits
    )
    for title, what in waits:
        stage.report.did(f"{what}: {title}")
