"""Rows of the take-over: requests that wait for a silent node move to a live one, and a node that is back lets go."""

from dataclasses import dataclass

from bot.model import Repository
from bot.store.database import Connection, Pool, read, statement
from bot.store.jobs import ring_for_work
from bot.store.states import EndReason
from bot.store.turns import Claim

LOCK_STRANDED_WORKTREE = """
-- The node is asked once more: it may be back. Its row stays locked, so that its next heartbeat waits.
select b.*, n.name as node_name
from worktrees w join nodes n on n.id = w.node join codebases b using (platform, repository_id)
where w.id = $1 and w.is_live and n.heartbeat_at < now() - make_interval(secs => $2)
for no key update of b, n
"""

WAITING_IN = """
select distinct conversation_id from turns
where worktree_id = $1 and state = 'queued' and conversation_id is not null order by conversation_id
"""

MARK_WORKTREE_LOST = """
update worktrees w
set state = 'lost', updated_at = now(),
    lost_threads = array(select number from conversations where worktree_id = w.id)
where id = $1
"""

RESERVE_SUCCESSOR = """
-- On another node, where the directory's name may be taken. The branch is known: it is made again from what is pushed.
insert into worktrees (platform, repository_id, node, path, branch, base_branch, start_kind, start_number, start_ref,
                       start_sha)
select platform, repository_id, $2,
       case when exists (select from worktrees o where o.node = $2 and o.path = lost.path
                         and (o.is_live or o.state = 'removing')) then path || '-' || id else path end,
       branch, base_branch, start_kind, start_number, start_ref, start_sha
from worktrees lost where id = $1
returning id
"""

MOVE_TO_SUCCESSOR = """
with thread as (
    update conversations set worktree_id = $3, updated_at = now() where id = any ($1::bigint[]) and worktree_id = $2
), ended as (
    update sessions set active = false, ended_at = now(), end_reason = $4
    where active and conversation_id = any ($1::bigint[])
)
-- What the turn had done is on the other node: it begins anew.
update turns set worktree_id = $3, head_before = null, answer = null, resuming = false, read = '{}',
                 read_whole_thread = false, session_id = null, plan = '{}', latest_words = '',
                 notices = notices || $5::text
where worktree_id = $2 and state = 'queued' and conversation_id = any ($1::bigint[])
"""


@dataclass(frozen=True, slots=True)
class Stranded:
    """A worktree whose node is silent, locked; `running` are turns that its processes have claimed."""

    repository: Repository
    node_name: str
    running: tuple[Claim, ...]


@statement("""
-- The command line may carry them out itself for a while.
update turns t set state = 'failed', finished_at = now(), reason = $2 || n.name || $3
from worktrees w join nodes n on n.id = w.node
where w.id = t.worktree_id and t.conversation_id is null and t.state = 'queued'
  and n.heartbeat_at < now() - make_interval(secs => $1) and t.created_at < now() - make_interval(secs => $1)
returning t.id
""")
async def give_up_operators(connection: Pool, timeout_seconds: float, before: str, after: str) -> list[int]:
    """End the operators' turns that wait for a node that has been silent for so long; return them.

    Their reason is the node's name between the words `before` and `after`.
    """


@statement("""
-- Worktrees of silent nodes in which a thread's turn waits or, as far as the rows tell, runs.
select distinct w.id, w.node from worktrees w join nodes n on n.id = w.node
where w.is_live and n.heartbeat_at < now() - make_interval(secs => $1)
  and exists (select from turns t where t.worktree_id = w.id and t.state in ('queued', 'running')
                                    and t.conversation_id is not null)
order by w.id
""")
async def stranded(connection: Connection, timeout_seconds: float) -> list[tuple[int, str]]:
    """Return (worktree, node) where a turn waits for a node that has been silent for so long."""


async def lock_stranded(connection: Connection, worktree_id: int, timeout_seconds: float) -> Stranded | None:
    """Lock a stranded worktree until the transaction ends; None where its node is back. After `claims_of_node`."""
    statement = "select id as turn_id, claim as token, worker from turns where worktree_id = $1 and state = 'running'"
    row = await connection.fetchrow(LOCK_STRANDED_WORKTREE, worktree_id, timeout_seconds)
    if row is None:
        return None
    claims = [read(Claim, claimed) for claimed in await connection.fetch(statement, worktree_id)]
    return Stranded(read(Repository, row), row["node_name"], tuple(claims))


async def move_waiting(connection: Connection, worktree_id: int, node: str, notice: str) -> int | None:
    """Move the threads whose turns wait to a new worktree on `node`, and ring it; return its id, None without any.

    The old worktree is `lost`. Threads in which nothing waits keep it until they are asked. After `lock_stranded`.
    """
    threads = [row["conversation_id"] for row in await connection.fetch(WAITING_IN, worktree_id)]
    if not threads:
        return None
    await connection.execute(
        "select from conversations where id = any ($1::bigint[]) order by id for no key update", threads
    )
    await connection.execute(MARK_WORKTREE_LOST, worktree_id)
    successor: int = await connection.fetchval(RESERVE_SUCCESSOR, worktree_id, node)
    reason: EndReason = "node-lost"
    await connection.execute(MOVE_TO_SUCCESSOR, threads, worktree_id, successor, reason, notice)
    await ring_for_work(connection, node)
    return successor


@statement("""
-- The node is back. One that could not be removed is tried again a minute later.
update worktrees set state = 'removing', removal = 'lost', updated_at = now()
where node = $1 and state = 'lost' and updated_at < now() - interval '1 minute' and id <> all ($2::bigint[])
returning id
""")
async def let_go(connection: Connection, node: str, busy: list[int]) -> list[int]:
    """Decide the removal of the node's lost worktrees, except those in which a run still winds down; return them."""
