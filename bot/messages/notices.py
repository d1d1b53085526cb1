"""Everything unusual that an answer says besides itself: sentences of the box below it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, assert_never

from bot.messages.formatting import (
    capitalize,
    clause,
    code_block,
    details,
    format_count,
    format_duration,
    format_list,
    inline_code,
    truncate,
    url_target,
)
from bot.messages.worktree_replies import Saved, restored_clause
from bot.sharing_rules import Misfit, SharingRefused

PushRule = Literal["protected-branch", "workflow-files", "secret", "submodule", "too-much"]

WORKTREE_MENDED = (
    "Git had lost its record of this thread's files, and the bot repaired it. Files and commits are unchanged."
)
CONTEXT_LOST = "The agent could not resume its earlier conversation and started without that context."
THREAD_NOT_READ = "The thread could not be read from GitHub, so the agent saw the request only."
ANSWER_CUT = "The answer is longer than the bot posts, so its end is left out."
RESUMED_AFTER_CUT_OFF = "This request was interrupted once and then continued."


def taken_over(node: str) -> str:
    """`node` is the name of the machine that had the thread's worktree."""
    name = inline_code(node)
    return (
        f"The machine {name} does not answer, so this request runs on another one, in a fresh session, from what is on "
        f"GitHub. Work that was not pushed is still on {name}, which rescues it when it is back."
    )


LATE = timedelta(minutes=5)
"""A request that waited for the bot itself for so long is told."""


def not_running(since: datetime, until: datetime) -> str:
    """For a request that waited while no worker of the bot ran on any machine."""
    first, last = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" for at in (since, until))
    return f"This request waited: no machine of the bot ran from {first} to {last} UTC."


def taken_up_late(late: timedelta) -> str:
    return (
        f"The bot got this request {format_duration(late)} after it was made: it was not running, or GitHub and the "
        "bot did not reach each other."
    )


# Checkout and branch


def worktree_remade(branch: str | None, kept: str | None = None) -> str:
    """`kept` is the folder on the bot's machine that has the damaged files."""
    source = inline_code(branch) if branch else "the pull request's head"
    copy = f" The damaged files are kept on the bot's machine as {inline_code(f'kept/{kept}')}." if kept else ""
    return (
        f"This thread's files were {'damaged' if kept else 'missing'} and were checked out again from {source}. "
        f"The agent started without its earlier context.{copy}"
    )


def clone_replaced(kept: str) -> str:
    """`kept` is the folder on the bot's machine that has the damaged clone."""
    return (
        "The bot's copy of the repository was damaged and was fetched again. The damaged copy is kept on the bot's "
        f"machine as {inline_code(f'kept/{kept}')}, with unpushed commits and rescued work that only it had."
    )


def diverged(branch: str) -> str:
    return (
        f"{inline_code(branch)} has commits on GitHub that the bot's copy lacks, and the other way round. "
        "The agent worked on the bot's copy."
    )


def rewritten(branch: str) -> str:
    """The branch was force-pushed on GitHub."""
    return (
        f"{inline_code(branch)} was rewritten on GitHub. The agent worked on the commits from before that. "
        "Commits that were removed on GitHub are not pushed to it again."
    )


def branch_deleted(branch: str) -> str:
    return (
        f"{inline_code(branch)} was deleted on GitHub. If this request made changes, the branch is there again with "
        "its earlier commits."
    )


def continued(before: str, after: str, base: str | None) -> str:
    """The branch `before` was merged, so the issue's next request works on `after`."""
    start = f", which starts from {inline_code(base)}" if base else ""
    return f"{inline_code(before)} was merged. Work continues on {inline_code(after)}{start}."


def uncommitted(files: int, behind: int) -> str:
    """`files` are left from an earlier request; `behind` commits on GitHub were not merged because of them."""
    left = f"An earlier request left {format_count(files, 'uncommitted file')}, and the agent continued from there."
    if not behind:
        return left
    return f"{left} Because of that, {format_count(behind, 'newer commit')} from GitHub could not be merged yet."


def off_branch(current: str | None, branch: str) -> str:
    now = inline_code(current) if current else "a commit without a branch"
    return (
        f"An earlier request left {now} checked out. Its commits go to {inline_code(branch)} if they build on that "
        "branch."
    )


def unfinished(operation: str) -> str:
    """`operation` is git's word, such as `merge`."""
    return f"An earlier request left a {operation} unfinished."


def pushed_elsewhere(branch: str, url: str, instead_of: str) -> str:
    return (
        f"{inline_code(instead_of)} has changes on GitHub that do not merge with this work, so the commits are on "
        f"[{inline_code(branch)}]({url_target(url)})."
    )


def other_name(branch: str, folder: str) -> str:
    """The issue's branch has no folder in its name, since a branch is named like the folder."""
    return f"This thread's branch is {inline_code(branch)}, because the repository has a branch {inline_code(folder)}."


def pushed_under_other_name(branch: str, url: str, instead_of: str) -> str:
    """A branch on GitHub is named like the folder of `instead_of`, or the other way round."""
    return (
        f"GitHub has a branch whose name excludes {inline_code(instead_of)}, so the commits are on "
        f"[{inline_code(branch)}]({url_target(url)})."
    )


def not_pushed(rule: PushRule, branch: str, names: Sequence[str] = ()) -> str:
    """Name the rule that forbids the push, and the files or submodules that break it."""
    match rule:
        case "protected-branch":
            why = f"{inline_code(branch)} is protected or the default branch"
        case "workflow-files":
            why = (
                f"the commits change {format_list(names)}, and changes of workflows and actions need "
                "`ALLOW_WORKFLOW_CHANGES=true`"
            )
        case "secret":
            why = "the commits hold a secret that the bot knows"
        case "submodule":
            what = "is at a commit" if len(names) == 1 else "are at commits"
            why = f"{format_list(names)} {what} that no branch of its own repository on GitHub has"
        case "too-much":
            why = "there is more in the commits (data, merges or submodules) than the bot examines before a push"
        case _:
            assert_never(rule)
    return f"Not pushed: {why}. The work is kept on the bot's machine."


def push_failed(branch: str | None, why: str) -> str:
    """`branch` is None where the edits were to be shown as a patch; `why` are the words of git, GitHub or the disk."""
    said = inline_code(truncate(why))
    if branch is None:
        return f"The edits could not be shown as a patch: {said}. They are kept, and the next request shows them too."
    return (
        f"The commits could not be pushed to {inline_code(branch)}: {said}. They are kept, and the next request pushes "
        "them."
    )


def files_left_out(names: Sequence[str]) -> str:
    return f"Not committed, because they are large or changed inside a repository of their own: {format_list(names)}."


def live_commits(names: Sequence[str]) -> str:
    """The messages of these commits, which the agent wrote, were pushed as they are."""
    return (
        "Messages of the agent's commits mention somebody or close an issue when they are merged: "
        f"{format_list(names)}. Squash or reword them first if that is not wanted."
    )


def stray_work(ref: str, uncovered: Sequence[str]) -> str:
    """The agent left HEAD on commits that do not descend from the branch, whose `.gitignore` hid files `uncovered`."""
    words = (
        "The agent made commits that do not build on this branch. They are kept on the bot's machine as "
        f"{inline_code(ref)}."
    )
    if not uncovered:
        return words
    return (
        f"{words} Files that only those commits ignore are still there: {format_list(uncovered)}. The next request "
        "commits them, unless this branch ignores them too."
    )


def unresolved(files: Sequence[str]) -> str:
    return f"Nothing was committed, because a merge has conflicts in {format_list(files)}. The work is kept."


# Files that several threads share


def in_worktree_of(number: int) -> str:
    return f"This request worked on the files of #{number}, which this pull request closes."


def in_worktree_on_branch(owner: int, branch: str) -> str:
    """`owner` is the thread that the files were checked out for."""
    return f"This request worked on the files of #{owner}, which are on {inline_code(branch)} too."


def switched(owner: int, before: str, after: str) -> str:
    """For the pull request whose turn switched the worktree to its branch."""
    return f"The files of #{owner} were switched from {inline_code(before)} to {inline_code(after)} for this request."


def not_shared(instead_of: SharingRefused, branch: str | None) -> str:
    """Say why the request did not run in the worktree of the issue that the pull request closes."""
    where = f" on {inline_code(branch)}" if branch else ""
    return f"{_obstacle(instead_of, branch or '')}, so this request worked on files of its own{where}."


def not_shared_any_more(instead_of: SharingRefused, owner: int, branch: str) -> str:
    """The same, where another worktree has the branch by now."""
    where = f"the files of #{owner}, which are on {inline_code(branch)}"
    return f"{_obstacle(instead_of, branch)}, so this request worked on {where}."


def _obstacle(refused: SharingRefused, branch: str) -> str:
    """Return a clause; `branch` is the pull request's."""
    return _OBSTACLES[refused.why].format(
        files=f"The files of #{refused.owner}", pull=f"#{refused.other_pull}", branch=inline_code(branch)
    )


_OBSTACLES: dict[Misfit, str] = {
    "not-made": "{files} are not checked out yet",
    "other-pull": "{files} are also used by {pull}",
    "busy": "{files} are in use by another request",
    "missing": "{files} are missing",
    "uncommitted": "{files} have uncommitted changes",
    "unfinished": "{files} are in the middle of a merge or rebase",
    "off-branch": "{files} are not on their branch",
    "hidden-edits": "{files} have edits that git was told to ignore",
    "only-here": "{files} come with stashed changes or other work that is on no branch on GitHub",
    "not-contained": "{files} have commits that this pull request does not have",
    "branch-gone": "{branch} is no longer on GitHub",
    "branch-elsewhere": "{branch} is checked out elsewhere",
    "branch-diverged": "{branch} has commits on the bot's machine that are not on GitHub",
    "in-the-way": "{files} include some that {branch} would overwrite",
}


# Work that a removal rescued


def restored_before_turn(back: Saved) -> str:
    """`back` is empty where everything was restored already."""
    if not back.files and not back.commits and not back.whole:
        return "This thread's files had been removed. The work that was rescued then is back."
    return f"This thread's files had been removed. {capitalize(restored_clause(back))} restored before this request."


def not_restored_before_turn(why: str) -> str:
    return f"The work that was rescued earlier was not restored: {clause(why)}. `/worktree restore` tries again."


def restore_refused_before_turn(obstacle: str) -> str:
    """`obstacle` is the text of `worktree_replies.restore_obstacle`, which ends with the next step."""
    return f"The work that was rescued earlier was not restored: {obstacle} `/worktree restore` tries again."


def rescued_on(node: str) -> str:
    """`node` is the name of another machine than that of this request."""
    return (
        f"The work that was rescued earlier is on the machine {inline_code(node)} and stays there; this request ran on "
        "another one. `/worktree restore` says how to get it."
    )


# The script `.threadtree/setup`


def setup_failed(how: str, output: str) -> str:
    """`how` is one of the clauses below; `output` is the end of what the script wrote, without secrets."""
    words = f"`.threadtree/setup` {how}. The agent worked without it, and the next request runs the script again."
    return f"{words}\n\n{details('The end of its output', code_block(output))}" if output else words


def setup_left(names: Sequence[str]) -> str:
    """`names` are the files that the script made or changed and that git does not ignore."""
    return (
        f"`.threadtree/setup` left files that git does not ignore: {format_list(names)}. They count as changes of this "
        "request; an entry in `.gitignore` keeps them out."
    )


def setup_ended_with(status: int) -> str:
    """Return a clause; a negative status is the signal that ended the script."""
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def setup_out_of_time(seconds: float) -> str:
    """Return a clause."""
    return f"was stopped after {format_duration(timedelta(seconds=seconds))}"


def setup_not_startable(why: str) -> str:
    """Return a clause."""
    return f"could not be started ({clause(why)})"


def setup_unusable(default_branch: str, limit_bytes: int) -> str:
    """Return a clause."""
    return f"on {inline_code(default_branch)} is not a regular file of at most {limit_bytes >> 20} MiB, and was not run"
