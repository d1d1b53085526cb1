"""What people read of worktrees: answers to `/worktree` at once, and why a turn could not change one."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from rich.filesize import decimal

from bot.model import Rescue, Saved, WorktreeState
from bot.store.states import WorktreeOfThread
from bot.thread.formatting import capitalize, clause, format_count, format_duration, format_list, inline_code, truncate

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
- `/worktree prune` removes the worktrees of this repository whose threads are all closed (maintain and admin only)

Work that is not on GitHub is rescued before anything is reset or removed."""
NOTHING_TO_RESTORE = "This thread has no rescued work, so there is nothing to restore."
CLOSED_TO_RESTORE = (
    "This thread is closed, so restored work would be removed again at once. Reopen it: the next request starts "
    "with the rescued work."
)
PATH_TAKEN = ("another worktree is at its path", "Nothing was changed.")
COMMIT_GONE = ("the rescued commit is not in the clone any more", "Nothing was changed.")
IN_USE = "something else needs it at this moment"

_DONE = {
    "create": ("the worktree", "made"),
    "reset": ("the worktree", "reset"),
    "remove": ("the worktree", "removed"),
    "restore": ("the rescued work", "restored"),
    "pull-request": ("the pull request", "opened"),
}
_NOT = {verb: capitalize(f"{what} was not {done}") for verb, (what, done) in _DONE.items()}


# Commands that are answered at once


def no_worktree(verb: str) -> str:
    return f"There is no worktree here, so there is nothing to {verb}. The next request makes one."


def rescued_elsewhere(others: tuple[int, ...]) -> str:
    """`others` are the threads that use the worktree that the rescued work belongs to."""
    whose = f"{threads(others)} now {'use' if len(others) > 1 else 'uses'}" if others else "is in use elsewhere"
    return f"The rescued work belongs to a worktree that {whose}. Write `/worktree restore` there."


def worktree_list(worktree: WorktreeOfThread | None, rescues: Sequence[Rescue], now: datetime) -> str:
    """`rescues` are newest first."""
    parts = [_worktree(worktree, now) if worktree else "There is no worktree here; the next request makes one."]
    if rescues:
        lines = "\n".join(f"{number}. {_old_work(one, now)}" for number, one in enumerate(rescues, start=1))
        parts.append(f"Rescued work, newest first:\n\n{lines}")
        parts.append("`/worktree restore` restores the first.")
    else:
        parts.append("There is no rescued work.")
    return "\n\n".join(parts)


def may_not_prune(permission: str | None) -> str:
    """`permission` is the person's, None of a bot."""
    what = f"your role is {permission}" if permission else "no bot can use it"
    return f"Nothing was removed. `/worktree prune` touches other threads and needs the role maintain or admin; {what}."


def pruning(worktrees: int) -> str:
    if not worktrees:
        return "There is nothing to prune: every worktree of this repository belongs to an open thread."
    count = format_count(worktrees, "worktree")
    return f"Removing {count} of closed threads. Work that is not on GitHub is rescued first."


# How it ended


def was_set_up(failure: str | None, seconds: float | None) -> str:
    """`failure` is a clause about the script, None after a success; without `seconds` it did not run."""
    if failure is not None:
        return f"`.threadtree/setup` {failure}. The next request runs it again."
    if seconds is None:
        return "`.threadtree/setup` was not run: it ran in this checkout before."
    return f"`.threadtree/setup` ran for {format_duration(timedelta(seconds=max(1, seconds)))}."


def kept_whole(name: str) -> str:
    """The place of a directory that no commit can hold."""
    return (
        f"The whole directory is on the bot's machine as {inline_code(f'kept/{name}')} in its data directory; the "
        "bot's operator can copy from there."
    )


def not_restored(obstacle: RestoreObstacle, names: Sequence[str]) -> str:
    """`names` are the files, the branch or the commit that the obstacle is about."""
    still = "" if obstacle in ("commit-gone", "directory-gone") else " It is still rescued."
    return f"{_NOT['restore']}: {restore_obstacle(obstacle, names)}{still}"


def restore_obstacle(obstacle: RestoreObstacle, names: Sequence[str]) -> str:
    """Return the obstacle and the next step: the end of one sentence, and one more sentence."""
    first, rest = (inline_code(names[0]), format_list(names[1:])) if names else ("no branch", "")
    again = "then write `/worktree restore` again."
    return _OBSTACLES[obstacle].format(first=first, rest=rest, listed=format_list(names), again=again)


_OBSTACLES: dict[RestoreObstacle, str] = {
    "commit-gone": ". ".join(COMMIT_GONE),
    "directory-gone": "the directory that was kept is not there any more. Nothing was changed.",
    "no-worktree": "there is no worktree at its path. Send a request, which makes one, {again}",
    "unfinished": "a {listed} is in progress in the worktree. Ask the bot to end it, {again}",
    "off-branch": (
        "the worktree has {first} checked out instead of its own branch. Ask the bot to check that out, {again}"
    ),
    "diverged": "the branch has other commits than the rescue. Ask the bot to merge commit {listed}, {again}",
    "changes": "the worktree has changes that are not committed: {listed}. Ask the bot to commit them, {again}",
    "ignored-files": "the worktree has ignored files in the way: {listed}. Ask the bot to move them, {again}",
    "newer-commits": "newer commits changed the same files: {rest}. Ask the bot to merge the rescued commit {first}.",
    "newer-than-directory": "the branch has newer commits, and the files of the kept directory would undo them.",
}


def not_done(verb: str, why: str, next_step: str | None = None) -> str:
    """`why` is foreign text, `next_step` a sentence."""
    return f"{_NOT[verb]}: {clause(why)}. {next_step or 'Nothing was lost. Try again later.'}"


def of_state(state: WorktreeState) -> tuple[str, str]:
    """Return a clause and the next step for a worktree in whose state that is impossible."""
    return f"it is {state}", "The next request makes a new one."


def github_not_asked(error: Exception) -> str:
    """Return a clause."""
    return f"GitHub could not be asked what it has: {error}"


def no_such_thread(full_name: str, number: int) -> str:
    """Answer an operator who wants a worktree for a thread."""
    return f"GitHub shows the bot no {full_name}#{number}."


def rescued_on(rescue: int, node: str) -> str:
    """The thread's worktree is on another machine than its rescued work, which stays there."""
    command = inline_code(f"threadtree rescues restore {rescue}")
    return (
        f"{_NOT['restore']}: it is on the machine {inline_code(node)}, and this thread's worktree is on another one. "
        f"The bot's operator can run {command} on that machine: it names a directory with the work, "
        "and a push from there brings it to GitHub."
    )


def refused(verb: str, why: str) -> str:
    """`why` is a sentence that ends with the next step."""
    return f"{_NOT[verb]}. {truncate(why)}"


def was_switched(pull: int, before: str, after: str) -> str:
    """For the other threads of the worktree that the turn of `pull` switched to its branch."""
    return (
        f"#{pull} now shares this thread's worktree and switched it to its branch {inline_code(after)}. The next "
        f"request here changes {inline_code(after)}, which has all commits of {inline_code(before)}. "
        f"{inline_code(before)} is unchanged."
    )


def _worktree(line: WorktreeOfThread, now: datetime) -> str:
    if line.state != "ready":
        words = "A worktree is reserved for this thread. The next request makes it."
    elif line.branch:
        words = f"This thread's worktree is on {inline_code(line.branch)}."
    else:
        words = "This thread's worktree is on no branch." if line.detached else "This thread has a worktree."
    if line.others:
        words += f" {threads(line.others)} {'use' if len(line.others) > 1 else 'uses'} it too."
    return f"{words} It was last used {format_duration(now - line.active_at)} ago."


def _old_work(one: Rescue, now: datetime) -> str:
    again = ", restored before" if one.restored_at is not None else ""
    return f"{capitalize(_things(one.saved))}, {decimal(one.bytes)}, {format_duration(now - one.created_at)} ago{again}"


def rescued(saved: Saved | None) -> list[str]:
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


def threads(numbers: tuple[int, ...]) -> str:
    """Return `#1, #2 and #3`."""
    *first, last = (f"#{number}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
