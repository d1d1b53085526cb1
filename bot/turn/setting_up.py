"""`.threadtree/setup` in a turn: before its agent works in a new checkout, or in what a turn without an agent made."""

import structlog

from bot.node.setup_script import SetUp, script_of, set_up
from bot.prompt import remarks
from bot.prompt.foreign import Told
from bot.store import turns, worktrees
from bot.store.turns import ClaimLostError
from bot.thread import notices, tracking, worktree_replies
from bot.tree import GitError, StoppedError
from bot.turn.turn_run import TurnRun
from bot.turn.variables import record_given

_log = structlog.get_logger()


async def set_up_for_agent(run: TurnRun) -> tuple[Told, ...]:
    """Run the repository's script, unless it succeeded in this checkout before; return what the agent is told.

    Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    if run.kind.agent == "never" or await run.write(worktrees.is_set_up, run.turn.worktree.id):
        return ()
    done = await _set_up(run)
    if done is None:
        return ()
    told: list[Told] = []
    if done.left:
        run.notices.append(notices.setup_left(done.left))
        told.append(remarks.setup_left(len(done.left)))
    if done.failure is not None:
        run.notices.append(notices.setup_failed(done.failure, done.output))
        told.append(remarks.setup_failed(done.failure, done.output))
    return tuple(told)


async def set_up_alone(run: TurnRun) -> tuple[str, str]:
    """Run the script as long as nobody stops it; return what the thread is told of it, and its output in a fold.

    Nothing where there is none. Raises ClaimLostError.
    """
    try:
        done = await run.unless_stopped(_set_up(run))
    except ClaimLostError:
        raise
    except StoppedError:
        done = SetUp(run.overflow or notices.SETUP_STOPPED)
    except GitError as problem:
        done = SetUp(notices.setup_unread(problem))
    except Exception as problem:  # noqa: BLE001 - also a bug: the script would begin again and again
        _log.exception("setup-failed")
        done = SetUp(notices.setup_not_startable(str(problem)))
    if done is None:
        return "", ""
    words = [worktree_replies.was_set_up(done.failure, done.seconds)]
    words += [notices.setup_left(done.left, "the next")] if done.left else []
    return "\n\n".join(words), notices.setup_output(done.output) if done.output else ""


async def _set_up(run: TurnRun) -> SetUp | None:
    """Run the script, unless it succeeded in this checkout before; return how it ended, None where there is none."""
    turn, ctx = run.turn, run.ctx
    if not ctx.rules.setup:
        return None
    async with run.tree.open(early=True) as tree:
        found = await script_of(tree)
    if found is None:
        await run.write(turns.record_setup, turn.claim)
        return None
    thread = turn.conversation.id if run.is_of_thread else await run.write(worktrees.first_thread, turn.worktree.id)
    if thread is None:
        return None
    if isinstance(found, SetUp):
        return found
    if await run.write(worktrees.is_set_up, turn.worktree.id):
        return SetUp(None)
    run.progress.enter(tracking.SETTING_UP)
    if run.variables:
        await run.write(record_given, turn.worktree.id)
    done = await set_up(ctx, turn.worktree, ctx.home(thread), found, run.disk_overflowed, run.variables)
    if done.failure is None:
        await run.write(turns.record_setup, turn.claim)
    return done
