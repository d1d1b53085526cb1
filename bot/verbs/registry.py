"""Every chat command: those that need little are here. A new one is added to HANDLERS."""

from dataclasses import replace
from typing import Final, assert_never

from bot.rules import Chosen
from bot.store import conversations, requests
from bot.store.audit import record_command
from bot.store.nodes import SILENT_AFTER_SECONDS
from bot.thread import replies, tracking
from bot.turn.confirm import RETRY as RETRY_COMMAND
from bot.turn.parsing import Command, UnknownCommand
from bot.turn.queueing import queue_turn
from bot.turn.request import Handler, RequestContext
from bot.verbs import fix, kind_of, plan, pull_request, reset, review, undo, update
from bot.verbs.agent import AGENT, MODEL
from bot.verbs.stop import STOP
from bot.verbs.worktree import WORKTREE, WORKTREE_VERBS

_RECORDED: Final = frozenset(
    {"stop", "stop all", "retry", "reset", *(f"worktree {verb}" for verb in WORKTREE_VERBS if verb != "list")}
)


async def _status(ctx: RequestContext, _: str | None) -> None:
    now = await conversations.overview(ctx.connection, ctx.conversation_id)
    unfinished = await requests.unfinished(ctx.connection, ctx.conversation_id)
    wait, waiting = None, [turn.id for turn in unfinished if turn.number == ctx.number]
    is_running = any(turn.state == "running" for turn in unfinished)
    if not is_running and now.silent_node is None and now.removal_error is None:
        first = await requests.why_turns_wait(ctx.connection, waiting[:1], ctx.now, SILENT_AFTER_SECONDS)
        # Without the word before it, "Queued." or "Waiting."
        wait = tracking.why_it_waits(first[0], ctx.now).partition(" ")[2] if first else None
    newest = await plan.newest(ctx.connection, ctx.conversation_id)
    chosen = Chosen(*await conversations.chosen(ctx.connection, ctx.conversation_id))
    next_one = chosen.within(ctx.rules).worker if chosen.agent else None
    place = ctx.server_url, ctx.repository, ctx.number, ctx.now
    await ctx.reply(replies.status(now, unfinished, *place, wait, next_one, waits=plan.waiting(newest)))


async def _retry(ctx: RequestContext, _: str | None) -> None:
    last = await requests.last_not_done(ctx.connection, ctx.conversation_id)
    if last is None:
        await ctx.reply(replies.NOTHING_TO_RETRY)
        return
    await ctx.acknowledge()
    (ask, turn_id), own = last, ctx.request.ask
    if kind_of(ask).carry_out is not None:
        name, _, argument = ask.text.removeprefix("/").partition(" ")
        await HANDLERS[name].run(replace(ctx, retry_of=ask.retry_of or turn_id), argument or None)
        return
    again = replace(ask, by=own.by, at=own.at, target=own.target, review=None, seen=None)
    needs_agent = kind_of(ask).agent != "never"
    await queue_turn(ctx, replace(again, retry_of=ask.retry_of or turn_id), needs_agent=needs_agent)


async def _reset_context(ctx: RequestContext, _: str | None) -> None:
    ended = await conversations.end_session(ctx.connection, ctx.conversation_id, "reset-requested")
    await ctx.reply(replies.CONTEXT_RESET if ended else replies.NO_SESSION_TO_RESET)


STATUS = Handler("status", needs_no_slash=True, summary=replies.STATUS_SUMMARY, run=_status)
RETRY = Handler(RETRY_COMMAND, summary=replies.RETRY_SUMMARY, run=_retry, queues_turn=True)
RESET_CONTEXT = Handler("reset-context", summary=replies.RESET_CONTEXT_SUMMARY, run=_reset_context)


async def _help(ctx: RequestContext, _: str | None) -> None:
    commands = [(handler.name, handler.summary) for handler in HANDLERS.values()]
    await ctx.reply(replies.help_text(ctx.policy.bot_name, commands, bare=ctx.rules.bare_commands))


HELP = Handler("help", needs_no_slash=True, summary=replies.HELP_SUMMARY, run=_help)
_REQUESTS = (RETRY, plan.COMMAND, plan.APPROVE, review.COMMAND, undo.COMMAND, update.COMMAND)
_OF_THREAD = (pull_request.COMMAND, AGENT, MODEL, fix.COMMAND, RESET_CONTEXT, reset.COMMAND, WORKTREE)
HANDLERS: dict[str, Handler] = {handler.name: handler for handler in (HELP, STATUS, STOP, *_REQUESTS, *_OF_THREAD)}
"""The handlers by the name of their command, in the order in which `/help` lists them."""


async def run_command(ctx: RequestContext, command: Command | UnknownCommand) -> None:
    """Run one command of a comment, in the caller's transaction."""
    if ctx.silent_until is not None and not (isinstance(command, Command) and command.name == STOP.name):
        await ctx.be_silent()
        return
    await ctx.acknowledge()
    match command:
        case Command(name=name, argument=argument):
            await HANDLERS[name].run(ctx, argument)
            words = f"{name} {argument}" if argument else name
            if words in _RECORDED and not ctx.request.is_operators:
                of = (ctx.repository.full_name, ctx.number, ctx.conversation_id)
                await record_command(ctx.connection, ctx.author.login, words, *of)
        case UnknownCommand(words=words):
            await ctx.reply(replies.unknown_command(words, HANDLERS))
        case _:
            assert_never(command)
