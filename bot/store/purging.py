"""A worktree that is to go because the turn in it is done; its conversations keep it, and their next turn makes it."""

from bot.store import bells
from bot.store.database import Connection
from bot.store.jobs import defer
from bot.store.locks import lock_worktree

PURGE = """
update worktrees w set state = 'removing', removal = 'purged', updated_at = now()
where w.id = $1 and w.state = 'ready'
  and not exists (select from turns t where t.worktree_id = w.id and t.state in ('queued', 'running'))
  and not exists (select from operations o where o.worktree_id = w.id and o.state in ('queued', 'running'))
returning w.node
"""


async def purge(connection: Connection, worktree_id: int) -> None:
    """Marks it, unless something waits for it, and rings its node; in the caller's transaction. Whoever removes it
    looks first whether it is clean and pushed.
    """
    await lock_worktree(connection, worktree_id)
    node: str | None = await connection.fetchval(PURGE, worktree_id)
    if node is not None:
        await defer(connection, bells.turns_bell(node))
