"""Open a pull request for a worktree's branch, once: on `/pr`, or after a turn that pushed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import structlog

from bot import failpoints
from bot.clones.clone import clone_lock
from bot.github.answers import BranchPull
from bot.github.client import GitHub
from bot.github.errors import GitHubError, Refused, Transient
from bot.messages import links, pull_requests, tracking
from bot.messages.pull_requests import Answer
from bot.model import Repository, ThreadRef
from bot.node.context import NodeContext
from bot.operations.create import fetched
from bot.operations.shared import Outcome
from bot.reply.creating import create_in_line
from bot.store.operations import ClaimedOperation
from bot.store.pull_requests import TurnOnBranch, turns_on_branch
from bot.worktrees.proposal import NothingNew, NotOnGitHub, Proposal, proposal_of

MOST_ATTEMPTS = 4
LONGEST_PAUSE_SECONDS = 120.0
_FIRST_PAUSE_SECONDS = 2.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Thread:
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
    """A pull request to open, and the page that opens it by hand."""

    branch: str
    base: str
    title: str
    body: str
    page: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The open pull request of the branch. `is_new`: it was opened now; `drafts_refused`: it was to be a draft."""

    pull: BranchPull
    is_new: bool
    drafts_refused: bool = False


@dataclass(frozen=True, slots=True)
class NotOpened:
    """GitHub did not open it; `words` say why and what to do."""

    words: str


async def open_pull_request(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
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
        if (unfetched := await fetched(ctx, lock, operation)) is not None:
            return unfetched
        found = await proposal_of(lock.clone, branch, worktree.base_branch, worktree.repository.default_branch)
    pulls = await github.pulls_of(worktree.repository, branch)
    if (pull := open_one(pulls)) is not None:
        me = await github.identity()
        # A process that was killed may have opened it for this very operation.
        is_new = pull.author_id == me.id and pull.created_at >= operation.asked_at
        return Outcome("done", _words(Opened(pull, is_new, is_new and asked.draft and not pull.is_draft)))
    tip = None if isinstance(found, NotOnGitHub) else found.tip
    if (merged := next((one for one in pulls if one.is_merged and tip in (None, one.head_sha)), None)) is not None:
        return Outcome("failed", pull_requests.was_merged(merged.number, merged.url, branch))
    if not isinstance(found, Proposal):
        return Outcome("failed", _nothing_to_open(found, branch))
    thread = Thread(worktree.repository, operation.conversation_id, operation.number, operation.thread_title)
    new = await describe(ctx, thread, branch, found, asked.title)
    result = await open_once(ctx, github, thread, new, draft=asked.draft)
    return Outcome("done", _words(result)) if isinstance(result, Opened) else Outcome("failed", result.words)


def open_one(pulls: Sequence[BranchPull]) -> BranchPull | None:
    """Return the pull request that is open, None if none is."""
    return next((pull for pull in pulls if pull.is_open), None)


async def describe(
    ctx: NodeContext, thread: Thread, branch: str, found: Proposal, asked_title: str | None = None
) -> NewPullRequest:
    """Return the pull request with its title and description, from what the agent answered and committed."""
    async with ctx.pool.acquire() as connection:
        turns = await turns_on_branch(connection, thread.repository, branch)
    answers = [Answer(turn.answer, turn.requested_by, _request_page(ctx, thread.repository, turn)) for turn in turns]
    title = pull_requests.title(asked_title, answers, found.subjects, thread.title, thread.number, ctx.redactor)
    # In a thread: the worst Markdown of a long answer takes seconds.
    body = await asyncio.to_thread(
        pull_requests.description,
        answers,
        found.subjects,
        found.template,
        closes=thread.number,
        server_url=ctx.server_url,
        redactor=ctx.redactor,
    )
    web = f"{ctx.server_url}/{thread.repository.full_name}"
    page = links.new_pull_request_page(web, found.base, branch, title, body)
    return NewPullRequest(branch, found.base, title, body, page)


async def open_once(
    ctx: NodeContext, github: GitHub, thread: Thread, new: NewPullRequest, *, draft: bool
) -> Opened | NotOpened:
    """Open it, unless one is open for the branch: GitHub allows no second one, so each attempt may be repeated.

    Raises GitHubError for what no repetition cures.
    """
    wanted, asked_before, pause = draft, False, _FIRST_PAUSE_SECONDS
    attempts = 0
    while True:
        if (pull := open_one(await github.pulls_of(thread.repository, new.branch))) is not None:
            return Opened(pull, asked_before, draft and not wanted)
        create = partial(
            github.create_pull,
            thread.repository,
            head=new.branch,
            base=new.base,
            title=new.title,
            body=new.body,
            draft=wanted,
        )
        try:
            pull = await create_in_line(ctx.pool, thread.ref, create, ctx.clock, ctx.sleep)
            failpoints.reached("pull-request-created")
            return Opened(pull, is_new=True, drafts_refused=draft and not wanted)
        except Refused as error:
            if wanted and error.status == 422 and "draft pull request" in error.message.lower():
                wanted = False
                continue
            if not (error.status == 422 and "already exists" in error.message.lower()):
                return NotOpened(pull_requests.refused(error.message, new.page))
            problem: GitHubError = error
        except Transient as error:
            asked_before = asked_before or error.may_have_happened
            pause = max(pause, error.retry_after_seconds or 0)
            problem = error
        attempts += 1
        _log.warning("pull-request-later", branch=new.branch, attempt=attempts, problem=str(problem))
        if attempts == MOST_ATTEMPTS or pause > LONGEST_PAUSE_SECONDS:
            last = open_one(await github.pulls_of(thread.repository, new.branch)) if asked_before else None
            if last is not None:
                return Opened(last, is_new=True, drafts_refused=draft and not wanted)
            return NotOpened(pull_requests.github_away(new.page))
        await ctx.sleep(pause)
        pause *= 2


def _request_page(ctx: NodeContext, repository: Repository, turn: TurnOnBranch) -> str:
    return tracking.asked(turn.requested_by, ctx.server_url, repository, turn.number, turn.target, turn.id).url


def _nothing_to_open(found: NotOnGitHub | NothingNew, branch: str) -> str:
    match found:
        case NotOnGitHub():
            return pull_requests.not_on_github(branch)
        case NothingNew(base=base):
            return pull_requests.nothing_new(branch, base)
        case _:
            assert_never(found)


def _words(result: Opened) -> str:
    pull = result.pull
    if not result.is_new:
        return pull_requests.is_open(pull.number, pull.url, draft=pull.is_draft)
    return pull_requests.opened(pull.number, pull.url, draft=pull.is_draft, drafts_refused=result.drafts_refused)
