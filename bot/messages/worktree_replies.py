"""Answers to `/reset` and `/worktree`: at once, and when the operation has ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, assert_never

from bot.messages.formatting import (
    capitalize,
    clause,
    format_count,
    format_duration,
    format_list,
    inline_code,
    truncate,
)

WorktreeVerb = Literal["create", "reset", "remove", "restore", "pull-request", "drop"]
RestoreObstacle = Literal[
    "commit-gone",
    "directory-gone",
    "no-worktree",
    "unfinished",
    "off-branch",
    "diverged",
    "changes",
    "ignored-files",
    "newer-commits",
    "newer-than-directory",
]
"""Why rescued work is not brought back."""

USAGE = """`/worktree` takes one word:

- `/worktree list` shows this thread's worktree and its rescued work
- `/worktree reset` resets the files and starts a new conversation, like `/reset`
- `/worktree remove` removes the worktree; the next request makes a new one
- `/worktree restore` restores the latest rescued work
- `/worktree prune` removes the worktrees of this repository whose threads are all closed

Work that is not on GitHub is rescued before anything is reset or removed."""
NOTHING_TO_RESTORE = "This thread has no rescued work, so there is nothing to restore."
CLOSED_TO_RESTORE = (
    "This thread is closed, so restored work would be removed again at once. Reopen it: the next request starts "
    "with the rescued work."
)
DROPPED = "The rescue was deleted. The space of commits is free once their clone is packed."

_WILL = {
    "create": "the worktree will be made",
    "reset": "the worktree will be reset",
    "remove": "the worktree will be removed",
    "restore": "the rescued work will be restored",
    "pull-request": "the pull request will be opened",
    "drop": "the rescue will be deleted",
}
_NOT = {
    "create": "The worktree was not made",
    "reset": "The worktree was not reset",
    "remove": "The worktree was not removed",
    "restore": "The rescued work was not restored",
    "pull-request": "The pull request was not opened",
    "drop": "The rescue was not deleted",
}


@dataclass(frozen=True, slots=True)
class Saved:
    """Rescued work: uncommitted `files` and unpushed `commits`, or the `whole` directory."""

    files: int
    commits: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class OldWork:
    """A rescue in a list."""

    saved: Saved
    age: timedelta
    bytes: int
    restored: bool


@dataclass(frozen=True, slots=True)
class WorktreeLine:
    """A thread's worktree at a glance. `branch` is None where it has none yet, or is `detached`."""

    branch: str | None
    detached: bool
    made: bool
    others: tuple[int, ...]
    idle: timedelta


# Commands that are answered at once


def no_worktree(verb: WorktreeVerb) -> str:
    if verb == "restore":
        return NOTHING_TO_RESTORE
    return f"There is no worktree here, so there is nothing to {verb}. The next request makes one."


def rescued_elsewhere(others: tuple[int, ...]) -> str:
    """`others` are the threads that use the worktree that the rescued work belongs to."""
    whose = f"{_threads(others)} now {'use' if len(others) > 1 else 'uses'}" if others else "is in use elsewhere"
    return f"The rescued work belongs to a worktree that {whose}. Write `/worktree restore` there."


def in_line(verb: WorktreeVerb, turns: int) -> str:
    """`turns` is how many requests of the worktree run or wait."""
    ahead = "the request" if turns == 1 else f"the {turns} requests"
    return f"Queued: {_WILL[verb]} after {ahead} ahead of it."


def worktree_list(worktree: WorktreeLine | None, rescues: Sequence[OldWork]) -> str:
    """`rescues` are newest first."""
    parts = [_worktree(worktree) if worktree else "There is no worktree here; the next request makes one."]
    if rescues:
        lines = "\n".join(f"{number}. {_old_work(one)}" for number, one in enumerate(rescues, start=1))
        parts.append(f"Rescued work, newest first:\n\n{lines}")
        parts.append("`/worktree restore` restores the first.")
    else:
        parts.append("There is no rescued work.")
    return "\n\n".join(parts)


def pruning(worktrees: int) -> str:
    if not worktrees:
        return "There is nothing to prune: every worktree of this repository belongs to an open thread."
    count = format_count(worktrees, "worktree")
    return f"Removing {count} of closed threads. Work that is not on GitHub is rescued first."


# How an operation ended


def was_made(branch: str | None) -> str:
    return f"The worktree is ready, on {inline_code(branch)}." if branch else "The worktree is ready, without a branch."


def was_reset(
    before: str | None,
    after: str | None,
    base: str | None,
    saved: Saved | None,
    others: tuple[int, ...],
    submodules: str | None = None,
) -> str:
    """`before` and `after` are the branch, None without one; `base` the branch that it starts from, None for its own.

    `submodules` is git's error where they could not be updated.
    """
    if after is None:
        words = "The worktree was reset to the head of the pull request."
    elif base is None:
        words = f"The worktree was reset: {inline_code(after)} is as it is on GitHub."
    elif before is None or before == after:
        words = f"The worktree was reset: {inline_code(after)} is at the tip of {inline_code(base)} again."
    else:
        words = (
            f"The worktree was reset. It is now on {inline_code(after)}, which starts from {inline_code(base)}; "
            f"{inline_code(before)} is unchanged."
        )
    fresh = "The next request starts a new conversation with the agent."
    if others:
        use, do, ones = ("use", "do", "requests") if len(others) > 1 else ("uses", "does", "request")
        fresh += f" So {do} the next {ones} of {_threads(others)}, which {use} this worktree too."
    parts = [f"{words} {fresh}", *_rescued(saved)]
    if submodules is not None:
        parts.append(f"Its submodules could not be updated: {clause(submodules)}.")
    return "\n\n".join(parts)


def was_removed(saved: Saved | None, others: tuple[int, ...]) -> str:
    """`others` are the threads that used it too."""
    words = "The worktree was removed. The next request makes a new one."
    if others:
        words += f" It was also used by {_threads(others)}."
    return "\n\n".join([words, *_rescued(saved)])


def was_restored(back: Saved, branch: str | None, elsewhere: Sequence[str]) -> str:
    """`back` is what was missing and is there again; `elsewhere` are commits that only the rescue has."""
    where = f" on {inline_code(branch)}" if branch else ""
    if back.files or back.commits or back.whole:
        words = f"{capitalize(restored_clause(back))} restored{where}."
    else:
        words = "All rescued work is there already."
    if elsewhere:
        words += f" Other commits stay in the rescue on the bot's machine: {format_list(elsewhere)}."
    return words


def kept_whole(name: str) -> str:
    """The place of a directory that no commit can hold."""
    return (
        f"The whole directory is on the bot's machine as {inline_code(f'kept/{name}')} in its data directory; the "
        "bot's operator can copy from there."
    )


def not_restored(obstacle: RestoreObstacle, names: Sequence[str]) -> str:
    """`names` are the files, the branch or the commit that the obstacle is about."""
    return f"{_NOT['restore']}: {restore_obstacle(obstacle, names)} It is still rescued."


def restore_obstacle(obstacle: RestoreObstacle, names: Sequence[str]) -> str:
    """Return the obstacle and the next step: the end of one sentence, and one more sentence."""
    listed = format_list(names)
    again = "then write `/worktree restore` again."
    match obstacle:
        case "commit-gone":
            return "the rescued commit is not in the bot's clone any more. Nothing was changed."
        case "directory-gone":
            return "the directory that was kept is not there any more. Nothing was changed."
        case "no-worktree":
            return "there is no worktree at its path. Send a request, which makes one, " + again
        case "unfinished":
            return f"a {listed} is in progress in the worktree. Ask the bot to end it, {again}"
        case "off-branch":
            where = f"has {listed} checked out" if names else "has no branch checked out"
            return f"the worktree {where} instead of its own branch. Ask the bot to check that out, {again}"
        case "diverged":
            return f"the branch has other commits than the rescue. Ask the bot to merge commit {listed}, {again}"
        case "changes":
            return f"the worktree has changes that are not committed: {listed}. Ask the bot to commit them, {again}"
        case "ignored-files":
            return f"the worktree has ignored files in the way: {listed}. Ask the bot to move them, {again}"
        case "newer-commits":
            sha, files = inline_code(names[0]), format_list(names[1:])
            return f"newer commits changed the same files: {files}. Ask the bot to merge the rescued commit {sha}."
        case "newer-than-directory":
            return "the branch has newer commits, and the files of the kept directory would undo them."
        case _:
            assert_never(obstacle)


def not_done(verb: WorktreeVerb, why: str, next_step: str | None = None) -> str:
    """`why` is foreign text, `next_step` a sentence."""
    return f"{_NOT[verb]}: {clause(why)}. {next_step or 'Nothing was lost. Try again later.'}"


def node_silent(verb: WorktreeVerb, node: str) -> str:
    """`node` is the name of the machine that has the thread's worktree."""
    return (
        f"{_NOT[verb]}: the machine {inline_code(node)}, which has this thread's worktree, does not answer. Write the "
        "command again when it is back. A request does not wait for it: it runs on another machine, from what is on "
        "GitHub."
    )


def node_silent_for_operator(node: str) -> str:
    """`node` is the name of the machine that has the worktree or the rescue."""
    return (
        f"Not done: the machine {inline_code(node)}, which has the files, does not answer. Ask again when it is back."
    )


def rescued_on(rescue: int, node: str) -> str:
    """The thread's worktree is on another machine than its rescued work, which stays there."""
    command = inline_code(f"threadtree rescues restore {rescue}")
    return (
        f"{_NOT['restore']}: it is on the machine {inline_code(node)}, and this thread's worktree is on another one. "
        f"The bot's operator can run {command} on that machine: it names a directory with the work, "
        "and a push from there brings it to GitHub."
    )


def refused(verb: WorktreeVerb, why: str) -> str:
    """`why` is a sentence that ends with the next step."""
    return f"{_NOT[verb]}. {truncate(why)}"


def own_error(operation: int) -> str:
    return f"the bot hit an internal error, which is in its log under operation {operation}"


def thread_was_closed(verb: WorktreeVerb) -> str:
    return f"{_NOT[verb]}: the thread was closed before that."


def was_switched(pull: int, before: str, after: str) -> str:
    """For the other threads of the worktree that the turn of `pull` switched to its branch."""
    return (
        f"#{pull} now shares this thread's worktree and switched it to its branch {inline_code(after)}. The next "
        f"request here changes {inline_code(after)}, which has all commits of {inline_code(before)}. "
        f"{inline_code(before)} is unchanged."
    )


def _worktree(line: WorktreeLine) -> str:
    if not line.made:
        words = "A worktree is reserved for this thread. The next request makes it."
    elif line.branch:
        words = f"This thread's worktree is on {inline_code(line.branch)}."
    else:
        words = "This thread's worktree is on no branch." if line.detached else "This thread has a worktree."
    if line.others:
        words += f" {_threads(line.others)} {'use' if len(line.others) > 1 else 'uses'} it too."
    return f"{words} It was last used {format_duration(line.idle)} ago."


def _old_work(one: OldWork) -> str:
    again = ", restored before" if one.restored else ""
    return f"{capitalize(_things(one.saved))}, {_size(one.bytes)}, {format_duration(one.age)} ago{again}"


def _rescued(saved: Saved | None) -> list[str]:
    if saved is None:
        return []
    return [f"Work that was not on GitHub was rescued first: {_things(saved)}. `/worktree restore` brings it back."]


def _things(saved: Saved) -> str:
    if saved.whole:
        return "the whole directory"
    parts = [format_count(saved.files, "uncommitted file")] if saved.files else []
    parts += [format_count(saved.commits, "unpushed commit")] if saved.commits else []
    return " and ".join(parts) or "its state"


def restored_clause(back: Saved) -> str:
    """Return a subject and its verb, such as `1 file and 2 commits were`."""
    parts = ["the whole directory"] if back.whole else [format_count(back.files, "file")] if back.files else []
    parts += [format_count(back.commits, "commit")] if back.commits else []
    plural = (1 if back.whole else back.files) + back.commits > 1
    return f"{' and '.join(parts)} {'were' if plural else 'was'}"


def _threads(numbers: tuple[int, ...]) -> str:
    *first, last = (f"#{number}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _size(size: int) -> str:
    """1000 bytes are a kB, as on GitHub's release pages."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    scaled, unit = float(size), 0
    while scaled >= 1000 and unit < len(units) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{size} bytes" if unit == 0 else f"{scaled:.1f} {units[unit]}"
