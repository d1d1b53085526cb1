"""Answers to commands, and to requests that could not be handled."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from difflib import get_close_matches

from bot.messages import reasons
from bot.messages.formatting import format_count, format_duration, format_moment, inline_code, truncate

HELP_SUMMARY = "shows this list"
STATUS_SUMMARY = "shows what is running, what is queued, and the branch"
STOP_SUMMARY = "stops the running request; `/stop all` also drops the queued ones"
RETRY_SUMMARY = "reruns the last request that did not finish"
RESET_CONTEXT_SUMMARY = "starts a new conversation with the agent and keeps the files"
RESET_SUMMARY = "starts a new conversation and resets the files; work that is not on GitHub is rescued first"
WORKTREE_SUMMARY = "manages this thread's files and rescued work: `list`, `reset`, `remove`, `restore` or `prune`"
PR_SUMMARY = "opens a pull request for this thread's branch; `/pr draft` opens a draft, and a title may follow"
CONTEXT_RESET = (
    "AI context reset. Your next message will start a fresh conversation while keeping your current working directory."
)
ASK_AGAIN = (
    "The bot was away when this was asked, and the text was edited since. It cannot tell who asked for what, so "
    "nothing was done. Please ask again in a new comment."
)
NO_SESSION_TO_RESET = "No active session to reset."
NOTHING_TO_STOP = "Nothing is running, so there is nothing to stop."
NOTHING_TO_RETRY = "There is no unfinished request here, so there is nothing to retry."


def help_text(mention: str, commands: Iterable[tuple[str, str]]) -> str:
    """`mention` is the bot's name without the `@`; `commands` are names with their summaries."""
    lines = "\n".join(f"- `/{name}` {summary}" for name, summary in commands)
    return (
        f"Mention {inline_code(f'@{mention}')} with a request, and an agent works on it on a branch of this thread. "
        f"A command stands alone on its line:\n\n{lines}"
    )


def unknown_command(words: str, names: Iterable[str]) -> str:
    """`words` follow a mention and are no command; `names` are the commands that exist."""
    near = get_close_matches(words.lower(), list(names), n=1)
    advice = f"Did you mean `/{near[0]}`?" if near else "`/help` lists the commands."
    return f"There is no command {inline_code(truncate(f'/{words}'))}. {advice}"


def status(
    branch: str | None,
    running_for: timedelta | None,
    waiting: int,
    *,
    session_active: bool,
    wait: str | None = None,
    not_posted: int | None = None,
    silent: str | None = None,
    removal_error: str | None = None,
) -> str:
    """Describe the conversation at a glance. `wait` are the words of `reasons.waits` for the first request.

    `not_posted` is a turn whose answer GitHub refused. `silent`: the words of `node_silent_since`. `removal_error`: why
    files that are in its way cannot be removed.
    """
    work = "Idle." if running_for is None else f"A request has been running for {format_duration(running_for)}."
    if wait:
        work = f"A request waits. {wait}"
    queued = f"{format_count(waiting, 'request')} queued." if waiting else "No requests queued."
    where = "There is no branch yet." if branch is None else f"The branch is {inline_code(branch)}."
    memory = (
        "The agent remembers this conversation."
        if session_active
        else "The next request starts a new conversation with the agent."
    )
    refused = (
        ""
        if not_posted is None
        else f"\n\nGitHub did not accept the answer of turn {not_posted}. The bot's operator finds the reason in "
        "`threadtree turns list`."
    )
    stuck = reasons.removal_fails(removal_error) if removal_error else None
    more = "".join(f"\n\n{words}" for words in (silent, stuck) if words)
    return f"{work} {queued}\n\n{where} {memory}{refused}{more}"


def node_silent_since(node: str, since: datetime, now: datetime) -> str:
    """`node` is the name of the machine that has the thread's worktree."""
    return (
        f"The machine {inline_code(node)}, which has this thread's worktree, does not answer. It was last seen "
        f"{format_moment(since, now)}. The next request does not wait for it: it runs on another machine, if there is "
        f"one, from what is on GitHub. Work that was not pushed stays on {inline_code(node)}."
    )


def delivery_failed(guid: str) -> str:
    """Answer a delivery whose handling failed for good."""
    return f"The bot could not handle this. {_replay(guid)}"


def delivery_unreadable(guid: str) -> str:
    """Answer a delivery that lacks a field that the bot needs."""
    return f"The bot could not read what GitHub sent about this, so nothing was done. {_replay(guid)}"


def _replay(guid: str) -> str:
    return f"Its operator can repeat it with {inline_code(f'threadtree deliveries replay {guid}')}."
