"""Worktrees on their way out: claimed like turns, one at a time, and given back when the claimer died."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from bot.model import Repository
from bot.store import bells
from bot.store.database import Connection, repository_of
from bot.store.jobs import defer

CLAIM = """
update worktrees w set claim = $2, worker = $3
from codebases b
where w.id = (select id from worktrees where node = $1 and state = 'removing' and claim is null
              order by id limit 1 for update skip locked)
  and (b.platform, b.repository_id) = (w.platform, w.repository_id)
returning w.id, w.path, w.branch, b.platform, b.repository_id, b.owner, b.name, b.default_branch, b.installation_id,
          b.folder
"""

REMOVED = """
update worktrees set state = 'removed', claim = null, worker = null, updated_at = now()
where id = $1 and claim = $2 returning id
"""

TAKE_OVER = """
-- While it was being removed somebody asked again, and a new worktree was reserved at the same path: its turns and
-- conversations go on in the one that is kept after all.
with successor as (
    update worktrees n set state = 'removed', updated_at = now()
    from worktrees o
    where o.id = $1 and o.claim = $2 and n.node = o.node and n.path = o.path and n.id <> o.id and n.state = 'reserved'
    returning n.id
), talks as (
    update conversations set worktree_id = $1 where worktree_id in (select id from successor)
)
update turns set worktree_id = $1 where worktree_id in (select id from successor)
"""

KEPT = """
-- It holds work: it stays, and is used again by the next request.
update worktrees set state = 'ready', claim = null, worker = null, updated_at = now()
where id = $1 and claim = $2 returning id
"""

FORGET = """
update conversations set worktree_id = null, updated_at = now() where worktree_id = $1
"""

END_SESSIONS = """
update sessions set active = false, ended_at = now(), end_reason = 'worktree-removed'
where active and conversation_id in (select id from conversations where worktree_id = $1)
"""

HELD = """
select id, worker from worktrees where node = $1 and state = 'removing' and claim is not null
"""

GIVE_BACK = """
update worktrees set claim = null, worker = null where id = $1 and worker = $2 and state = 'removing'
"""


@dataclass(frozen=True, slots=True)
class ClaimedRemoval:
    """The right to remove one worktree."""

    worktree_id: int
    token: UUID
    repository: Repository
    folder: str
    path: str
    branch: str | None


async def claim_next(connection: Connection, node: str, worker: str) -> ClaimedRemoval | None:
    """The oldest worktree of the node that is to go and that nobody removes yet."""
    token = uuid4()
    row = await connection.fetchrow(CLAIM, node, token, worker)
    if row is None:
        return None
    return ClaimedRemoval(row["id"], token, repository_of(row), row["folder"], row["path"], row["branch"])


async def removed(connection: Connection, removal: ClaimedRemoval, node: str) -> None:
    """It is gone on disk and in git: its conversations refer to it no more, and turns that wait for its path may go."""
    async with connection.transaction():
        if await connection.fetchval(REMOVED, removal.worktree_id, removal.token) is not None:
            await connection.execute(END_SESSIONS, removal.worktree_id)
            await connection.execute(FORGET, removal.worktree_id)
            await defer(connection, bells.turns_bell(node))


async def kept(connection: Connection, removal: ClaimedRemoval, node: str) -> None:
    """It could not go: it is an ordinary worktree again, also for what was asked meanwhile."""
    async with connection.transaction():
        await connection.execute(TAKE_OVER, removal.worktree_id, removal.token)
        await connection.execute(KEPT, removal.worktree_id, removal.token)
        await defer(connection, bells.turns_bell(node))


async def held_on(connection: Connection, node: str) -> list[tuple[int, str]]:
    """(worktree, worker) of the removals somebody is at."""
    return [(row["id"], row["worker"]) for row in await connection.fetch(HELD, node)]


async def give_back(connection: Connection, worktree_id: int, worker: str) -> None:
    """The worker died in the middle: somebody else may go on, every step of a removal can be repeated."""
    await connection.execute(GIVE_BACK, worktree_id, worker)
