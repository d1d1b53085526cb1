"""`/update`: the base is merged into the branch; an agent is asked only where that conflicts (DESIGN.md §5)."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote

from bot import refs
from bot.failpoints import reached
from bot.github.errors import GitHubError
from bot.store import turns
from bot.thread.formatting import format_count, format_list, inline_code, one_line, truncate
from bot.thread.outcome import Nothing
from bot.thread.tracking import Changes, TurnResult
from bot.tree import GitError
from bot.turn.checkout import base_of
from bot.turn.kind import Kind, Ready
from bot.turn.pull_request_rows import description_left
from bot.turn.queueing import queue_on_branch
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.turn_run import TurnRun

SUMMARY = "merges the base branch into this thread's branch; the agent resolves conflicts"
NOTHING = "There is no branch here yet, so there is nothing to update. The next request starts from the newest commits."
NO_BASE = "Nothing is pushed from here, or the branch has no base, so nothing can be merged into it."
IGNORED_FILE_IN_THE_WAY = "A file that git ignores is in the place of one of the base. Remove it, then write `/retry`."
SUBJECT = "Merge the base branch"
"""The subject of the commit with what an agent left uncommitted."""
_MOST_NAMES = 50


def nothing_new(base: str) -> str:
    return f"The branch has everything of {inline_code(base)}."


def merged(base: str, commits: int) -> str:
    return f"Merged {format_count(commits, 'commit')} of {inline_code(base)} without conflicts."


def not_merged(base: str, commits: int) -> str:
    """The agent should have merged the base."""
    lacks = format_count(commits, "commit")
    return f"{inline_code(base)} is not merged: the branch lacks {lacks} of it. `/update` tries it again."


def marks_left(names: Sequence[str]) -> str:
    """The agent merged the base, and these files are not resolved."""
    return f"Conflict markers are still in {format_list(names)}. Say how to resolve them, or do it by hand."


def commit_message(base: str, branch: str) -> str:
    return f"Merge branch '{base}' into {branch}\n"


def conflict_names(conflicts: Sequence[str]) -> str:
    """Return the names of files that conflict, a line each."""
    return "\n".join(truncate(one_line(name)) for name in conflicts[:_MOST_NAMES])


def request(base_ref: str, are_told: bool) -> str:
    """Return what the agent is asked. `are_told`: the names of the files that conflict stand above, as material."""
    where = " The files that are named above conflict." if are_told else ""
    return (
        f"Merge {base_ref} into the branch that is checked out (`git merge {quote(base_ref)}`).{where}\n"
        "Resolve conflicts so that both sides keep what they are for, see that the result works, and commit the merge. "
        "Change nothing else. Answer with what conflicted and how you resolved it."
    )


async def merge_base(run: TurnRun, ready: Ready) -> str | TurnResult | None:
    """Merge the base of the turn's branch; return the answer, saved, or why nothing can be merged.

    None where the agent is to do it, of which the turn's request then tells. Raises StoppedError, ClaimLostError,
    GitError, OSError.
    """
    ctx, turn, branch = run.ctx, run.turn, ready.branch
    base = await base_of(run, ready)
    if branch is None or base is None or base == branch or not refs.is_branch(base):
        return TurnResult("refused", NO_BASE)
    async with run.tree.open(run.stop) as tree:
        await tree.fetch(base)
        theirs, head = await tree.clone.tip(base), (await tree.checkout()).commit
        if theirs is None or head is None:
            return TurnResult("refused", NO_BASE)
        done = await tree.merge(branch, theirs, commit_message(base, branch), ctx.author)
        if done == "up-to-date" and turn.so_far.began_with is None:
            new = await tree.clone.count(theirs, f"^{run.head_before}")
            return await _answered(run, branch, merged(base, new) if new else nothing_new(base))
        if done == "merged":
            reached("base-merged")
            return await _answered(run, branch, merged(base, await tree.clone.count(theirs, f"^{head}")))
        if done == "in-the-way":
            return TurnResult("failed", IGNORED_FILE_IN_THE_WAY)
    # Where it is up to date, its agent was cut off after it had merged. Names are foreign: they stand apart.
    conflicts = () if isinstance(done, str) else done
    names = turn.ask.context if done == "up-to-date" else conflict_names(conflicts)
    text = request(f"origin/{base}", bool(conflicts))
    run.turn = replace(turn, ask=replace(turn.ask, text=text, context=names))
    return None


async def _not_merged(run: TurnRun, ready: Ready) -> tuple[str, ...]:
    """Return what is to be said of an agent that should have merged the base. Raises GitError, GitHubError."""
    base = await base_of(run, ready)
    async with run.tree.open(run.stop) as tree:
        theirs, head = await tree.clone.tip(base), (await tree.checkout()).commit
        if base is None or theirs is None or head is None:
            return ()
        await tree.adopt(ready.branch)
        if lacks := await tree.clone.count(theirs, f"^{head}"):
            return (not_merged(base, lacks),)
        left = await tree.conflicts_left(run.head_before, theirs)
        return (marks_left(left),) if left else ()


async def _answered(run: TurnRun, branch: str, answer: str) -> str:
    # What the branch changes against its base stays as it was described.
    left = await description_left(run.ctx.pool, run.turn.worktree.repository, branch)
    saved = answer, tuple(run.notices), (), None, left
    await run.write(turns.save_answer, run.turn.claim, *saved)
    run.answer = answer
    return answer


async def _published(run: TurnRun, ready: Ready, changes: Changes | str | None, nothing: Nothing | None) -> None:
    if run.progress.agent_began and not (nothing and nothing.held):
        with suppress(GitError, GitHubError):
            run.notices += await _not_merged(run, ready)


async def _run(ctx: RequestContext, _: str | None) -> None:
    await queue_on_branch(ctx, "update", NOTHING)


COMMAND = Handler("update", summary=SUMMARY, run=_run, queues_turn=True)
UPDATE = Kind(
    "update", "command", COMMAND.name, agent="perhaps", begin=merge_base, subject=SUBJECT, published=_published
)
VERB = Verb(commands=(COMMAND,), kinds=(UPDATE,))
