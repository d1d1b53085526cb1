"""Failing checks of what the bot pushed are fixed by a turn that nobody asks for; `/autofix` switches that."""

from bot.ask import Ask
from bot.node.transactions import persist
from bot.prompt.builder import Brief
from bot.prompt.collect import CHECKS, Collected
from bot.rules import Rules
from bot.store import turns
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn
from bot.thread import notices
from bot.thread.outcome import Nothing
from bot.thread.tracking import Changes
from bot.turn.confirm import NotConfirmedError
from bot.turn.context import TurnContext
from bot.turn.kind import Kind, Ready
from bot.turn.parsing import one_of
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.turn_run import TurnRun
from bot.turn.variables import keeps_variables
from bot.verbs.fix import rows, words


async def _goes_on_with_others(ctx: TurnContext, turn: ClaimedTurn) -> bool:
    """It goes on with the words of the requests before it, which may have been withheld variables.

    In a thread that was given them since, nobody else was listened to.
    """
    if await persist(ctx.pool, keeps_variables, turn.conversation.id):
        return False
    told = (turn.conversation.id, turn.id, notices.VARIABLES_WITHHELD)
    return await persist(ctx.pool, turns.was_told, *told)


async def _may_begin(run: TurnRun, ready: Ready) -> str | None:
    """Return why a turn that waited is not to fix the checks of its commit by now. Raises GitError, GitHubError."""
    ctx, turn, branch, head = run.ctx, run.turn, ready.branch, run.turn.ask.of["head"]
    clone, repository = run.tree.clone, turn.worktree.repository
    if not branch or await clone.tip(branch) != head:
        return words.moved_on(head)
    if turn.ask.retry_of is not None:  # a person asks
        return None
    if not ctx.rules.fixes(await rows.chosen(ctx.pool, turn.conversation.id)):
        return words.SWITCHED_OFF
    return None if any(one.is_open for one in await ctx.github.pulls_of(repository, branch)) else words.NOT_OPEN


def _failed_checks(ask: Ask) -> tuple[str, frozenset[str]]:
    return ask.of["head"], frozenset(ask.of["checks"])


async def _brief(run: TurnRun, ready: Ready, thread: Collected | None) -> Brief:
    if thread is not None and not (thread.thread.failed_checks or CHECKS in thread.thread.missing):
        raise NotConfirmedError(words.FAILS_NO_MORE)
    return Brief()


async def _published(run: TurnRun, ready: Ready, changes: Changes | str | None, nothing: Nothing | None) -> None:
    if changes is None:
        run.notices.append(words.NOTHING_PUSHED)


FIX = Kind(
    "fix",
    "nobody",
    of_outsider=_goes_on_with_others,
    may_begin=_may_begin,
    failed_checks=_failed_checks,
    brief=_brief,
    published=_published,
    joins=True,
)


async def _switch(ctx: RequestContext, argument: str | None) -> None:
    chosen, most = await rows.chosen(ctx.connection, ctx.conversation_id), ctx.rules.max_fix_attempts
    if argument != "off" and ctx.rules.forbids_autofix:
        await ctx.reply(words.FORBIDDEN)
    elif argument is None:
        on = ctx.rules.autofix if chosen is None else chosen
        await ctx.reply(words.shown(on=on, is_chosen=chosen is not None, most=most))
    else:
        threads = await rows.choose(ctx.connection, ctx.conversation_id, argument == "on")
        await ctx.reply(words.switched(on=argument == "on", most=most))
        for one in threads:
            await rows.ring(ctx.connection, one, autofix=False)


COMMAND = Handler("autofix", one_of("on", "off"), summary=words.SUMMARY, run=_switch)


async def _look_again(connection: Connection, conversation_id: int, rules: Rules) -> None:
    await rows.ring(connection, conversation_id, autofix=rules.autofix)


VERB = Verb(commands=(COMMAND,), kinds=(FIX,), at_stop=rows.leave_alone, at_end=_look_again)
