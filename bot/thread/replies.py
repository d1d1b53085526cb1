"""Answers to commands, and to requests that could not be handled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from bot.ask import UnfinishedTurn
from bot.model import Repository
from bot.thread import reasons, tracking
from bot.thread.agent_choice import Worker
from bot.thread.formatting import (
    clause,
    format_count,
    format_dollars,
    format_duration,
    format_moment,
    inline_code,
    truncate,
    url_target,
)
from bot.thread.links import branch_page
from bot.thread.waits import Waiting
from bot.thread.worktree_replies import threads


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a conversation. `branch` is None without a worktree; `others` are the threads that share it.

    `pushed_to` is the branch where work was pushed last, and `net` what it then was against `base_branch`: changed
    files, commits ahead and behind. `agent` and what follows are of the session, None without one. `rescues` were not
    restored. `cost_usd` is what is known of the `turns`; of the `untold` that is nothing. `not_posted` is
    the last turn whose answer GitHub refused. `silent_node`: the name of its machine, which gives no sign of life since
    `silent_since`. `removal_error`: why the files of a worktree that is in its way, or its own, cannot be removed.
    """

    branch: str | None = None
    pushed_to: str | None = None
    base_branch: str | None = None
    net: tuple[int, ...] = ()
    pull_request: int | None = None
    others: tuple[int, ...] = ()
    agent: str | None = None
    session_since: datetime | None = None
    session_turns: int | None = None
    model: str | None = None
    rescues: int = 0
    turns: int = 0
    cost_usd: float | None = None
    untold: int = 0
    not_posted: int | None = None
    silent_node: str | None = None
    silent_since: datetime | None = None
    removal_error: str | None = None


_MOST_QUEUED = 10

HELP_SUMMARY = "shows this list"
STATUS_SUMMARY = "shows what is running, what is queued, the branch, the conversation and the cost"
STOP_SUMMARY = "stops the running request; `/stop all` also drops the queued ones"
RETRY_SUMMARY = "reruns the last request that did not finish"
RESET_CONTEXT_SUMMARY = "starts a new conversation with the agent and keeps the files"
WORKTREE_SUMMARY = "manages this thread's files and rescued work: `list`, `reset`, `remove`, `restore` or `prune`"
REVIEW_SUMMARY = "reviews this pull request with remarks on its lines; words that follow say what to look at above all"
CONTEXT_RESET = (
    "AI context reset. Your next message will start a fresh conversation while keeping your current working directory."
)
NO_SESSION_TO_RESET = "No active session to reset."
NOTHING_TO_REVIEW = "`/review` is for pull requests: there is nothing to review on an issue."
NOTHING_TO_STOP = "Nothing is running, so there is nothing to stop."
NOTHING_TO_RETRY = "There is no unfinished request here, so there is nothing to retry."


def help_text(mention: str, commands: Iterable[tuple[str, str]], *, bare: bool = True) -> str:
    """`mention` is the bot's name without the `@`; `commands` are names with their summaries.

    `bare`: a command needs no mention.
    """
    mentioned = inline_code(f"@{mention} /status")
    how = "A command stands alone on its line" if bare else f"A command follows a mention, such as {mentioned}"
    lines = "\n".join(f"- `/{name}` {summary}" for name, summary in commands)
    return (
        f"Mention {inline_code(f'@{mention}')} with a request, and an agent works on it on a branch of this thread. "
        "On a pull request that the bot opened, reviews and comments on lines need no mention. "
        f"{how}:\n\n{lines}"
    )


def unknown_command(words: str, names: Iterable[str]) -> str:
    """`words` follow a mention and are no command; `names` are the commands that exist."""
    near = get_close_matches(words.lower(), list(names), n=1)
    advice = f"Did you mean `/{near[0]}`?" if near else "`/help` lists the commands."
    return f"There is no command {inline_code(truncate(f'/{words}'))}. {advice}"


def status(
    now: Overview,
    unfinished: Sequence[UnfinishedTurn],
    server_url: str,
    repository: Repository,
    number: int,
    at: datetime,
    wait: str | None = None,
    chosen: Worker | None = None,
    *,
    waits: Sequence[Waiting] = (),
) -> str:
    """Describe the thread `number` at a glance. `unfinished` turns are its own, and those of others in its worktree.

    `wait` says why the first of them does not run; `chosen`: who works on the next one, where that was chosen; `waits`:
    what waits for a person.
    """

    def named(turn: UnfinishedTurn) -> str:
        if turn.number is None:
            return f"{inline_code(turn.ask.verb)} (asked by {clause(turn.ask.by.login)})"
        asked = tracking.asked(turn.ask, server_url, repository, turn.number, turn.id)
        return tracking.request_link(asked) + (f" in #{turn.number}" if turn.number != number else "")

    parts = []
    for turn in unfinished:
        if turn.state == "running":
            took = f" for {format_duration(at - turn.started_at)}" if turn.started_at else ""
            step = f" Last step: {inline_code(truncate(turn.step))}." if turn.step else ""
            added = f", with {format_count(turn.messages, 'message')} added" if turn.messages else ""
            parts.append(f"Working on {named(turn)}{added}{took}.{step}")
    parts = parts or [f"A request waits. {wait}" if wait else "Idle."]
    queue = [named(turn) for turn in unfinished if turn.state == "queued"]
    if len(queue) > 1:
        shown = "\n".join(f"{place}. {words}" for place, words in enumerate(queue[:_MOST_QUEUED], 1))
        left = len(queue) - _MOST_QUEUED
        parts.append(f"Queued:\n\n{shown}" + (f"\n\nAnd {left} more." if left > 0 else ""))
    else:
        parts[-1] += f" Queued: {queue[0]}." if queue else " No requests queued."
    facts = _facts(now, f"{server_url}/{repository.full_name}", at, chosen)
    told = {turn.id for turn in unfinished}
    parts.append("\n".join(f"- {line}" for line in (*(one.line for one in waits if one.turn_id not in told), *facts)))
    if now.not_posted is not None:
        parts.append(
            f"GitHub did not accept the answer of turn {now.not_posted}. The bot's operator finds the reason in "
            "`threadtree turns list`."
        )
    if now.silent_node is not None and now.silent_since is not None:
        parts.append(_node_silent_since(now.silent_node, now.silent_since, at))
    if now.removal_error:
        parts.append(reasons.removal_fails(now.removal_error))
    return "\n\n".join(parts)


def _facts(now: Overview, web: str, at: datetime, chosen: Worker | None) -> Iterator[str]:
    """Yield what is known of the thread's branch, pull request, worktree, session, rescues and cost."""
    branch = now.branch or now.pushed_to
    shown = inline_code(branch) if branch else ""
    if branch and branch == now.pushed_to:
        shown = f"[{shown}]({url_target(branch_page(web, branch))})"
    if branch is None:
        yield "No branch yet"
    elif now.branch is None:
        yield f"The work so far is on {shown}. The next request continues there, unless it was merged or deleted"
    elif now.branch == now.pushed_to and now.net and now.base_branch:
        files, ahead, behind = now.net
        yield (
            f"Branch {shown}. When it was last pushed: {format_count(files, 'file')} changed, "
            f"{format_count(ahead, 'commit')} ahead of {inline_code(now.base_branch)}, {behind} behind"
        )
    else:
        yield f"Branch {shown}"
    if now.pull_request is not None:
        yield f"Pull request #{now.pull_request}"
    if now.others:
        yield f"Files shared with {threads(now.others)}"
    model = f", with the model {inline_code(chosen[1])}" if chosen and chosen[1] else ""
    if chosen is not None and chosen[0] != now.agent:
        yield f"The next request starts a new conversation with {inline_code(chosen[0])}{model}"
    elif now.agent is not None and now.session_since is not None:
        agent = f"{clause(now.agent)}, {clause(now.model)}" if now.model else clause(now.agent)
        since, requests = format_duration(at - now.session_since), format_count(now.session_turns or 0, "request")
        yield f"The agent ({agent}) remembers {requests}, of the last {since}"
        if model:
            yield f"The next request goes to it{model}"
    else:
        yield "The next request starts a new conversation with the agent"
    if now.rescues:
        yield f"Rescued work: {now.rescues} (`/worktree list` shows it)"
    if now.cost_usd is not None:
        least, untold = ("≥ ", f"; of {now.untold} not all is known") if now.untold else ("", "")
        cost = f"{least}{format_dollars(now.cost_usd)} for {format_count(now.turns, 'request')}"
        yield f"Cost of this thread: {cost}{untold}"


def _node_silent_since(node: str, since: datetime, now: datetime) -> str:
    """`node` is the name of the machine that has the thread's worktree."""
    return (
        f"The machine {inline_code(node)}, which has this thread's worktree, does not answer. It was last seen "
        f"{format_moment(since, now)}. The next request does not wait for it: it runs on another machine, if there is "
        f"one, from what is on GitHub. Work that was not pushed stays on {inline_code(node)}."
    )


def may_not_ask(login: str, why: str) -> str:
    """Tell a person, once, why the bot does nothing for them. `why` is a clause of `bot.thread.authority`."""
    return f"Nothing was done for `{login}`: {why}. The bot says this once; from now on it only reacts with 😕."


def may_not_tick(login: str, why: str) -> str:
    """Say below the boxes why a tick did nothing. `why` is as in `may_not_ask`."""
    return f"Nothing was done for `{login}`, who ticked: {why}."


def silent(limit: int, until: datetime, now: datetime) -> str:
    """Tell a thread, once an hour, that it has `limit` comments of the bot within an hour."""
    return (
        f"The bot has written {format_count(limit, 'comment')} here within an hour, which is its limit "
        f"(`MAX_COMMENTS_PER_HOUR`). It goes on {format_moment(until, now)}: ask again then. Until then it only reacts "
        "with 😕 to what it is asked here. What it works on already is still answered, and `/stop` works."
    )


def delivery_failed(guid: str, *, waited: bool = False) -> str:
    """Answer a delivery whose handling failed for good, after a day where it `waited` for GitHub."""
    if waited:
        return f"The bot tried for a day to ask GitHub about this, without success. Write it again. {_replay(guid)}"
    return f"The bot could not handle this. {_replay(guid)}"


def delivery_unreadable(guid: str) -> str:
    """Answer a delivery that lacks a field that the bot needs."""
    return f"The bot could not read what GitHub sent about this, so nothing was done. {_replay(guid)}"


def _replay(guid: str) -> str:
    return f"Its operator can repeat it with {inline_code(f'threadtree deliveries replay {guid}')}."
