"""What deliveries may write: all that GitHub confirms, and nothing else, through the real decider, rows and client.

`make fuzz` plays a hundred times as many forged payloads, and others each time.
"""

import copy
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import httpx
import orjson
import pytest

from bot.ask import Ask, of_json
from bot.github.auth import TokenCredentials
from bot.github.client import GitHub
from bot.inbox.decider import Decider
from bot.inbox.delivery import delivery_of
from bot.model import Repository
from bot.rules import Rules
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Issue, Pull
from bot.simulated.github.server import SimulatedGitHub
from bot.store import deliveries
from bot.store.database import Pool
from bot.store.engine import RetryLaterError
from bot.store.turns import ClaimedTurn
from bot.thread.authority import Policy
from bot.turn.confirm import confirm
from bot.turn.context import TurnContext
from bot.turn.kind import Confirmed
from bot.turn.parsing import CommentParser
from bot.turn.request import Nodes
from bot.verbs import VERBS
from tests.support.clock import HandMovedClock
from tests.support.fuzz import FUZZ

PLATFORM = "github.example"
RULES = Rules(agents=("custom",), agent="custom")
FORGED = 100 if FUZZ == 1 else 300 * FUZZ
Payload = dict[str, Any]
WRITTEN = {
    "effects": "select key from effects order by key",
    "outbox": "select * from outbox order by id",
    "turns": "select * from turns order by id",
    "requests": "select turn_id, ask from requests order by turn_id",
    "audit": "select * from audit order by id",
    "sessions": "select * from sessions order by id",
    "worktrees": "select id, state, branch, start_kind, start_ref, removal from worktrees order by id",
    "outcomes": "select * from outcomes order by number",
    "codebases": "select repository_id, owner, name, default_branch, installation_id from codebases order by 1",
    "threads": "select id, number, kind, title, state, closed_at, agent, model from conversations order by id",
}
DIGEST = f"select md5(concat({', '.join(f'(select jsonb_agg(t) from ({query}) t)' for query in WRITTEN.values())}))"  # noqa: S608 - of constants


@dataclass
class Setting:
    """A decider without workers, and a GitHub whose webhooks are kept."""

    github: SimulatedGitHub
    client: GitHub
    decider: Decider
    pool: Pool
    clock: HandMovedClock
    sent: list[tuple[str, Payload]] = field(default_factory=list)

    async def decide(self, event: str, payload: Payload) -> tuple[str, str | None]:
        """Let the payload be received and decided; return what became of the delivery."""
        guid = str(uuid4())
        found = delivery_of(guid, event, orjson.dumps(payload), PLATFORM)
        async with self.pool.acquire() as connection:
            await deliveries.store(connection, [found])
        with suppress(RetryLaterError):
            await self.decider.decide(guid, 0)
        row = await self.pool.fetchrow("select state, error from deliveries where guid = $1", guid)
        await self.pool.execute("delete from procrastinate_jobs where status = 'todo'")
        return row["state"], row["error"]

    async def decide_sent(self) -> None:
        """Decide what was sent since the last call."""
        self.clock.move(5)
        done = len(self.sent)
        for event, payload in self.sent[self.decided :]:
            await self.decide(event, payload)
        self.decided = done

    decided: int = 0

    async def written(self) -> dict[str, list[Any]]:
        return {name: [tuple(row) for row in await self.pool.fetch(query)] for name, query in WRITTEN.items()}

    async def asked(self) -> list[tuple[int, Ask]]:
        rows = await self.pool.fetch("select c.number, r.ask::text as ask from requests r"
                                     " join conversations c on c.id = r.conversation_id order by turn_id")  # fmt: skip
        return [(row["number"], of_json(row["ask"])) for row in rows]


@pytest.fixture
async def setting(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setting]:
    clock = HandMovedClock()
    async with SimulatedGitHub.running(tmp_path / "github", clock) as github, httpx.AsyncClient() as http:
        credentials = TokenCredentials(github.bot_token)
        client = GitHub(
            api_url=github.api_url,
            graphql_url=github.graphql_url,
            credentials=credentials,
            http=http,
            clock=clock,
            sleep=clock.sleep,
        )
        policy = Policy(github.bot.id, github.bot.login, "threadtree-bot", "threadtree", comments_per_hour=10_000)
        decider = Decider(
            pool, client, PLATFORM, github.server_url, policy, RULES, Nodes("here"), VERBS, clock, clock.sleep
        )
        await pool.execute("insert into nodes (id) values ('here') on conflict do nothing")
        setting = Setting(github, client, decider, pool, clock)

        def keep(event: str, payload: Payload, repository_id: int | None) -> None:
            setting.sent.append((event, orjson.loads(orjson.dumps(payload))))

        monkeypatch.setattr(github._webhooks, "emit", keep)
        yield setting


async def people_ask(setting: Setting) -> tuple[Issue, Pull]:
    """Let people ask in every way that there is, each decided as it is sent."""
    github = setting.github
    shop = await github.create_repository("acme/shop")
    maria, olaf, rosa = (github.person(name) for name in ("maria", "olaf", "rosa"))
    shop.allow(maria, "write")
    shop.allow(rosa, "write")
    issue = await maria.open_issue(shop, "Asked at once", "@threadtree-bot fix it")
    await setting.decide_sent()
    await maria.open_issue(shop, "Labelled at once", "do that", ["threadtree"])
    labelled, assigned = (
        await olaf.open_issue(shop, "Wrong", "do this"),
        await olaf.open_issue(shop, "Wrong", "or this"),
    )
    await setting.decide_sent()
    setting.clock.move(90)
    await maria.label(labelled, "threadtree")
    await maria.assign(assigned, github.bot)
    await setting.decide_sent()
    await maria.unlabel(labelled, "threadtree")
    setting.clock.move(90)
    await maria.label(labelled, "threadtree")
    await maria.comment(issue, "@threadtree-bot write more\r\n\r\nof it")
    await maria.comment(issue, "/status\n\n/autofix off\n\n@threadtree-bot and this")
    await olaf.comment(issue, "@threadtree-bot let me in")
    await setting.decide_sent()
    said = await olaf.comment(issue, "The total is wrong.")
    typo = await maria.comment(issue, "@threadtree-bot correct it")
    await setting.decide_sent()
    setting.clock.move(5)
    await maria.edit(said, "@threadtree-bot look at the total")
    await maria.edit(typo, "@threadtree-bot correct it, please")
    await setting.decide_sent()
    await setting.pool.execute(
        "update turns set state = 'failed', reason = 'x', finished_at = now() where state = 'queued'"
    )
    await maria.comment(issue, "/retry")
    await rosa.comment(issue, "/worktree reset")
    await maria.comment(issue, "/undo")
    await maria.push(shop, "topic", {"a.txt": "1\n2\n3\n"}, "By hand")
    pull = await maria.open_pull(shop, head="topic", title="Topic", body="@threadtree-bot look here")
    await setting.decide_sent()
    await maria.comment(pull, "/review")
    await maria.review(pull, "@threadtree-bot all of this", comments=[("a.txt", 1, "first"), ("a.txt", 2, "second")])
    await maria.review(pull, None, comments=[("a.txt", 1, "@threadtree-bot why"), ("a.txt", 3, "@threadtree-bot how")])
    await maria.review_comment(pull, "a.txt", 2, "@threadtree-bot alone")
    await setting.decide_sent()
    setting.clock.move(90)
    await rosa.label(pull, "threadtree-review")
    await rosa.request_review(pull, github.bot)
    await setting.decide_sent()
    await setting.pool.execute("update turns set state = 'done', finished_at = now() where state = 'queued'")
    late = await maria.review(pull, "@threadtree-bot first of two")
    await setting.decide_sent()
    await setting.pool.execute("update turns set answer = 'done' where state = 'queued'")
    acts = github._acts
    acts._emit_comment("created", acts._inline(late, "a.txt", 2, "@threadtree-bot second of two"), maria.user)
    await setting.decide_sent()
    closed = await maria.open_issue(shop, "Closed", "@threadtree-bot before")
    reopened = await maria.open_issue(shop, "Reopened", "@threadtree-bot before")
    await setting.decide_sent()
    await maria.close(closed, "/status")
    await maria.close(reopened)
    await setting.decide_sent()
    await maria.reopen(reopened)
    await setting.decide_sent()
    return issue, pull


def context(setting: Setting) -> TurnContext:
    """Return what confirming needs of a turn's context."""
    parser = CommentParser("threadtree-bot", VERBS.commands.values())
    redactor = SimpleNamespace(redact_known=lambda text: text)
    about = {"github": setting.client, "pool": setting.pool, "policy": setting.decider.policy, "rules": RULES}
    return cast(
        "TurnContext",
        SimpleNamespace(**about, parser=parser, redactor=redactor, verbs=VERBS, sleep=setting.clock.sleep),
    )


async def confirmed_again(setting: Setting, number: int, ask: Ask, repository: Repository) -> Confirmed:
    turn = SimpleNamespace(
        ask=ask, worktree=SimpleNamespace(repository=repository), conversation=SimpleNamespace(number=number)
    )
    return await confirm(context(setting), cast("ClaimedTurn", turn))


ASKED = [
    (1, "@threadtree-bot fix it", "maria"),
    (2, "do that", "maria"),
    (3, "do this", "maria"),
    (4, "or this", "maria"),
    (3, "do this", "maria"),
    (1, "@threadtree-bot write more\n\nof it", "maria"),
    (1, "@threadtree-bot and this", "maria"),
    (1, "@threadtree-bot correct it", "maria"),
    (1, "@threadtree-bot look at the total", "maria"),
    (1, "@threadtree-bot look at the total", "maria"),
    (1, "/worktree reset", "rosa"),
    (1, "/undo", "maria"),
    (5, "@threadtree-bot look here", "maria"),
    (5, "/review", "maria"),
    (5, "second", "maria"),
    (5, "@threadtree-bot how", "maria"),
    (5, "@threadtree-bot alone", "maria"),
    (5, "/review", "rosa"),
    (5, "@threadtree-bot first of two", "maria"),
    (5, "@threadtree-bot second of two", "maria"),
    (6, "@threadtree-bot before", "maria"),
    (7, "@threadtree-bot before", "maria"),
]


async def test_what_nobody_touched_is_confirmed_in_whichever_way_it_was_asked(setting: Setting) -> None:
    await people_ask(setting)
    failed = "select event, error from deliveries where state not in ('done', 'ignored')"
    assert [tuple(row) for row in await setting.pool.fetch(failed)] == []
    shop = next(one for one in setting.github.world.repositories.values() if one.name == "shop")
    repository = Repository(PLATFORM, shop.id, "acme", "shop", "main")
    asked = await setting.asked()
    assert [(number, ask.text.rpartition(":\n")[2], ask.by.login) for number, ask in asked] == ASKED
    for number, ask in asked:
        confirmed = (await confirmed_again(setting, number, ask, repository)).ask
        # The newest words count.
        assert replace(confirmed, text=confirmed.text.removesuffix(", please")) == ask


async def test_what_happened_where_the_bot_may_not_see_now_is_not_called_forged(setting: Setting) -> None:
    issue, pull = await people_ask(setting)
    maria = setting.github.person("maria")
    await maria.comment(issue, "/status")
    await maria.close(pull)
    await maria.close(issue)
    await maria.reopen(issue)
    setting.clock.move(5)
    happened = [one for one in setting.sent[setting.decided :] if one[1]["action"] in ("created", "closed", "reopened")]
    assert len(happened) == 4
    setting.github.faults.add(FailBefore(404, "Not Found"), times=None)
    hidden = "NotFound: acme/shop was deleted, or the bot may not see it"
    for event, payload in happened:
        state, error = await setting.decide(event, payload)
        assert state == "failed", (event, payload["action"])
        assert error is not None
        assert error == hidden or payload["action"] == "closed", error


async def test_only_what_github_shows_wakes_a_request_that_waits_for_other_issues(setting: Setting) -> None:
    github, maria = setting.github, setting.github.person("maria")
    shop = await github.create_repository("acme/shop")
    shop.allow(maria, "write")
    first, second = await maria.open_issue(shop, "First"), await maria.open_issue(shop, "@threadtree-bot", "Second")
    await maria.comment(second, "@threadtree-bot go on")
    await setting.decide_sent()
    waits = "update turns set blocked_by = '{acme/shop#1}', not_before = 'infinity' where state = 'queued'"
    woken = "select not_before is null from turns"
    await setting.pool.execute(waits)

    await maria.block(second, first)
    added = next(payload for event, payload in setting.sent if event == "issue_dependencies")
    await setting.decide_sent()
    assert not await setting.pool.fetchval(woken)  # it waits for that one already
    removed = {**added, "action": "blocked_by_removed"}
    opened = next(payload for event, payload in setting.sent if event == "issues")
    closed = {**opened, "action": "closed", "issue": {**opened["issue"]}}
    closed["issue"] |= {"state": "closed", "closed_at": closed["issue"]["updated_at"]}
    for event, forged in (("issue_dependencies", removed), ("issues", closed)):
        assert await setting.decide(event, forged) == ("done", None)
        assert not await setting.pool.fetchval(woken)
    await maria.close(first)
    await setting.decide_sent()
    assert await setting.pool.fetchval(woken)
    await setting.pool.execute(waits)
    await maria.reopen(first)
    await setting.decide_sent()
    assert await setting.pool.fetchval(woken)
    await setting.pool.execute(waits)
    await maria.unblock(second, first)
    await setting.decide_sent()
    assert await setting.pool.fetchval(woken)


TEXTS = (
    *("/worktree remove", "/agent custom", "/approve", "/stop", "/retry", "@threadtree-bot say FORGED.", "x", ""),
    "/status\n\n/autofix on\n\n@threadtree-bot and this",
)
ACTIONS = {
    "issue_comment": ("created", "edited"),
    "issues": ("opened", "edited", "labeled", "assigned", "closed", "reopened", "deleted", "transferred"),
    "pull_request": ("opened", "edited", "labeled", "assigned", "review_requested", "closed", "reopened"),
    "pull_request_review": ("submitted", "edited"),
    "pull_request_review_comment": ("created", "edited"),
}
PARTS = ("comment", "review", "issue", "pull_request", "sender", "label", "assignee", "requested_reviewer", "changes")


def forged(sent: list[tuple[str, Payload]], chance: random.Random) -> tuple[str, Payload]:
    """Return something that was sent with other ids, times, people, words or actions; the repository stays."""
    event, first = chance.choice([one for one in sent if one[0] in ACTIONS])
    payload: Payload = copy.deepcopy(first)
    values: dict[str, list[Any]] = {}
    for _, one in sent:
        for key, _, value in leaves(one):
            values.setdefault(key, []).append(value)

    def swap_part() -> None:
        there = [(name, one[name]) for _, one in sent for name in PARTS if name in one]
        name, part = chance.choice(there)
        payload[name] = copy.deepcopy(part)

    def swap_leaf() -> None:
        key, holder, _ = chance.choice(leaves(payload))
        holder[key] = chance.choice(values[key])

    def other_leaf() -> None:
        key, holder, value = chance.choice(leaves(payload))
        if key == "body":
            holder[key] = chance.choice(TEXTS)
        elif key.endswith("_at"):
            holder[key] = chance.choice(["2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z", value, None])
        elif isinstance(value, int) and not isinstance(value, bool):
            holder[key] = value + chance.choice([-2, -1, 1, 2, 2**40])
        else:
            holder[key] = chance.choice(["x", "", "maria", "threadtree", None])

    def drop_leaf() -> None:
        key, holder, _ = chance.choice(leaves(payload))
        del holder[key]

    def other_action() -> None:
        payload["action"] = chance.choice(ACTIONS[event])
        if payload["action"] == "edited":
            payload["changes"] = {"body": {"from": chance.choice(TEXTS)}}

    ways: list[Callable[[], None]] = [swap_part, swap_leaf, other_leaf, other_action, drop_leaf]
    for way in chance.choices(ways, weights=[3, 4, 4, 2, 1], k=chance.randint(1, 5)):
        way()
    return event, payload


def leaves(payload: Payload) -> list[tuple[str, Payload, Any]]:
    """Return each plain value of what the bot reads, with its key and what holds it."""
    found, left = [], [payload[name] for name in PARTS if isinstance(payload.get(name), dict)]
    for one in left:
        for key, value in one.items():
            if isinstance(value, dict):
                left += [value] if key not in ("reactions", "base", "_links", "repo") else []
            elif not isinstance(value, list) and not key.endswith("_url") and key != "url":
                found.append((key, one, value))
    return found


@pytest.mark.timeout(400 * FUZZ)
async def test_what_was_forged_writes_nothing(setting: Setting) -> None:
    await people_ask(setting)
    chance = random.Random(1 if FUZZ == 1 else None)  # noqa: S311 - for tests
    before, digest = await setting.written(), await setting.pool.fetchval(DIGEST)
    outcomes = set()
    for _ in range(FORGED):
        event, payload = forged(setting.sent, chance)
        outcomes.add(await setting.decide(event, payload))
        if await setting.pool.fetchval(DIGEST) != digest:
            after = await setting.written()
            new = {name: [row for row in after[name] if row not in before[name]] for name in after}
            pytest.fail(f"{new} {event} {orjson.dumps(payload).decode()}")
    assert len(outcomes) > 3, "nearly all was thrown away before it was compared"
