"""What is asked while the agent works: it is told, and the answer of its turn answers that too."""

import asyncio
from dataclasses import replace

import structlog

from bot import failpoints
from bot.agents.prompt_loop import AgentDriver
from bot.github.uploads import Uploads
from bot.prompt import attachments
from bot.prompt.attachments import Source
from bot.prompt.builder import message_to_agent
from bot.prompt.hidden import strip_hidden
from bot.store.database import Connection
from bot.store.failures import log_failure
from bot.store.turns import ClaimLostError
from bot.tasks import unless_stopped
from bot.thread import notices, reasons, thread_comments, tracking
from bot.thread.tracking import AskedBy
from bot.turn import message_rows as messages
from bot.turn.confirm import NotConfirmedError, confirm
from bot.turn.message_rows import Message
from bot.turn.turn_run import TurnRun
from bot.turn.variables import keeps_variables
from bot.turn.words import Asked

_log = structlog.get_logger()


async def told_before(run: TurnRun) -> tuple[Message, ...]:
    """Return what earlier runs of the request were told, as GitHub shows it by now: the prompt repeats it.

    What GitHub does not confirm is left out. Raises GitHubError.
    """
    kept = []
    for message in await messages.told(run.ctx.pool, run.turn.id, also_taken=True):
        try:
            kept.append(await _confirmed(run, message))
        except NotConfirmedError as problem:
            asked = asked_in(run, message)
            run.notices.append(notices.message_left_out(asked.login, asked.url, problem.reason))
    return tuple(kept)


async def pass_messages_on(run: TurnRun, agent: AgentDriver, over: asyncio.Event) -> None:
    """Tell the agent what is asked while it works, until its prompt is `over`: one message after the other.

    What it does not take stays in the queue. Raises ClaimLostError.
    """
    for message in run.messages:
        await _end(run, message)
        await _show(run, message)
    while run.kind.joins and agent.takes_messages and not over.is_set():
        run.message_waits.clear()
        try:
            while await _pass_next_on(run, agent, over):
                pass
        except ClaimLostError:
            raise
        except Exception as problem:  # noqa: BLE001 - a message that is not passed on is answered by its own turn
            log_failure("message", problem)
        await unless_stopped(over, run.message_waits.wait())


async def _pass_next_on(run: TurnRun, agent: AgentDriver, over: asyncio.Event) -> bool:
    """Tell the agent the next message, if there is one; return whether it was."""
    ctx, turn = run.ctx, run.turn
    message = await messages.next_for(ctx.pool, turn.claim)
    if message is None or over.is_set() or not ctx.verbs.kind_of(message.ask).joins:
        return False
    try:
        message = await unless_stopped(over, _confirmed(run, message))
    except NotConfirmedError:
        return False  # its own turn says why
    if message is None:
        return False
    if await asyncio.to_thread(_has_attachments, run, message.ask.text):
        return False  # its own turn fetches them
    if not await run.write(messages.take, turn.claim, message.turn_id, message.ask):
        return False
    failpoints.reached("message-taken")
    words = message_to_agent(message.ask.by.login, ctx.redactor.redact_known(message.ask.text))
    if not await agent.tell(words):
        await run.write(messages.give_back, message.turn_id)
        return False
    if await _end(run, message):
        await _show(run, message)
        _log.info("agent-told", message=message.turn_id, requested_by=message.ask.by.login)
    return True


async def _end(run: TurnRun, message: Message) -> bool:
    """End the message's own turn, for the agent has it; False if it has ended or waits on. Raises ClaimLostError."""
    turn = run.turn

    async def write(connection: Connection) -> bool:
        is_end = await messages.end(connection, turn.claim, message.turn_id, reasons.given_to_turn(turn.id))
        if is_end:
            words = tracking.given_to(run.asked)
            await thread_comments.track(connection, run.thread_ref, message.turn_id, message.ask.target, words)
        return is_end

    return await run.write(write)


def _has_attachments(run: TurnRun, text: str) -> bool:
    uploads = Uploads(run.ctx.server_url, run.turn.worktree.repository, is_public=True)
    return bool(attachments.find_links([Source("a message", strip_hidden(text), None)], uploads))


async def _show(run: TurnRun, message: Message) -> None:
    # In a thread: a long Markdown text takes the parser seconds.
    words = await asyncio.to_thread(lambda: run.ctx.redactor.redact(strip_hidden(message.ask.text)))
    run.progress.add(tracking.added(asked_in(run, message), words))


def asked_in(run: TurnRun, message: Message) -> AskedBy:
    """Return a message as comments name it."""
    place = run.turn.worktree.repository, run.turn.conversation.number
    return tracking.asked(message.ask, run.ctx.server_url, *place, message.turn_id)


async def _confirmed(run: TurnRun, message: Message) -> Message:
    """Return the message as it stands on GitHub by now, if its words may be worked on as they are, by an agent that has
    what this one has. Raises NotConfirmedError, GitHubError.
    """
    ctx, confirmed = run.ctx, await confirm(run.ctx, replace(run.turn, ask=message.ask))
    asked = Asked(ctx, replace(run.turn, ask=confirmed.ask), message.turn_id, confirmed)
    kept = await run.write(keeps_variables, run.turn.conversation.id)
    if kept and not (await asked.leave(ctx.rules)).variables:
        raise NotConfirmedError(reasons.OF_OUTSIDER)
    if await ctx.verbs.settle(asked, ctx.rules) is not None:
        raise NotConfirmedError(reasons.NEEDS_TURN)
    return replace(message, ask=confirmed.ask)
