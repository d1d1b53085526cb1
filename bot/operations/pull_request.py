"""Open a pull request for a worktree's branch, once: on `/pr`, or after a turn that pushed. Keep its text true."""

import asyncio
import secrets
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
from bot.operations.create import fetch_for
from bot.operations.shared import Outcome
from bot.prompt.description import ask_for_description
from bot.prompt.foreign import Fence
from bot.store import fixes, operations
from bot.store import pull_requests as rows
from bot.store.database import Connection
from bot.store.operations import Operation, RequestedBy
from bot.store.pull_requests import OwnPull
from bot.thread import commit_message, links, pull_requests, tracking
from bot.thread.outbox import write_in_line
from bot.thread.pull_requests import Answer, Described
from bot.tree.clone.clone import clone_lock
from bot.tree.proposal import NothingNew, NotOnGitHub, Proposal, net_diff, proposal_of

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
    """A pull request to open or to rewrite, and the page that opens it by hand."""

    branch: str
    base: str
    title: str
    text: str
    page: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The open pull request of the branch. `is_new`: it was opened now; `drafts_refused`: it was to be a draft."""

    pull: Pull
    is_new: bool
    drafts_refused: bool = False


async def open_pull_request(ctx: NodeContext, operation: Operation) -> Outcome:
    """Open the pull request that `/pr` asks for, or link the one that is open, or say why there is none to open.

    Every step can be repeated. Raises GitError, GitHubError, InvalidNameError, OSError.
    """
    worktree, asked, github = operation.worktree, operation.pull_request, ctx.github
    if github is None or asked is None or operation.conversation_id is None or operation.number is None:
        raise ValueError("a pull request is opened for a thread, with access to GitHub")
    branch = worktree.branch
    if branch is None:
        return Outcome("failed", pull_requests.NO_BRANCH)
    async with clone_lock(ctx.clone(worktree.folder)) as lock:
        await fetch_for(ctx, lock, operation)
        found = await proposal_of(lock.clone, branch, worktree.base_branch, worktree.repository.default_branch)
    pulls = await github.pulls_of(worktree.repository, branch)
    thread = IssueThread(worktree.repository, operation.conversation_id, operation.number, operation.thread_title)
    if (pull := open_one(pulls)) is not None:
        me = await github.identity()
        # A process that was killed may have opened it for this very operation.
        is_new = pull.author_id == me.id and pull.created_at >= operation.asked_at
        opened = Opened(pull, is_new, is_new and asked.draft and not pull.is_draft)
        return await _opened(ctx, thread, branch, opened, operation)
    tip = None if isinstance(found, NotOnGitHub) else found.tip
    if (merged := next((one for one in pulls if one.merged_at and tip in (None, one.head_sha)), None)) is not None:
        return Outcome("failed", pull_requests.was_merged(merged.number, merged.url, branch))
    if isinstance(found, NotOnGitHub):
        return Outcome("failed", pull_requests.not_on_github(branch))
    if isinstance(found, NothingNew):
        return Outcome("failed", pull_requests.nothing_new(branch, found.base))
    new = await describe(ctx, thread, branch, found, asked.title)
    result = await open_once(ctx, github, thread, new, draft=asked.draft)
    if not isinstance(result, Opened):
        return Outcome("failed", result)
    return await _opened(ctx, thread, branch, result, operation)


async def _opened(ctx: NodeContext, thread: IssueThread, branch: str, opened: Opened, operation: Operation) -> Outcome:
    """Return the end of `/pr`; with it the agent is asked for the description, after the answer."""
    pull, is_titled = opened.pull, operation.pull_request is not None and operation.pull_request.title is not None
    own = await adopt(ctx, thread, branch, pull, is_titled=is_titled)
    await persist(ctx.pool, rows.record_pull_request, thread.conversation_id, pull.number)
    asker = RequestedBy(operation.requested_by, operation.asked_at, thread.conversation_id)
    words = pull_requests.is_open(pull.number, pull.url, draft=pull.is_draft)
    if opened.is_new:
        words = pull_requests.opened(pull.number, pull.url, draft=pull.is_draft, drafts_refused=opened.drafts_refused)

    async def describe_next(connection: Connection) -> None:
        await operations.enqueue(connection, operation.worktree.id, "describe", asker)
        # Its checks may have ended before there was a pull request.
        await fixes.ring(connection, thread.conversation_id, autofix=ctx.rules.autofix)

    return Outcome("done", words, write=describe_next if opened.is_new and own is not None else None)


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


async def describe_pull_request(ctx: NodeContext, operation: Operation) -> Outcome:
    """Rewrite the title and the description of the bot's own pull request for what its branch changes now.

    Each is left as it is where a person changed it. Every step can be repeated. Raises GitError, GitHubError,
    InvalidNameError, OSError.
    """
    worktree, github, branch = operation.worktree, ctx.github, operation.worktree.branch
    if github is None or branch is None or operation.conversation_id is None:
        raise ValueError("a pull request is described for a thread and a branch, with access to GitHub")
    repository, clone = worktree.repository, ctx.clone(worktree.folder)
    own = await persist(ctx.pool, rows.own_pull, repository, branch)
    pull = open_one(await github.pulls_of(repository, branch))
    if own is None or pull is None or pull.number != own.number or not is_ours(pull, own):
        return Outcome("done", pull_requests.NOT_OURS)
    async with clone_lock(clone) as lock:
        await fetch_for(ctx, lock, operation)
        found = await proposal_of(lock.clone, branch, pull.base, repository.default_branch)
    if not isinstance(found, Proposal):
        return Outcome("done", pull_requests.NOT_OURS)
    thread = IssueThread(repository, operation.conversation_id, own.closes, operation.thread_title)
    prompt = ask_for_description(
        Fence(secrets.token_hex(4)),
        number=pull.number,
        branch=branch,
        base=found.base,
        subjects=found.subjects,
        diff=await net_diff(clone, found),
        template=found.template,
        conventional=commit_message.is_typed(found.subjects[0]) if found.subjects else False,
    )
    answer = await ctx.ask_again(worktree, thread.conversation_id, tuple(map(ctx.redactor.redact, prompt)))
    written = pull_requests.read_described(answer) if answer is not None else None
    new = await describe(ctx, thread, branch, found, written=written)
    title = new.title if written is not None else None
    # Known before they are written: whoever repeats this finds them.
    text = pull_requests.digest(pull_requests.framed(new.text)) or ""
    await persist(ctx.pool, rows.note_text, repository, own.number, title, text)
    await _rewrite(ctx, github, thread, own, new.text, title)
    failpoints.reached("description-written")
    return Outcome("done", pull_requests.DESCRIBED)


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


async def _rewrite(
    ctx: NodeContext, github: GitHub, thread: IssueThread, own: OwnPull, text: str, title: str | None
) -> None:
    """Write them, again after failures that pass, as far as no person changed them meanwhile. Raises GitHubError."""

    async def write() -> None:
        pull = await github.pull(thread.repository, own.number)
        body = pull_requests.rewritten(pull.body, text) if is_ours(pull, own) else pull.body
        wanted = title if title is not None and pull.title in own.titles else pull.title
        if (wanted, body) != (pull.title, pull.body):
            await github.edit_pull(thread.repository, own.number, wanted, body)

    await _repeated(ctx, lambda: write_in_line(ctx.pool, thread.ref, write, ctx.clock, ctx.sleep, creates=False))


async def describe(
    ctx: NodeContext,
    thread: IssueThread,
    branch: str,
    found: Proposal,
    asked_title: str | None = None,
    written: Described | None = None,
) -> NewPullRequest:
    """Return the pull request with its title and description: as the agent has `written` them for it, else from what
    it answered and committed.
    """
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
    return NewPullRequest(branch, found.base, title, text, page)


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
            pull = await write_in_line(ctx.pool, thread.ref, create, ctx.clock, ctx.sleep)
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
