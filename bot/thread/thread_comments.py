"""The bot's comments on a thread: each function adds to the outbox, in the caller's transaction."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from bot.model import Target, ThreadRef
from bot.store.database import Connection
from bot.thread import boxes, pacing, tracking
from bot.thread import outbox_rows as outbox
from bot.thread.boxes import Box
from bot.thread.pacing import AT_ONCE, DECLINED, FINAL, PROGRESS
from bot.thread.tracking import EndState

NEW_COMMENT_AFTER = timedelta(seconds=60)
"""GitHub sends no notification of an edit, so a later answer is a new comment."""


async def acknowledge(connection: Connection, thread_ref: ThreadRef, target: Target, person_id: int) -> None:
    """React with 👀 to a person's request that was received."""
    await outbox.enqueue_reaction(connection, thread_ref, target, "eyes", AT_ONCE, person_id)


async def decline(connection: Connection, thread_ref: ThreadRef, target: Target, words: str) -> None:
    """Answer a request that will not be done: one sentence, and 😕, which goes after everything else."""
    await outbox.enqueue_reaction(connection, thread_ref, target, "confused", DECLINED, None)
    await reply(connection, thread_ref, target, words)


async def be_silent(connection: Connection, thread_ref: ThreadRef, target: Target, words: str, now: datetime) -> None:
    """Answer what comes after too many comments: 😕, and `words` once an hour. A reaction makes no bot go on."""
    await outbox.enqueue_reaction(connection, thread_ref, target, "confused", DECLINED, None)
    if await outbox.is_first_silence(connection, thread_ref.conversation_id, now):
        await outbox.enqueue_comment(connection, thread_ref, target, words, AT_ONCE)


async def turn_away(
    connection: Connection, thread_ref: ThreadRef, target: Target, person_id: int, words: str, now: datetime
) -> None:
    """Answer a person who may not ask: 😕, once a thread and day, and `words` that say why, once in the repository.

    Both go after everything else, and not at all while many such answers wait: anybody can cause them.
    """
    most = pacing.MOST_AN_HOUR // pacing.DECLINED_SHARE
    if not await outbox.may_decline(connection, thread_ref, person_id, most, DECLINED, now):
        return
    await outbox.enqueue_reaction(connection, thread_ref, target, "confused", DECLINED, None)
    if await outbox.is_first_refusal(connection, thread_ref.repository, person_id):
        await outbox.enqueue_comment(connection, thread_ref, target, words, DECLINED)


async def reply(
    connection: Connection,
    thread_ref: ThreadRef,
    target: Target,
    words: str,
    *,
    instead_of: int | None = None,
    asked_by: int | None = None,
) -> int:
    """Post a comment that belongs to no turn, such as the answer to a command of the person `asked_by`; return its row.

    The comment of the row `instead_of` becomes this one by edit.
    """
    row_id = instead_of
    if row_id is None or not await outbox.rewrite_comment(connection, thread_ref, row_id, words):
        row_id = await outbox.enqueue_comment(connection, thread_ref, target, words, AT_ONCE, asked_by=asked_by)
    return row_id


async def tell(connection: Connection, thread_ref: ThreadRef, words: str) -> None:
    """Post a comment on a pull request that answers nothing: its text asks as before."""
    await outbox.enqueue_comment(connection, thread_ref, Target("pull"), words, FINAL)


async def answer_inline(
    connection: Connection, thread_ref: ThreadRef, comment_id: int, words: str, asked_by: int
) -> None:
    """Post a short answer in the thread of an inline comment, besides the answer to the request of `asked_by`."""
    target = Target("review-comment", comment_id)
    await outbox.enqueue_comment(connection, thread_ref, target, words, FINAL, asked_by=asked_by)


async def track(connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, content: str) -> None:
    """Show the progress of a turn in its tracking comment."""
    await outbox.enqueue_comment(connection, thread_ref, target, content, PROGRESS, turn_id, 1)


async def next_progress(
    connection: Connection, thread_ref: ThreadRef, started_at: datetime, last_edit_at: datetime | None, now: datetime
) -> datetime | None:
    """Return when the tracking comment may change again; None if too much was written in the last hour."""
    created = await outbox.created_since(connection, thread_ref.repository.writer, now - pacing.HOUR, now)
    return pacing.next_edit(started_at, last_edit_at, now, len(created))


async def add_line(connection: Connection, thread_ref: ThreadRef, turn_id: int, line: str) -> None:
    """Add a line to the answer of a turn by edit, of which GitHub notifies nobody."""
    if (found := await outbox.end_of_answer(connection, turn_id)) is not None:
        await outbox.rewrite_comment(connection, thread_ref, found[0], f"{found[1]}\n\n{line}")


async def answer_ticks(connection: Connection, thread_ref: ThreadRef, target: Target, words: str) -> int | None:
    """Answer below the boxes of the comment that somebody ticked, and empty them; return the comment's row."""
    if (found := await outbox.comment_there(connection, thread_ref.conversation_id, target.id or 0)) is None:
        return None
    row, _, content = found
    # Also where the text stays: on GitHub it has a tick.
    await outbox.rewrite_comment(connection, thread_ref, row, boxes.with_answer(content, words))
    return row


async def take_ticks(
    connection: Connection, thread_ref: ThreadRef, target: Target, chosen: Sequence[Box], login: str, at: datetime
) -> bool:
    """Show what was ticked, by whom and when, in place of the comment's boxes; return whether it had some."""
    if (found := await outbox.comment_there(connection, thread_ref.conversation_id, target.id or 0)) is None:
        return False
    row, _, content = found
    shown = boxes.with_choice(content, chosen, login, at)
    await outbox.rewrite_comment(connection, thread_ref, row, shown)
    return shown != content


async def reviewed(
    connection: Connection, thread_ref: ThreadRef, turn_id: int, target: Target, content: str, review: str
) -> None:
    """Answer with a review in place of the tracking comment; `content` is its text, `review` its remarks as JSON."""
    at = (thread_ref, Target("pull"), content, FINAL, turn_id)
    row = await outbox.enqueue_comment(connection, *at, part=2, review=review)
    gone = tracking.moved("done")
    await outbox.enqueue_comment(connection, thread_ref, target, gone, PROGRESS, turn_id, 1, waits_for=row)


async def ended(
    connection: Connection,
    thread_ref: ThreadRef,
    turn_id: int,
    target: Target,
    parts: Sequence[str],
    state: EndState,
    now: datetime | None = None,
    also: Sequence[tuple[int, Target]] = (),
) -> None:
    """Answer with the `parts` of `tracking.final`: in the tracking comment, or in a new comment that takes its place.

    New where the tracking comment is older than NEW_COMMENT_AFTER at `now`, or above the answer to an earlier request;
    without `now` the answer is news to nobody. New as well where it answers `also` other turns, the messages that the
    agent got while it worked: then it takes the place of their comments too.
    """
    is_new = now is not None and (bool(also) or await outbox.is_passed(connection, turn_id, now - NEW_COMMENT_AFTER))
    rows = []
    for part, content in enumerate(parts, start=2 if is_new else 1):
        rows.append(await outbox.enqueue_comment(connection, thread_ref, target, content, FINAL, turn_id, part))
    if is_new:
        link = tracking.moved(state)
        for turn, place in ((turn_id, target), *also):
            await outbox.enqueue_comment(connection, thread_ref, place, link, PROGRESS, turn, 1, waits_for=rows[0])
