"""What the host tells of a repository's check, `.threadtree/check`: a line, sentences below it, and a fold."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from bot.thread.formatting import format_count, format_duration, format_list, inline_code, url_target
from bot.thread.outcome import Check, CheckState

SCRIPT = ".threadtree/check"
RUNNING = f"Running `{SCRIPT}`."
PICTURES = "Add pictures of a check"
"""The subject of the commits that hold nothing else."""
BEFORE = "before"
"""What the names of pictures of the default branch begin with."""
ASKED = "The agent was told once, and worked on."
CHANGED_NOTHING = "The agent was told once, and changed nothing."
AFTER = "**After the check**"
"""Above what the agent says when it was told of a failure."""


_OF_THE_HOST = ("checkpassed", "checkfailed", "checkdidnotrun")
# Letters of other alphabets that look like those of these words.
_LOOKS_LIKE = str.maketrans("аαсϲԁеҽƒһհіιıӏןкκпոоοօрρгѕтτսυ", "aaccdeefhhiiillkknnooopprsttuu")
_LATEX = re.compile(r"\\[A-Za-z]+")


def begins_as_hosts(line: str) -> bool:
    """Return whether a line of the page begins, for a reader's eye, as only the host's line on a check does."""
    return any(_letters(one).startswith(_OF_THE_HOST) for one in {line, _LATEX.sub("", line)})


def _letters(line: str) -> str:
    known = line.casefold().translate(_LOOKS_LIKE)
    known = unicodedata.normalize("NFKD", known).translate(_LOOKS_LIKE)
    return "".join(letter for letter in known if "a" <= letter <= "z")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a check ended: `failure` is a clause, None where it passed; the names of tests are foreign text. `unread` are
    reports, `unshown` pictures.
    """

    failure: str | None
    passed: Collection[str] = frozenset()
    failed: Collection[str] = frozenset()
    skipped: int = 0
    unread: int = 0
    unshown: int = 0


@dataclass(frozen=True, slots=True)
class Base:
    """The check on the branch `name` that the work is compared with. `now`: on its newest commit, not on an earlier."""

    name: str
    ran: Ran
    now: bool = True


def result(ran: Ran, seconds: float, base: Base | None) -> Check:
    """Return how a check ended, as data. It fails on the base too where nothing failed that passes there."""
    names = {*ran.passed, *ran.failed}
    known = {*base.ran.passed, *base.ran.failed} if base is not None else set()
    state: CheckState = "passed"
    if ran.failure is not None:
        is_new = base is None or not base.now or base.ran.failure is None or {*ran.failed} & {*base.ran.passed}
        state = "failed" if is_new else "failed-on-base-too"
    new = len(names - known) if known else 0
    return Check(state, len(ran.passed) + len(ran.failed), len(ran.failed), new, ran.skipped, round(seconds, 3))


def told(ran: Ran, seconds: float, base: Base | None, first: Ran | None = None, *, same_commit: bool = False) -> str:
    """Return the line and the sentences below it. `base` is None where the check did not run there.

    `first` is how the check ended before the agent was told of it; `same_commit`: it changed nothing since.
    """
    return "\n".join(
        [_line(ran, seconds, base), *_comparison(ran, base), *_before(ran, first, same_commit=same_commit)]
    )


def running_on(base: str) -> str:
    """Return the phase of the check on the branch that the work is compared with."""
    return f"Running `{SCRIPT}` on {inline_code(base)}, to compare."


def not_run(why: str) -> str:
    """Return the line where the bot could not run the check, because of this clause of Markdown."""
    return f"**check did not run** · {why}"


def pictures(urls: Mapping[str, str]) -> str:
    """Show the pictures at these addresses on GitHub, by their names; in a table those that looked otherwise before."""
    shown = {name: f"![{name}]({url_target(url)})" for name, url in urls.items()}
    pairs = [(shown[f"{BEFORE}-{name}"], picture) for name, picture in shown.items() if f"{BEFORE}-{name}" in shown]
    paired = {picture for pair in pairs for picture in pair}
    others = " ".join(picture for name, picture in shown.items() if picture not in paired and name in urls)
    table = "\n".join(["| before | after |", "|---|---|", *(f"| {before} | {after} |" for before, after in pairs)])
    return "\n\n".join(filter(None, [table if pairs else "", others]))


def pictures_not_pushed(branch: str) -> str:
    """The branch beside the worktree's is not the bot's, or it was refused."""
    return f"The check's pictures could not be pushed to {inline_code(branch)}."


def changed_in_branch(base: str) -> str:
    """The work changes the script itself."""
    return f"`{SCRIPT}` is changed in this branch; the one of {inline_code(base)} ran."


def _line(ran: Ran, seconds: float, base: Base | None) -> str:
    check = result(ran, seconds, base)
    tests = format_count(check.tests, "test")
    counted = [f"{check.failed} of {tests}" if check.failed else tests]
    counted += [f"{check.new} new"] if check.new else []
    counted += [f"{check.skipped} skipped"] if check.skipped else []
    facts = ["check passed" if ran.failure is None else "**check failed**"]
    if ran.failure is not None and not ran.failed:
        facts.append(ran.failure)
    if ran.failure is None and ran.failed:
        counted[0] += " failed"
    facts += [", ".join(counted)] if check.tests or check.skipped else []
    facts.append(format_duration(timedelta(seconds=seconds)))
    if ran.failure is not None and base is not None and base.now:
        name = inline_code(base.name)
        facts.append(f"passes on {name}" if base.ran.failure is None else f"fails on {name} too")
    return " · ".join(facts)


def _comparison(ran: Ran, base: Base | None) -> list[str]:
    """Return what failed and since when, and what passes now. An earlier commit of the base tells nothing of that."""
    failed, passed = {*ran.failed}, {*ran.passed}
    lines = []
    if base is not None and base.now:
        name = inline_code(base.name)
        broken, fixed = failed & {*base.ran.passed}, passed & {*base.ran.failed}
        both = failed & {*base.ran.failed}
        lines += [f"Failed, and passes on {name}: {format_list(sorted(broken))}."] if broken else []
        lines += [f"Failed, and fails on {name} too: {format_list(sorted(both))}."] if both else []
        lines += [f"Passes now, and fails on {name}: {format_list(sorted(fixed))}."] if fixed else []
        failed -= broken | both
    lines += [f"Failed: {format_list(sorted(failed))}."] if failed else []
    reports = format_count(ran.unread, "report")
    lines += [f"{reports} could not be read: too large, or neither JUnit XML nor TAP."] if ran.unread else []
    pictures = format_count(ran.unshown, "more picture")
    lines += [f"{pictures} not shown: at most 8 are, PNG, JPEG, GIF or WebP of up to 1 MB."] if ran.unshown else []
    return lines


def _before(ran: Ran, first: Ran | None, *, same_commit: bool) -> list[str]:
    if first is None or first.failure is None:
        return []
    names = f": {format_list(sorted(first.failed))}" if first.failed else f": it {first.failure}"
    if ran.failure is not None:
        return [CHANGED_NOTHING if same_commit else ASKED]
    if same_commit:
        return [f"It failed at first on the same commit{names}. So it does not always end the same."]
    return [f"It failed at first{names}. The agent was told once, and mended it."]
