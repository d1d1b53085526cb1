"""`/pr`: a pull request for the thread's branch is opened, once; it may be a draft, and a title may follow."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from bot.node.transactions import persist
from bot.thread import pull_requests
from bot.thread.tracking import TurnResult
from bot.turn import notify
from bot.turn import pull_request_rows as rows
from bot.turn.alone import not_done, save_done
from bot.turn.assign_worktree import assign_worktree
from bot.turn.kind import Kind
from bot.turn.own_pull import IssueThread, Opened, adopt, describe, open_once, open_one
from bot.turn.queueing import has_branch, queue_alone
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.request_rows import last_pushed_to
from bot.turn.restoring import fetch_for
from bot.turn.turn_run import TurnRun

SUMMARY = "opens a pull request for this thread's branch; `/pr draft` opens a draft, and a title may follow"
_POLITE: Final = frozenset({"please", "now", "please now", "now please", "thanks", "thank you"})
"""No title, but what people add to a command."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What `/pr` asks for; `title` is None where the bot finds one."""

    draft: bool
    title: str | None


def asked(words: str) -> Asked:
    """Return what the command asks for; without a word for it the pull request is ready for review."""
    argument = words.removeprefix("/pr").strip()
    first, _, rest = argument.partition(" ")
    kind = first.casefold().rstrip(":,")
    title = (rest if kind in ("draft", "ready") else argument).strip()
    is_title = bool(title) and title.casefold().strip(" .,!") not in _POLITE
    return Asked(draft=kind == "draft", title=title if is_title else None)


async def _open(run: TurnRun) -> str | TurnResult:
    """Open the pull request, or link the one that is open, or say why there is none to open.

    GitHub allows no second one, so every step can be repeated. Raises StoppedError, ClaimLostError, GitError,
    GitHubError, InvalidNameError, OSError.
    """
    ctx, turn, worktree = run.ctx, run.turn, run.turn.worktree
    wanted, github, about = asked(turn.ask.text), ctx.github, turn.conversation
    async with run.tree.open(run.stop) as tree:
        await fetch_for(ctx, tree, worktree)
        # Before the worktree is made again: the branch that it will have, or else the one that was merged.
        branch = worktree.branch or await tree.branch_of(worktree.start)
        if await tree.clone.tip(branch) is None and worktree.branch is None:
            branch = await last_pushed_to(ctx.pool, about.id) or branch
        if branch is None:
            return not_done(pull_requests.NO_BRANCH)
        found = await run.tree.proposal(branch, worktree.base_branch, worktree.repository.default_branch)
    pulls = await github.pulls_of(worktree.repository, branch)
    thread = IssueThread(worktree.repository, about.id, about.number, about.title)
    if (pull := open_one(pulls)) is not None:
        me = await github.identity()
        # A process that was killed may have opened it for this very turn.
        is_new = pull.author_id == me.id and pull.created_at >= turn.ask.at
        return await _opened(run, thread, branch, Opened(pull, is_new, is_new and wanted.draft and not pull.is_draft))
    tip = found.tip if found is not None else None
    if (merged := next((one for one in pulls if one.merged_at and tip in (None, one.head_sha)), None)) is not None:
        return not_done(pull_requests.was_merged(merged.number, merged.url, branch))
    if found is None:
        return not_done(pull_requests.not_on_github(branch))
    if not found.is_new:
        return not_done(pull_requests.nothing_new(branch, found.base))
    new = await describe(ctx, thread, branch, found, wanted.title)
    result = await open_once(ctx, github, thread, new, draft=wanted.draft)
    if not isinstance(result, Opened):
        return not_done(result)
    return await _opened(run, thread, branch, result)


async def _opened(run: TurnRun, thread: IssueThread, branch: str, opened: Opened) -> str:
    pull, wanted = opened.pull, asked(run.turn.ask.text)
    await adopt(run.ctx, thread, branch, pull, is_titled=wanted.title is not None)
    await persist(run.ctx.pool, rows.record_pull_request, thread.conversation_id, pull.number)
    if opened.is_new:
        more = {"draft": pull.is_draft, "drafts_refused": opened.drafts_refused}
        waits = partial(notify.of_pull_request, repository=thread.repository, number=pull.number)
        return await save_done(
            run, pull_requests.opened(pull.number, pull.url, **more), waits if run.ctx.notifies else None
        )
    return await save_done(run, pull_requests.is_open(pull.number, pull.url, draft=pull.is_draft))


async def _run(ctx: RequestContext, argument: str | None) -> None:
    if ctx.request.thread.kind == "pull":
        await ctx.reply(pull_requests.IS_PULL_REQUEST)
    elif not await has_branch(ctx):
        await ctx.reply(pull_requests.NO_BRANCH)
    else:
        assigned = await assign_worktree(ctx)
        await queue_alone(ctx, "pull-request", f"/pr {argument or ''}".rstrip(), assigned.worktree_id)


COMMAND = Handler("pr", lambda words: (words or None, ""), summary=SUMMARY, run=_run)
PULL_REQUEST = Kind("pull-request", "command", agent="never", writes=False, carry_out=_open)
VERB = Verb(commands=(COMMAND,), kinds=(PULL_REQUEST,))
