"""What is wrong in a repository's `.threadtree/config.toml`: sentences of Markdown, for threads and the operator."""

from collections.abc import Iterable, Sequence

from bot.thread.formatting import clause, format_count, inline_code, truncate

STILL_HOLDS = "What held before still holds."
UNREADABLE = (
    "What the bot read before still holds; where it knows no file of before, only people with admin or maintain access "
    "can ask the bot until this one is right."
)
ONLY_MAINTAINERS = "Until it is right, only people with admin or maintain access can ask the bot here."
ALWAYS_PLANNED = "Until it is right, every request is planned first."

EVERY = 'a time such as "mon 06:00" or "day 06:00" (UTC), or an interval from "15m" to "744h" such as "6h" or "30m"'


def one_of(values: Iterable[str]) -> str:
    return "one of " + ", ".join(f'"{value}"' for value in values)


def wrong(key: str, line: int, must_be: str, instead: str) -> str:
    """`must_be` says what the value must be, `instead` what holds until then; empty: as if the key were not there."""
    return f"Line {line}: {inline_code(key)} must be {must_be}. {instead}".rstrip()


def unknown(key: str, line: int, near: str | None) -> str:
    advice = f"did you mean {inline_code(near)}?" if near else "take it out."
    return f"Line {line}: {inline_code(truncate(key))} is no key of this file; {advice}"


def more_unknown(count: int) -> str:
    return f"{format_count(count, 'more key')} {'is' if count == 1 else 'are'} unknown."


def wrong_entry(line: int, key: str, must_be: str) -> str:
    """One key of an entry of `[[standing]]` is wrong, or not there."""
    return wrong(key, line, must_be, "This `[[standing]]` asks nothing until it is right.")


def unknown_in_entry(line: int, key: str) -> str:
    return f"Line {line}: {inline_code(truncate(key))} is no key of `[[standing]]`; it asks nothing until it is right."


def entry_is_there_twice(line: int, first: int) -> str:
    return f"Line {line}: this `[[standing]]` is the one of line {first} again; it counts once."


def too_many_entries(line: int, most: int) -> str:
    return f"Line {line}: only the first {most} `[[standing]]` count; this one and those after it ask nothing."


def beyond(key: str, line: int, setting: str, value: str) -> str:
    """The operator's setting does not allow what the key asks for."""
    return (
        f"Line {line}: {inline_code(key)} asks for more than the bot's operator allows: "
        f"{inline_code(f'{setting}={value}')} holds."
    )


def as_written(value: object) -> str:
    """Return the value of a setting as an operator writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unreadable(why: str) -> str:
    return f"Nothing in it counts, since {why}."


def no_toml(problem: str) -> str:
    """`problem` is the parser's sentence, which names the line."""
    return f"it is no TOML: {clause(problem)}"


def irregular(most_bytes: int) -> str:
    return f"it is no ordinary file of at most {most_bytes // 1024} KB"


def notice(branch: str, problems: Sequence[str], *, is_read: bool) -> str:
    """For a thread, once: the file on the default branch needs a correction. `is_read`: what is right in it holds."""
    lines = "".join(f"\n- {one}" for one in problems)
    rest = " The keys named here count as not there until they are right; all others hold." if is_read else ""
    return f"`.threadtree/config.toml` on {inline_code(branch)} needs a correction.{rest}{lines}"
