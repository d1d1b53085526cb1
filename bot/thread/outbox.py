"""The sender: it takes the rows of a writer one at a time and makes GitHub agree with each, exactly once."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, cast

import structlog
from pydantic import TypeAdapter
from structlog.contextvars import bound_contextvars

from bot.github.answers import OwnReview, Posted
from bot.github.client import GitHub, ReactionContent
from bot.github.errors import Gone, NotFound, Refused, Transient, Unauthenticated
from bot.github.transport import Clock, Sleep
from bot.model import Repository, Target
from bot.redaction import Redactor
from bot.store.database import Connection, Pool
from bot.thread import outbox_rows as outbox
from bot.thread import pacing
from bot.thread.marker import reply_marker, signed, turn_marker
from bot.thread.outbox_rows import OutboxItem
from bot.thread.tracking import ANSWER_URL

# What GitHub wrote shows up in its lists a moment later: one look is not enough.
SECOND_LOOK_SECONDS = 5.0
# Until then a request, also that of a killed process, may still write:
# https://docs.github.com/en/rest/using-the-rest-api/troubleshooting-the-rest-api#timeouts
LONGEST_REQUEST_SECONDS = 10.0
# A comment cannot be older than its row; the slack is for clocks that disagree.
CLOCK_SLACK = timedelta(minutes=10)
WRITER_TAKEN_SECONDS = 1.0
LONGEST_WAIT = timedelta(seconds=5)
BAD_CREDENTIALS_SECONDS = 60.0
_READ_ONLY = re.compile(r"issue is locked|archived", re.IGNORECASE)
"""GitHub's words for a thread or a repository in which nothing can be written any more."""

PATIENCE = timedelta(minutes=3)
LOCK_POLL_SECONDS = 0.2
REVIEW = TypeAdapter(OwnReview)
"""Reviews as JSON."""
T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing more can go now; `next_due` is when to come back, None when nothing waits.

    `paused`: GitHub's limit holds the writer until then. `used_up`: what the hour allows holds what is due.
    """

    next_due: datetime | None
    paused: bool = False
    used_up: bool = False


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender of the outbox's items. Every body is redacted by what knows the secrets of its repository."""

    pool: Pool
    github: GitHub
    redactor_of: Callable[[Repository], Redactor]
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]]

    async def drain(self, writer: str) -> Drained:
        """Send what is due for the writer, one request at a time; returns when nothing is left or all must wait."""
        async with self.pool.acquire() as connection:
            if not await outbox.lock_writer(connection, writer):
                return Drained(self.clock() + timedelta(seconds=WRITER_TAKEN_SECONDS))
            while (drained := await self._send_next(connection, writer)) is None:
                pass
            return drained

    async def _send_next(self, connection: Connection, writer: str) -> Drained | None:
        """Send one row, or wait before it; return a result if the writer must pause."""
        now = self.clock()
        if (until := await outbox.paused_until(connection, writer, now)) is not None:
            return Drained(until, paused=True)
        created = await outbox.created_since(connection, writer, now - pacing.HOUR, now)
        opens = pacing.next_creation(created, now)
        only_edits = opens - now > LONGEST_WAIT
        held = await self._held_persons(connection, writer, len(created), now)
        found = await outbox.next_to_send(connection, writer, now, only_edits=only_edits, only_edits_for=held)
        if found is None:
            due = await outbox.next_due(connection, writer, now, pacing.DECLINED)
            if due != now or not (only_edits or held):
                return Drained(due)
            return Drained(max(opens, created[0] + pacing.HOUR) if held else opens, used_up=True)
        row_id, urgency, creates = found
        if urgency == pacing.DECLINED:
            declined = await outbox.created_since(connection, writer, now - pacing.HOUR, now, urgency)
            share_opens = pacing.next_creation(declined, now, share=pacing.DECLINED_SHARE)
            if share_opens - now > LONGEST_WAIT:
                # Nothing else is due now.
                due = await outbox.next_due(connection, writer, now, pacing.PROGRESS)
                return Drained(min(due, share_opens) if due else share_opens)
            opens = max(opens, share_opens)
        if creates and opens > now:
            await self.sleep((opens - now).total_seconds())
            return None  # something more urgent may be due by now
        await self._send(connection, writer, row_id)
        return None

    async def _held_persons(self, connection: Connection, writer: str, created: int, now: datetime) -> list[int]:
        """Return the persons for whom nothing may be created now, so that some of the hour is left for others."""
        most = pacing.most_of_person(created)
        if created <= most:
            return []
        return await outbox.created_most_for(connection, writer, now - pacing.HOUR, most)

    async def _send(self, connection: Connection, writer: str, row_id: int) -> None:
        item = await outbox.take(connection, row_id, self.clock())
        about = {} if item.turn_id is None else {"turn": item.turn_id}
        with bound_contextvars(row=item.id, conversation=f"{item.repository.full_name}#{item.number}", **about):
            await self._send_item(connection, writer, item)

    async def _send_item(self, connection: Connection, writer: str, item: OutboxItem) -> None:
        body = self._body(item)
        is_new = item.kind == "comment" and item.comment_id is None
        unsure_since = item.unsure_since if is_new else None
        found: Posted | None = None
        try:
            if unsure_since is not None:
                found = await self._look_twice(item, self.clock() - unsure_since)
                unsure_since = None
            comment = found or await self._request(item, body)
        except Transient as error:
            unsure = unsure_since is not None or error.may_have_happened
            await self._try_later(connection, writer, item, error, unsure=unsure)
        except Unauthenticated as error:
            wait = Transient("installation", BAD_CREDENTIALS_SECONDS, f"credentials not accepted: {error}")
            await self._try_later(connection, writer, item, wait, unsure=unsure_since is not None)
        except (NotFound, Refused) as error:
            await self._refused(connection, writer, item, error, unsure=unsure_since is not None)
        else:
            # A review that was found is never edited: its text is the one that it was given.
            is_same = found is None or item.review is not None or found.body.strip() == body
            version = item.version if is_same else 0
            comment_id, url = (None, None) if comment is None else (comment.id, comment.url)
            await outbox.sent(connection, item.id, version, comment_id, url, self.clock())
            _log.info("outbox-sent", kind=item.kind, found_again=found is not None)

    async def _request(self, item: OutboxItem, body: str) -> Posted | None:
        """Make the one request that the item asks for."""
        if item.kind == "reaction":
            content = cast("ReactionContent", item.content)
            await self.github.react(item.repository, item.number, item.target, content)
            return None
        if item.linked_url is not None:
            return await self._remove(item, body)
        if item.review is not None:
            review = REVIEW.validate_json(item.review)
            remarks = [replace(one, body=self._signed(item, one.body)) for one in review.remarks]
            review = replace(review, remarks=tuple(remarks))
            return await self.github.create_review(item.repository, item.number, body, review)
        if item.comment_id is None:
            return await self.github.create_comment(item.repository, item.number, item.target, body)
        return await self.github.edit_comment(item.repository, item.target, item.comment_id, body)

    async def _remove(self, item: OutboxItem, body: str) -> Posted | None:
        """Delete a comment in whose place another one stands; where GitHub refuses that, link that one and fold it."""
        if item.comment_id is None:
            return None
        comment = (item.repository, item.target, item.comment_id)
        try:
            await self.github.delete_comment(*comment)
        except NotFound:
            await self.sleep(SECOND_LOOK_SECONDS)  # a replica may be behind
            if await self.github.has_comment(*comment):
                raise Transient("request", None, "the comment is not found yet", may_have_happened=False) from None
        except Refused as refusal:
            _log.warning("comment-not-deleted", error=str(refusal))
            left = await self.github.edit_comment(*comment, body)
            with suppress(Refused):
                await self.github.minimize_comment(*comment)
            return left
        return None

    async def _look_twice(self, item: OutboxItem, age: timedelta) -> Posted | None:
        """Return the comment that an earlier request of this age may have left on GitHub."""
        since = item.created_at - CLOCK_SLACK
        look = partial(self.github.find_comment, item.repository, item.number, item.target, _marker(item), since)
        if item.review is not None:
            look = partial(self.github.find_review, item.repository, item.number, _marker(item))
        found = await look()
        if found is None:
            left = LONGEST_REQUEST_SECONDS - max(age.total_seconds(), 0)
            await self.sleep(SECOND_LOOK_SECONDS + max(left, 0))
            found = await look()
        return found

    async def _refused(
        self, connection: Connection, writer: str, item: OutboxItem, error: NotFound | Refused, *, unsure: bool
    ) -> None:
        try:
            may_pass = await self._may_pass(item, error)
        except (Transient, Unauthenticated):
            may_pass = True  # nobody knows yet
        if may_pass:
            later = Transient("request", None, str(error), may_have_happened=False)
            await self._try_later(connection, writer, item, later, unsure=unsure)
        else:
            await self._give_up(connection, item, error, unsure=unsure)

    async def _may_pass(self, item: OutboxItem, error: NotFound | Refused) -> bool:
        """Return whether GitHub may take the item later."""
        if isinstance(error, Refused):
            # A right that an admin is changing, an allow list: nobody else would say the answer.
            return _is_answer(item) and error.status == 403 and _READ_ONLY.search(error.message) is None
        if item.comment_id is None:
            # Its place is not found, which may pass as well.
            is_lost = not isinstance(error, Gone) and _elsewhere(item, error) is None
            return is_lost and item.attempts < pacing.NOT_FOUND_ATTEMPTS
        await self.sleep(SECOND_LOOK_SECONDS)  # a replica may be behind
        return await self.github.has_comment(item.repository, item.target, item.comment_id)

    async def _try_later(
        self, connection: Connection, writer: str, item: OutboxItem, error: Transient, *, unsure: bool
    ) -> None:
        if item.attempts + 1 >= pacing.MOST_ATTEMPTS:
            await self._give_up(connection, item, error, unsure=unsure)
            return
        due_at = self.clock() + pacing.backoff(item.attempts, error.retry_after_seconds)
        _log.warning("outbox-later", scope=error.scope, due_at=due_at.isoformat(), error=str(error))
        async with connection.transaction():
            await outbox.put_back(connection, item.id, "sending" if unsure else "waiting", due_at, str(error))
            if error.scope == "installation":
                await outbox.pause_writer(connection, writer, due_at)

    async def _give_up(
        self, connection: Connection, item: OutboxItem, error: NotFound | Refused | Transient, *, unsure: bool
    ) -> None:
        """Post what GitHub refuses for good in another way if there is one, else mark it as failed.

        Only what was sent is judged: a newer text of the row is sent as if nothing had failed.
        """
        sent, why = (connection, item.id, item.version), str(error)
        review = None if item.review is None or isinstance(error, Transient) else REVIEW.validate_json(item.review)
        elsewhere = _elsewhere(item, error)
        log = _log.bind(kind=item.kind, error=why)
        is_final = item.urgency == pacing.FINAL or item.linked_content is not None
        if review is not None and review.remarks:
            without = REVIEW.dump_json(OwnReview(None)).decode()
            is_newest = await outbox.send_otherwise(*sent, review.whole, without, why)
            told = partial(log.info, "review-sent-without-lines")
        elif elsewhere is not None:
            is_newest = await outbox.post_anew(*sent, elsewhere, why)
            told = partial(log.info, "outbox-posted-again")
        else:
            is_newest = await outbox.give_up(*sent, why)
            is_missed = item.kind == "comment" and is_final and not item.is_linked
            told = partial(log.error, "answer-not-posted") if is_missed else partial(log.warning, "outbox-failed")
        if is_newest:
            told()
        else:
            log.info("outbox-newer-text")
            await outbox.leave_newer(connection, item.id, "sending" if unsure else "waiting")

    def _body(self, item: OutboxItem) -> str:
        if item.linked_url is not None:
            content = item.content.replace(ANSWER_URL, item.linked_url)
        else:
            # The comment to link was refused: its text is posted here instead.
            content = item.linked_content or item.content
        return self._signed(item, content)

    def _signed(self, item: OutboxItem, content: str) -> str:
        return signed(self.redactor_of(item.repository).public(content), _marker(item))


def _marker(item: OutboxItem) -> str:
    if item.turn_id is None or item.part is None:
        return reply_marker(item.id)
    return turn_marker(item.turn_id, item.part)


def _is_answer(item: OutboxItem) -> bool:
    """Return whether a person would miss the comment: it is no progress, and no other comment stands in its place."""
    says_more = item.urgency < pacing.PROGRESS or item.linked_content is not None
    return item.kind == "comment" and says_more and item.linked_url is None


def _elsewhere(item: OutboxItem, error: NotFound | Refused | Transient) -> Target | None:
    """Return where a refused comment can be posted instead, or None."""
    if item.kind == "reaction" or isinstance(error, Transient):
        return None
    gone = isinstance(error, NotFound)
    if item.comment_id is not None:
        # Somebody deleted the comment: progress and the link to the answer are then unwanted, an answer is not.
        return item.target if gone and _is_answer(item) else None
    unanswerable = gone or (isinstance(error, Refused) and error.status == 422)
    # Beside the answer to a request, one in a thread means nothing elsewhere.
    is_beside = item.turn_id is None and item.urgency == pacing.FINAL
    return Target("pull") if unanswerable and item.target.kind == "review-comment" and not is_beside else None


async def write_in_line(
    pool: Pool,
    of: tuple[str, int | None],
    write: Callable[[], Awaitable[T]],
    clock: Clock,
    sleep: Sleep,
    *,
    creates: bool = True,
) -> T:
    """Run `write`, which makes one pull request or issue, or edits one, when the writer's limits allow it.

    `of`: the writer, and the conversation if there is one. Raises GitHubError; Transient also where the limits do not
    allow it within PATIENCE.
    """
    writer = of[0]
    while True:
        wait: timedelta | None = None
        async with pool.acquire() as connection:
            if await outbox.lock_writer(connection, writer):
                now = clock()
                wait = await _opens(connection, writer, now, creates=creates) - now
                if not wait:
                    return await _write(connection, of, write, clock, creates=creates)
        if wait is None:
            await asyncio.sleep(LOCK_POLL_SECONDS)  # another sender is at work
        elif wait > PATIENCE:
            limit = "GitHub's limit for new content is used up"
            raise Transient("installation", wait.total_seconds(), limit, may_have_happened=False)
        else:
            await sleep(wait.total_seconds())


async def _opens(connection: Connection, writer: str, now: datetime, *, creates: bool) -> datetime:
    """Return when the writer may create or edit something, `now` or later."""
    paused = await outbox.paused_until(connection, writer, now)
    if not creates:
        return paused or now
    created = await outbox.created_since(connection, writer, now - pacing.HOUR, now)
    return max(paused or now, pacing.next_creation(created, now))


async def _write(
    connection: Connection,
    of: tuple[str, int | None],
    write: Callable[[], Awaitable[T]],
    clock: Clock,
    *,
    creates: bool,
) -> T:
    try:
        return await write()
    except Transient as error:
        if error.scope == "installation":
            until = clock() + pacing.backoff(0, error.retry_after_seconds)
            await outbox.pause_writer(connection, of[0], until)
        raise
    finally:
        if creates:
            await outbox.record_creation(connection, *of, clock())
