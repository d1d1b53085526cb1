"""Everything unusual that an answer says besides itself: sentences of the box below it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, assert_never

from bot.messages.formatting import (
    clause,
    code_block,
    details,
    format_count,
    format_duration,
    format_list,
    inline_code,
    url_target,
)
from bot.messages.worktree_replies import Saved, capitalize, restored_clause
from bot.sharing_rules import SharingRefused

PushRule = Literal["protected-branch", "workflow-files", "secret"]


# Worktree and branch


def worktree_remade(branch: str | None, kept: str | None = None) -> str:
    """`kept`: the name under which what stood in its place is on the bot's machine."""
    source = inline_code(branch) if branch else "the pull request's head"
    files = f" What was in its place is kept on the bot's machine as {inline_code(f'kept/{kept}')}." if kept else ""
    return (
        f"The worktree was {'damaged' if kept else 'missing'}. It was made again from {source}, and the agent started "
        f"without its earlier context.{files}"
    )


def worktree_mended() -> str:
    return "git had lost its record of the worktree and has it again. The files and commits are as they were."


def clone_replaced(kept: str) -> str:
    """`kept`: the name of the damaged clone on the bot's machine."""
    return (
        "The bot's copy of the repository was damaged and was fetched again. The damaged one is kept on the bot's "
        f"machine as {inline_code(f'kept/{kept}')}, with what was only there: unpushed commits and rescued work."
    )


def context_lost() -> str:
    return "The agent could not pick up its earlier conversation and started without that context."


def resumed_after_cut_off() -> str:
    return "This request was cut off once and went on from where it was."


def in_worktree_of(number: int) -> str:
    return f"This ran in the worktree of #{number}, which this pull request closes."


def diverged(branch: str) -> str:
    return f"{inline_code(branch)} has moved on differently on GitHub. The agent worked on the local state."


def rewritten(branch: str) -> str:
    """Somebody force-pushed."""
    return (
        f"{inline_code(branch)} was rewritten on GitHub. The agent worked on the state before that, and what people "
        "took out there is not pushed to it again."
    )


def branch_deleted(branch: str) -> str:
    return (
        f"{inline_code(branch)} was deleted on GitHub. If this request changed something, it is there again, with the "
        "earlier commits."
    )


def continued(before: str, after: str, base: str | None) -> str:
    """The branch was merged; the next request of the same issue starts another."""
    start = f", which starts from {inline_code(base)}" if base else ""
    return f"{inline_code(before)} was merged. Work goes on on {inline_code(after)}{start}."


def uncommitted(files: int, behind: int) -> str:
    """An earlier request left files; `behind`: newer commits on GitHub that were not merged because of them."""
    late = f" {format_count(behind, 'newer commit')} from GitHub had to wait for that." if behind else ""
    held = format_count(files, "uncommitted file")
    return f"The worktree held {held} of an earlier request, and the agent went on from there.{late}"


def off_branch(current: str | None, branch: str) -> str:
    now = inline_code(current) if current else "a commit without a branch"
    there = inline_code(branch)
    return f"An earlier request left the worktree on {now}. Its work goes to {there} where it builds on that."


def unfinished(operation: str) -> str:
    return f"An earlier request left a {operation} unfinished in the worktree."


def pushed_elsewhere(branch: str, url: str, instead_of: str) -> str:
    return (
        f"{inline_code(instead_of)} had changed in a way that does not merge, so the commits are on "
        f"[{inline_code(branch)}]({url_target(url)})."
    )


def not_pushed(rule: PushRule, branch: str) -> str:
    """Why the work stays in the worktree."""
    match rule:
        case "protected-branch":
            why = f"{inline_code(branch)} is protected or the default branch"
        case "workflow-files":
            why = "the commits change workflows or actions under `.github`, which needs `ALLOW_WORKFLOW_CHANGES=true`"
        case "secret":
            why = "the commits hold a secret that the bot knows"
        case _:
            assert_never(rule)
    return f"Not pushed: {why}. The work is kept in the worktree."


def push_failed(branch: str | None) -> str:
    """`branch` is None where the edits were to be shown as a patch."""
    if branch is None:
        return "The edits could not be shown as a patch. They are kept, and the next request shows them too."
    return f"The commits could not be pushed to {inline_code(branch)}. They are kept, and the next request pushes them."


def files_left_out(names: Sequence[str]) -> str:
    return f"Too large to commit, so left out: {format_list(names)}."


def stray_work(ref: str) -> str:
    """The agent left HEAD on commits that do not belong to the branch."""
    return f"Work on another branch does not build on this one. It is kept on the bot's machine as {inline_code(ref)}."


def unresolved(files: Sequence[str]) -> str:
    return f"A merge was left with conflicts in {format_list(files)}, so nothing was committed. The work is kept."


# A worktree that several threads use


def in_worktree_on_branch(owner: int, branch: str) -> str:
    """`owner`: the thread whose worktree it is."""
    return f"This ran in the worktree of #{owner}, which is on {inline_code(branch)} too."


def switched(owner: int, before: str, after: str) -> str:
    """In the reply of the pull request's turn that brought the worktree to its branch."""
    return f"For this, the worktree of #{owner} was switched from {inline_code(before)} to {inline_code(after)}."


def not_shared(instead_of: SharingRefused, branch: str | None) -> str:
    """Why the request did not run in the worktree of the issue that the pull request closes."""
    where = f" on {inline_code(branch)}" if branch else ""
    return f"{_misfit(instead_of, branch or '')}, so this ran in a worktree of its own{where}."


def not_shared_any_more(instead_of: SharingRefused, owner: int, branch: str) -> str:
    """The same, where another worktree has the branch by now."""
    return f"{_misfit(instead_of, branch)}, so this ran in the worktree of #{owner}, which is on {inline_code(branch)}."


def _misfit(instead_of: SharingRefused, branch: str) -> str:
    """A clause; `branch` is the pull request's."""
    its, to = f"#{instead_of.owner}'s worktree", inline_code(branch)
    match instead_of.why:
        case "not-made":
            return f"{its} is not made yet"
        case "other-pull":
            return f"{its} is also used by #{instead_of.other_pull}"
        case "busy":
            return f"{its} is busy with another request"
        case "missing":
            return f"{its} is missing"
        case "uncommitted":
            return f"{its} has files that are not committed"
        case "unfinished":
            return f"{its} is in the middle of a merge or rebase"
        case "off-branch":
            return f"{its} has something else than its branch checked out"
        case "hidden-edits":
            return f"{its} has files whose edits git was told not to see"
        case "only-here":
            return f"{its} has stashed changes or other work that is on no branch of GitHub's"
        case "not-contained":
            return f"{its} has commits that this pull request does not have"
        case "branch-gone":
            return f"{to} is not on GitHub any more"
        case "branch-elsewhere":
            return f"{to} is checked out elsewhere"
        case "branch-diverged":
            return f"{to} has commits on the bot's machine that are not on GitHub"
        case "in-the-way":
            return f"{its} has files that {to} would overwrite"
        case _:
            assert_never(instead_of.why)


# Work that a removal rescued


def restored_before_turn(back: Saved) -> str:
    """In the reply of the turn that began with it; nothing was missing where it was brought back already."""
    if not back.files and not back.commits and not back.whole:
        return "The worktree had been removed. What was rescued then is in it again."
    return f"The worktree had been removed. {capitalize(restored_clause(back))} brought back before this request began."


def not_restored_before_turn(why: str) -> str:
    """The same, where it failed; `why` is somebody else's words."""
    return (
        f"What was rescued when the worktree was removed is not in it: {clause(why)}. `/worktree restore` tries again."
    )


# The script `.threadtree/setup`


def setup_failed(how: str, output: str) -> str:
    """`how` is a clause of ours; `output` the end of what the script wrote, without secrets."""
    words = f"`.threadtree/setup` {how}. The agent worked all the same, and the next request tries it again."
    return f"{words}\n\n{details('The end of its output', code_block(output))}" if output else words


def setup_left(names: Sequence[str]) -> str:
    """What the script made or changed and git does not ignore."""
    return (
        f"`.threadtree/setup` left files that git does not ignore: {format_list(names)}. They count as work of this "
        "request; an entry in `.gitignore` keeps them out."
    )


def setup_ended_with(status: int) -> str:
    """A clause; negative: the signal that ended it."""
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def setup_out_of_time(seconds: float) -> str:
    """A clause."""
    return f"was still running after {format_duration(timedelta(seconds=seconds))} and was ended"


def setup_not_startable(why: str) -> str:
    """A clause."""
    return f"could not be started ({clause(why)})"


def setup_unusable(default_branch: str, limit_bytes: int) -> str:
    """A clause."""
    return f"on {inline_code(default_branch)} is no ordinary file of at most {limit_bytes >> 20} MiB, and was not run"
