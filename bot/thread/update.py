"""`/update`: what was merged, and what the agent is asked where it conflicts."""

from collections.abc import Sequence
from shlex import quote

from bot.thread.formatting import format_count, format_list, inline_code, one_line, truncate

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


def conflicts(base: str) -> str:
    """Say once that a pull request of the bot got a conflict."""
    name = inline_code(base)
    return (
        f"This pull request conflicts with {name}, so it cannot be merged as it is. Write `/update`: it merges {name} "
        "into the branch, and the agent resolves the conflicts."
    )


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
