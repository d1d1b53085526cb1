"""`/undo`: what was taken back, or why nothing was."""

from collections.abc import Sequence
from typing import Protocol

from bot.model import Saved
from bot.thread.formatting import clause, format_count, format_list, inline_code, truncate
from bot.thread.tracking import AskedBy
from bot.thread.worktree_replies import rescued

SUMMARY = "takes back what the last request changed: its commits by a new one, and what is not on GitHub after a rescue"
NOTHING = "There is nothing to take back: no request changed this branch, or `/undo` took that back before."
NO_BRANCH = "Nothing is pushed from here, so there is nothing to take back. `/reset` starts the files anew."
IGNORED_FILE_IN_THE_WAY = (
    "A file that git ignores is in the place of one that would come back. Remove it, then write `/retry`."
)
_MOST_COMMITS = 10


class Change(Protocol):
    """What a request changed: its turn, whose it was, and the thread."""

    @property
    def id(self) -> int: ...
    @property
    def requested_by(self) -> str: ...
    @property
    def pushed_to(self) -> str | None: ...


def taken_back(change: Change | None, saved: Saved | None, commits: Sequence[str] | None = None) -> str:
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


def commit_message(change: Change, asked: AskedBy, commits: Sequence[str]) -> str:
    """Return the message of the commit that takes a change back, which was these `commits`."""
    reverts = "\n".join(f"This reverts commit {sha}." for sha, _, _ in _parted(commits))
    return f"Take back turn {change.id}\n\n{reverts}\n\nRequested by {asked.login}: {asked.url}\n"


def conflicts(change: Change, names: Sequence[str]) -> str:
    what = f"Later commits changed the same lines as {_whose(change)}"
    return f"{what}: {format_list(names)}. Ask the agent to take it back."


def not_on_branch(change: Change, branch: str | None) -> str:
    where = inline_code(branch or "the branch")
    return f"The commits of {_whose(change)} are not on {where} any more, so there is nothing to take back."


def gone_already(change: Change) -> str:
    return f"Later commits took back what {_whose(change)} changed."


def has_merged(change: Change, base: str) -> str:
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


def _whose(change: Change) -> str:
    return f"turn {change.id} ({clause(change.requested_by)}'s request)"
