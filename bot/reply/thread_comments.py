"""What the bot says on a thread: each function states a wish in the outbox, within the caller's transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bot.messages import tracking
from bot.messages.outbound import answer_parts
from bot.messages.tracking import Changes, EndState, Outcome, PlanEntry
from bot.model import Repository, Target
from bot.reply import limits, pacing
from bot.store import bells, outbox, sending
from bot.store.database import Connection
from bot.store.jobs import defer

AT_ONCE, FINAL, PROGRESS = 0, 1, 2
"""Urgencies: reactions and command answers go before finals before progress."""
NEW_COMMENT_AFTER = timedelta(seconds=60)
"""Edits notify nobody: the answer of a longer turn comes as a comment of its own."""


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """The thread that is spoken on."""

    repository: Repository
    conversation_id: int


@dataclass(frozen=True, slots=True)
class TurnReport:
    """The end of a turn. `answer` is the agent's own text; `reason` is None only for `done`."""

    turn_id: int
    target: Target
    state: EndState
    reason: str | None = None
    answer: str = ""
    changes: Changes | None = None
    patch: str | None = None
    notices: tuple[str, ...] = ()
    duration: timedelta | None = None
    steps: tuple[str, ...] = ()
    cost_usd: float | None = None
    tokens: int | None = None
    last_words: str = ""
    server_url: str = ""
    secrets: tuple[str, ...] = ()


async def seen(connection: Connection, thread_ref: ThreadRef, target: Target) -> None:
    """👀: it was noticed."""
    await _react(connection, thread_ref, target, "eyes")


async def confused(connection: Connection, thread_ref: ThreadRef, target: Target) -> None:
    """😕: it will not be done."""
    await _react(connection, thread_ref, target, "confused")


async def reply(connection: Connection, thread_ref: ThreadRef, target: Target, words: str) -> None:
    """A comment that belongs to no turn, such as a command's answer."""
    await outbox.enqueue_reply(
        connection,
        lane=thread_ref.repository.lane,
        conversation_id=thread_ref.conversation_id,
        target=target,
        content=words,
        urgency=AT_ONCE,
    )
    await _ring(connection, thread_ref)


async def queued(connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, ahead: int) -> None:
    """The turn's tracking comment begins with its place in line."""
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
    """The tracking comment shows the agent at work, or the phase before that."""
    await _track(connection, thread_ref, turn_id, target, tracking.running(plan, steps, elapsed, phase), PROGRESS)


async def next_progress(
    connection: Connection, thread_ref: ThreadRef, started_at: datetime, last_edit_at: datetime | None, now: datetime
) -> datetime | None:
    """When the tracking comment may change again; None: not at all, too much was written in the last hour."""
    created = await sending.created_within(connection, thread_ref.repository.lane, limits.HOUR, now)
    return pacing.next_edit(started_at, last_edit_at, now, len(created))


async def ended(
    connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, state: EndState, reason: str
) -> None:
    """A turn that never ran, or whose run is gone, has ended."""
    await run_ended(connection, thread_ref, TurnReport(turn_id, target, state, reason))


async def run_ended(connection: Connection, thread_ref: ThreadRef, report: TurnReport) -> None:
    """The answer: in the tracking comment, or after a long turn in a new one that the tracking comment links to."""
    outcome = Outcome(
        state=report.state,
        answer=answer_parts(report.answer, secrets=report.secrets, server_url=report.server_url),
        reason=report.reason,
        changes=report.changes,
        patch=report.patch,
        notices=report.notices,
        duration=report.duration,
        steps=report.steps,
        cost_usd=report.cost_usd,
        tokens=report.tokens,
        last_words=report.last_words,
    )
    parts = tracking.final(outcome)
    long = report.duration is not None and report.duration > NEW_COMMENT_AFTER
    first_part = 2 if long else 1
    rows = []
    for part, content in enumerate(parts, start=first_part):
        rows.append(await _wish(connection, thread_ref, report.turn_id, part, report.target, content, FINAL))
    if long:
        await _wish(
            connection, thread_ref, report.turn_id, 1, report.target, tracking.moved(report.state), FINAL, rows[0]
        )
    await _ring(connection, thread_ref)


async def _track(
    connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, content: str, urgency: int
) -> None:
    await _wish(connection, thread_ref, turn_id, 1, target, content, urgency)
    await _ring(connection, thread_ref)


async def _wish(
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
        lane=thread_ref.repository.lane,
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
        lane=thread_ref.repository.lane,
        conversation_id=thread_ref.conversation_id,
        target=target,
        content=content,
    )
    await _ring(connection, thread_ref)


async def _ring(connection: Connection, thread_ref: ThreadRef) -> None:
    await defer(connection, bells.outbox_bell(thread_ref.repository.lane))
