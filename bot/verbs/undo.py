"""`/undo`: what the last request changed is taken back, without an agent (DESIGN.md §5)."""

from collections.abc import Sequence
from dataclasses import dataclass

from bot import refs
from bot.failpoints import reached
from bot.model import Saved
from bot.node.rescues import record_rescue, rescue_size
from bot.store import turns
from bot.store.database import Connection, statement
from bot.store.turns import Claim, under_claim
from bot.thread.formatting import clause, format_count, format_list, inline_code, truncate
from bot.thread.tracking import AskedBy, TurnResult
from bot.thread.worktree_replies import rescued
from bot.tree import OpenTree, RescueLabel
from bot.turn.checkout import base_of
from bot.turn.kind import Kind, Ready
from bot.turn.queueing import queue_on_branch
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.turn_run import TurnRun

SUMMARY = "takes back what the last request changed: its commits by a new one, and what is not on GitHub after a rescue"
NOTHING = "There is nothing to take back: no request changed this branch, or `/undo` took that back before."
NO_BRANCH = "Nothing is pushed from here, so there is nothing to take back. `/reset` starts the files anew."
IGNORED_FILE_IN_THE_WAY = (
    "A file that git ignores is in the place of one that would come back. Remove it, then write `/retry`."
)
_MOST_COMMITS = 10


@dataclass(frozen=True, slots=True)
class ChangeOfTurn:
    """What a turn did to its worktree: it began at `head_before`; the last push was up to `pushed_head`, if any.

    `met_push`: that is a merge with what people pushed while it ran.
    """

    id: int
    requested_by: str
    head_before: str
    pushed_to: str | None
    pushed_head: str
    met_push: bool = False


@statement("""
-- Without those that were taken back. What was pushed is the branch's, whichever worktree and machine it was made on.
with mine as (select id, platform, repository_id from worktrees where id = $1),
made as (
    select t.id from turns t where t.worktree_id = $1
    union
    select t.id from turns t join worktrees w on w.id = t.worktree_id join mine on true
    where t.pushed_to = $3 and (w.platform, w.repository_id) = (mine.platform, mine.repository_id)
)
select t.id, r.requested_by, t.head_before, t.pushed_to, coalesce(t.pushed_head, '') as pushed_head, t.met_push
from made join turns t using (id) join requests r on r.turn_id = t.id
where t.id < $2 and t.head_before is not null and r.verb in ('work', 'fix', 'update')
  and not exists (select from turns u where u.undoes = t.id and u.state = 'done')
order by t.id desc limit 50
""")
async def changes_on_branch(connection: Connection, worktree_id: int, before: int, branch: str) -> list[ChangeOfTurn]:
    """Return what turns before this one pushed to the branch, or did to the worktree, the last first."""


@under_claim("""
update turns set undoes = coalesce(undoes, $3) where id = $1 and claim = $2 returning undoes
""")
async def begin_undo(connection: Connection, claim: Claim, undoes: int | None) -> int | None:
    """Record whose changes the turn takes back; return whose it began to take back. Raises ClaimLostError."""


def taken_back(change: ChangeOfTurn | None, saved: Saved | None, commits: Sequence[str] | None = None) -> str:
    """`change` was reverted by a commit where it was pushed: its `commits`, each its name and subject, newest first.

    `saved` was only here, and is rescued.
    """
    whose = _whose(change) if change is not None else "somebody"
    if commits is None:
        parts = [f"Took back what {whose} left here."]
        if change is not None and change.pushed_to is not None:
            parts.append(f"Its commits are still on {inline_code(change.pushed_to)}.")
        return "\n\n".join([" ".join(parts), *rescued(saved)])
    shown = [f"- {inline_code(sha[:7])} {inline_code(truncate(subject))}" for sha, _, subject in _parted(commits)]
    more = [f"- {format_count(len(commits) - _MOST_COMMITS, 'earlier commit')}"] if commits[_MOST_COMMITS:] else []
    return "\n\n".join([f"Took back by one commit what {whose} pushed:", "\n".join([*shown, *more]), *rescued(saved)])


def commit_message(change: ChangeOfTurn, asked: AskedBy, commits: Sequence[str]) -> str:
    """Return the message of the commit that takes a change back, which was these `commits`."""
    # All of them: what a pull request tells leaves out what was taken back.
    reverts = "\n".join(f"This reverts commit {commit.partition(' ')[0]}." for commit in commits)
    return f"Take back turn {change.id}\n\n{reverts}\n\nRequested by {asked.login}: {asked.url}\n"


def conflicts(change: ChangeOfTurn, names: Sequence[str]) -> str:
    what = f"Later commits changed the same lines as {_whose(change)}"
    return f"{what}: {format_list(names)}. Ask the agent to take it back."


def not_on_branch(change: ChangeOfTurn, branch: str | None) -> str:
    where = inline_code(branch or "the branch")
    return f"The commits of {_whose(change)} are not on {where} any more, so there is nothing to take back."


def gone_already(change: ChangeOfTurn) -> str:
    return f"Later commits took back what {_whose(change)} changed."


def has_merged(change: ChangeOfTurn, base: str) -> str:
    name = inline_code(base)
    return (
        f"Commits of {name} came with {_whose(change)}. To take them back here would take them back in {name} too, "
        "once this branch is merged. Ask the agent to take back what you do not want."
    )


def cannot_rescue(why: str) -> str:
    return f"A commit cannot hold all that is not on GitHub ({clause(why)}). `/reset` keeps the whole directory."


def off_branch(branch: str, ref: str) -> str:
    return (
        f"The files were not on {inline_code(branch)}. They are again, and what was there is rescued as "
        f"{inline_code(ref)}. Write `/undo` again to take back the last request."
    )


def _parted(commits: Sequence[str]) -> list[tuple[str, str, str]]:
    return [commit.partition(" ") for commit in commits[:_MOST_COMMITS]]


def _whose(change: ChangeOfTurn) -> str:
    return f"turn {change.id} ({clause(change.requested_by)}'s request)"


async def take_back(run: TurnRun, ready: Ready) -> str | TurnResult:
    """Take back what the last request changed in the turn's worktree, to be pushed; return the answer, saved.

    What it pushed is reverted by one commit on top of the branch. What is only here is rescued, then dropped. Nothing
    is done where people's commits conflict with that. Raises StoppedError, ClaimLostError, GitError, OSError.
    """
    ctx, turn = run.ctx, run.turn
    if ready.branch is None:
        return TurnResult("refused", NO_BRANCH)
    base = await base_of(run, ready)
    found = await changes_on_branch(ctx.pool, turn.worktree.id, turn.id, ready.branch)
    pushed = next((one for one in found if one.pushed_to == ready.branch), None)
    async with run.tree.open(run.stop, history=True) as tree:
        # The same in a run that is resumed: what it rescues is then the same rescue.
        label = RescueLabel(turn.worktree.id, ready.branch, turn.worktree.conversations, turn.started_at)
        if (stray := await tree.return_to_branch(ready.branch, label)) is not None:
            return TurnResult("refused", off_branch(ready.branch, stray.ref))
        checkout, clone = await tree.checkout(), tree.clone
        tip, here = await clone.tip(ready.branch), await clone.commit_at(refs.local(ready.branch))
        # What the branch has here and not on GitHub.
        beyond = here and await (clone.count(here, f"^{tip}") if tip else clone.unpublished(here))
        has_more = bool(beyond or await checkout.work())
        onto = tip or (found[-1].head_before if found else None)
        # Work that is only here is the last request's, unless that pushed. A run that is resumed does what it began.
        reverted = pushed if pushed and (pushed is found[0] or not has_more) else None
        last = reverted or next(iter(found), None)
        undoes = await run.write(begin_undo, turn.claim, last.id if last else None)
        reverted = pushed if pushed and pushed.id == undoes else None
        commits: Sequence[str] | None = None
        is_resumed = turn.so_far.resuming and undoes is not None
        if onto is None or not (reverted or has_more or is_resumed):
            return TurnResult("refused", NOTHING)
        if reverted is not None:
            made = await _reverting(run, tree, reverted, onto, base)
            if isinstance(made, TurnResult):
                return made
            onto, commits = made
            trees = [await clone.tree_of(one) for one in (here or onto, onto)]
            has_more = bool(await checkout.work()) or (has_more and trees[0] != trees[1])
        rescue, why = await tree.save(label) if has_more else (None, None)
        if why is not None:
            return TurnResult("refused", cannot_rescue(why))
        if rescue is not None:
            await run.write(record_rescue, label, rescue, None, await rescue_size(tree, rescue, None))
            reached("undo-rescued")
            await tree.drop_changes(rescue.sha)
        if not await tree.check_out(ready.branch, onto):
            return TurnResult("failed", IGNORED_FILE_IN_THE_WAY)
        reached("undone")
    run.head_before = tip or onto
    change = next((one for one in found if one.id == undoes), None)
    saved = Saved(rescue.files, rescue.commits) if rescue else None
    answer = taken_back(change, saved, commits)
    await run.write(turns.save_answer, turn.claim, answer, tuple(run.notices), ())
    run.answer = answer
    return answer


async def _reverting(
    run: TurnRun, tree: OpenTree, change: ChangeOfTurn, tip: str, base: str | None
) -> tuple[str, Sequence[str]] | TurnResult:
    """Make a commit on `tip` without the change; return it and the commits of the change, or why there is none.

    `base` is the branch's base.
    """
    clone = tree.clone
    last = await tree.last_of_its_own(change.pushed_head, is_merge=change.met_push)
    if await clone.commit_at(last) is None or not await clone.is_ancestor(last, tip):
        return TurnResult("refused", not_on_branch(change, change.pushed_to))
    theirs = await clone.tip(base)
    # Once a branch with a merge and its opposite is merged, the base is without these commits.
    if base and theirs and not await clone.is_ancestor(last, theirs):
        new, own = [await clone.count(last, f"^{change.head_before}", *no) for no in ((), (f"^{theirs}",))]
        if new > own:
            return TurnResult("refused", has_merged(change, base))
    commits = await clone.log("%H %s", "--first-parent", last, f"^{change.head_before}")
    words = commit_message(change, run.asked, commits)
    made = await tree.revert(tip, change.head_before, last, words, run.ctx.author)
    if made is None:
        return TurnResult("refused", gone_already(change))
    return (made, commits) if isinstance(made, str) else TurnResult("refused", conflicts(change, made))


async def _run(ctx: RequestContext, _: str | None) -> None:
    await queue_on_branch(ctx, "undo", NOTHING, needs_agent=False)


COMMAND = Handler("undo", summary=SUMMARY, run=_run, queues_turn=True)
UNDO = Kind("undo", "command", COMMAND.name, tells_unfinished=False, tells_dirty=False, agent="never", begin=take_back)
VERB = Verb(commands=(COMMAND,), kinds=(UNDO,))
