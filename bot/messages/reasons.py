"""Why a turn was refused, or ended otherwise than `done`: what the first line of its answer says."""

from datetime import timedelta
from typing import Literal

from bot.messages.formatting import clause, format_count, format_duration, inline_code, inline_text, truncate

# Refusals


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


# Ends


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
    return f"The agent could not finish. {clause(why)}."


def agent_not_started(why: str, next_step: str) -> str:
    """`why` is a sentence; `next_step` is for whoever runs the bot."""
    return f"The agent could not start. {clause(why)}. {inline_text(truncate(next_step))}"


def trouble(what: str) -> str:
    """Git, GitHub or the disk failed in a way that trying again may cure."""
    return f"It could not be carried out: {clause(what)}."


def own_error(turn: int) -> str:
    return f"The bot met an error of its own. Whoever runs it finds it in the log, under turn {turn}."
