"""A bot that GitHub cannot reach takes its deliveries from GitHub's log."""

from pathlib import Path

from bot.github.client import NOWHERE, WEBHOOK_PATH
from tests.end_to_end.conftest import Worlds
from tests.support.patience import eventually
from tests.support.processes import SECRET, deployment
from tests.support.world import Said

POLLED = {"WEBHOOK_REPOS": "acme/shop", "POLL_INTERVAL_SECONDS": "0.3"}


async def test_a_conversation_without_an_address_and_over_a_switch_to_webhooks_and_back(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        here.repository.allow(here.github.bot, "admin")
        here.github.set_webhook(NOWHERE + WEBHOOK_PATH, SECRET)
        serve = await here.start("serve", "--poll", **POLLED)
        await serve.ready()
        await here.until("select exists (select from recoveries where compared_at is not null)")

        issue = await here.maria.open_issue(here.repository, "Greet people", "@threadtree-bot write a.txt: a\nsay One.")
        await here.github.wait_for(lambda: "eyes" in [one.content for one in issue.reactions])
        await here.answered(issue, "One.")
        await here.ask("recall\nsay Two.", issue)
        await here.answered(issue, "Two.")
        assert {one.status_code for one in here.github.deliveries} == {0}, "GitHub reached nothing"

        here.github.set_webhook(f"{await serve.url()}{WEBHOOK_PATH}", SECRET)
        await here.ask("say Three.", issue)
        await here.answered(issue, "Three.")
        here.github.set_webhook(NOWHERE + WEBHOOK_PATH, SECRET)
        await here.ask("say Four.", issue)
        await here.answered(issue, "Four.")
        await here.maria.close(issue)
        await here.until("select bool_and(state = 'removed') from worktrees")

        logged = [one.guid for one in here.github.deliveries if one.event in ("issues", "issue_comment")]
        stored = "select count(*) from deliveries where guid = any ($1)"

        async def all_are_stored() -> bool:
            return await here.value(stored, logged) == len(set(logged))

        await eventually(all_are_stored)
        assert await here.value("select string_agg(state, ' ' order by id) from turns") == "done done done done"
        assert len([one for one in here.answers(issue) if "Three." in one.body]) == 1


async def test_what_is_sent_again_from_githubs_log_runs_only_where_it_failed(a_world: Worlds) -> None:
    async with a_world(POLLED) as world:
        world.repository.allow(world.github.bot, "admin")
        world.github.set_webhook(NOWHERE + WEBHOOK_PATH, "x")
        issue = await world.maria.opens_issue("Greet people")
        first: Said = await issue.says("@threadtree-bot say One.")
        await issue.hears("One.")
        assert first.reactions == ["👀"]
        await world.quiet()
        asked = "(select guid from deliveries where turn_id is null and event = 'issue_comment' order by seq limit 1)"
        guid = await world.database.fetchval(f"select {asked}")

        await world.github.redeliver(guid)
        await issue.says("@threadtree-bot say Two.")
        await issue.hears("Two.")
        assert await world.database.fetchval("select attempts from deliveries where guid = $1", guid) == 1

        await world.database.execute("update deliveries set state = 'failed' where guid = $1", guid)
        world.clock.move(1)
        await world.github.redeliver(guid)
        await world.until("exists (select from deliveries where state = 'done' and attempts = 2)")
        await world.quiet()
        assert await world.turns("state") == ["done"] * 2, "what it did is known"
