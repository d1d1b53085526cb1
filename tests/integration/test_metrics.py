"""`/metrics` held against rows, and counts that two processes add to."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection
from math import isfinite
from pathlib import Path
from time import time

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from bot import counters
from bot.care.measures_rows import save_counts
from bot.serve.metrics import metrics_route
from bot.store.database import Pool, database
from tests.support.past import A_PAST
from tests.support.postgres import execute

MORE = """
update turns set created_at = now() - interval '1 hour' where state = 'queued';
update turns set tokens = 1200 where id = 1;
insert into outbox (writer, conversation_id, kind, urgency, target_kind, content, state, due_at)
values ('github.com/token', 1, 'comment', 0, 'issue', 'late', 'failed', now() - interval '2 minutes');
insert into writers (writer, held_until) values ('github.com/token', now() + interval '10 minutes');
insert into rescues (worktree_id, ref, conversations, bytes) values (2, 'refs/threadtree/rescue/2/1', '{9}', 4096);
insert into operations (node, kind, requested_by) values ('here', 'prune', 'ada');
update nodes set disk = '{"clones": 7000, "homes": 0}';
insert into procrastinate_jobs (task_name, queue_name, args) values ('decide', 'decide', '{}')
"""


def counted(name: str, value: float, **labels: str) -> str:
    """Return the statement that writes a counter."""
    return f"insert into counters values ('threadtree_{name}', '{json.dumps(labels, separators=(',', ':'))}', {value})"  # noqa: S608 -- a test's own


# What makes each rule of alerts.yml tell, one after the other; its state before is a good one.
BAD = {
    "ThreadtreeDeliveriesWait": "update deliveries set state = 'received', error = null,"
    " received_at = now() - interval '1 h' where state = 'ignored'",
    "ThreadtreeDeliveryFailed": "update deliveries set state = 'failed', error = 'x' where state = 'received'",
    "ThreadtreeWrongSignatures": counted("deliveries_refused_total", 11, status="401"),
    "ThreadtreeDeliveriesRefused": counted("deliveries_refused_total", 1, status="503"),
    "ThreadtreeTurnsWait": "update turns set created_at = now() - interval '2 h' where state = 'queued'",
    "ThreadtreePlanWaits": 'update turns set outcome = \'{"came": "plan"}\', session_id = 2,'
    " finished_at = now() - interval '4 days' where state = 'done'",
    "ThreadtreeTurnsFail": "insert into turns (conversation_id, state, requested_by_id, finished_at, cost_usd, agent,"
    " reason) select 1, state, 7, now(), 5, agent, 'because' from (values ('failed', null),"
    " ('failed', null), ('failed', null), ('done', 'custom'), ('done', 'custom')) as new (state, agent)",
    "ThreadtreeCost": "update turns set cost_usd = 26 where state = 'failed'",
    "ThreadtreeAnswersWait": "update outbox set due_at = now() - interval '1 h' where state = 'waiting'",
    "ThreadtreeAnswerNotPosted": "update outbox set state = 'failed' where state = 'waiting'",
    "ThreadtreeGitHubCredentials": counted("github_requests_total", 4, status="401"),
    "ThreadtreeGitHubTokenExpires": counted("github_token_expires_timestamp_seconds", time() + 86400),
    "ThreadtreeWebhooksStopped": counted("last_delivery_timestamp_seconds", time() - 4 * 86400),
    "ThreadtreeGitHubLimit": "insert into writers (writer, held_until) values ('w', now() + interval '10 minutes')",
    "ThreadtreeCrashes": counted("recoveries_total", 1, what="turn"),
    "ThreadtreeHousekeepingFails": counted("sweeps_total", 1, end="failed"),
    "ThreadtreeDiskShort": counted("disk_free_bytes", 5e9, node="here"),
    "ThreadtreeSlowAcknowledgement": "; ".join(
        counted("acknowledgement_seconds_bucket", 2, le=end) for end in ("5.0", "10.0", "+Inf")
    ),
    "ThreadtreeWithoutWorker": "update nodes set heartbeat_at = now() - interval '2 minutes'",
    "ThreadtreeNodeSilent": "update nodes set heartbeat_at = now() - interval '10 minutes'",
}
RULE = re.compile(r"- alert: (\w+)\n +expr: (?:>-\n)?((?:.*\n)+?) +(?:for|labels):")
SELECTOR = re.compile(r"threadtree_(\w+)(?:{([^}]*)})?")
Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    await execute(database_url, A_PAST, MORE)
    async with database(database_url, size=3) as opened:
        yield opened


@pytest.fixture(autouse=True)
def own_counts() -> None:
    """Forget what earlier tests of this process counted."""
    counters.take()


async def scrape(pool: Pool) -> Figures:
    """Return the figures of a web process that is scraped for the first time."""
    transport = httpx.ASGITransport(Starlette(routes=[metrics_route(pool)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://threadtree.test") as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name.removeprefix("threadtree_"), frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def of(figures: Figures, name: str, **labels: str) -> float:
    return figures[name, frozenset(labels.items())]


async def test_the_figures_are_those_of_the_rows(pool: Pool) -> None:
    found = await scrape(pool)
    assert of(found, "turns", state="queued") == 1
    assert 3590 < of(found, "turns_oldest_seconds", state="queued") < 3700
    assert of(found, "turns_ended_total", state="done", agent="custom") == 1
    assert of(found, "turns_ended_total", state="failed", agent="") == 1
    assert of(found, "cost_usd_total", state="done", agent="custom") == 0.25
    assert of(found, "tokens_total", state="done", agent="custom") == 1200
    assert [of(found, "waiting", **{"for": what}) for what in ("approve", "retry", "review")] == [0, 2, 0]
    assert of(found, "waiting_oldest_seconds", **{"for": "retry"}) > 3600
    assert of(found, "turn_seconds_count") == 2
    assert of(found, "turn_seconds_sum") == 600
    assert of(found, "turn_seconds_bucket", le="120.0") == 0
    assert of(found, "turn_seconds_bucket", le="600.0") == of(found, "turn_seconds_bucket", le="+Inf") == 2
    assert of(found, "deliveries", state="failed") == 1
    assert of(found, "operations", kind="prune", state="queued") == 1
    assert of(found, "outbox", state="waiting") == 4
    assert of(found, "outbox", state="failed") == 1
    assert 110 < of(found, "outbox_oldest_seconds", state="failed") < 200
    assert of(found, "writers_held") == 1
    assert 500 < of(found, "writers_held_seconds") <= 600
    assert of(found, "worktrees", node="here", state="ready") == 1
    assert of(found, "worktrees", node="here", state="removed") == 1
    assert of(found, "bytes", kind="rescues") == 4096
    assert of(found, "bytes", kind="database") > 1_000_000
    assert of(found, "disk_bytes", node="here", kind="clones") == 7000
    assert of(found, "disk_bytes", node="here", kind="homes") == 0
    assert of(found, "node_silent_seconds", node="here") < 100


async def test_what_is_due_at_once_has_a_finite_age(pool: Pool) -> None:
    await pool.execute("update outbox set due_at = '-infinity', created_at = now() - interval '5 minutes'")
    for name, value in (await scrape(pool)).items():
        assert isfinite(value), name
        if name == ("outbox_oldest_seconds", frozenset({("state", "waiting")})):
            assert 290 < value < 400


async def test_alerts_and_dashboard_ask_for_figures_that_exist_and_the_page_names_them_all(pool: Pool) -> None:
    for metric in (counters.GITHUB_RATE_REMAINING, counters.DISK_FREE_BYTES):
        metric.labels("a").set(1)
    for counter in (counters.WORKTREES_PRUNED, counters.RECLAIMED_BYTES, counters.LOST_CLAIMS):
        counter.labels("a").inc()
    counters.NOTIFICATIONS.labels("sent").inc()
    counters.GITHUB_TOKEN_EXPIRES.set(1)
    counters.LAST_DELIVERY.set(1)
    counters.DELIVERIES_RECEIVED.labels("a", "b").inc()
    await pool.execute("insert into recoveries (source, seen_until, tried_at) values ('app', now(), now())")
    await save_counts(pool)
    exist = {name for name, _ in await scrape(pool)}
    folder = Path(__file__).parents[2] / "docs" / "monitoring"
    for file in ("alerts.yml", "dashboard.json"):
        asked = set(re.findall(r"threadtree_(\w+)", (folder / file).read_text()))
        assert asked <= exist, f"{file} asks for what is not there: {asked - exist}"
    page = set(re.findall(r"`threadtree_(\w+)`", (folder / "README.md").read_text()))
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in exist} == page
    assert json.loads((folder / "dashboard.json").read_text())["panels"]


async def test_each_alert_is_silent_in_a_good_state_and_tells_in_a_bad_one(pool: Pool) -> None:
    await pool.execute("delete from writers")
    await pool.execute("update turns set created_at = now() where state = 'queued'")
    await pool.execute(counted("github_rate_remaining", 5000, resource="core"))
    rules = dict(RULE.findall((Path(__file__).parents[2] / "docs" / "monitoring" / "alerts.yml").read_text()))
    down = rules.pop("ThreadtreeDown")
    assert rules.keys() == BAD.keys()
    nothing: Figures = {}  # what is there while no web process answers, or none with a database
    assert (tells(down, nothing, await scrape(pool)), tells(down, nothing, nothing)) == (False, True)
    for name, statement in BAD.items():
        good = await scrape(pool)
        assert not tells(rules[name], good, good), f"{name} in a good state"
        await pool.execute(statement)
        assert tells(rules[name], good, await scrape(pool)), f"{name} in a bad state"


def tells(rule: str, before: Figures, now: Figures) -> bool:
    """Evaluate a rule as far as ours go: sums of what fits a selector, its change for `delta` and `increase`, a
    quantile of the change of buckets, and what is absent.
    """

    def fitting(figures: Figures, selector: str) -> Figures:
        found = SELECTOR.fullmatch(selector)
        assert found is not None
        wanted = re.findall(r'(\w+)=~?"([^"]*)"', found[2] or "")
        return {
            (name, labels): value
            for (name, labels), value in figures.items()
            if name == found[1] and all(re.fullmatch(text, dict(labels)[label]) for label, text in wanted)
        }

    def total(values: Collection[float]) -> str:
        return repr(sum(values) if values else float("nan"))

    def change(call: re.Match[str]) -> str:
        """Return the change of what was there before: of anything else Prometheus tells none."""
        old = fitting(before, call[1])
        return total([now[key] - value for key, value in old.items()])

    def quantile(call: re.Match[str]) -> str:
        """Return the upper end of the bucket that holds the quantile; Prometheus takes a place within it."""
        old = fitting(before, call[2])
        grown = sorted((float(dict(key[1])["le"]), now[key] - value) for key, value in old.items())
        needed = float(call[1]) * grown[-1][1]
        return repr(next(end for end, count in grown if count >= needed)) if needed else "nan"

    def absent(call: re.Match[str]) -> str:
        return str(not fitting(now, call[1]))

    rule = re.sub(r"histogram_quantile\(([\d.]+), sum by \(le\) \(rate\(([^\[]+)\[\w+\]\)\)\)", quantile, rule)
    rule = re.sub(r"absent\(([^)]+)\)", absent, rule)
    changed = re.sub(r"(?:delta|increase)\(([^\[]+)\[\w+\]\)", change, rule)
    numbers = SELECTOR.sub(lambda found: total(fitting(now, found[0]).values()), changed)
    plain = re.sub(r"\b(?:sum|min)\b|on \(node\)", "", numbers)
    try:
        return bool(eval(" ".join(plain.split()), {"nan": float("nan"), "time": time}))  # noqa: S307 - of our own file
    except ZeroDivisionError:
        return False


async def test_two_processes_tell_what_both_have_counted(pool: Pool) -> None:
    for answer in ("accepted", "accepted", "duplicate"):
        counters.DELIVERIES_RECEIVED.labels("issue_comment", answer).inc()
    for seconds in (0.004, 0.01, 0.3, 99):
        counters.ACKNOWLEDGED_AFTER.observe(seconds)
    counters.GITHUB_REQUESTS.labels("200").inc(5)
    counters.GITHUB_RATE_REMAINING.labels("core").set(4000)
    await save_counts(pool)
    # The other process.
    counters.GITHUB_REQUESTS.labels("200").inc(2)
    counters.GITHUB_REQUESTS.labels("unreachable").inc()
    counters.GITHUB_RATE_REMAINING.labels("core").set(3999)
    await save_counts(pool)
    await save_counts(pool)
    first, second = await scrape(pool), await scrape(pool)
    for found in (first, second):
        assert of(found, "deliveries_received_total", event="issue_comment", answer="accepted") == 2
        assert of(found, "acknowledgement_seconds_bucket", le="0.005") == 1
        assert of(found, "acknowledgement_seconds_bucket", le="0.01") == 2
        assert of(found, "acknowledgement_seconds_bucket", le="10.0") == 3
        assert of(found, "acknowledgement_seconds_count") == 4
        assert of(found, "acknowledgement_seconds_sum") == pytest.approx(99.314)
        assert of(found, "github_requests_total", status="200") == 7
        assert of(found, "github_requests_total", status="unreachable") == 1
        assert of(found, "github_rate_remaining", resource="core") == 3999


async def test_what_an_outage_keeps_from_the_rows_is_added_later(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    counters.SWEEPS.labels("done").inc()
    counters.DISK_FREE_BYTES.labels("here").set(1)
    with monkeypatch.context() as patch:
        patch.setattr(
            "bot.care.measures_rows.ADD",
            "select pg_terminate_backend(pg_backend_pid()), $1::text[], $2::text[], $3::float8[], $4::bool",
        )
        await save_counts(pool)
    counters.SWEEPS.labels("done").inc()
    counters.DISK_FREE_BYTES.labels("here").set(2)
    await save_counts(pool)
    found = await scrape(pool)
    assert of(found, "sweeps_total", end="done") == 2
    assert of(found, "disk_free_bytes", node="here") == 2


async def test_a_database_that_hangs_is_a_503(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bot.serve.metrics.ANSWER_SECONDS", 0.2)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("lock table counters")
        transport = httpx.ASGITransport(Starlette(routes=[metrics_route(pool)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://threadtree.test") as client:
            answers = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {503}
