"""What people read about worktrees: the answers to `/reset` and `/worktree`, and what a turn says of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from bot.messages.formatting import (
    clause,
    format_count,
    format_duration,
    format_list,
    inline_code,
    truncate,
)

WorktreeVerb = Literal["create", "reset", "remove", "restore"]

USAGE = """`/worktree` takes one word:

- `/worktree list` shows this thread's worktree, and what was rescued from it
- `/worktree reset` starts the files over, like `/reset`
- `/worktree remove` removes it; the next request makes a new one
- `/worktree restore` brings back what was rescued last
- `/worktree prune` removes the worktrees of this repository whose threads are all closed

Work that is not on GitHub is rescued before anything is reset or removed."""

_WILL = {
    "create": "the worktree is made",
    "reset": "the worktree is reset",
    "remove": "the worktree is removed",
    "restore": "the rescued work is brought back",
}
_NOT = {
    "create": "The worktree could not be made",
    "reset": "The worktree was not reset",
    "remove": "The worktree was not removed",
    "restore": "The rescued work was not brought back",
}


@dataclass(frozen=True, slots=True)
class Saved:
    """Work that was rescued: `files` that were not committed, `commits` that nobody had pushed, or all (`whole`)."""

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
    """A thread's worktree at a glance. `branch` None: no branch yet, or `detached` from any."""

    branch: str | None
    detached: bool
    made: bool
    others: tuple[int, ...]
    idle: timedelta


# Commands that are answered at once


def no_worktree(verb: WorktreeVerb) -> str:
    """There is nothing to do it with."""
    if verb == "restore":
        return nothing_to_restore()
    return f"There is no worktree here yet, so there is nothing to {verb}. The next request makes one."


def nothing_to_restore() -> str:
    return "Nothing was rescued from a worktree of this thread, so there is nothing to restore."


def rescued_elsewhere(others: tuple[int, ...]) -> str:
    """What was rescued belongs to a worktree that is somebody else's by now."""
    whose = f"{_threads(others)} {'use' if len(others) > 1 else 'uses'}" if others else "is used otherwise"
    return f"What was rescued belongs to a worktree that {whose} now. Write `/worktree restore` there."


def closed_to_restore() -> str:
    return (
        "This thread is closed, and what was brought back would be put away again at once. Reopen it: the next request "
        "then begins with what was rescued."
    )


def in_line(verb: WorktreeVerb, turns: int) -> str:
    """It waits for so many requests, which were asked for before."""
    ahead = "the request that is running" if turns == 1 else f"the {turns} requests that were asked for before"
    return f"In line: {_WILL[verb]} after {ahead}."


def worktree_list(worktree: WorktreeLine | None, rescues: Sequence[OldWork]) -> str:
    """This thread's worktree and what was rescued of it, newest first."""
    parts = [_worktree(worktree) if worktree else "There is no worktree here yet; the next request makes one."]
    if rescues:
        lines = "\n".join(f"{number}. {_old_work(one)}" for number, one in enumerate(rescues, start=1))
        parts.append(f"Rescued, newest first:\n\n{lines}")
        parts.append("`/worktree restore` brings the first back.")
    else:
        parts.append("Nothing was rescued from it.")
    return "\n\n".join(parts)


def pruning(worktrees: int) -> str:
    """So many worktrees go now."""
    if not worktrees:
        return "There is nothing to prune: every worktree of this repository belongs to an open thread."
    their = "whose threads are all closed. What is not on GitHub is rescued first"
    return f"Removing {format_count(worktrees, 'worktree')} {their}."


# How an operation ended


def was_made(branch: str | None) -> str:
    return f"The worktree is there, on {inline_code(branch)}." if branch else "The worktree is there, without a branch."


def was_reset(
    before: str | None,
    after: str | None,
    base: str | None,
    saved: Saved | None,
    others: tuple[int, ...],
    submodules: str | None = None,
) -> str:
    """The branch `before` and `after`, None without one; `base`: the branch it starts from, None where that is its own.

    `submodules`: what git said of those that could not be brought up to date.
    """
    if after is None:
        words = "The worktree was reset to the head of the pull request."
    elif base is None:
        words = f"The worktree was reset: {inline_code(after)} is as it is on GitHub."
    elif before is None or before == after:
        words = f"The worktree was reset: {inline_code(after)} is at the tip of {inline_code(base)} again."
    else:
        words = (
            f"The worktree was reset. It is on {inline_code(after)} now, from the tip of {inline_code(base)}; "
            f"{inline_code(before)} stays as it is."
        )
    fresh = "The next request starts a fresh conversation with the agent."
    if others:
        plural = len(others) > 1
        uses = "use" if plural else "uses"
        fresh += f" So {'do those' if plural else 'does that'} of {_threads(others)}, which {uses} this worktree too."
    parts = [f"{words} {fresh}", *_rescued(saved)]
    if submodules is not None:
        parts.append(f"Its submodules could not be brought up to date: {clause(submodules)}.")
    return "\n\n".join(parts)


def was_removed(saved: Saved | None, others: tuple[int, ...]) -> str:
    """`others` are the threads that used it too."""
    words = "The worktree was removed. The next request makes a new one."
    if others:
        words += f" It was also used by {_threads(others)}."
    return "\n\n".join([words, *_rescued(saved)])


def was_restored(back: Saved, branch: str | None, elsewhere: Sequence[str]) -> str:
    """What was missing and is there again; `elsewhere`: commits that are in the rescue only."""
    where = f" on {inline_code(branch)}" if branch else ""
    if back.files or back.commits or back.whole:
        words = f"{capitalize(restored_clause(back))} brought back{where}."
    else:
        words = "Everything that was rescued is there already."
    if elsewhere:
        words += f" Other commits stay in the rescue, on the bot's machine: {format_list(elsewhere)}."
    return words


def kept_whole(name: str, why: str | None = None) -> str:
    """A directory that no commit can hold stays where it is kept; `why` it alone was not brought back."""
    stays = "The whole directory" if why is None else f"The whole directory was not brought back: {clause(why)}. It"
    return (
        f"{stays} is on the bot's machine as {inline_code(f'kept/{name}')} in its data directory; whoever runs the bot "
        "can copy from there."
    )


def not_restored(why: str) -> str:
    """`why` goes on with what to do."""
    return f"{_NOT['restore']}: {clause(why)}. It stays rescued."


def not_done(verb: WorktreeVerb, why: str, next_step: str | None = None) -> str:
    """`why` is somebody else's words, `next_step` a sentence of ours."""
    return f"{_NOT[verb]}: {clause(why)}. {next_step or 'Nothing was lost. Try again in a while.'}"


def refused(verb: WorktreeVerb, why: str) -> str:
    """`why` is a sentence of the bot's own and ends with the next step."""
    return f"{_NOT[verb]}. {truncate(why)}"


def own_error(operation: int) -> str:
    return f"the bot met an error of its own, which is in its log under operation {operation}"


def thread_was_closed(verb: WorktreeVerb) -> str:
    return f"{_NOT[verb]}: the thread was closed before its turn came."


def was_switched(pull: int, before: str, after: str) -> str:
    """To the other threads of that worktree."""
    return (
        f"#{pull} works in this thread's worktree now and took it to its own branch: the next request here changes "
        f"{inline_code(after)}. {inline_code(before)} stays as it is, and {inline_code(after)} has all of its commits."
    )


def _worktree(line: WorktreeLine) -> str:
    if not line.made:
        words = "A worktree is reserved for this thread, and is made before the next request."
    elif line.branch:
        words = f"This thread's worktree is on {inline_code(line.branch)}."
    else:
        words = "This thread's worktree is on no branch." if line.detached else "This thread has a worktree."
    if line.others:
        words += f" {_threads(line.others)} {'use' if len(line.others) > 1 else 'uses'} it too."
    return f"{words} It was used last {format_duration(line.idle)} ago."


def _old_work(one: OldWork) -> str:
    again = ", brought back once already" if one.restored else ""
    return f"{capitalize(_things(one.saved))}, {_size(one.bytes)}, {format_duration(one.age)} ago{again}"


def _rescued(saved: Saved | None, beginning: str = "What was not on GitHub was rescued first") -> list[str]:
    if saved is None:
        return []
    return [f"{beginning}: {_things(saved)}. `/worktree restore` brings {'it' if _is_one(saved) else 'them'} back."]


def _things(saved: Saved) -> str:
    if saved.whole:
        return "the whole directory"
    parts = [format_count(saved.files, "uncommitted file")] if saved.files else []
    if saved.commits:
        parts.append(
            f"{format_count(saved.commits, 'commit')} that {'was' if saved.commits == 1 else 'were'} not pushed"
        )
    return " and ".join(parts) or "its state"


def restored_clause(back: Saved) -> str:
    parts = ["the whole directory"] if back.whole else [format_count(back.files, "file")] if back.files else []
    parts += [format_count(back.commits, "commit")] if back.commits else []
    plural = (1 if back.whole else back.files) + back.commits > 1
    return f"{' and '.join(parts)} {'were' if plural else 'was'}"


def _is_one(saved: Saved) -> bool:
    return saved.whole or saved.files + saved.commits <= 1


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


def capitalize(words: str) -> str:
    return words[:1].upper() + words[1:]
