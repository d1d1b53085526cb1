"""The repository's variables in a turn: who gets them, and which threads keep them (DESIGN.md §4, Authority).

What a program was once given lies in files, in HOME and in the session. So a thread that had them is closed to code and
words that must not have them.
"""

from dataclasses import replace

from bot.node.variables import know_variables, variables_in
from bot.store.database import Connection, Pool, statement
from bot.thread import notices, reasons
from bot.turn.confirm import NotConfirmedError
from bot.turn.kind import Confirmed
from bot.turn.turn_run import TurnRun
from bot.turn.words import Asked


@statement("""
-- HOME and sessions had what was in the worktree of their turn; a rescue may bring back the files of any of them.
select exists (select from turns t join worktrees w on w.id = t.worktree_id
               where t.conversation_id = $1 and w.had_variables)
""")
async def keeps_variables(connection: Connection | Pool, conversation_id: int) -> bool:
    """Return whether programs were given the repository's variables where the thread works, or has worked."""


@statement("""
-- A set-up that ran without them is not the same: it runs again.
update worktrees set had_variables = true, setup_done = false where id = $1 and not had_variables
""")
async def record_given(connection: Connection, worktree_id: int) -> None:
    """Record that programs in the worktree are given the repository's variables now."""


async def give_variables(run: TurnRun, confirmed: Confirmed) -> None:
    """Give the repository's variables to its set-up script and the agent, unless strangers have a say in what these do.

    Raises NotConfirmedError where these may not have them and the thread keeps them; GitHubError, OSError.
    """
    ctx, turn = run.ctx, run.turn
    found = know_variables(ctx.data_dir, turn.worktree.repository, ctx.redactor)
    kept = await run.write(keeps_variables, turn.conversation.id)
    if not (found or kept):
        return
    may_have = (await Asked(ctx, turn, turn.id, confirmed).leave(ctx.rules)).variables
    if kept and not may_have:
        raise NotConfirmedError(reasons.KEEPS_VARIABLES)
    if not may_have or variables_in(ctx.data_dir, turn.worktree) != found:
        run.notices.append(notices.VARIABLES_WITHHELD)
        return
    if not found:
        return
    await run.write(record_given, turn.worktree.id)
    run.variables = found
    # The repository's, of each agent: which one it is follows from rows and rules that are read meanwhile.
    run.ctx = replace(ctx, agent_variables={agent: {**own, **found} for agent, own in ctx.agent_variables.items()})
