"""What people read of what a repository asks again and again."""

from bot.thread.authority import MARKER
from bot.thread.formatting import code_block, inline_code, one_line

FAILED = "its last three requests failed"
LONGEST_TITLE = 80


def title(ask: str) -> str:
    """Return the title of the issue."""
    line = one_line(ask)
    return line if len(line) <= LONGEST_TITLE else f"{line[: LONGEST_TITLE - 1].rstrip()}…"


def body(every: str, ask: str, login: str, line: int, link: str | None, marker: str) -> str:
    """Return the text of the issue that the bot opens for one time."""
    place = f"Line {line} of `.threadtree/config.toml`"
    return (
        f"{f'[{place}]({link})' if link else place} asks for this ({inline_code(every)}, UTC), on the authority of "
        f"{inline_code(login)}:\n\n{code_block(ask)}\n\n"
        "The next time asks here again, or in a new issue once this one is closed or has an open pull request. To end "
        f"it, take the entry out of the file.\n\n{marker}"
    )


def marker(key: str, at: str) -> str:
    """Return the invisible end of the issue for one time, by which it is found again."""
    return f"{MARKER}standing={key} at={at} -->"


def no_account(login: str) -> str:
    return f"GitHub has no account {inline_code(login)}"


def may_not_ask(login: str, why: str) -> str:
    return f"{inline_code(login)}, for whom it asks, may not ask: {why}"


def no_issue(why: str) -> str:
    return f"GitHub opens no issue for it: {why}"


def paused(problem: str) -> str:
    """Say on the last thread, once, that nothing is asked until somebody acts."""
    step = (
        "It asks again after a `/retry` here that is done, or as a new one once its entry in `.threadtree/config.toml` "
        "is changed."
        if problem == FAILED
        else "It asks again at its next time after that is right."
    )
    return f"This standing request is paused: {problem}. {step}"
