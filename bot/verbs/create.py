"""`worktrees create`: an operator has the worktree of a thread made, and set up, before its first request."""

from bot.store.database import Connection
from bot.thread.formatting import inline_code
from bot.turn.alone import require_live, save_done, work_alone
from bot.turn.kind import Kind
from bot.turn.request import Verb
from bot.turn.restoring import make
from bot.turn.turn_run import TurnRun


def was_made(branch: str | None) -> str:
    return f"The worktree is ready, on {inline_code(branch)}." if branch else "The worktree is ready, without a branch."


async def _create(run: TurnRun) -> str:
    """Create the checkout, unless it is there. Every step can be repeated.

    Raises StoppedError, ClaimLostError, ImpossibleError, GitError, InvalidNameError, OSError.
    """
    require_live(run)
    async with work_alone(run) as tree:
        made = await make(run.ctx, tree, run.turn.worktree)

        async def write(connection: Connection) -> None:
            await made.record(connection, run.turn.worktree.id)

        return await save_done(run, was_made(made.branch), write)


CREATE = Kind("create", "nobody", agent="never", writes=False, carry_out=_create, sets_up=True, makes=True)
VERB = Verb(kinds=(CREATE,))
