"""Rows of what repositories ask again and again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.model import Repository, ThreadRef
from bot.store.database import Connection, statement


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a repository's file; `entry` is its JSON, `due_at` is None while the file pauses all.

    `open_issue` is the issue of the time before, where that is open without an open pull request.
    """

    id: int
    key: str
    entry: str
    line: int
    first_seen_at: datetime
    due_at: datetime | None
    issues: tuple[int, ...]
    opening_at: datetime | None
    problem: str | None
    failed: bool
    open_issue: int | None


@dataclass(frozen=True, slots=True)
class Due:
    """An entry whose time has come. `is_held`: this time is left out."""

    id: int
    repository: Repository
    key: str
    entry: str
    first_seen_at: datetime
    due_at: datetime
    issue: int | None
    is_held: bool


@statement("""
select s.*, s.entry::text as entry,
       (select i.number from (select s.issues[cardinality(s.issues)] as number) i
        where not exists (select from conversations c
                          where (c.platform, c.repository_id, c.number, c.state)
                                = (s.platform, s.repository_id, i.number, 'closed'))
          and not exists (select from pull_requests p
                          where (p.platform, p.repository_id, p.closes) = (s.platform, s.repository_id, i.number)
                            and p.check_at is not null)) as open_issue
from standing s where (platform, repository_id) = ($1, $2) order by line
""")
async def entries(connection: Connection, repository: Repository) -> list[Entry]:
    """Return the entries of a repository, in the order of its file."""


@statement("delete from standing where (platform, repository_id) = ($1, $2) and key <> all ($3) returning id")
async def forget_others(connection: Connection, repository: Repository, keys: Sequence[str]) -> list[int]:
    """Forget the entries that are in the file no more; return what they were."""


@statement("""
-- A next time that is known stays, unless the file pauses all.
insert into standing (platform, repository_id, key, entry, line, first_seen_at, due_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (platform, repository_id, key) do update
   set entry = excluded.entry, line = excluded.line,
       due_at = case when excluded.due_at is not null then coalesce(standing.due_at, excluded.due_at) end
""")
async def keep(
    connection: Connection,
    repository: Repository,
    key: str,
    entry: str,
    line: int,
    first_seen_at: datetime,
    due_at: datetime | None,
) -> None:
    """Write an entry of the file."""


@statement("""
-- Read by one process at a time; again later also where that process dies.
with due as (
    select platform, repository_id from codebases c
    where looked_at <= $1::timestamptz - interval '10 minutes'
      and (looked_at <= $1::timestamptz - interval '1 hour'
           or exists (select from standing s where (s.platform, s.repository_id) = (c.platform, c.repository_id)))
    order by looked_at limit $2 for update skip locked
)
update codebases b set looked_at = $1
from due where (b.platform, b.repository_id) = (due.platform, due.repository_id) returning b.*
""")
async def take_unread(connection: Connection, now: datetime, most: int) -> list[Repository]:
    """Return repositories whose file is to be read: each hour, and every ten minutes where it has entries."""


@statement("""
-- Left out while the time before is not decided, or its thread is at work; while so many pull requests are open as the
-- entry allows; and after three failures.
select s.*, s.entry::text as entry, b.*, s.issues[cardinality(s.issues)] as issue,
       s.failed
       or exists (select from deliveries d where d.guid = s.last_guid and d.state = 'received')
       or exists (select from conversations c join turns t on t.conversation_id = c.id
                  where (c.platform, c.repository_id, c.number)
                        = (s.platform, s.repository_id, s.issues[cardinality(s.issues)])
                    and t.state in ('queued', 'running'))
       or (select count(*) from pull_requests p
           where (p.platform, p.repository_id) = (s.platform, s.repository_id) and p.closes = any (s.issues)
             and p.check_at is not null) >= (s.entry->>'max_open')::integer as is_held
from standing s join codebases b using (platform, repository_id)
where s.due_at <= $1 order by s.due_at limit $2 for update of s skip locked
""")
async def due(connection: Connection, now: datetime, most: int) -> list[Due]:
    """Return entries that are due, locked until the transaction ends."""


@statement("update standing set due_at = $2, last_guid = coalesce($3, last_guid) where id = $1")
async def move_on(connection: Connection, entry: int, next_at: datetime, guid: str | None) -> None:
    """Record the next time, and the delivery that this one became."""


@statement("update standing set opening_at = $2 where id = $1")
async def begin_opening(connection: Connection, entry: int, at: datetime) -> None:
    """Record, before GitHub is asked, that an issue is opened for this time."""


@statement("update standing set issues = (issues || $2::integer)[greatest(1, cardinality(issues) - 18):] where id = $1")
async def opened(connection: Connection, entry: int, issue: int) -> None:
    """Record the issue; the last twenty are kept."""


@statement("update standing set problem = $2 where id = $1 and problem is distinct from $2 returning id")
async def note_problem(connection: Connection, entry: int, problem: str | None) -> int | None:
    """Record why the entry asks nothing, None where it does; return the entry if that is new."""


@statement("""
-- `/retry` keeps what was asked, so its end counts for the entry too.
with ended as (
    select s.id, s.failed, array(
        select t.state from conversations o join turns t on t.conversation_id = o.id join requests r on r.turn_id = t.id
        where (o.platform, o.repository_id) = (s.platform, s.repository_id) and o.number = any (s.issues)
          and r.ask #>> '{of,standing}' = s.id::text and t.finished_at is not null
        order by t.id desc limit 3) as states
    from conversations c join standing s using (platform, repository_id)
    where c.id = $1 and c.number = any (s.issues)
)
update standing s set failed = e.states[1] <> 'done', problem = case when e.states[1] <> 'done' then $2 end
from ended e, conversations c join codebases b using (platform, repository_id)
where s.id = e.id and c.id = $1
  and case when s.failed then e.states[1] = 'done'
           else cardinality(e.states) = 3
                and e.states <@ array['failed', 'timed-out', 'interrupted', 'refused'] end
returning c.id as conversation_id, s.failed, b.*
""")
async def note_end(connection: Connection, conversation_id: int, problem: str) -> list[tuple[ThreadRef, bool]]:
    """After the end of a turn: pause an entry that failed three times in a row, or let it ask again after a success.

    Return the thread where that changed, and whether it is paused now.
    """
