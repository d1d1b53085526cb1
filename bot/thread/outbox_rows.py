"""The outbox: each row states a comment or a reaction, and the sender (`bot.thread.outbox`) makes GitHub agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from bot.model import Repository, Target, ThreadRef
from bot.store.database import Connection, statement
from bot.store.jobs import ring

ENQUEUE_COMMENT = """
-- The comment keeps its place (target, comment_id); a row in flight waits again when its request returns.
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, target_id, content,
                    waits_for, asked_by, review, due_at)
values ($1, $2, 'comment', $3, $4, $5, $6, $7, $8, $9, $10, $11, '-infinity')
on conflict (turn_id, part) where kind = 'comment' and turn_id is not null do update
set content = excluded.content, urgency = excluded.urgency, waits_for = excluded.waits_for,
    review = excluded.review, error = null,
    -- An answer is tried as often as any, however often progress failed.
    attempts = case when excluded.urgency < outbox.urgency then 0 else outbox.attempts end,
    version = outbox.version + 1, state = case outbox.state when 'sending' then 'sending' else 'waiting' end
where (outbox.content, outbox.waits_for) is distinct from (excluded.content, excluded.waits_for)
   or outbox.state = 'failed'
returning id
"""

REWRITE_COMMENT = """
update outbox set content = $2, error = null, version = version + 1,
                  state = case state when 'sending' then 'sending' else 'waiting' end
where id = $1 returning id
"""

ENQUEUE_REACTION = """
insert into outbox (writer, conversation_id, kind, urgency, target_kind, target_id, content, asked_by, due_at)
values ($1, $2, 'reaction', $6, $3, $4, $5, $7, '-infinity')
on conflict (conversation_id, target_kind, coalesce(target_id, 0), content) where kind = 'reaction' do nothing
returning id
"""


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A row taken for sending; an earlier request for it, of the time `unsure_since`, may have reached GitHub.

    `review`: it goes as a review, with these remarks.
    `linked_url`: the address of the comment in its place, with which it goes. `is_linked`: it takes another comment's
    place, which says its text where GitHub refuses this one.
    """

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
    unsure_since: datetime | None
    created_at: datetime
    linked_url: str | None
    linked_content: str | None
    is_linked: bool
    review: str | None = None


async def enqueue_comment(
    connection: Connection,
    thread_ref: ThreadRef,
    target: Target,
    content: str,
    urgency: int,
    turn_id: int | None = None,
    part: int | None = None,
    *,
    waits_for: int | None = None,
    asked_by: int | None = None,
    review: str | None = None,
) -> int:
    """State a comment, of a turn its part `part`, and ring; return the row's id. The same text of a part again changes
    nothing. It goes as the `review` in this JSON, if given.

    The comment goes once that of row `waits_for` is on GitHub; where it has to stay, `%ANSWER_URL%` in its content is
    the address of that one. `asked_by` is the person for whom it is, by GitHub's id, where no turn tells.
    """
    place = (*thread_ref.key, turn_id, part)
    said = (urgency, target.kind, target.id, content, waits_for, asked_by, review)
    row_id: int | None = await connection.fetchval(ENQUEUE_COMMENT, *place, *said)
    if row_id is not None:
        await ring(connection, thread_ref.repository.writer)
        return row_id
    known = "select id from outbox where kind = 'comment' and turn_id = $1 and part = $2"
    return int(await connection.fetchval(known, turn_id, part))


@statement("""
-- The tracking comment is older than $2, or the answer of one of the turns before it comes below it, or it stands in
-- the thread of the first of several remarks.
select exists (
    select from outbox mine
    where mine.kind = 'comment' and mine.turn_id = $1 and mine.part = 1
      and (mine.posted_at < $2
           or mine.target_kind = 'review-comment' and 'review' = (select ask #>> '{target,kind}' from requests
                                                                  where turn_id = $1)
           or exists (
               select from (select id from turns where conversation_id = mine.conversation_id and id < $1
                            order by id desc limit 20) earlier
               join outbox answer on answer.turn_id = earlier.id
               where answer.kind = 'comment' and answer.part > 1 and answer.state <> 'failed'
                 and coalesce(answer.posted_at, 'infinity') > mine.posted_at)))
""")
async def is_passed(connection: Connection, turn_id: int, at: datetime) -> bool:
    """Return whether the turn's tracking comment is on GitHub since before that time, or not where the answer goes."""


@statement("""
-- The last part of the answer; not what the tracking comment says where the answer is another comment.
select id, content from outbox
where kind = 'comment' and turn_id = $1 and waits_for is null and state <> 'failed'
order by part desc limit 1 for update
""")
async def end_of_answer(connection: Connection, turn_id: int) -> tuple[int, str] | None:
    """Return the row and the text of the last comment of a turn's answer, None once that is forgotten."""


@statement("""
select id, turn_id, content from outbox where conversation_id = $1 and kind = 'comment' and comment_id = $2 for update
""")
async def comment_there(
    connection: Connection, conversation_id: int, comment_id: int
) -> tuple[int, int | None, str] | None:
    """Return the row of a comment on GitHub, its turn, and its newest text; None once that is forgotten."""


async def rewrite_comment(connection: Connection, thread_ref: ThreadRef, row_id: int, content: str) -> bool:
    """State another text for a comment that belongs to no turn, and ring; False if its row is gone."""
    if await connection.fetchval(REWRITE_COMMENT, row_id, content) is None:
        return False
    await ring(connection, thread_ref.repository.writer)
    return True


async def enqueue_reaction(
    connection: Connection, thread_ref: ThreadRef, target: Target, content: str, urgency: int, asked_by: int | None
) -> bool:
    """State a reaction by GitHub's name for it, such as `eyes`, and ring; return whether it is new."""
    place = (*thread_ref.key, target.kind, target.id)
    row = await connection.fetchrow(ENQUEUE_REACTION, *place, content, urgency, asked_by)
    if row is not None:
        await ring(connection, thread_ref.repository.writer)
    return row is not None


@statement("""
-- Once a person and thread a day, and not while $4 of them wait: anybody can cause them.
insert into effects (key, seen_at)
select sha256(convert_to(format('declined %s %s', $2::bigint, $3::bigint), 'UTF8')), $6
where (select count(*) from outbox where writer = $1 and urgency = $5 and state in ('waiting', 'sending')) < $4
on conflict (key) do update set seen_at = excluded.seen_at where effects.seen_at <= $6 - interval '1 day'
returning key
""")
async def may_decline(
    connection: Connection, thread_ref: ThreadRef, person_id: int, most_waiting: int, urgency: int, now: datetime
) -> bool:
    """Return whether the person may get a reaction of this lowest urgency on the thread now, and record it."""


@statement("""
-- What waits is as good as posted. A comment in whose place another one goes is deleted then. A time in the future is
-- of a clock that was wrong.
select min(at) + interval '1 hour' as until
from (select coalesce(posted_at, $3) as at from outbox
      where conversation_id = $1 and kind = 'comment' and state <> 'failed' and waits_for is null
        and (posted_at is null or (posted_at > $3 - interval '1 hour' and posted_at <= $3))
      order by 1 desc limit $2) newest
having count(*) >= $2
""")
async def silent_until(connection: Connection, conversation_id: int, most: int, now: datetime) -> datetime | None:
    """Return until when the conversation has `most` or more of the bot's comments within an hour, None if fewer."""


@statement("""
insert into effects (key, seen_at) values (sha256(convert_to(format('silent %s', $1::bigint), 'UTF8')), $2)
on conflict (key) do update set seen_at = excluded.seen_at where effects.seen_at <= $2 - interval '1 hour'
returning key
""")
async def is_first_silence(connection: Connection, conversation_id: int, now: datetime) -> bool:
    """Return whether the conversation was not told within the last hour that the bot is silent, and record it."""


@statement("""
-- Once a person and repository, ever: unlike other effects it is not forgotten after a year.
insert into effects (key, seen_at)
select sha256(convert_to(format('refused %s/%s %s', $1::text, $2::bigint, $3::bigint), 'UTF8')), 'infinity'
on conflict do nothing returning key
""")
async def is_first_refusal(connection: Connection, repository: Repository, person_id: int) -> bool:
    """Return whether the person was never told why requests in the repository are refused, and record it."""


@statement("""
-- Those for which no job waits or runs: a doorbell was lost, or a row became due. Not those that GitHub's limit holds.
select writer from (select distinct writer from outbox where state in ('waiting', 'sending') and due_at <= $1) o
where not exists (select from procrastinate_jobs j
                  where j.lock = 'outbox:' || o.writer and j.status in ('todo', 'doing'))
  and not exists (select from writers w where w.writer = o.writer and w.held_until > $1)
""")
async def forgotten_writers(connection: Connection, now: datetime) -> list[str]:
    """Return the writers that have something to send, and have to be rung for."""


async def lock_writer(connection: Connection, writer: str) -> bool:
    """Become the only sender for this writer until the connection goes back to its pool or breaks."""
    # Held by the database session: Postgres frees it when the process dies, and a second sender finds it taken.
    take_lock = "select pg_try_advisory_lock(hashtextextended('outbox ' || $1, 0))"
    return bool(await connection.fetchval(take_lock, writer))


@statement("""
-- If $3 is true, nothing new may be created now, so only edits count. Nor for the persons $4.
select o.id, o.urgency, o.comment_id is null
from sendable o where o.writer = $1
  and o.due_at <= $2 and (o.comment_id is not null or not ($3 or coalesce(o.asked_by = any ($4::bigint[]), false)))
order by o.round, o.urgency, o.id limit 1
""")
async def next_to_send(
    connection: Connection, writer: str, now: datetime, *, only_edits: bool, only_edits_for: Sequence[int] = ()
) -> tuple[int, int, bool] | None:
    """Return the row that goes next, by round, urgency and age: its id, its urgency, whether it creates something.

    `only_edits_for`: the persons for whom nothing may be created now.
    """


@statement("""
select greatest(o.due_at, $2::timestamptz)
from sendable o where o.writer = $1 and o.urgency <= $3
order by o.due_at limit 1
""")
async def next_due(connection: Connection, writer: str, now: datetime, last_urgency: int) -> datetime | None:
    """Return when the first row up to this urgency is due, `now` at the earliest; None if there is no row."""


@statement(
    """
-- Committed before the request: a row found `sending` later may be on GitHub already.
with before as (select id, state, sending_at from outbox where id = $1 for update)
update outbox o set state = 'sending', sending_at = $2
from before, conversations c, codebases b
where o.id = before.id and c.id = o.conversation_id and (b.platform, b.repository_id) = (c.platform, c.repository_id)
returning o.id, o.kind, o.turn_id, o.part, o.urgency, o.target_kind as source_kind,
          o.target_id as source_id, o.content, o.review, o.version, o.comment_id,
          o.attempts, o.created_at, case before.state when 'sending' then before.sending_at end as unsure_since,
          c.number, b.platform, b.repository_id, b.owner, b.name, b.default_branch, b.installation_id,
          (select linked.comment_url from outbox linked where linked.id = o.waits_for) as linked_url,
          (select linked.content from outbox linked where linked.id = o.waits_for) as linked_content,
          exists (select from outbox linking where linking.waits_for = o.id) as is_linked
""",
    LookupError,
)
async def take(connection: Connection, row_id: int, now: datetime) -> OutboxItem:
    """Mark the row `sending` and return it; on a connection outside any transaction this is committed.

    Raises LookupError where it is gone.
    """


@statement("""
-- A newer version than the one that was sent waits for its own request.
update outbox
set state = case when version > $2 then 'waiting' else 'sent' end, sent_version = $2, attempts = 0, error = null,
    comment_id = $3, comment_url = $4, posted_at = coalesce(posted_at, $5)
where id = $1 and state = 'sending'
""")
async def sent(
    connection: Connection, row_id: int, version: int, comment_id: int | None, url: str | None, now: datetime
) -> None:
    """Record that this version is on GitHub, as a comment with this id and address, or a reaction."""


@statement("""
update outbox set state = $2, due_at = $3, attempts = attempts + 1, error = $4 where id = $1 and state = 'sending'
""")
async def put_back(
    connection: Connection, row_id: int, state: Literal["waiting", "sending"], due_at: datetime, error: str
) -> None:
    """Record a failed attempt: try what the row says then again at `due_at`.

    `sending`: a comment of the row may be on GitHub, look there first.
    """


@statement("""
update outbox set state = 'failed', attempts = attempts + 1, error = $3
where id = $1 and state = 'sending' and version = $2 returning id
""")
async def give_up(connection: Connection, row_id: int, version: int, error: str) -> bool:
    """Never send this version; False where the row says something newer: see `leave_newer`."""


@statement("""
update outbox set state = $2, attempts = 0, due_at = '-infinity' where id = $1 and state = 'sending'
""")
async def leave_newer(connection: Connection, row_id: int, state: Literal["waiting", "sending"]) -> None:
    """Let what the row says since its request be tried as if nothing had failed; `sending` as in `put_back`."""


@statement("""
insert into writers (writer, held_until) values ($1, $2)
on conflict (writer) do update set held_until = greatest(writers.held_until, excluded.held_until)
""")
async def pause_writer(connection: Connection, writer: str, until: datetime) -> None:
    """Send nothing for the writer before `until`."""


@statement("select held_until from writers where writer = $1 and held_until > $2")
async def paused_until(connection: Connection, writer: str, now: datetime) -> datetime | None:
    """Return until when the writer is paused, None if it is not."""


@statement("""
-- The comment, or what it answers, was deleted: it is posted again, at the end of the thread.
update outbox set state = 'waiting', comment_id = null, comment_url = null, sent_version = 0, posted_at = null,
                  target_kind = $3, target_id = $4, error = $5
where id = $1 and state = 'sending' and version = $2 returning id
""")
async def post_anew(connection: Connection, row_id: int, version: int, target: Target, error: str) -> bool:
    """Forget the comment there was: the next request creates it again, as an answer to `target`.

    False where the row says something newer than this version: see `leave_newer`.
    """


@statement("""
update outbox set state = 'waiting', content = $3, review = $4, error = $5
where id = $1 and state = 'sending' and version = $2 returning id
""")
async def send_otherwise(
    connection: Connection, row_id: int, version: int, content: str, review: str, error: str
) -> bool:
    """Send another text and review instead of this version, which GitHub refused.

    False where the row says something newer: see `leave_newer`.
    """


@statement("""
-- A request whose answer never came counts from when it was sent. A time in the future is of a clock that was wrong.
select coalesce(posted_at, sending_at) as at from outbox
where writer = $1 and (posted_at > $2 or (posted_at is null and sending_at > $2)) and urgency >= $4
  and coalesce(posted_at, sending_at) <= $3
order by 1
""")
async def created_since(
    connection: Connection, writer: str, since: datetime, now: datetime, first_urgency: int = 0
) -> list[datetime]:
    """Return when the writer created something on GitHub between that time and `now`, oldest first."""


@statement("""
select asked_by from outbox
where writer = $1 and (posted_at > $2 or (posted_at is null and sending_at > $2)) and asked_by is not null
group by asked_by having count(*) > $3
""")
async def created_most_for(connection: Connection, writer: str, since: datetime, most: int) -> list[int]:
    """Return the persons for whom the writer created more than `most` since that time."""


@statement("""
-- Only to be counted: nothing of it is to be sent.
insert into outbox (writer, conversation_id, kind, urgency, target_kind, content, state, sent_version, posted_at)
values ($1, $2, 'pull-request', 0, 'pull', '', 'sent', 1, $3)
""")
async def record_creation(connection: Connection, writer: str, conversation_id: int | None, now: datetime) -> None:
    """Count a pull request or an issue that GitHub was asked to open among what the writer created."""
