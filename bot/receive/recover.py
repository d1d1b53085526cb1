"""Recovery of what was missed while nothing listened (DESIGN.md §3.1).

GitHub keeps a log of its deliveries for three days: it is compared with the inbox, and what that lacks is fetched.
Without the permission to read the log, the threads of active repositories are read. What was acted on before is
recognised when it is decided, by its effect.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

import orjson
import structlog

from bot import counters
from bot.github.answers import LoggedDelivery
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused
from bot.github.payloads import is_used_event
from bot.model import Repository
from bot.receive.delivery import delivery_of, may_address
from bot.store import deliveries, recoveries
from bot.store.database import Pool
from bot.store.deliveries import NewDelivery
from bot.store.recoveries import Text

# https://docs.github.com/webhooks/testing-and-troubleshooting-webhooks/viewing-webhook-deliveries
MEMORY = timedelta(days=3)
OVERLAP = timedelta(minutes=10)
"""A delivery can appear in the log a little after its time."""
ACTIVE = timedelta(days=30)
MOST_REPOSITORIES = 50
MOST_LOGGED = 3000
MOST_FETCHED = 300
MOST_CHANGED = 500
"""Budgets of one round and source; the next round goes on."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one source of deliveries gave. `problem` says why its threads were read, or why nothing was compared."""

    source: str
    way: Literal["deliveries", "threads", "none"]
    guids: tuple[str, ...] = ()
    problem: str | None = None


async def recover(pool: Pool, github: GitHub, platform: str, names: str, now: datetime) -> list[Recovered] | None:
    """Store what the inbox lacks, source by source; None where another process is doing it.

    `names` are those that the bot answers to, joined by commas. Raises only what a database raises that is away.
    """
    async with recoveries.only_one(pool) as is_ours:
        if not is_ours:
            return None
        recovery = _Recovery(pool, github, platform, names, now)
        found = [one async for one in recovery.run()]
    for one in found:
        counters.count("recoveries_total", "missed-delivery", len(one.guids))
        log = _log.warning if one.guids or one.way == "none" else _log.info
        log("deliveries-recovered", source=one.source, way=one.way, recovered=len(one.guids), problem=one.problem)
    return found


class _Recovery:
    def __init__(self, pool: Pool, github: GitHub, platform: str, names: str, now: datetime) -> None:
        self._pool = pool
        self._github = github
        self._platform = platform
        self._names = names
        self._now = now

    async def run(self) -> AsyncIterator[Recovered]:
        if self._github.is_app:
            yield await self._source("app", None)
            return
        async with self._pool.acquire() as connection:
            active = await recoveries.active_repositories(
                connection, self._platform, self._now, ACTIVE, MOST_REPOSITORIES
            )
        for repository in active:
            yield await self._source(f"{self._platform}/{repository.id}", repository)

    async def _source(self, source: str, repository: Repository | None) -> Recovered:
        """Compare one source; a problem of GitHub's leaves it to the next round."""
        shown = repository.full_name if repository else source
        async with self._pool.acquire() as connection:
            since = await recoveries.seen_until(connection, source, self._now, MEMORY)
        try:
            try:
                guids, until = await self._from_log(repository, since)
                way, problem = "deliveries", None
            except (NotFound, Refused) as missing:
                if repository is None:
                    raise
                guids, until = await self._from_threads(repository, since)
                way, problem = "threads", f"the bot may not read the repository's webhooks ({missing})"
        except GitHubError as problem_of_github:
            return Recovered(shown, "none", problem=str(problem_of_github))
        async with self._pool.acquire() as connection:
            await recoveries.save(connection, source, until, problem)
        return Recovered(shown, "threads" if way == "threads" else "deliveries", guids, problem)

    async def _from_log(self, repository: Repository | None, since: datetime) -> tuple[tuple[str, ...], datetime]:
        """Fetch what the inbox lacks of GitHub's log; return it, and until when nothing is missed now."""
        hooks: list[tuple[Repository, int] | None] = [None]
        if repository is not None:
            hooks = [(repository, hook) for hook in await self._github.webhooks(repository)]
            if not hooks:
                raise NotFound("there is no webhook that leads to /webhooks/github")
        stored: list[str] = []
        until = self._now
        for hook in hooks:
            logged, complete = await self._github.logged_deliveries(hook, since - OVERLAP, MOST_LOGGED)
            missing = await self._missing(logged)
            for delivery in missing[:MOST_FETCHED]:
                payload = await self._github.logged_payload(hook, delivery.id)
                stored += await self._store(delivery.guid, delivery.event, payload)
            if not complete or len(missing) > MOST_FETCHED:
                until = since
        return tuple(stored), until

    async def _missing(self, logged: list[LoggedDelivery]) -> list[LoggedDelivery]:
        """Return the deliveries that the inbox lacks, each once, the oldest first."""
        used = {delivery.guid: delivery for delivery in logged if is_used_event(delivery.event)}
        async with self._pool.acquire() as connection:
            known = await recoveries.known(connection, list(used))
        return sorted((one for guid, one in used.items() if guid not in known), key=lambda one: (one.at, one.id))

    async def _from_threads(self, repository: Repository, since: datetime) -> tuple[tuple[str, ...], datetime]:
        """Make deliveries of what people wrote and closed since; return them, and until when nothing is missed now.

        Edited comments are left out, for what they asked before the edit is not known. So are labels, assignments and
        the texts of reviews.
        """
        own = await self._github.identity()
        stored: list[str] = []
        until = self._now
        for what in ("issues", "issues/comments", "pulls/comments"):
            changed = await self._github.changed_since(repository, what, since - OVERLAP, MOST_CHANGED)
            if len(changed) == MOST_CHANGED:
                until = min(until, max(since, _time(changed[-1]["updated_at"])))
            for one in changed:
                try:
                    if one["user"] is not None and one["user"]["id"] != own.id:
                        stored += await self._from_thread(repository, what, one, since - OVERLAP)
                except (KeyError, TypeError, ValueError) as problem:
                    _log.warning(
                        "not-recovered", what=what, number=one.get("number"), id=one.get("id"), why=repr(problem)
                    )
        return tuple(stored), until

    async def _from_thread(self, repository: Repository, what: str, one: Any, since: datetime) -> list[str]:
        """Store the events in a comment or thread that were missed. Raises what a malformed answer causes."""
        stored: list[str] = []
        for event, payload, text in self._events(what, one, since):
            if await self._concerns(repository, text, payload):
                stored += await self._store_synthetic(repository, event, payload, text)
        return stored

    def _events(self, what: str, one: Any, since: datetime) -> Iterator[tuple[str, dict[str, Any], Text]]:
        """Yield the events in a comment or thread, without the repository and the thread that they belong to."""

        def text(kind: str, number: int, text_id: int | None = None) -> Text:
            return Text(Repository(self._platform, 1, "", ""), number, kind, text_id)

        match what:
            case "issues":
                kind, about = "pull" if one.get("pull_request") else "issue", {"sender": one["user"]}
                if _time(one["created_at"]) >= since:
                    # As it was when it was opened, so that it is recognised.
                    opened = {**one, "updated_at": one["created_at"], "state": "open", "closed_at": None}
                    yield "issues", {**about, "action": "opened", "issue": opened}, text(kind, one["number"])
                if one.get("closed_at") and _time(one["closed_at"]) >= since:
                    yield "issues", {**about, "action": "closed", "issue": one}, text("closed", one["number"])
            case _ if one["created_at"] == one["updated_at"] and _time(one["created_at"]) >= since:
                event = "issue_comment" if what == "issues/comments" else "pull_request_review_comment"
                kind = "comment" if what == "issues/comments" else "review-comment"
                address = one["issue_url" if what == "issues/comments" else "pull_request_url"]
                number = int(address.rpartition("/")[2])
                yield event, {"action": "created", "comment": one, "sender": one["user"]}, text(kind, number, one["id"])

    async def _concerns(self, repository: Repository, text: Text, payload: dict[str, Any]) -> bool:
        """Return whether it can concern the bot and was not acted on, as far as rows tell."""
        async with self._pool.acquire() as connection:
            if text.kind == "closed":
                return await recoveries.is_open(connection, repository, text.number)
            written = (payload.get("comment") or payload["issue"])["body"] or ""
            if not may_address(written, self._names):
                return False
            return not await recoveries.was_answered(connection, Text(repository, text.number, text.kind, text.id))

    async def _store_synthetic(
        self, repository: Repository, event: str, payload: dict[str, Any], text: Text
    ) -> list[str]:
        """Store a payload as GitHub would have sent it, with a GUID that is always the same for the same event."""
        thread = payload.get("issue")
        if thread is None:
            what = "/issues/{number}" if event == "issue_comment" else "/pulls/{number}"
            thread = await self._github.get(repository, what, number=str(text.number))
        about = {
            "repository": {
                "id": repository.id,
                "name": repository.name,
                "owner": {"login": repository.owner},
                "default_branch": repository.default_branch,
            },
            "pull_request" if event == "pull_request_review_comment" else "issue": thread,
        }
        if repository.installation_id is not None:
            about["installation"] = {"id": repository.installation_id}
        source = payload.get("comment") or payload["issue"]
        name = f"{source['node_id']}/{payload['action']}/{source.get('closed_at')}"
        guid = str(uuid5(NAMESPACE_URL, f"https://{repository.platform}/{name}"))
        return await self._store(guid, event, {**payload, **about})

    async def _store(self, guid: str, event: str, payload: object) -> list[str]:
        delivery: NewDelivery = delivery_of(guid, event, orjson.dumps(payload), self._platform)
        async with self._pool.acquire() as connection:
            return sorted((await deliveries.store(connection, [delivery])).guids)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
