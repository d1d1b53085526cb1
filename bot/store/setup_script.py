"""Whether the repository's set-up script has run in the checkout that a worktree's row stands for."""

from bot.store.database import Connection
from bot.store.turns import Claim, ClaimLostError

IS_DONE = """
select setup_done from worktrees where id = $1
"""

DONE = """
with mine as (select worktree_id from turns where id = $1 and claim = $2 for no key update)
update worktrees w set setup_done = true from mine where w.id = mine.worktree_id returning w.id
"""

FORGET = """
update worktrees set setup_done = false where id = $1 and setup_done
"""


async def is_done(connection: Connection, worktree_id: int) -> bool:
    """Whether it ran to a good end in this checkout."""
    done: bool = await connection.fetchval(IS_DONE, worktree_id)
    return done


async def done(connection: Connection, claim: Claim) -> None:
    """It ran to a good end in the worktree of the claimed turn. Raises ClaimLostError."""
    if await connection.fetchval(DONE, claim.turn_id, claim.token) is None:
        raise ClaimLostError


async def forget(connection: Connection, worktree_id: int) -> None:
    """The checkout is another one now, or was reset: the script is to run again."""
    await connection.execute(FORGET, worktree_id)
