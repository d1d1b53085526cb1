"""Regular work of a worker: the deletion of old rows, sessions of suspended processes, unused clones."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from bot.model import Repository
from bot.store.database import APPLICATION, Connection, change, statement


def _delete(table: str, condition: str) -> str:
    """Return the statement that deletes some of the rows that fulfil the condition."""
    some = f"select ctid from {table} o where {condition} limit $2 for update skip locked"  # noqa: S608 - of constants
    return f"delete from {table} where ctid = any (array({some}))"  # noqa: S608 - of constants


DELETE_OLD = {
    # What waits keeps its body, however late it is.
    "bodies": """
update deliveries set body = null
where ctid = any (array(select ctid from deliveries
                        where body is not null and state <> 'received' and received_at < now() - $1::interval
                        limit $2 for update skip locked))
""",
    "deliveries": _delete("deliveries", "state <> 'received' and received_at < now() - $1::interval"),
    "effects": _delete("effects", "seen_at < now() - $1::interval"),
    "texts": """
with old as (
    select id from turns where not expired and finished_at < now() - $1::interval
    order by finished_at limit $2 for update skip locked
), gone as (
    delete from steps using old where turn_id = old.id
), asked as (
    update requests set ask = ask || '{"text": "", "context": "", "title": "", "of": {}}'
    from old where turn_id = old.id
)
update turns set expired = true, answer = null, notices = '{}', read = '{}', plan = '{}', latest_words = '',
                 phase = null, thread_answers = '{}', kept = null, description = null, outcome = outcome - 'nothing'
from old where turns.id = old.id
""",
    # What resumes an unfinished turn is told to its agent.
    "steps": """
delete from steps
where ctid = any (array(select s.ctid from steps s join turns t on t.id = s.turn_id
                        where s.at < now() - $1::interval and t.finished_at is not null
                        limit $2 for update of s skip locked))
""",
    # A comment that is to be sent needs the address of the one that it links.
    "outbox": _delete(
        "outbox",
        """
state in ('sent', 'failed') and created_at < now() - $1::interval
and not exists (select from outbox linking where linking.waits_for = o.id and linking.state in ('waiting', 'sending'))
""",
    ),
    "audit": _delete("audit", "at < now() - $1::interval"),
    "operations": _delete("operations", "finished_at < now() - $1::interval"),
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
SUSPENDED_AFTER = timedelta(seconds=15)
"""A process that lives sends the rest of a statement at once, and gives a statement up after 60 seconds."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CloneUse:
    """The use of a clone. `busy`: a turn runs in one of its worktrees. The heads are those at which worktrees are."""

    default_branch: str | None
    busy: bool
    pull_request_heads: tuple[str, ...]


@statement("""
-- A reused name belongs to the repository that last had it.
select * from codebases
where platform = $1 and lower(owner || '/' || name) = lower($2)
order by updated_at desc limit 1
""")
async def codebase_named(connection: Connection, platform: str, full_name: str) -> Repository | None:
    """Return the repository that is called `owner/name` now."""


@statement("select folder from codebases where (platform, repository_id) = ($1, $2)")
async def folder_of(connection: Connection, repository: Repository) -> str | None:
    """Return the folder of the repository's clone, None for one without a row."""


@statement("select * from codebases where platform = $1 order by repository_id")
async def codebases(connection: Connection, platform: str) -> list[Repository]:
    """Return all repositories of the server that the bot has worked for."""


async def delete_old(connection: Connection, bodies: timedelta, steps: timedelta, history: timedelta) -> None:
    """Delete what is kept no longer (DESIGN.md §4, receive and retention), a few rows at a time."""
    kept = {"bodies": bodies, "steps": steps, "deliveries": KEPT_A_YEAR, "effects": KEPT_A_YEAR}
    for what, delete in DELETE_OLD.items():
        deleted = 0
        while (count := await change(connection, delete, kept.get(what, history), AT_ONCE)) > 0:
            deleted += count
        if deleted:
            _log.info("rows-expired", what=what, count=deleted)


async def end_suspended(connection: Connection, after: timedelta = SUSPENDED_AFTER) -> None:
    """End the sessions of processes that were suspended in the middle of a statement: others wait for their locks."""
    for row in await connection.fetch(END_SUSPENDED, APPLICATION, after):
        _log.warning("suspended-session-ended", pid=row["pid"])


@statement("""
-- 'lost' worktrees belong to the node until it has rescued them.
select b.default_branch,
       exists (select from turns t join worktrees w on w.id = t.worktree_id
               where (w.platform, w.repository_id, w.node) = (b.platform, b.repository_id, $2)
                 and t.state = 'running') as busy,
       array(select distinct w.start_ref from worktrees w
             where (w.platform, w.repository_id, w.node) = (b.platform, b.repository_id, $2)
               and w.start_kind = 'detached' and w.state <> 'removed') as pull_request_heads
from codebases b where b.folder = $1
""")
async def use_of(connection: Connection, folder: str, node: str) -> CloneUse | None:
    """Return the use of the clone in this folder on the node; None for a repository without a row."""


@statement("""
-- No worktree of the repository is on the node, nothing is rescued there, and no thread was used since $3.
select b.created_at < $3
       and not exists (select from worktrees w
                       where (w.platform, w.repository_id, w.node) = (b.platform, b.repository_id, $2)
                         and (w.state <> 'removed' or exists (select from rescues r where r.worktree_id = w.id)))
       and not exists (select from conversations c
                       where (c.platform, c.repository_id) = (b.platform, b.repository_id) and c.updated_at >= $3)
       and not exists (select from conversations c join turns t on t.conversation_id = c.id
                       where (c.platform, c.repository_id) = (b.platform, b.repository_id)
                         and t.state in ('queued', 'running'))
from codebases b where b.folder = $1
""")
async def is_unused(connection: Connection, folder: str, node: str, since: datetime) -> bool:
    """Return whether nothing needs the clone in this folder on the node; False for a repository without a row."""
