"""Why a turn was refused, or ended otherwise than `done`: what the first line of its answer says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from bot.thread.formatting import (
    clause,
    format_count,
    format_dollars,
    format_duration,
    format_moment,
    inline_code,
    truncate,
)


@dataclass(frozen=True, slots=True)
class CapReached:
    """A cap on cost that is reached, in dollars: of one request, of its repository's day, or of the day of all."""

    cap: Literal["turn", "repository", "day"]
    spent_usd: float
    limit_usd: float


MOST_NAMED = 30
COMMITS_GONE = "The branch and the commits of this thread no longer exist."
NO_FIRST_COMMIT = "The repository has no commit on its default branch yet. Push a first one, then ask again."
NO_DEFAULT_BRANCH = "The repository's HEAD names no branch. Set a default branch, then ask again."
THREAD_CLOSED = "Stopped because the thread was closed."
INTERRUPTED_TWICE = "The bot went down twice while it worked on this, so it did not start a third time."
STOPPED_BY_OPERATOR = "Stopped by the operator."
DISK_SHORT = (
    "The disk of the bot's machine is nearly full, so no new worktree is made. Its operator must free space or lower "
    "`DISK_RESERVE_GB`."
)
NO_ANSWER = "The agent ended without an answer."

WaitReason = Literal[
    "github-limit",
    "github-away",
    "credentials",
    "database-away",
    "files-locked",
    "git-killed",
    "disk-full",
    "disk-short",
    "branch-not-there",
    "usage-limit",
    "model-busy",
]
WaitStep = Literal["start", "agent", "publish"]
"""What a request does at the end of its wait: it starts again, its agent continues, or its work is published."""

# Waits

_WAITS: dict[WaitReason, str] = {
    "github-limit": "GitHub's limit of requests for the bot is used up.",
    "github-away": "GitHub does not answer.",
    "credentials": "GitHub does not accept the bot's credentials. Its operator must look at them.",
    "database-away": "The bot's database does not answer.",
    "files-locked": "Another process uses the files of this thread.",
    "git-killed": "The bot's machine ended git, as it does when memory is short.",
    "disk-full": "The disk of the bot's machine is full. Its operator must free space.",
    "disk-short": f"{DISK_SHORT} What was not used for long goes first.",
    "branch-not-there": "GitHub does not show the branch of this pull request yet.",
    "usage-limit": "The usage limit of the agent's model is reached.",
    "model-busy": "The agent's model takes no requests at the moment.",
}


_STEPS: dict[WaitStep, str] = {
    "start": "{cause} The next try is {moment}. `/stop` ends the wait.",
    "agent": "{cause} The agent continues {moment}. `/stop` ends the wait.",
    "publish": (
        "The agent is done, but its work could not be published. {cause} The next try is {moment}. "
        "`/stop` ends the wait and shows the answer."
    ),
}


def waits(why: WaitReason, until: datetime, now: datetime, step: WaitStep = "start") -> str:
    """Say why a request waits, and until when; also in the comments of those behind it."""
    return _STEPS[step].format(cause=_WAITS[why], moment=format_moment(until, now))


def collects(until: datetime, now: datetime) -> str:
    """Say that a remark on a line waits for further ones."""
    return f"This starts {format_moment(until, now)}, with what you remark on lines until then."


def node_is_silent(node: str) -> str:
    return f"The node {node} gives no sign of life. A live node takes over its requests, if there is one."


def removal_fails(why: str) -> str:
    return (
        f"The files of an earlier worktree of this thread cannot be removed: {inline_code(truncate(why))}. The bot "
        "tries it again every few minutes. Its operator must correct the cause: `threadtree worktrees list --all` "
        "shows the directory."
    )


NODE_SILENT_FOR_OPERATOR = (
    "Not done: the machine ",
    ", which has the files, does not answer. Ask again when it is back.",
)
"""What stands around the name of the machine."""
WORKTREE_IS_BUSY = "Its worktree is being removed, reset, restored or set up."


# Refusals


def over_daily_limit(limit: int) -> str:
    used = format_count(limit, "request")
    return f"You have used your {used} for the day (`MAX_TURNS_PER_PERSON_PER_DAY`). Ask again tomorrow."


def over_hourly_limit(limit: int) -> str:
    used = format_count(limit, "comment")
    return f"The bot has written {used} in this thread within an hour (`MAX_COMMENTS_PER_HOUR`). Ask again later."


OF_CAP: dict[str, str] = {"turn": "for one request", "repository": "for this repository today", "day": "for all today"}


def cost_limit(reached: CapReached) -> str:
    """A cap of the day is reached before the request began."""
    spent = f"{format_dollars(reached.spent_usd)} of {format_dollars(reached.limit_usd)} {OF_CAP[reached.cap]}"
    return f"The cost limit is reached: {spent}. It resets at 00:00 UTC. Write `/retry` then."


def no_worktree(advice: str) -> str:
    """`advice` is a sentence that says what to do."""
    return f"The bot could not prepare the files for this thread. Nothing was changed. {truncate(advice)}"


def cannot_fetch(full_name: str) -> str:
    return (
        f"The bot cannot read {inline_code(full_name)} with git. Its operator must give its account access to the "
        "repository's contents. Then write `/retry`."
    )


def may_not_ask_any_more(login: str, why: str) -> str:
    return f"{inline_code(login)} may not ask the bot here any more: {why}."


GONE_FROM_GITHUB = "The text that asked for this is no longer on GitHub. Write it again if you want it done."
NOT_CONFIRMED = (
    "GitHub does not show this request as the bot was told of it: its text is another, or somebody else wrote it. "
    "Write the request again if you want it done."
)
OF_OUTSIDER = (
    "It has words of somebody without write access, and the agent has the repository's variables. Write the request "
    "again in your own words if you want it done."
)
KEEPS_VARIABLES = (
    "The agent of this thread was given the repository's variables, and its files, its HOME or its session may still "
    "hold them. So code and words of somebody without write access are not worked on here. Ask for that in a new "
    "thread, or let somebody with write access ask here in their own words."
)
NEEDS_TURN = "The rules of this repository want a turn of its own for it. Write the request again if you want it done."
ASKS_NO_MORE = "The text was edited meanwhile and asks the bot for nothing any more."


def head_moved(asked_sha: str | None) -> str:
    """The head of a fork's pull request may not be the commit that the request was made for, where that is known."""
    was_at = f" (it was at {inline_code(asked_sha[:10])})" if asked_sha else ""
    return f"The pull request has changed since you asked{was_at}. Look at the new commits and ask again."


# What to do where no worktree can be made or reset


def branch_gone(branch: str) -> str:
    """A pull request's head branch was deleted."""
    return f"The branch {inline_code(branch)} is no longer on GitHub. Restore it there, then ask again."


def branch_name_taken(branch: str, other: str) -> str:
    """The bot's copy has a branch of which one name is a folder of the other."""
    return (
        f"{inline_code(branch)} cannot be checked out while the bot's copy has {inline_code(other)}: git keeps no "
        "branch in a folder that is named like another branch. Close the thread of the other branch, then ask again."
    )


def branch_checked_out(branch: str, worktree: str | None = None) -> str:
    """`worktree` is the folder of the worktree that has the branch, where it is known."""
    where = inline_code(worktree) if worktree else "another worktree"
    return f"{inline_code(branch)} is checked out in {where}. Remove that worktree, then ask again."


# Ends


def stopped_by(login: str | None) -> str:
    return f"Stopped by {inline_code(login)}." if login else "Stopped on request."


def given_to_turn(turn: int) -> str:
    """Say what became of a request that the agent of another turn was told."""
    return f"Given to the agent of turn {turn}, which was at work."


def timed_out(kind: Literal["total", "idle"], seconds: float) -> str:
    """Name the limit that was reached, and its setting."""
    length = format_duration(timedelta(seconds=seconds))
    if kind == "total":
        return f"The agent was still working after {length} (`TURN_TIMEOUT_SECONDS`)."
    return f"The agent was silent for {length} (`TURN_IDLE_TIMEOUT_SECONDS`)."


def disk_full(limit_bytes: int) -> str:
    return f"This request used more disk space than a thread may use ({limit_bytes >> 30} GiB)."


def agent_error(words: str) -> str:
    """`words` are the agent's own."""
    return inline_code(truncate(words))


def agent_gone(how: str) -> str:
    """`how` is a predicate, such as `ended with exit status 1`."""
    return f"The agent {how} in the middle of its work."


def agent_unreadable(why: str) -> str:
    return f"The agent sent a message that could not be read: {inline_code(truncate(why))}"


_STOPPED = {
    "refusal": "The agent refused to continue",
    "max_tokens": "The agent reached its limit of tokens",
    "max_turn_requests": "The agent reached its limit of model requests for one request",
}


def agent_stopped(stop_reason: str | None) -> str:
    """`stop_reason` is the protocol's: https://agentclientprotocol.com/protocol/prompt-turn#stop-reasons"""
    words = _STOPPED.get(stop_reason or "", "The agent stopped for an unknown reason")
    return f"{words} ({inline_code(truncate(str(stop_reason)))})."


def wrong_session(session: str) -> str:
    return f"The agent continued in another session than the one of this thread ({inline_code(truncate(session))})."


def model_key_refused(status: object) -> str:
    """`status` is the HTTP status."""
    return f"The model API does not accept the key (HTTP status {clause(str(status))})."


def model_refused(waited: timedelta) -> str:
    """Say why the bot waits no longer; how the agent's last attempt ended follows."""
    return f"The agent's model took no requests for {format_duration(waited)}, so the bot tries no more. The last try:"


def agent_not_started(why: str, next_step: str) -> str:
    """`why` is a sentence; `next_step` tells the operator what to do."""
    return f"The agent could not start. {clause(why)}. {clause(next_step)}."


Unopened = tuple[str, str]
"""Why no session could be opened, as a sentence, and the operator's next step."""


def not_startable(program: str, why: str | None, path: object = None) -> Unopened:
    """`why` are the system's words, `path` what they are about; `program` is a name or a command."""
    said = f"{why}: {path}" if path else why
    step = "Check that the worktree's directory is there, and AGENT_COMMAND if it is set."
    return f"{program} could not be started: {said}", step


def claude_not_ready(how: str) -> Unopened:
    """`how` is a predicate."""
    step = "The end of its output says why. `threadtree doctor` starts it without a turn."
    return f"Claude Code {how} when asked to start.", step


def no_protocol(command: str, how: str, what: str) -> Unopened:
    """`how` is a predicate, `what` the agent was asked to do."""
    step = "Check that AGENT_COMMAND is a program that is installed and speaks the Agent Client Protocol on stdio."
    return f"`{command}` {how} when asked to {what}.", step


def other_protocol(command: str, version: object, wanted: int) -> Unopened:
    words = f"`{command}` speaks version {version} of the Agent Client Protocol, not {wanted}."
    return words, "Install a version of the agent that speaks it."


def no_mcp_transport(command: str, server: str, transport: str) -> Unopened:
    step = f"Take the server out of MCP_CONFIG, or use `type` stdio or one that the agent knows instead of {transport}."
    return f"`{command}` cannot use the MCP server {inline_code(server)} over {transport}.", step


def session_without_id(command: str) -> Unopened:
    return f"`{command}` began a session without an id.", "Update the agent."


def agent_refused(command: str, what: str, error: str, *, needs_login: bool) -> Unopened:
    """`what` the agent was asked to do; `error` are its words."""
    if needs_login:
        step = "Give the agent its key or login. AGENT_ENV names the variables that it gets."
        return f"`{command}` wants to be logged in: {error}", step
    return f"`{command}` could not {what}: {error}", "Look this error up in the agent's documentation."


def silent_for(seconds: float) -> str:
    """Return a predicate."""
    return f"gave no answer within {seconds:g} s"


def too_long_message(limit_bytes: int) -> str:
    """Return a predicate."""
    return f"sent a message of more than {limit_bytes >> 20} MB"


def program_ended(status: int | None) -> str:
    """Return a predicate; a negative status is a signal, None a program that runs and says no more."""
    if status is None:
        return "closed its connection"
    return f"ended with exit status {status}" if status >= 0 else f"was ended by signal {-status}"


def brings_plugin(agent: str, found: str) -> Unopened:
    """`found` is a file of the branch that the agent might run."""
    what = f"This repository brings a plugin for the agent, or a file that may name one (`{found}`)."
    return (
        f"{what} {agent} runs plugins even where they are switched off.",
        f"Take `{found}` out of the branch, or choose another AGENT.",
    )


def models(offered: Sequence[str]) -> str:
    """Return the names of models in a sentence."""
    more = f" and {len(offered) - MOST_NAMED} more" if len(offered) > MOST_NAMED else ""
    return ", ".join(offered[:MOST_NAMED]) + more


def no_such_model(name: str, offered: Sequence[str]) -> Unopened:
    """The agent does not offer the model; `offered` are the names of those that it does, as it says."""
    if not offered:
        return f"The agent offers no choice of models, so not {name}.", "Write /model default, then /retry."
    return (
        f"The agent has no model {name}. It offers {models(offered)}.",
        "Write /model with one of these, or /model default, then /retry.",
    )


def brings_skills(agent: str, folders: Iterable[str]) -> Unopened:
    """The branch has, in one of the `folders`, skills that cannot all be switched off."""
    return (
        f"This branch has too many skills in {' or '.join(folders)}, or a link there that leads out of the repository. "
        f"{agent} would load them, while only those of the default branch count.",
        "Take them out of the branch, or choose another AGENT.",
    )


def trouble(what: str, lasts: WaitReason | None = None) -> str:
    """Git, GitHub or the disk failed in a way that a retry may cure. What `lasts` was waited for a day."""
    known = f"{_WAITS[lasts]} The bot tried for a day" if lasts else "The bot could not carry this out"
    return f"{known}: {inline_code(truncate(what))}"


def own_error(turn: int) -> str:
    return f"The bot hit an internal error. Its operator finds it in the log under turn {turn}."


# Why a worktree was not removed: what would be lost, as a clause

UNFINISHED_WORKTREE = "it was never finished"
MADE_AGAIN = "something made its directory again while it was removed"


def not_examined(error: Exception) -> str:
    return f"it could not be examined or moved away: {error}"


def no_worktree_here(why: str) -> str:
    return f"the directory is not a worktree of this repository: {why}"


def only_here(files: int, commits: int) -> str:
    """Work that is not on GitHub: without files and commits it is a stash or a merge, rebase or the like."""
    parts = [format_count(files, "uncommitted file")] if files else []
    parts += [format_count(commits, "commit")] if commits else []
    return f"it has {' and '.join(parts) or 'stashed or unfinished changes'} that GitHub has not"


def hidden_edits(name: str) -> str:
    return f"edits of {name!r} would not be seen (skip-worktree or assume-unchanged)"
