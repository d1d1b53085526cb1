"""The sender's side of the outbox: which row is next in a lane, and what became of it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from bot.model import Repository, Target
from bot.store.database import Connection, repository_of

OWN_LANE = """
-- Held by the database session: whoever is killed lets go, and a second sender finds the lane taken.
select pg_try_advisory_lock(hashtextextended('outbox ' || $1, 0))
"""

SENDABLE = """
-- Not yet: a turn's later part before its earlier one is on GitHub, and what waits for another comment's address
-- (unless that comment was refused). An earlier part that waits for this very row holds nothing up.
from outbox o
where o.lane = $1 and o.state in ('waiting', 'sending')
  and not exists (select from outbox linked where linked.id = o.waits_for
                    and linked.comment_url is null and linked.state <> 'failed')
  and not exists (select from outbox earlier where earlier.kind = 'comment' and earlier.turn_id = o.turn_id
                    and earlier.part < o.part and earlier.comment_id is null
                    and earlier.state in ('waiting', 'sending') and earlier.waits_for is distinct from o.id)
"""

NEXT = f"""
-- Where $3 holds nothing new may be created now, so only edits count.
select o.id, o.kind, o.comment_id
{SENDABLE}
  and o.due_at <= $2 and (not $3 or o.comment_id is not null)
order by o.urgency, o.id limit 1
"""

NEXT_DUE = f"""
select case when count(*) > 0 then greatest(min(o.due_at), $2::timestamptz) end
{SENDABLE}
"""

TAKE = """
-- Committed before the request: whoever finds `sending` later knows that GitHub may have it already.
with before as (select id, state from outbox where id = $1 for update)
update outbox o set state = 'sending', sending_at = $2
from before, conversations c, codebases b
where o.id = before.id and c.id = o.conversation_id and (b.platform, b.repository_id) = (c.platform, c.repository_id)
returning o.id, o.kind, o.turn_id, o.part, o.urgency, o.target_kind, o.target_id, o.content, o.version, o.comment_id,
          o.attempts, o.created_at, before.state = 'sending' as unsure,
          c.number, b.platform, b.repository_id, b.owner, b.name, b.default_branch, b.installation_id,
          (select linked.comment_url from outbox linked where linked.id = o.waits_for) as linked_url,
          (select linked.content from outbox linked where linked.id = o.waits_for) as linked_content
"""

SENT = """
-- A newer wish than the one that was sent waits for its own request.
update outbox
set state = case when version > $2 then 'waiting' else 'sent' end, sent_version = $2, attempts = 0, error = null,
    comment_id = $3, comment_url = $4, posted_at = coalesce(posted_at, $5)
where id = $1 and state = 'sending'
"""

LATER = """
update outbox set state = $2, due_at = $3, attempts = attempts + 1, error = $4 where id = $1 and state = 'sending'
"""

HOLD_LANE = """
insert into lanes (lane, held_until) values ($1, $2)
on conflict (lane) do update set held_until = greatest(lanes.held_until, excluded.held_until)
"""

HELD_UNTIL = """
select held_until from lanes where lane = $1 and held_until > $2
"""

FAILED = """
update outbox set state = 'failed', error = $2 where id = $1 and state = 'sending'
"""

POST_ANEW = """
-- The comment is gone, or the place for it: the wish stands, so it is posted again, at the end of the thread.
update outbox set state = 'waiting', comment_id = null, comment_url = null, sent_version = 0, posted_at = null,
                  error = $2, target_kind = $3, target_id = $4
where id = $1 and state = 'sending'
"""

CREATED_SINCE = """
-- A request whose answer never came counts from when it was sent.
select coalesce(posted_at, sending_at) as at from outbox
where lane = $1 and (posted_at > $2 or (posted_at is null and sending_at > $2))
order by 1
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The row that is next; `creates`: sending it makes something new on GitHub, which the write limits count."""

    id: int
    creates: bool


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A row taken for sending; `unsure`: an earlier request for it may have reached GitHub."""

    id: int
    kind: Literal["reaction", "comment"]
    turn_id: int | None
    part: int | None
    urgency: int
    repository: Repository
    number: int
    target: Target
    content: str
    version: int
    comment_id: int | None
    attempts: int
    unsure: bool
    created_at: datetime
    linked_url: str | None
    linked_content: str | None


async def own_lane(connection: Connection, lane: str) -> bool:
    """Become the lane's only sender until the connection goes back to its pool or breaks."""
    return bool(await connection.fetchval(OWN_LANE, lane))


async def next_candidate(connection: Connection, lane: str, now: datetime, *, only_edits: bool) -> Candidate | None:
    """The most urgent, then oldest row that is due."""
    row = await connection.fetchrow(NEXT, lane, now, only_edits)
    return None if row is None else Candidate(row["id"], creates=row["comment_id"] is None)


async def next_due(connection: Connection, lane: str, now: datetime) -> datetime | None:
    """When the first row that could be sent is due, `now` at the earliest; None where there is none."""
    due: datetime | None = await connection.fetchval(NEXT_DUE, lane, now)
    return due


async def take(connection: Connection, row_id: int, now: datetime) -> OutboxItem:
    """Mark the row `sending` and read what it wishes; on a connection outside any transaction this is committed."""
    row = await connection.fetchrow(TAKE, row_id, now)
    if row is None:
        raise LookupError(f"outbox row {row_id} is gone")
    return OutboxItem(
        id=row["id"],
        kind=row["kind"],
        turn_id=row["turn_id"],
        part=row["part"],
        urgency=row["urgency"],
        repository=repository_of(row),
        number=row["number"],
        target=Target(row["target_kind"], row["target_id"]),
        content=row["content"],
        version=row["version"],
        comment_id=row["comment_id"],
        attempts=row["attempts"],
        unsure=row["unsure"],
        created_at=row["created_at"],
        linked_url=row["linked_url"],
        linked_content=row["linked_content"],
    )


async def sent(
    connection: Connection, row_id: int, version: int, comment: tuple[int, str] | None, now: datetime
) -> None:
    """GitHub agrees with this version; `comment` is its id and address."""
    comment_id, url = comment or (None, None)
    await connection.execute(SENT, row_id, version, comment_id, url, now)


async def later(connection: Connection, row_id: int, due_at: datetime, error: str, *, unsure: bool) -> None:
    """Try again at `due_at`; an unsure row stays `sending`, so that it is looked for on GitHub first."""
    await connection.execute(LATER, row_id, "sending" if unsure else "waiting", due_at, error)


async def hold_lane(
    connection: Connection, lane: str, row_id: int, until: datetime, error: str, *, unsure: bool
) -> None:
    """Nothing of the lane goes out before `until`; the row itself waits as well."""
    async with connection.transaction():
        await later(connection, row_id, until, error, unsure=unsure)
        await connection.execute(HOLD_LANE, lane, until)


async def held_until(connection: Connection, lane: str, now: datetime) -> datetime | None:
    """Until when the lane is held, if it is."""
    until: datetime | None = await connection.fetchval(HELD_UNTIL, lane, now)
    return until


async def failed(connection: Connection, row_id: int, error: str) -> None:
    """GitHub said no for good."""
    await connection.execute(FAILED, row_id, error)


async def post_anew(connection: Connection, row_id: int, target: Target, error: str) -> None:
    """Forget the comment there was: the next request creates it again, as an answer to `target`."""
    await connection.execute(POST_ANEW, row_id, error, target.kind, target.id)


async def created_within(connection: Connection, lane: str, span: timedelta, now: datetime) -> list[datetime]:
    """When the lane created something on GitHub within `span` before `now`, oldest first."""
    return [row["at"] for row in await connection.fetch(CREATED_SINCE, lane, now - span)]
