"""The sender: takes a lane's rows one at a time and makes GitHub agree with each, once, whatever happens in between."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

import structlog

from bot.github.answers import Posted
from bot.github.client import GitHub, ReactionContent
from bot.github.errors import NotFound, Refused, Transient, Unauthenticated
from bot.messages.marker import reply_marker, signed, turn_marker
from bot.messages.redact import redact
from bot.messages.tracking import ANSWER_URL
from bot.model import Target
from bot.reply import pacing
from bot.store import sending
from bot.store.database import Connection, Pool
from bot.store.sending import OutboxItem

# What GitHub wrote shows up in its lists a moment later: one look is not enough.
SECOND_LOOK_SECONDS = 5.0
# A comment cannot be older than its row; the slack is for clocks that disagree.
CLOCK_SLACK = timedelta(minutes=10)
LANE_TAKEN_SECONDS = 1.0
LONGEST_WAIT = timedelta(seconds=5)
BAD_CREDENTIALS_SECONDS = 60.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing more can go now; `next_due` is when to come back, None when nothing waits."""

    next_due: datetime | None


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends what the outbox holds. `secrets` are redacted from every body, wherever it comes from."""

    pool: Pool
    github: GitHub
    secrets: Sequence[str]
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]]

    async def drain(self, lane: str) -> Drained:
        """Send what is due in the lane, one request at a time; returns when nothing is left or all must wait."""
        async with self.pool.acquire() as connection:
            if not await sending.own_lane(connection, lane):
                return Drained(self.clock() + timedelta(seconds=LANE_TAKEN_SECONDS))
            while (drained := await self._send_next(connection, lane)) is None:
                pass
            return drained

    async def _send_next(self, connection: Connection, lane: str) -> Drained | None:
        """One row, or one pause before it; a result when the lane has to be left alone for a while."""
        now = self.clock()
        if (until := await sending.held_until(connection, lane, now)) is not None:
            return Drained(until)
        created = await sending.created_within(connection, lane, pacing.HOUR, now)
        opens = pacing.next_creation(created, now)
        only_edits = opens - now > LONGEST_WAIT
        candidate = await sending.next_candidate(connection, lane, now, only_edits=only_edits)
        if candidate is None:
            due = await sending.next_due(connection, lane, now)
            return Drained(opens if only_edits and due == now else due)
        if candidate.creates and opens > now:
            await self.sleep((opens - now).total_seconds())
            return None  # something more urgent may have come meanwhile
        await self._send(connection, lane, candidate.id)
        return None

    async def _send(self, connection: Connection, lane: str, row_id: int) -> None:
        wish = await sending.take(connection, row_id, self.clock())
        body = self._body(wish)
        to_be_looked_for = wish.unsure and wish.kind == "comment" and wish.comment_id is None
        found: Posted | None = None
        try:
            if to_be_looked_for:
                found = await self._look_twice(wish)
                to_be_looked_for = False
            comment = found or await self._request(wish, body)
        except Transient as error:
            unsure = to_be_looked_for or error.may_have_happened
            await self._try_later(connection, lane, wish, error, unsure=unsure)
        except Unauthenticated as error:
            wait = Transient("installation", BAD_CREDENTIALS_SECONDS, f"credentials not accepted: {error}")
            await self._try_later(connection, lane, wish, wait, unsure=to_be_looked_for)
        except (NotFound, Refused) as error:
            await self._give_up(connection, wish, error)
        else:
            version = wish.version if found is None or found.body.strip() == body else 0
            place = None if comment is None else (comment.id, comment.url)
            await sending.sent(connection, wish.id, version, place, self.clock())
            _log.info("outbox-sent", row=wish.id, kind=wish.kind, turn=wish.turn_id, found_again=found is not None)

    async def _request(self, wish: OutboxItem, body: str) -> Posted | None:
        """The one request that fulfils the wish."""
        if wish.kind == "reaction":
            content = cast("ReactionContent", wish.content)
            await self.github.react(wish.repository, wish.number, wish.target, content)
            return None
        if wish.comment_id is None:
            return await self.github.create_comment(wish.repository, wish.number, wish.target, body)
        return await self.github.edit_comment(wish.repository, wish.target, wish.comment_id, body)

    async def _look_twice(self, wish: OutboxItem) -> Posted | None:
        """The comment that an earlier request may have left on GitHub."""
        since = wish.created_at - CLOCK_SLACK
        look = (wish.repository, wish.number, wish.target, _marker(wish), since)
        found = await self.github.find_comment(*look)
        if found is None:
            await self.sleep(SECOND_LOOK_SECONDS)
            found = await self.github.find_comment(*look)
        return found

    async def _try_later(
        self, connection: Connection, lane: str, wish: OutboxItem, error: Transient, *, unsure: bool
    ) -> None:
        if wish.attempts + 1 >= pacing.MOST_ATTEMPTS:
            await self._give_up(connection, wish, error)
            return
        due_at = self.clock() + pacing.backoff(wish.attempts, error.retry_after_seconds)
        _log.warning("outbox-later", row=wish.id, scope=error.scope, due_at=due_at.isoformat(), error=str(error))
        match error.scope:
            case "request":
                await sending.later(connection, wish.id, due_at, str(error), unsure=unsure)
            case "installation":
                await sending.hold_lane(connection, lane, wish.id, due_at, str(error), unsure=unsure)

    async def _give_up(self, connection: Connection, wish: OutboxItem, error: NotFound | Refused | Transient) -> None:
        """A wish that GitHub refuses for good: said elsewhere where that is possible, else failed."""
        if (elsewhere := _elsewhere(wish, error)) is not None:
            _log.info("outbox-posted-anew", row=wish.id, turn=wish.turn_id, error=str(error))
            await sending.post_anew(connection, wish.id, elsewhere, str(error))
        else:
            _log.warning("outbox-failed", row=wish.id, kind=wish.kind, turn=wish.turn_id, error=str(error))
            await sending.failed(connection, wish.id, str(error))

    def _body(self, wish: OutboxItem) -> str:
        if wish.linked_url is not None:
            content = wish.content.replace(ANSWER_URL, wish.linked_url)
        else:
            # The comment to link was refused: what it says is said here instead.
            content = wish.linked_content or wish.content
        return signed(redact(content, self.secrets), _marker(wish))


def _marker(wish: OutboxItem) -> str:
    if wish.turn_id is None or wish.part is None:
        return reply_marker(wish.id)
    return turn_marker(wish.turn_id, wish.part)


def _elsewhere(wish: OutboxItem, error: NotFound | Refused | Transient) -> Target | None:
    """Where a refused comment can still be said, if anywhere."""
    if wish.kind == "reaction" or isinstance(error, Transient):
        return None
    gone = isinstance(error, NotFound)
    if wish.comment_id is not None:
        # Somebody deleted the tracking comment. Progress is then unwanted; an answer is not.
        return wish.target if gone and wish.urgency < pacing.PROGRESS else None
    unanswerable = gone or (isinstance(error, Refused) and error.status == 422)
    return Target("pull") if unanswerable and wish.target.kind == "review-comment" else None
