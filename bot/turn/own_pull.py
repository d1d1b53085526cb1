"""The bot's own pull request of a branch: opened once, on `/pr` or after a turn that pushed, and its text kept true."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from bot import failpoints
from bot.github.answers import Pull
from bot.github.client import GitHub
from bot.github.errors import Refused, Transient
from bot.model import Repository, ThreadRef
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.thread import links, pull_requests, tracking
from bot.thread.outbox import write_in_line
from bot.thread.pull_requests import Answer
from bot.tree import Proposal
from bot.turn import pull_request_rows as rows
from bot.turn.pull_request_rows import OwnPull

MOST_ATTEMPTS = 4
LONGEST_PAUSE_SECONDS = 120.0
_FIRST_PAUSE_SECONDS = 2.0
T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class IssueThread:
    """The issue that a pull request is opened for."""

    repository: Repository
    conversation_id: int
    number: int
    title: str

    @property
    def ref(self) -> ThreadRef:
        """The thread as the outbox knows it."""
        return ThreadRef(self.repository, self.conversation_id)


@dataclass(frozen=True, slots=True)
class NewPullRequest:
    """A pull request to open or to rewrite, and the page that opens it by hand.

    `is_named`: the title is the agent's.
    """

    branch: str
    base: str
    title: str
    text: str
    page: str
    is_named: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """The open pull request of the branch. `is_new`: it was opened now; `drafts_refused`: it was to be a draft."""

    pull: Pull
    is_new: bool
    drafts_refused: bool = False


async def adopt(
    ctx: NodeContext, thread: IssueThread, branch: str, pull: Pull, *, is_titled: bool = False
) -> OwnPull | None:
    """Return the row of an open pull request, None if the bot did not open it.

    A process that was killed may have opened it without a row. `is_titled`: a person gave it its title.
    """
    repository, text = thread.repository, pull_requests.digest(pull.body)
    is_mine = ctx.github is not None and pull.author_id == (await ctx.github.identity()).id
    if is_mine and text is not None:
        title = None if is_titled else pull.title
        await persist(ctx.pool, rows.adopt, repository, pull.number, branch, thread.number, title, text)
    own = await persist(ctx.pool, rows.own_pull, repository, branch)
    return own if own is not None and own.number == pull.number else None


def is_ours(pull: Pull, own: OwnPull) -> bool:
    """Return whether the description is as the bot wrote it, or was emptied to be written again."""
    return pull_requests.digest(pull.body) in ("", *own.texts)


async def keep_true(
    ctx: NodeContext, github: GitHub, thread: IssueThread, branch: str, own: OwnPull, found: Proposal
) -> None:
    """Rewrite the title and the description of the bot's own pull request for what its branch changes now.

    Each is left as it is where a person changed it. Every step can be repeated. Raises GitHubError.
    """
    new = await describe(ctx, thread, branch, found)
    title = new.title if new.is_named else None
    # Known before they are written: whoever repeats this finds them.
    text = pull_requests.digest(pull_requests.framed(new.text)) or ""
    await persist(ctx.pool, rows.note_text, thread.repository, own.number, title, text)

    async def write() -> None:
        pull = await github.pull(thread.repository, own.number)
        body = pull_requests.rewritten(pull.body, new.text) if is_ours(pull, own) else pull.body
        wanted = title if title is not None and pull.title in own.titles else pull.title
        if (wanted, body) != (pull.title, pull.body):
            await github.edit_pull(thread.repository, own.number, wanted, body)

    await _repeated(ctx, lambda: write_in_line(ctx.pool, thread.ref.key, write, ctx.clock, ctx.sleep, creates=False))
    failpoints.reached("description-written")


def open_one(pulls: Sequence[Pull]) -> Pull | None:
    """Return the pull request that is open, None if none is."""
    return next((pull for pull in pulls if pull.is_open), None)


async def _repeated(ctx: NodeContext, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what the attempt returns; repeat it after failures that pass, with pauses that grow.

    Raises GitHubError: Transient after the last attempt, or where GitHub names a time too far away.
    """
    pause, left = _FIRST_PAUSE_SECONDS, MOST_ATTEMPTS
    while True:
        try:
            return await attempt()
        except Transient as problem:
            pause, left = max(pause, problem.retry_after_seconds or 0), left - 1
            if not left or pause > LONGEST_PAUSE_SECONDS:
                raise
            _log.warning("pull-request-later", attempts_left=left, problem=str(problem))
        await ctx.sleep(pause)
        pause *= 2


async def describe(
    ctx: NodeContext, thread: IssueThread, branch: str, found: Proposal, asked_title: str | None = None
) -> NewPullRequest:
    """Return the pull request with its title and description: as the last turn of the branch left them, else from what
    was answered and committed.
    """
    left = await rows.description_left(ctx.pool, thread.repository, branch)
    written = pull_requests.read_described(left or "")
    turns = await rows.turns_on_branch(ctx.pool, thread.repository, branch)
    answers = [
        Answer(
            turn.answer,
            turn.ask.by.login,
            tracking.asked(turn.ask, ctx.server_url, thread.repository, turn.number, turn.id).url,
        )
        for turn in turns
    ]
    own = written.title if written is not None else None
    title = pull_requests.title(asked_title, own, answers, found.subjects, thread.title, thread.number, ctx.redactor)
    # In a thread: the worst Markdown of a long answer takes seconds.
    text = await asyncio.to_thread(
        pull_requests.description,
        written.text if written is not None else None,
        answers,
        found.subjects,
        found.template,
        closes=thread.number,
        server_url=ctx.server_url,
        redactor=ctx.redactor,
    )
    web = f"{ctx.server_url}/{thread.repository.full_name}"
    page = links.new_pull_request_page(web, found.base, branch, title, text)
    return NewPullRequest(branch, found.base, title, text, page, is_named=own is not None)


async def open_once(
    ctx: NodeContext, github: GitHub, thread: IssueThread, new: NewPullRequest, *, draft: bool
) -> Opened | str:
    """Open it, unless one is open for the branch: GitHub allows no second one, so each attempt may be repeated.

    Return words that say why GitHub did not open it and what to do. Raises GitHubError for what no repetition cures.
    """
    wanted, asked_before = draft, False

    async def attempt() -> Opened:
        nonlocal wanted, asked_before
        if (pull := open_one(await github.pulls_of(thread.repository, new.branch))) is not None:
            return Opened(pull, asked_before, draft and not wanted)
        create = partial(
            github.create_pull,
            thread.repository,
            head=new.branch,
            base=new.base,
            title=new.title,
            body=pull_requests.framed(new.text),
            draft=wanted,
        )
        try:
            pull = await write_in_line(ctx.pool, thread.ref.key, create, ctx.clock, ctx.sleep)
        except Refused as error:
            if error.status == 422 and "already exists" in error.message.lower():
                raise Transient("request", None, error.message, may_have_happened=False) from error
            if not (wanted and error.status == 422 and "draft pull request" in error.message.lower()):
                raise
            wanted = False
            return await attempt()
        except Transient as error:
            asked_before = asked_before or error.may_have_happened
            raise
        failpoints.reached("pull-request-created")
        return Opened(pull, is_new=True, drafts_refused=draft and not wanted)

    try:
        return await _repeated(ctx, attempt)
    except Refused as error:
        return pull_requests.refused(error.message, new.page)
    except Transient:
        last = open_one(await github.pulls_of(thread.repository, new.branch)) if asked_before else None
        return Opened(last, True, draft and not wanted) if last else pull_requests.github_away(new.page)
