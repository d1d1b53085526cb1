"""Rows of worktrees that several conversations use: their usage, a switch to a branch, a move to another worktree."""

from collections.abc import Sequence

from bot.model import Repository, Target, ThreadRef
from bot.sharing_rules import WorktreeUsage
from bot.store import conversations
from bot.store.database import Connection, statement
from bot.store.jobs import ring_for_work
from bot.store.turns import ClaimedTurn, ClaimLostError

OTHER_THREADS = """
select id, kind from conversations where worktree_id = $1 and id <> $2 and state = 'open' order by number
"""

MOVE_TURN = """
-- With all waiting turns of the thread in the old worktree; the claim is dropped.
with thread as (
    update conversations set worktree_id = $3, updated_at = now() where id = $1 and worktree_id = $2
), moved as (
    update turns set worktree_id = $3, state = 'queued', claim = null, worker = null
    where conversation_id = $1 and worktree_id = $2 and state = 'queued' and id <> $4
)
update turns set worktree_id = $3, state = 'queued', claim = null, worker = null, notices = $5,
                 switch_to = coalesce($6, switch_to), head_before = case when $6::text is null then head_before end
where id = $4
"""


@statement("select from codebases where platform = $1 and repository_id = $2 for no key update")
async def lock_codebase(connection: Connection, repository: Repository) -> None:
    """Lock the codebase until the transaction ends: no other one assigns worktrees to threads of this repository."""


@statement("""
-- A pull request uses a worktree while its row refers to it, also when it is closed: its next request works there.
select w.id, w.start_number as owner, w.state = 'ready' as made,
       array(select c.number from conversations c
             where c.worktree_id = w.id and c.kind = 'pull' and c.id <> $2 order by c.number) as other_pulls,
       exists (select from turns t where t.worktree_id = w.id and t.conversation_id is distinct from $2
                                     and t.state in ('queued', 'running')) as busy
from worktrees w where w.id = any ($1::bigint[])
""")
async def usage(
    connection: Connection, worktrees: Sequence[int], conversation_id: int
) -> list[tuple[int, WorktreeUsage]]:
    """Return how other conversations than this one use these worktrees, each after the worktree's id."""


@statement("select switch_to from pending_switches where conversation_id = $1")
async def pending_switch(connection: Connection, conversation_id: int) -> str | None:
    """Return the branch to which a turn is to switch the conversation's worktree; None if none is pending."""


async def lock_turn(connection: Connection, turn: ClaimedTurn) -> tuple[str, ...]:
    """Lock the claimed turn and its thread until the transaction ends; return the notices for its reply.

    Raises ClaimLostError.
    """
    # The conversation before the turn: every transaction locks them in this order.
    statement = "select from conversations where id = $1 for no key update"
    await lock_codebase(connection, turn.worktree.repository)
    await connection.execute(statement, turn.conversation.id)
    row = await connection.fetchrow(
        "select notices from turns where id = $1 and claim = $2 for update", turn.claim.turn_id, turn.claim.token
    )
    if row is None:
        raise ClaimLostError
    return tuple(row["notices"])


async def record_switch(
    connection: Connection, turn: ClaimedTurn, branch: str, notices: Sequence[str]
) -> list[tuple[ThreadRef, Target]]:
    """Record the branch that the worktree is on now; return the other threads to tell.

    `notices`: those that `lock_turn` returned, and new ones.
    """
    await connection.execute(
        "update worktrees set branch = $2, updated_at = now() where id = $1", turn.worktree.id, branch
    )
    await connection.execute("update turns set notices = $2 where id = $1", turn.id, notices)
    rows = await connection.fetch(OTHER_THREADS, turn.worktree.id, turn.conversation.id)
    return [(ThreadRef(turn.worktree.repository, row["id"]), Target(row["kind"])) for row in rows]


async def move_turn(
    connection: Connection,
    turn: ClaimedTurn,
    worktree_id: int,
    node: str,
    notices: Sequence[str],
    switch_to: str | None = None,
) -> None:
    """Move the thread and its waiting turn to another worktree, at its old place in the queue. After `lock_turn`.

    `switch_to`: the branch that the other worktree is to have when the turn runs there.
    """
    left = turn.worktree.id
    await connection.execute(MOVE_TURN, turn.conversation.id, left, worktree_id, turn.id, notices, switch_to)
    await conversations.release_worktree(connection, left)
    await ring_for_work(connection, node)
