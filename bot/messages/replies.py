"""Every sentence that people read on GitHub, except a turn's own comment (`bot.messages.tracking`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches

from bot.messages.formatting import format_duration, inline_code, truncate

HELP_SUMMARY = "shows this list"
STATUS_SUMMARY = "says what is running, what waits, and on which branch"
STOP_SUMMARY = "stops the running request; `/stop all` also drops those that wait"
RETRY_SUMMARY = "runs the last request again that did not finish"
RESET_CONTEXT_SUMMARY = "starts a fresh conversation with the agent and keeps the files as they are"
RESET_SUMMARY = "starts both over, the conversation and the files; what is not on GitHub is rescued first"
WORKTREE_SUMMARY = "with `list`, `reset`, `remove`, `restore` or `prune`: the files, and what was rescued of them"
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


def help_text(mention: str, commands: Iterable[tuple[str, str]]) -> str:
    """`mention`: the bot's name without the `@`; `commands`: the name and the summary of each."""
    lines = "\n".join(f"- `/{name}` {summary}" for name, summary in commands)
    return (
        f"Mention {inline_code(f'@{mention}')} with a request, and an agent works on it in this conversation's "
        f"worktree. A command stands alone on its line:\n\n{lines}"
    )


def unknown_command(words: str, names: Iterable[str]) -> str:
    """Words after a mention that are no command; `names`: the commands that exist."""
    near = get_close_matches(words.lower(), list(names), n=1)
    advice = f"Did you mean `/{near[0]}`?" if near else "`/help` lists the commands."
    return f"There is no command {inline_code(truncate(f'/{words}'))}. {advice}"


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


def nothing_to_stop() -> str:
    return "Nothing is running, so there is nothing to stop."


def nothing_to_retry() -> str:
    return "Every request here finished, so there is nothing to retry."


def gave_up(guid: str) -> str:
    """A delivery whose handling failed for good."""
    return (
        "This could not be handled, and trying again did not help. "
        f"Whoever runs the bot can repeat it with {inline_code(f'threadtree deliveries replay {guid}')}."
    )
