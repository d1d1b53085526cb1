"""Failing checks of what the bot pushed: why it works on them, when it stops, `/autofix`."""

from collections.abc import Collection

from bot.thread.formatting import format_count, format_list, inline_code, url_target

SUMMARY = "mends failing checks of what the bot pushes here: `/autofix on`, `/autofix off`; alone it shows which holds"
NOTHING_PUSHED = "Nothing was pushed, so the checks do not run again, and the bot makes no further attempt by itself."
FORBIDDEN = "Nobody can switch this on here: the bot's operator, or `.threadtree/config.toml`, set `autofix` to false."


def attempt(head: str, url: str, names: Collection[str], number: int, most: int) -> str:
    """Return why nobody has to ask: checks of these names fail on the commit `head` that the bot pushed."""
    verb = "fails" if len(names) == 1 else "fail"
    return f"{format_list(sorted(names))} {verb} on {_commit(head, url)}. Attempt {number} of {most} to mend that."


def worked_on(head: str, url: str, names: Collection[str], number: int, thread_url: str, *, goes_on: bool) -> str:
    """Return what the pull request is told where the thread `number` asked for the work: the answer is there."""
    verb = "fails" if len(names) == 1 else "fail"
    there = f"[#{number}]({url_target(thread_url)})"
    then = f"The bot works on that and answers in {there}." if goes_on else f"The bot does not go on: {there} says why."
    return f"{format_list(sorted(names))} {verb} on {_commit(head, url)}. {then}"


def gave_up(head: str, url: str, names: Collection[str], attempts: int, base: str) -> str:
    tries = "an attempt" if attempts == 1 else f"{attempts} attempts"
    still = _still_fails(head, url, names, tries, base)
    return f"{still}: the bot stops here until somebody asks it again."


def enough_for_a_day(head: str, url: str, names: Collection[str], attempts: int, base: str) -> str:
    still = _still_fails(head, url, names, f"{attempts} attempts in 24 hours", base)
    return f"{still}: the bot makes no further one by itself for now. Ask it, if you want it to go on."


def _still_fails(head: str, url: str, names: Collection[str], tries: str, base: str) -> str:
    verb = "fails" if len(names) == 1 else "fail"
    return (
        f"{format_list(sorted(names))} still {verb} on {_commit(head, url)} after {tries}, and not on "
        f"{inline_code(base)}"
    )


def passing(*, but_for_base: bool = False, is_part: bool = False) -> str:
    """Return the line below the answer to the last attempt. `is_part`: the bot may not read all checks."""
    which = "Checks that the bot may read" if is_part else "Checks"
    return (
        f"**{which} pass now**, but for those that fail on the base too." if but_for_base else f"**{which} pass now.**"
    )


def request(head: str, failed: int) -> str:
    """Return what the agent is asked. The names and the logs are foreign: they stand above, as material."""
    those = "The check that is told above has" if failed == 1 else "The checks that are told above have"
    return (
        f"{those} failed on the commit {head}, which you pushed, and not on the base. Find out why from the end of the "
        "log and the code, and mend the cause. Do not switch off, skip or weaken a check to make it pass. If the cause "
        "is not in this branch (a service that was away, say), change nothing and say so."
    )


FAILS_NO_MORE = "The checks that failed do not fail any more."
SWITCHED_OFF = "Failing checks are not mended here any more."
NOT_OPEN = "The pull request of this branch is not open any more."


def moved_on(head: str) -> str:
    """The branch has another commit by now than the one whose checks failed."""
    return f"The branch has moved on from {inline_code(head[:7])}, whose checks failed."


def switched(*, on: bool, most: int) -> str:
    if on:
        return (
            "Failing checks of what the bot pushes here are mended from now on, but for those that fail on the base "
            f"too: at most {format_count(most, 'attempt')} after each request."
        )
    return (
        "Failing checks of what the bot pushes here start no request any more. One that runs goes on: `/stop` ends it."
    )


def shown(*, on: bool, is_chosen: bool, most: int) -> str:
    """`is_chosen`: by this thread's people."""
    how = "was chosen for this thread" if is_chosen else "is the rule here"
    other = "`/autofix off` ends that" if on else "`/autofix on` changes that"
    limit = f", at most {format_count(most, 'attempt')} after each request" if on else ""
    return f"Failing checks of what the bot pushes here are {'' if on else 'not '}mended{limit}. This {how}; {other}."


def _commit(head: str, url: str) -> str:
    return f"[{inline_code(head[:7])}]({url_target(url)})"
