"""The review that an agent leaves in a file: checked against the diff, made harmless, and posted by the host.

DESIGN.md §5. Nothing in the file is trusted: a remark that is on no line of the diff becomes part of the text.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from bot.github.answers import LineRemark, Side
from bot.github.errors import GitHubError
from bot.github.thread import ChangedFile, Gaps, PullRequest, ReviewThread
from bot.github.thread_parts import read_files, read_remarks, read_review_threads
from bot.json_values import storable
from bot.model import ThreadRef
from bot.prompt.selection import HIDDEN
from bot.sandbox.untrusted_files import read_untrusted
from bot.store.database import Pool, statement
from bot.store.turns import ClaimedTurn
from bot.thread.agent_answer import answer_parts
from bot.thread.authority import Policy
from bot.thread.formatting import format_count
from bot.thread.marker import unsigned
from bot.thread.outbox import write_in_line
from bot.thread.tracking import Reviewed
from bot.turn.context import TurnContext
from bot.turn.thread_answers import OUT
from bot.verbs.review import words as reviews
from bot.verbs.review.told import Earlier, ReviewTask

REVIEW = OUT / "review.json"
LARGEST_FILE_BYTES = 512 * 1024
MOST_REMARKS = 30
LONGEST_REMARK = 4_000
LONGEST_SUMMARY = 8_000
MOST_CHARACTERS = 36_000
"""All remarks together: with the summary they fit into one text, should GitHub take none on its line."""
MOST_RESOLVED = 50
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_log = structlog.get_logger()

_NUMBER = TypeAdapter(Annotated[int, Field(strict=True, ge=1, lt=2**31)])


@checked(frozen=True, slots=True)
class _Remark:
    """What the agent says of lines; these may be anything."""

    path: Annotated[str, Field(strict=True, min_length=1, max_length=1_000)]
    body: Annotated[str, Field(strict=True, max_length=LONGEST_REMARK, pattern=r"\S")]
    line: Any = None
    start_line: Any = None
    side: Any = None


@checked(frozen=True, slots=True)
class _File:
    summary: Annotated[str, Field(strict=True)] = ""
    comments: tuple[Any, ...] = ()


_FILE, _REMARK = TypeAdapter(_File), TypeAdapter(_Remark)


@dataclass(frozen=True, slots=True)
class Reviewing:
    """The subject of a review: the pull request as it was told to the agent, and the threads that the bot began there.

    `since` is the commit of the review before, `changed` what differs since then, `unread` what of this is not known.
    """

    pull: PullRequest
    own: tuple[ReviewThread, ...] = ()
    since: str | None = None
    changed: tuple[ChangedFile, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def task(self) -> ReviewTask:
        """What the agent is told of it."""
        shown = [one for one in self.own if not one.comments[0].is_hidden]
        earlier = tuple(Earlier(one.path, one.line, _state(one), one.comments[0]) for one in shown)
        hidden = len(self.own) - len(shown)
        unread = (*self.unread, *([f"{format_count(hidden, 'remark')} {HIDDEN}"] if hidden else []))
        return ReviewTask(self.pull.head_sha, self.since, self.changed, earlier, unread)


@dataclass(frozen=True, slots=True)
class SavedReview:
    """A review as the turn's row holds it. `resolved` are threads whose remarks were fixed, by their id in GraphQL."""

    head: str
    since: str | None = None
    remarks: tuple[LineRemark, ...] = ()
    resolved: tuple[str, ...] = ()


SAVED = TypeAdapter(SavedReview)
"""Saved reviews as JSON."""


@dataclass(frozen=True, slots=True)
class Left:
    """What an agent left: its text, with the remarks that are on no line; those on lines; notices for the thread."""

    text: str
    remarks: tuple[LineRemark, ...] = ()
    notices: tuple[str, ...] = ()


@statement("""
select kept ->> 'head' from turns t join requests r on r.turn_id = t.id
where t.conversation_id = $1 and t.id < $2 and t.state = 'done' and t.kept is not null and r.verb = 'review'
order by t.id desc limit 1
""")
async def last_reviewed(connection: Pool, conversation_id: int, turn_id: int) -> str | None:
    """Return the commit that was reviewed last in the conversation before this turn, None where none was."""


async def reviewing(ctx: TurnContext, turn: ClaimedTurn, pull: PullRequest | None, head: str) -> Reviewing:
    """Return what is reviewed, with what an earlier review said. What GitHub does not tell is left out.

    `pull` is None where the thread could not be read: then the commit `head` is reviewed.
    """
    gaps = Gaps()
    if pull is None:
        pull = PullRequest("", "", head, review_threads=await _threads(ctx, turn, gaps))
    began = [one for one in pull.review_threads if one.comments]
    own = tuple(one for one in began if ctx.policy.is_own(one.comments[0].author, one.comments[0].body))
    since, changed = await last_reviewed(ctx.pool, turn.conversation.id, turn.id), tuple[ChangedFile, ...]()
    if since is not None and since != pull.head_sha:
        with suppress(GitHubError):
            between = replace(pull, base=since, pushed_since=True)
            changed = await read_files(ctx.github, turn.worktree.repository, turn.conversation.number, between, gaps)
    return Reviewing(pull, own, since, changed, (*gaps.missing, *gaps.cut))


async def _threads(ctx: TurnContext, turn: ClaimedTurn, gaps: Gaps) -> tuple[ReviewThread, ...]:
    where = (ctx.github, turn.worktree.repository, turn.conversation.number)
    for read in (partial(read_review_threads, *where, ctx.policy.bot_id, gaps), partial(read_remarks, *where)):
        with suppress(GitHubError, LookupError, TypeError, ValueError):
            return await read()
    return ()


async def take(
    ctx: TurnContext, turn: ClaimedTurn, subject: Reviewing, answer: str, answered: Collection[int]
) -> tuple[str, SavedReview, tuple[str, ...]]:
    """Return the text of the review that the agent left, or its `answer`; the rest of it; and notices for the thread.

    `answered` are the inline comments whose threads the agent answers: those remarks are not fixed.
    """
    pull = subject.pull
    if not pull.files:
        with suppress(GitHubError):
            where = ctx.github, turn.worktree.repository, turn.conversation.number
            pull = replace(pull, files=await read_files(*where, pull, Gaps()))

    def clean(text: str) -> str:
        return ctx.redactor.public(str(storable(text)))

    def harmless(body: str) -> str:
        return answer_parts(body, server_url=ctx.server_url)[0][0]

    home = ctx.home(turn.conversation.id)
    left = await asyncio.to_thread(read_left, home, pull.files, answer, clean, harmless)
    still_open = [one for one in subject.own if not one.is_resolved and not one.is_outdated]
    said = {(one.path, unsigned(one.comments[0].body)) for one in still_open}
    fresh = tuple(one for one in left.remarks if (one.path, one.body) not in said)
    again = len(left.remarks) - len(fresh)
    resolved = () if pull.pushed_since else tuple(fixed(subject.own, ctx.policy, answered))
    saved = SavedReview(pull.head_sha, subject.since, fresh, resolved)
    return left.text, saved, (*left.notices, *([reviews.repeated(again)] if again else []))


def read_left(
    home: Path,
    files: Sequence[ChangedFile],
    answer: str,
    clean: Callable[[str], str] = str,
    harmless: Callable[[str], str] = str,
) -> Left:
    """Return the review that an agent left in its HOME, checked against the diff in `files`, or its `answer`.

    `clean` redacts a text; `harmless` makes a remark one that mentions nobody and closes nothing.
    """
    try:
        found = _FILE.validate_json(read_untrusted(home, REVIEW, LARGEST_FILE_BYTES))
    except FileNotFoundError:
        return Left(answer, notices=(reviews.NOT_LEFT,))
    except (OSError, ValidationError):
        return Left(answer, notices=(reviews.UNREADABLE,))
    hunks = {file.path: tuple(_hunks(file.patch or "")) for file in files}
    on_lines, elsewhere, room = list[LineRemark](), list[tuple[str, str]](), MOST_CHARACTERS
    for one in found.comments:
        try:
            remark = _REMARK.validate_python(one)
        except ValidationError:
            continue
        room -= len(remark.body)
        if len(on_lines) + len(elsewhere) == MOST_REMARKS or room < 0:
            break
        body, (line, start) = clean(remark.body).strip(), _lines(remark)
        if not body:
            continue
        if (side := _side(remark, line, start, hunks.get(remark.path, ()))) is not None and line is not None:
            on_lines.append(LineRemark(remark.path, line, side, harmless(body), None if start == line else start))
        else:
            elsewhere.append((reviews.place(clean(remark.path), line, start), body))
    dropped = len(found.comments) - len(on_lines) - len(elsewhere)
    summary = clean(found.summary[:LONGEST_SUMMARY]).strip()
    text = summary or (reviews.ON_THE_LINES if on_lines else "" if elsewhere else reviews.NO_REMARKS)
    said = [reviews.left_out(dropped, MOST_REMARKS, LONGEST_REMARK)] if dropped else []
    said += [reviews.summary_cut(LONGEST_SUMMARY)] if len(found.summary) > LONGEST_SUMMARY else []
    return Left(reviews.add_remarks(text, elsewhere).strip(), tuple(on_lines), tuple(said))


def fixed(own: Sequence[ReviewThread], policy: Policy, answered: Collection[int]) -> Iterator[str]:
    """Yield the threads whose lines were changed since the bot remarked on them, unless it or a person says more.

    GitHub marks such a thread as outdated. Where the last word is a person's, the person resolves it.
    """
    for one in own[:MOST_RESOLVED]:
        last, goes_on = one.comments[-1], one.comments[0].id in answered
        if one.id and one.is_outdated and not one.is_resolved and not goes_on and policy.is_own(last.author, last.body):
            yield one.id


async def resolve(ctx: TurnContext, thread_ref: ThreadRef, saved: SavedReview) -> int:
    """Resolve the threads of remarks that were fixed; return how many were. Nothing depends on it."""
    done = 0

    async def resolve_all() -> None:
        nonlocal done
        for thread in saved.resolved[done:]:
            await ctx.github.resolve_thread(thread_ref.repository, thread)
            done += 1

    try:
        if saved.resolved:
            await write_in_line(ctx.pool, thread_ref.key, resolve_all, ctx.clock, ctx.sleep, creates=False)
    except GitHubError as problem:
        _log.warning("threads-not-resolved", problem=str(problem))
    return done


def result_of(web: str, saved: SavedReview, resolved: int) -> Reviewed:
    """Return what the review's text says of it; `web` is the repository's own page."""
    since = saved.since if saved.since != saved.head else None
    page = f"{web}/compare/{since}...{saved.head}" if since else None
    return Reviewed(saved.head, f"{web}/commit/{saved.head}", len(saved.remarks), resolved, page)


def _hunks(patch: str) -> Iterator[dict[str, set[int]]]:
    """Yield the lines of each hunk that a remark can be on: of the new file those shown, of the old those removed."""
    old = new = 0
    hunk: dict[str, set[int]] | None = None
    for line in patch.split("\n"):
        if begins := _HUNK.match(line):
            if hunk is not None:
                yield hunk
            old, new, hunk = int(begins[1]), int(begins[2]), {"LEFT": set(), "RIGHT": set()}
        elif hunk is not None and line[:1] in ("+", "-", " "):
            if line[0] == "-":
                hunk["LEFT"].add(old)
            else:
                hunk["RIGHT"].add(new)
            old, new = old + (line[0] != "+"), new + (line[0] != "-")
    if hunk is not None:
        yield hunk


def _lines(remark: _Remark) -> tuple[int | None, int | None]:
    """Return the last and the first line of a remark, None where it names none that can be."""
    line = _number(remark.line)
    return line, line if remark.start_line is None else _number(remark.start_line)


def _side(remark: _Remark, line: int | None, start: int | None, hunks: Sequence[dict[str, set[int]]]) -> Side | None:
    """Return the side of the diff on which the remark's lines are in one hunk, None where they are not."""
    side: Side = "LEFT" if remark.side == "LEFT" else "RIGHT"
    if line is None or start is None or start > line or remark.side not in (side, None):
        return None
    return side if any({start, line} <= hunk[side] for hunk in hunks) else None


def _number(value: object) -> int | None:
    try:
        number: int = _NUMBER.validate_python(value)
    except ValidationError:
        return None
    return number


def _state(thread: ReviewThread) -> str:
    if thread.is_resolved:
        return "resolved"
    return "its lines were changed since" if thread.is_outdated else "open"
