"""A repository's file asks again and again, at its times: `[[standing]]`. Each time is a delivery, then a request.

The delivery only names the entry and the time. What is asked, for whom, and whether it is asked at all, is what the
file says on the default branch when the delivery is decided.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import orjson
import structlog

from bot import failpoints
from bot.ask import Ask
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused
from bot.model import Actor, Repository, Target, Thread
from bot.node.repository_names import of_this_minute
from bot.node.repository_rules import known_rules
from bot.node.transactions import persist
from bot.rules import CONFIG_PATH, MAX_CONFIG_BYTES, Config, Found, Rules, Standing, read_config, within
from bot.store import deliveries
from bot.store.database import Connection, Pool
from bot.store.deliveries import NewDelivery
from bot.thread import thread_comments
from bot.thread.authority import Denied
from bot.thread.outbox import write_in_line
from bot.turn.kind import Kind
from bot.turn.may_ask import may_ask
from bot.turn.parsing import Request
from bot.turn.request import Parts, Verb, save_thread
from bot.turn.turn_run import TurnRun
from bot.verbs.standing import rows, words
from bot.verbs.standing.rows import Entry

EVENT = "standing"
"""The event of such a delivery. GitHub has none of this name, and one that claims it is ignored when received."""
STANDING_SECONDS = 10.0
"""The pause between two looks for times that have come."""
MOST_AT_ONCE = 20
MOST_FILES_AT_ONCE = 5
LOOK_AGAIN_SECONDS = 5.0
"""GitHub may list an issue a moment after it was opened."""
_log = structlog.get_logger()


async def ask_what_is_due(pool: Pool, github: GitHub, clock: Callable[[], datetime]) -> None:
    """Read files whose time has come, a few at once, and store a delivery for each entry that is due."""
    for repository in await persist(pool, rows.take_unread, clock(), MOST_FILES_AT_ONCE):
        try:
            await _read(pool, github, repository, clock())
        except GitHubError as problem:
            _log.warning("standing-not-read", repository=repository.full_name, problem=str(problem))
    await persist(pool, _store_due, clock())


async def _read(pool: Pool, github: GitHub, repository: Repository, now: datetime) -> Config | None:
    """Let the rows be what the file of the default branch says now; one that cannot be read changes nothing.

    GitHub is asked conditionally. Raises GitHubError: NotFound where it does not show the repository.
    """
    content = await github.content(repository, CONFIG_PATH)
    if content is None:
        await github.as_named_now(repository)
        found = Found(Config())
    elif content.text is None or len(content.text) > MAX_CONFIG_BYTES:
        return None
    else:
        found = await asyncio.to_thread(read_config, content.text)
    if found.config is not None:
        await persist(pool, _keep, repository, found.config, found.standing_lines, now)
    return found.config


async def _keep(
    connection: Connection, repository: Repository, config: Config, lines: tuple[int, ...], now: datetime
) -> None:
    known = {one.key: one.first_seen_at for one in await rows.entries(connection, repository)}
    there = config.standing or []
    await rows.forget_others(connection, repository, [entry.key for entry in there])
    for entry, line in zip(there, lines, strict=True):
        since = known.get(entry.key, now)
        due_at = None if config.standing_paused else entry.next_after(now, since)
        stored = entry.model_dump_json(by_alias=True)
        await rows.keep(connection, repository, entry.key, stored, line, since, due_at)


async def _store_due(connection: Connection, now: datetime) -> None:
    """Store a delivery for each entry that is due, and its next time with it: no process and no crash does it twice."""
    for due in await rows.due(connection, now, MOST_AT_ONCE):
        entry, repository = Standing.model_validate_json(due.entry), due.repository
        at = due.due_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
        guid = f"standing-{repository.id}-{due.key}-{at}"
        await rows.move_on(connection, due.id, entry.next_after(now, due.first_seen_at), None if due.is_held else guid)
        if due.is_held:
            _log.info("standing-held", repository=repository.full_name, entry=due.id)
            continue
        place = due.issue or f"standing-{due.id}"
        names = None if due.issue is None else f"{repository.full_name}#{due.issue}"
        lock = f"{repository.platform}/{repository.id}#{place}"
        body = orjson.dumps({"repository": repository.id, "key": due.key, "at": due.due_at})
        await deliveries.store(connection, [NewDelivery(guid, EVENT, "received", None, names, lock, body)])
        failpoints.reached("standing-stored")


async def due_request(parts: Parts, guid: str, body: bytes) -> Request | str:
    """Return what the entry of a delivery asks, on its thread; or why it asks nothing. Raises GitHubError."""
    due = orjson.loads(body)
    at = datetime.fromisoformat(due["at"])
    repository = await of_this_minute(parts.pool, parts.github, Repository(parts.platform, due["repository"], "", ""))
    config = await _read(parts.pool, parts.github, repository, parts.clock())
    known = {one.key: one for one in await persist(parts.pool, rows.entries, repository)}
    row = known.get(due["key"])
    if row is None or row.due_at is None:
        return "the file asks for it no more, or pauses it"
    entry = Standing.model_validate_json(row.entry)
    known_before = await known_rules(parts.pool, parts.rules, repository)
    rules = within(parts.rules, config)[0] if config is not None else known_before
    person = await parts.github.person(repository, entry.as_)
    problem = await _why_not(parts, repository, rules, entry, person)
    try:
        if person is None or problem is not None:
            return await _pause(parts, repository, row, entry, at, problem or "")
        thread = await _open_thread(parts, repository, row) or await _open(parts, repository, row, entry, at)
    except (NotFound, Refused) as refusal:
        # Such as a repository without issues: nobody can be told on a thread.
        await persist(parts.pool, rows.note_problem, row.id, words.no_issue(str(refusal)))
        return f"no issue: {refusal}"
    await persist(parts.pool, rows.note_problem, row.id, None)
    asked = Ask(entry.ask, person, parts.clock(), Target("issue"), of={"standing": row.id})
    return Request(repository, thread, asked, guid, asks=True)


async def _why_not(
    parts: Parts, repository: Repository, rules: Rules, entry: Standing, person: Actor | None
) -> str | None:
    """Return why the entry may not ask by now, None if it may."""
    if person is None:
        return words.no_account(entry.as_)
    verdict = await may_ask(parts.github, parts.policy, person, repository, allowed=rules.allowed)
    return words.may_not_ask(entry.as_, verdict.why) if isinstance(verdict, Denied) else None


async def _pause(parts: Parts, repository: Repository, row: Entry, entry: Standing, at: datetime, problem: str) -> str:
    """Tell people once why the entry asks nothing: on its last thread, or on one that is opened for that."""
    if row.problem != problem:
        number = row.issues[-1] if row.issues else (await _open(parts, repository, row, entry, at)).number

        async def tell(connection: Connection) -> None:
            if await rows.note_problem(connection, row.id, problem) is not None:
                thread = Thread(number, "issue", words.title(entry.ask), None)
                thread_ref, _ = await save_thread(connection, repository, thread)
                await thread_comments.reply(connection, thread_ref, Target("issue"), words.paused(problem))

        await persist(parts.pool, tell)
    return f"paused: {problem}"


async def _open_thread(parts: Parts, repository: Repository, row: Entry) -> Thread | None:
    """Return the thread of the time before, where that is open without an open pull request."""
    if row.open_issue is None:
        return None
    with suppress(NotFound):
        thread = await parts.github.thread(repository, row.open_issue)
        if thread.closed_at is None and thread.number == row.open_issue:
            return thread
    return None


async def _open(parts: Parts, repository: Repository, row: Entry, entry: Standing, at: datetime) -> Thread:
    """Open the issue of one time, once: whoever asks GitHub a second time looks for it before. Raises GitHubError."""
    github, stamp = parts.github, at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    title, marker = words.title(entry.ask), words.marker(row.key, stamp)
    number = None
    if row.opening_at == at:
        for pause in (0.0, LOOK_AGAIN_SECONDS):
            await parts.sleep(pause)
            number = number or await github.find_issue(repository, marker, at - timedelta(hours=1))
    if number is None:
        web = f"{parts.server_url}/{repository.full_name}"
        commit = await github.changed_by(repository, CONFIG_PATH)
        link = f"{web}/blob/{commit}/{CONFIG_PATH}#L{row.line}" if commit else None
        body = words.body(entry.every, entry.ask, entry.as_, row.line, link, marker)
        create = partial(github.create_issue, repository, title, body, f"{parts.policy.label}-standing")
        await persist(parts.pool, rows.begin_opening, row.id, at)
        number = await write_in_line(parts.pool, (repository.writer, None), create, parts.clock, parts.sleep)
        failpoints.reached("standing-opened")
    await persist(parts.pool, rows.opened, row.id, number)
    return Thread(number, "issue", title, None)


STANDING: Kind[TurnRun] = Kind("standing", "nobody", joins=True)
"""GitHub shows the words in the file alone, where they were read when this was decided."""


def _kind_of(ask: Ask, kinds: Mapping[str, Kind[Any]]) -> Kind[Any] | None:
    return STANDING if ask.verb == "work" and "standing" in ask.of else None


async def _at_end(connection: Connection, conversation_id: int, rules: Rules) -> None:
    for thread_ref, is_paused in await rows.note_end(connection, conversation_id, words.FAILED):
        if is_paused:
            await thread_comments.reply(connection, thread_ref, Target("issue"), words.paused(words.FAILED))


VERB = Verb(kinds=(STANDING,), kind_of=_kind_of, at_end=_at_end)
