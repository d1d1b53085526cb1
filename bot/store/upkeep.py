"""Regular work of a worker: the deletion of old rows, sessions of suspended processes, the name of a repository."""

from datetime import timedelta

import structlog

from bot.model import Repository
from bot.store.database import APPLICATION, Connection, change, fetch_one

CODEBASE_NAMED = """
-- A reused name belongs to the repository that last had it.
select * from codebases
where platform = $1 and lower(owner) = lower($2) and lower(name) = lower($3)
order by updated_at desc limit 1
"""

DELETE_OLD = {
    # What waits keeps its body, however late it is.
    "bodies": """
update deliveries set body = null
where ctid = any (array(select ctid from deliveries
                        where body is not null and state <> 'received' and received_at < now() - $1::interval
                        limit $2 for update skip locked))
""",
    "deliveries": """
delete from deliveries
where ctid = any (array(select ctid from deliveries where state <> 'received' and received_at < now() - $1::interval
                        limit $2 for update skip locked))
""",
    "effects": """
delete from effects
where ctid = any (array(select ctid from effects where seen_at < now() - $1::interval limit $2
                        for update skip locked))
""",
    "texts": """
with old as (
    select id from turns where request is not null and finished_at < now() - $1::interval
    order by finished_at limit $2 for update skip locked
), gone as (
    delete from steps using old where turn_id = old.id
)
update turns set request = null, context = '', answer = null, notices = '{}', read = '{}',
                 plan = '{}', latest_words = '', phase = null
from old where turns.id = old.id
""",
    # A comment that is to be sent needs the address of the one that it links.
    "outbox": """
delete from outbox
where ctid = any (array(select ctid from outbox o
                        where state in ('sent', 'failed') and created_at < now() - $1::interval
                          and not exists (select from outbox linking where linking.waits_for = o.id
                                          and linking.state in ('waiting', 'sending'))
                        limit $2 for update skip locked))
""",
    "operations": """
delete from operations
where ctid = any (array(select ctid from operations where finished_at < now() - $1::interval limit $2
                        for update skip locked))
""",
    "jobs": """
delete from procrastinate_jobs
where id in (select id from procrastinate_jobs j
             where status in ('succeeded', 'failed', 'cancelled', 'aborted')
               and not exists (select from procrastinate_events e where e.job_id = j.id and e.at > now() - $1::interval)
             limit $2 for update skip locked)
""",
}
"""What is kept for a time, by the clock of the database, which dates all of it. $1: the time, $2: the most at once."""

END_SUSPENDED = """
-- asyncpg sends a statement that is new to a connection in two parts, and Postgres waits for the second one: such a
-- session is active, so that idle_in_transaction_session_timeout does not end it. What asks for many rows and does not
-- take them is given longer: the line may be slow.
select pid, pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and usename = current_user and application_name = $1 and state = 'active'
  and query_start < now() - $2::interval * case wait_event when 'ClientRead' then 1 when 'ClientWrite' then 5 end
"""
"""End the sessions that wait in the middle of a statement. $1: their application, $2: for how long."""

AT_ONCE = 2000
KEPT_A_YEAR = timedelta(days=365)
FINISHED_JOBS_KEPT = timedelta(days=30)
SUSPENDED_AFTER = timedelta(seconds=15)
"""A process that lives sends the rest of a statement at once, and gives a statement up after 60 seconds."""
_log = structlog.get_logger()


async def codebase_named(connection: Connection, platform: str, full_name: str) -> Repository | None:
    """Return the repository that is called `owner/name` now."""
    owner, _, name = full_name.partition("/")
    return await fetch_one(connection, Repository, CODEBASE_NAMED, platform, owner, name)


async def delete_old(connection: Connection, bodies: timedelta, history: timedelta) -> None:
    """Delete what is kept no longer (DESIGN.md §4, receive and retention), a few rows at a time."""
    kept = {
        "bodies": bodies,
        "deliveries": KEPT_A_YEAR,
        "effects": KEPT_A_YEAR,
        "texts": history,
        "outbox": history,
        "operations": history,
        "jobs": FINISHED_JOBS_KEPT,
    }
    for what, statement in DELETE_OLD.items():
        deleted = 0
        while (count := await change(connection, statement, kept[what], AT_ONCE)) > 0:
            deleted += count
        if deleted:
            _log.info("rows-expired", what=what, count=deleted)


async def end_suspended(connection: Connection, after: timedelta = SUSPENDED_AFTER) -> None:
    """End the sessions of processes that were suspended in the middle of a statement: others wait for their locks."""
    for row in await connection.fetch(END_SUSPENDED, APPLICATION, after):
        _log.warning("suspended-session-ended", pid=row["pid"])
