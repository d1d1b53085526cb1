"""What the bot writes on a thread: each function adds to the outbox, in the caller's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bot.messages import tracking
from bot.messages.tracking import EndState, PlanEntry, TurnResult
from bot.model import Repository, Target
from bot.reply import pacing
from bot.reply.pacing import AT_ONCE, FINAL, PROGRESS
from bot.store import outbox, sending
from bot.store.database import Connection
from bot.store.jobs import defer, outbox_bell

NEW_COMMENT_AFTER = timedelta(seconds=60)
"""Edits notify nobody, so the answer of a longer turn is a new comment."""


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """The thread that a comment or reaction goes to."""

    repository: Repository
    conversation_id: int


async def seen(connection: Connection, thread_ref: ThreadRef, target: Target) -> None:
    """React with 👀: the request was received."""
    await _react(connection, thread_ref, target, "eyes")


async def confused(connection: Connection, thread_ref: ThreadRef, target: Target) -> None:
    """React with 😕: the request will not be done."""
    await _react(connection, thread_ref, target, "confused")


async def reply(connection: Connection, thread_ref: ThreadRef, target: Target, words: str) -> None:
    """Post a comment that belongs to no turn, such as a command's answer."""
    await outbox.enqueue_reply(
        connection,
        writer=thread_ref.repository.writer,
        conversation_id=thread_ref.conversation_id,
        target=target,
        content=words,
        urgency=AT_ONCE,
    )
    await _ring(connection, thread_ref)


async def queued(connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, ahead: int) -> None:
    """Begin the turn's tracking comment with its place in the queue."""
    await _track(connection, thread_ref, turn_id, target, tracking.queued(ahead), PROGRESS)


async def running(
    connection: Connection,
    thread_ref: ThreadRef,
    turn_id: int,
    target: Target,
    plan: Sequence[PlanEntry],
    steps: Sequence[str],
    elapsed: timedelta,
    phase: str | None = None,
) -> None:
    """Show the agent at work in the tracking comment, or the phase before that."""
    await _track(connection, thread_ref, turn_id, target, tracking.running(plan, steps, elapsed, phase), PROGRESS)


async def next_progress(
    connection: Connection, thread_ref: ThreadRef, started_at: datetime, last_edit_at: datetime | None, now: datetime
) -> datetime | None:
    """Return when the tracking comment may change again; None if too much was written in the last hour."""
    created = await sending.created_within(connection, thread_ref.repository.writer, pacing.HOUR, now)
    return pacing.next_edit(started_at, last_edit_at, now, len(created))


async def ended(
    connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, state: EndState, reason: str
) -> None:
    """Answer for a turn that never ran or whose process is gone."""
    await run_ended(connection, thread_ref, turn_id, target, TurnResult(state, reason))


async def run_ended(
    connection: Connection,
    thread_ref: ThreadRef,
    turn_id: int,
    target: Target,
    result: TurnResult,
    *,
    server_url: str = "",
    secrets: Sequence[str] = (),
) -> None:
    """Answer in the tracking comment, or after a long turn in a new comment that the tracking comment links to."""
    parts = tracking.final(result, server_url=server_url, secrets=secrets)
    long = result.duration is not None and result.duration > NEW_COMMENT_AFTER
    first_part = 2 if long else 1
    rows = []
    for part, content in enumerate(parts, start=first_part):
        rows.append(await _enqueue(connection, thread_ref, turn_id, part, target, content, FINAL))
    if long:
        await _enqueue(connection, thread_ref, turn_id, 1, target, tracking.moved(result.state), FINAL, rows[0])
    await _ring(connection, thread_ref)


async def _track(
    connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, content: str, urgency: int
) -> None:
    await _enqueue(connection, thread_ref, turn_id, 1, target, content, urgency)
    await _ring(connection, thread_ref)


async def _enqueue(
    connection: Connection,
    thread_ref: ThreadRef,
    turn_id: int,
    part: int,
    target: Target,
    content: str,
    urgency: int,
    waits_for: int | None = None,
) -> int:
    return await outbox.enqueue_comment(
        connection,
        writer=thread_ref.repository.writer,
        conversation_id=thread_ref.conversation_id,
        turn_id=turn_id,
        part=part,
        target=target,
        content=content,
        urgency=urgency,
        waits_for=waits_for,
    )


async def _react(connection: Connection, thread_ref: ThreadRef, target: Target, content: str) -> None:
    await outbox.enqueue_reaction(
        connection,
        writer=thread_ref.repository.writer,
        conversation_id=thread_ref.conversation_id,
        target=target,
        content=content,
    )
    await _ring(connection, thread_ref)


async def _ring(connection: Connection, thread_ref: ThreadRef) -> None:
    await defer(connection, outbox_bell(thread_ref.repository.writer))
