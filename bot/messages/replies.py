"""Every sentence that people read on GitHub, except a turn's own comment (`bot.messages.tracking`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Literal, assert_never

from bot.messages.formatting import (
    code_block,
    details,
    format_count,
    format_duration,
    format_list,
    inline_code,
    inline_text,
    truncate,
    url_target,
)

PushRule = Literal["protected-branch", "workflow-files", "secret"]

COMMANDS = {
    "/help": "shows this list",
    "/status": "says what is running, what waits, and on which branch",
    "/stop": "stops the running request; `/stop all` also drops those that wait",
    "/retry": "runs the last request again that did not finish",
    "/reset-context": "starts a fresh conversation with the agent and keeps the files as they are",
    "/reset": "starts both over, the conversation and the files; what is not on GitHub is rescued first",
    "/worktree": "with `list`, `reset`, `remove`, `restore` or `prune`: the files, and what was rescued of them",
}
CONTEXT_RESET = (
    "AI context reset. Your next message will start a fresh conversation while keeping your current working directory."
)
NO_SESSION_TO_RESET = "No active session to reset."


@dataclass(frozen=True, slots=True)
class Status:
    """What `/status` tells about a conversation."""

    branch: str | None
    running_for: timedelta | None
    waiting: int
    session_active: bool


# Answers to commands


def help_text(mention: str) -> str:
    """`mention`: the bot's name without the `@`."""
    commands = "\n".join(f"- `{name}` {does}" for name, does in COMMANDS.items())
    return (
        f"Mention {inline_code(f'@{mention}')} with a request, and an agent works on it in this conversation's "
        f"worktree. A command stands alone on its line:\n\n{commands}"
    )


def unknown_command(written: str) -> str:
    """A command that does not exist, written after a mention."""
    near = get_close_matches(written.lower(), COMMANDS, n=1)
    advice = f"Did you mean `{near[0]}`?" if near else "`/help` lists the commands."
    return f"There is no command {inline_code(truncate(written))}. {advice}"


def status(now: Status) -> str:
    """The conversation at a glance."""
    work = (
        "Nothing is running"
        if now.running_for is None
        else f"A request has been running for {format_duration(now.running_for)}"
    )
    waiting = {0: "nothing waits", 1: "one request waits"}.get(now.waiting, f"{now.waiting} requests wait")
    branch = "There is no worktree yet." if now.branch is None else f"The branch is {inline_code(now.branch)}."
    memory = (
        "The agent remembers this conversation."
        if now.session_active
        else "The next request starts a fresh conversation with the agent."
    )
    return f"{work}, {waiting}.\n\n{branch} {memory}"


def stopping(*, running: bool, dropped: int) -> str:
    """What `/stop` did: `dropped` requests that waited are gone as well."""
    if not running and not dropped:
        return "Nothing is running, so there is nothing to stop."
    parts = ["Stopping the running request."] if running else []
    if dropped:
        parts.append(f"Dropped {format_count(dropped, 'waiting request')}.")
    return " ".join(parts)


def nothing_to_retry() -> str:
    return "Every request here finished, so there is nothing to retry."


def gave_up(guid: str) -> str:
    """A delivery whose handling failed for good."""
    return (
        "This could not be handled, and trying again did not help. "
        f"Whoever runs the bot can repeat it with {inline_code(f'threadtree deliveries replay {guid}')}."
    )


# Refusals: the reason of a turn that was not started


def over_daily_limit(limit: int) -> str:
    used = format_count(limit, "request")
    return f"You have used your {used} for the day (`MAX_TURNS_PER_PERSON_PER_DAY`). Ask again tomorrow."


def no_worktree(advice: str) -> str:
    """`advice`: the sentence that says what can be done about it."""
    return f"No worktree could be made for this conversation, and nothing was changed. {truncate(advice)}"


def cannot_fetch(full_name: str) -> str:
    return (
        f"The bot may not read {inline_code(full_name)} with git. Whoever runs it can give its account access to the "
        "repository's contents; then write `/retry`."
    )


def permission_withdrawn(login: str) -> str:
    return f"{inline_code(login)} no longer has write access to this repository."


def head_moved(asked_sha: str) -> str:
    """New commits on a fork's pull request since it was looked at."""
    return (
        f"The pull request has changed since you asked (it was at {inline_code(asked_sha[:10])}). "
        "Look at the new commits and ask again."
    )


# Why a turn ended otherwise


def thread_closed() -> str:
    return "The thread was closed."


def stopped_by(login: str | None) -> str:
    return f"{inline_code(login)} asked for it." if login else "Somebody asked for it."


def timed_out(kind: Literal["total", "idle"], seconds: float) -> str:
    """The limit that was reached, and the setting behind it."""
    length = format_duration(timedelta(seconds=seconds))
    if kind == "total":
        return f"It was still running after {length} (`TURN_TIMEOUT_SECONDS`)."
    return f"The agent was silent for {length} (`TURN_IDLE_TIMEOUT_SECONDS`)."


def disk_full(limit_bytes: int) -> str:
    """What one conversation may keep on disk was used up."""
    return f"It filled more disk than a conversation may ({limit_bytes >> 30} GiB)."


def interrupted_twice() -> str:
    return "The bot went down while this ran, twice, so it was not started a third time."


def agent_failed(why: str) -> str:
    """`why` is a sentence."""
    return f"The agent could not finish. {_clause(why)}."


def agent_not_started(why: str, next_step: str) -> str:
    """`why` is a sentence; `next_step` is for whoever runs the bot."""
    return f"The agent could not start. {_clause(why)}. {inline_text(truncate(next_step))}"


def trouble(what: str) -> str:
    """Git, GitHub or the disk failed in a way that trying again may cure."""
    return f"It could not be carried out: {_clause(what)}."


def own_error(turn: int) -> str:
    return f"The bot met an error of its own. Whoever runs it finds it in the log, under turn {turn}."


# Notices: what an answer must say besides itself


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


def clone_remade(kept: str, lost: Sequence[str]) -> str:
    """`kept`: the name of the damaged clone on the bot's machine; `lost`: refs of it that could not be read."""
    rest = f" Not readable any more: {format_list(lost)}." if lost else " Nothing of it was lost."
    return (
        "The bot's copy of the repository was damaged and was fetched again."
        + rest
        + f" The damaged one is kept on the bot's machine as {inline_code(f'kept/{kept}')}."
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


def push_failed(branch: str) -> str:
    where = inline_code(branch)
    return f"The commits could not be pushed to {where}. They are kept, and the next request pushes them too."


def files_left_out(names: Sequence[str]) -> str:
    return f"Too large to commit, so left out: {format_list(names)}."


def stray_work(ref: str) -> str:
    """The agent left HEAD on commits that do not belong to the branch."""
    return f"Work on another branch does not build on this one. It is kept on the bot's machine as {inline_code(ref)}."


def unresolved(files: Sequence[str]) -> str:
    return f"A merge was left with conflicts in {format_list(files)}, so nothing was committed. The work is kept."


# Notices about `.threadtree/setup`


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
    return f"could not be started ({_clause(why)})"


def setup_unusable(default_branch: str, limit_bytes: int) -> str:
    """A clause."""
    return f"on {inline_code(default_branch)} is no ordinary file of at most {limit_bytes >> 20} MiB, and was not run"


def _clause(words: str) -> str:
    """Somebody else's words within a sentence of ours, which brings the full stop."""
    return inline_text(truncate(words.rstrip(" .")))
