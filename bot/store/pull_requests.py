"""Rows about a branch that is to become a pull request: the turns that changed it, and their answers."""

from dataclasses import dataclass

from bot.model import Repository, Target
from bot.store.database import Connection, fetch_all
from bot.store.turns import Claim, write_under

RECORD_PUSH = """
update turns set pushed_to = $3 where id = $1 and claim = $2 returning id
"""

TURNS_ON_BRANCH = """
-- Oldest first; the running one too, whose answer is saved before it pushes.
select t.id, t.answer, t.requested_by, t.source_kind, t.source_id, c.number
from turns t join conversations c on c.id = t.conversation_id
where t.pushed_to = $3 and t.answer is not null and (c.platform, c.repository_id) = ($1, $2)
order by t.id limit 50
"""


@dataclass(frozen=True, slots=True)
class TurnOnBranch:
    """A turn that changed a branch on GitHub: its answer as the agent wrote it, and where it was asked for."""

    id: int
    answer: str
    requested_by: str
    target: Target
    number: int


async def record_push(connection: Connection, claim: Claim, branch: str) -> None:
    """Record that the turn's changes are on this branch on GitHub. Raises ClaimLostError."""
    await write_under(connection, claim, RECORD_PUSH, branch)


async def turns_on_branch(connection: Connection, repository: Repository, branch: str) -> list[TurnOnBranch]:
    """Return the turns that changed the branch, oldest first."""
    return await fetch_all(connection, TurnOnBranch, TURNS_ON_BRANCH, repository.platform, repository.id, branch)


async def thread_to_open_for(connection: Connection, conversation_id: int) -> tuple[bool, int | None]:
    """Return whether the thread is a pull request itself, and its worktree, live or not."""
    row = await connection.fetchrow(
        "select kind = 'pull' as is_pull, worktree_id from conversations where id = $1", conversation_id
    )
    return row["is_pull"], row["worktree_id"]
