"""The row lock that keeps a worktree from being let go, claimed or asked for by somebody else meanwhile."""

from bot.store.database import Connection

LOCK_WORKTREE = """
-- A statement of its own: what follows must see what whoever held the lock has written.
select id from worktrees where id = $1 for no key update
"""


async def lock_worktree(connection: Connection, worktree_id: int) -> None:
    """Waits for the worktree's row and holds it until the caller's transaction ends."""
    await connection.execute(LOCK_WORKTREE, worktree_id)
