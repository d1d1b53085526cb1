"""A day of work, after which every figure of `/metrics` is held against what rows, GitHub and the test know."""

import json
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final
from uuid import uuid4

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from bot import counters
from bot.care.measures_rows import save_counts
from bot.github.payloads import is_used_event
from bot.inbox.delivery import sign
from bot.inbox.endpoint import COUNTED_TOO
from bot.serve.metrics import metrics_route
from bot.store.database import database
from tests.end_to_end.conftest import Worlds
from tests.support.patience import eventually
from tests.support.world import Gate, World

TOKEN = "a-token-of-the-tests"
SETTINGS = {
    "ADMIN_TOKEN": TOKEN,
    "SWEEP_INTERVAL_SECONDS": "2",
    "TURN_IDLE_TIMEOUT_SECONDS": "8",
    "MAX_TURNS_PER_PERSON_PER_DAY": "7",
}
DAY_SECONDS = 86400
Figures = dict[str, dict[tuple[str, ...], float]]
# Each figure by its labels, counted in another way than the bot counts it. Those of time are compared nearly.
IN_ROWS: Final[Mapping[str, str]] = {
    "deliveries": "select state, count(*) from deliveries where state not in ('done', 'ignored') group by 1",
    "deliveries_oldest_seconds": "select state, extract(epoch from max(now() - received_at)) from deliveries"
    " where state not in ('done', 'ignored') group by 1",
    "turns": "select state, count(*) from turns where finished_at is null group by 1",
    "turns_oldest_seconds": "select state, extract(epoch from max(now() - created_at)) from turns"
    " where finished_at is null group by 1",
    "turns_ended_total": "select coalesce(agent, ''), state, count(*) from turns where finished_at is not null"
    " group by 1, 2",
    "cost_usd_total": "select coalesce(agent, ''), state, sum(coalesce(cost_usd, 0)) from turns"
    " where finished_at is not null group by 1, 2",
    "tokens_total": "select coalesce(agent, ''), state, sum(coalesce(tokens, 0)) from turns"
    " where finished_at is not null group by 1, 2",
    "turn_seconds_count": "select count(*) from turns where started_at is not null and finished_at is not null",
    "turn_seconds_sum": "select sum(extract(epoch from finished_at) - extract(epoch from started_at)) from turns"
    " where finished_at is not null",
    "turn_seconds_bucket": "select top, (select count(*) from turns where finished_at - started_at"
    " < top::float8 * interval '1 s') from unnest("
    "'{10.0,30.0,60.0,120.0,300.0,600.0,1200.0,1800.0,3600.0}'::text[]) as top union all"
    " select '+Inf', count(finished_at - started_at) from turns",
    "operations": "select kind, state, count(*) from operations group by 1, 2",
    "outbox": "select state, count(*) from outbox where state <> 'sent' group by 1",
    "outbox_oldest_seconds": "select state, extract(epoch from"
    " now() - min(coalesce(nullif(due_at, '-infinity'), created_at))) from outbox"
    " where state <> 'sent' group by 1",
    "writers_held": "select count(*) filter (where held_until > now()) from writers",
    "writers_held_seconds": "select greatest(0, extract(epoch from max(held_until) - now())) from writers",
    "worktrees": "select name, state, count(*) from worktrees join nodes n on n.id = node group by 1, 2",
    "bytes": "select 'rescues', coalesce(sum(bytes), 0) from rescues"
    " union all select 'database', pg_database_size(current_database())",
    "node_silent_seconds": "select name, extract(epoch from now() - heartbeat_at) from nodes",
    "jobs": "select queue_name, status::text, count(*) from procrastinate_jobs"
    " where status in ('todo', 'doing', 'failed') group by 1, 2",
}
ONLY_POSITIVE = {
    *("acknowledgement_seconds_bucket", "acknowledgement_seconds_sum", "github_rate_remaining"),
    *("reclaimed_bytes_total", "disk_bytes", "disk_free_bytes", "sweeps_total"),
    *("last_delivery_timestamp_seconds", "github_token_expires_timestamp_seconds"),
}
"""What no row tells."""
NEARLY = {name for name in IN_ROWS if name.endswith("seconds")} | {"turn_seconds_sum"}


async def a_day(world: World, web: httpx.AsyncClient) -> Gate:
    """Live through a day until one request runs and another waits; return what the running one waits for."""
    issue = await world.maria.opens_issue("Everything")
    await issue.says("@threadtree-bot write a.txt: one\ncost 0.5\nsay Done it.")
    await issue.hears("Done it.")
    await issue.says("@threadtree-bot fail it")
    await issue.hears("**Failed")
    await issue.says("@threadtree-bot hang")
    await issue.hears("**Timed out")
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}")
    await issue.sees("Wait for")
    await issue.says("@threadtree-bot stop")
    await world.until("exists (select from turns where state = 'stopped')")
    await issue.hears_all()
    await issue.says(f"@threadtree-bot wait {gate}\nsay Resumed.")
    # Its agent is at work: what a turn still reads before that ends without an answer that could be counted.
    await world.until("exists (select from steps where turn_id = 5)")
    # Its process dies, as far as the row tells.
    await world.database.execute("update turns set worker = 'gone', claim = gen_random_uuid() where id = 5")
    gate.open()
    await world.until("exists (select from turns where state = 'done' and id = 5)")
    await issue.hears_all()
    await issue.says("nothing for the bot")
    await world.github.redeliver(world.github.deliveries[0].guid)
    await web.post("/api/worktrees", json={"conversation": "acme/shop#404"})
    await world.until("exists (select from deliveries where state = 'failed')")
    await world.quiet()
    world.clock.move(91 * DAY_SECONDS)
    await world.until("exists (select from worktrees where state = 'removed')")

    other = await world.maria.opens_issue("More")
    second = world.gate()
    await other.says(f"@threadtree-bot wait {second}")
    await other.sees("Wait for")
    await other.says("@threadtree-bot say Second.")
    await world.until("(select count(*) from turns) = 7")
    await other.says("@threadtree-bot say Too many.")
    await world.until("exists (select from turns where state = 'refused')")

    for secret, status in ((b"wrong", 401), (world.pair.settings.webhook_secrets[0], 400)):
        more = {"X-GitHub-Event": "issue_comment", "X-GitHub-Delivery": str(uuid4())}
        answer = await web.post(
            "/webhooks/github", content=b"{", headers={**more, "X-Hub-Signature-256": sign(b"{", secret)}
        )
        assert answer.status_code == status
    return second


async def scrape(web: httpx.AsyncClient) -> Figures:
    """Return the figures by name and by the values of their labels, in the order of the labels' names."""
    answer = await web.get("/metrics")
    found: Figures = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name.removeprefix("threadtree_"), {})[labels] = sample.value
    return found


async def counted_otherwise(world: World) -> Figures:
    """Return what rows, GitHub and the test know."""
    known: Figures = {}
    for name, statement in IN_ROWS.items():
        rows = [tuple(row) for row in await world.database.fetch(statement)]
        if rows and rows != [(None,)]:
            known[name] = {tuple(map(str, row[:-1])): float(row[-1]) for row in rows}
    received: Counter[tuple[str, ...]] = Counter({("400", "issue_comment"): 1})
    refused: Counter[tuple[str, ...]] = Counter({("401",): 1, ("400",): 1})
    for one in world.github.deliveries:
        status = json.loads(one.response_body)["status"] if one.succeeded else str(one.status_code)
        received[status, one.event if is_used_event(one.event) or one.event in COUNTED_TOO else "other"] += 1
    known["deliveries_received_total"], known["deliveries_refused_total"] = dict(received), dict(refused)
    known["acknowledgement_seconds_count"] = {(): sum(one.succeeded for one in world.github.deliveries)}
    asked = Counter(str(one.status) for one in world.github.requests if ".git/" not in one.path)
    known["github_requests_total"] = {(status,): count for status, count in asked.items()}
    known["worktrees_pruned_total"] = {("here",): 1}
    known["lost_claims_total"] = {("turn",): 1}
    known["recoveries_total"] = {("turn",): 1}
    known["info"] = {(version("threadtree"),): 1}
    return known


def differences(found: Figures, known: Figures) -> list[str]:
    """Return what is not equal. Of time, nearly."""
    told = []
    for name in sorted(found.keys() | known.keys()):
        # What is always there is zero where nothing was counted.
        mine, others = ({at: value for at, value in one.get(name, {}).items() if value} for one in (found, known))
        if name in ONLY_POSITIVE:
            told += [f"{name} is {mine}"] if not mine or min(mine.values()) < 0 or not max(mine.values()) else []
        elif name in NEARLY and mine.keys() == others.keys():
            told += [f"{name}{at}: {mine[at]}, not {others[at]}" for at in mine if abs(mine[at] - others[at]) > 30]
        elif mine != others:
            told.append(f"{name}: {mine}, not {others}")
    return told


async def test_every_figure_is_what_rows_github_and_the_test_know(a_world: Worlds, database_url: str) -> None:
    counters.take()  # of earlier tests of this process
    async with (
        a_world(SETTINGS) as world,
        httpx.AsyncClient(base_url=world.pair.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as web,
        database(database_url, size=2) as pool,
    ):
        gate = await a_day(world, web)
        told: list[str] = []

        async def agree() -> bool:
            """Hold a new web process, which has kept nothing, against the rows of the same moment."""
            await save_counts(pool)
            transport = httpx.ASGITransport(Starlette(routes=[metrics_route(pool)]))
            async with httpx.AsyncClient(transport=transport, base_url="http://other.test") as other:
                told[:] = differences(await scrape(other), await counted_otherwise(world))
                return not told

        async def different() -> str:
            return "\n".join(told)

        async def agree_here() -> bool:
            """Hold the web process of the bot against them: this process also counts what is not in rows yet."""
            found = differences(await scrape(web), await counted_otherwise(world))
            told[:] = [line for line in found if "requests" not in line]
            return not told

        await eventually(agree, what=different)
        await eventually(agree_here, what=different)
        gate.open()
        await world.quiet()
        for talk in world.talks:
            await talk.hears_all()
