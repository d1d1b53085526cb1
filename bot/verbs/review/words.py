"""The text of a review, whose remarks stand on lines of the diff: values in, Markdown out."""

from collections.abc import Sequence

from bot.github.answers import LineRemark
from bot.thread.formatting import format_count, inline_code, truncate

NO_REMARKS = "No remarks."
ON_THE_LINES = "The remarks are on the lines of the diff."
NOT_LEFT = "The agent left no `review.json`, so this is its answer as it stands: no remark is on a line of the diff."
UNREADABLE = (
    "The agent's `review.json` could not be read, so this is its answer as it stands. Write `/review` for another try."
)
CHANGED_ALL_THE_SAME = (
    "The agent changed files while it should only review: it runs without a sandbox. Nothing of that was committed. It "
    "is left in the worktree, and the next request that changes files would push it; `/worktree reset` takes it back."
)
OTHER_FILES = "The bot's files are not at this commit: the agent could read it with git, and run nothing of it."
WHY_OPENED = (
    "`.threadtree/config.toml` asks for one review of each pull request that is opened. Write `/review` for another, "
    "after a push for example."
)
ASKED_NO_MORE = "`.threadtree/config.toml` asks for no reviews by now. Write `/review` for one."
_ON_NO_LINE = "**Remarks that are on no line of the diff**"


def add_remarks(text: str, remarks: Sequence[tuple[str, str]]) -> str:
    """Return the review's text with these remarks below it, each a place and what is said of it."""
    if not remarks:
        return text
    title = () if _ON_NO_LINE in text else (_ON_NO_LINE,)
    return "\n\n".join([text, *title, *(f"{inline_code(truncate(place))}\n\n{body}" for place, body in remarks)])


def place(path: str, line: object, start_line: object = None) -> str:
    """Return where a remark is. What an agent gave as its lines may be anything: only numbers are shown."""
    begin, end = (one if type(one) is int else None for one in (start_line, line))
    if end is None:
        return path
    return f"{path}:{end}" if begin in (None, end) else f"{path}:{begin}-{end}"


def with_remarks(text: str, remarks: Sequence[LineRemark]) -> str:
    """Return the review's text with all remarks in it, none on its line."""
    return add_remarks(text, [(place(one.path, one.line, one.start_line), one.body) for one in remarks])


def left_out(dropped: int, most: int, longest: int) -> str:
    """`dropped` remarks were too many, too long (more than `longest` characters), or not in the form that was told."""
    return (
        f"Left out: {format_count(dropped, 'remark')} of the agent. At most {most} are posted, of at most {longest:,} "
        "characters each, in the form that the agent was told."
    )


def summary_cut(longest: int) -> str:
    """The agent's summary was longer."""
    return f"The agent's summary was too long: only its first {longest:,} characters are here."


def repeated(number: int) -> str:
    """`number` remarks stand word for word in an open thread of the bot."""
    return f"Left out: {format_count(number, 'remark')} that an earlier review made and whose lines did not change."
