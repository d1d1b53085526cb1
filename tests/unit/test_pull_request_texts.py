"""The title and the description of a pull request, from what the agent did and from the repository's template."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.redaction import Redactor
from bot.thread import pull_requests
from bot.thread.pull_requests import Answer, Described, read_described
from bot.turn import thread_answers
from bot.turn.pull_request import LARGEST_FILE_BYTES, LEFT, read_left
from bot.verbs.pull_request import Asked, asked

SERVER = "https://github.example"
ASKED = f"{SERVER}/acme/shop/issues/7#issuecomment-3"
FIRST = Answer("The total was `None`. It is 0 now, @olaf.\n\nFixes #9.\n\nCommit: Count empty carts", "maria", ASKED)
LATER = Answer("Renamed it\nas you asked.\n\nNothing else.", "maria", ASKED)


def described(
    *answers: Answer, subjects: tuple[str, ...] = ("Count",), template: str | None = None, written: str | None = None
) -> str:
    return pull_requests.description(
        written, answers, subjects, template, closes=7, server_url=SERVER, redactor=Redactor(["hunter2-hunter2"])
    )


def title(asked: str | None, *subjects: str, thread: str = "Empty carts", answers: tuple[Answer, ...] = ()) -> str:
    return pull_requests.title(asked, None, answers, subjects, thread, 7, Redactor())


def test_without_the_agents_words_a_description_is_the_only_answer_or_the_commits() -> None:
    assert described(FIRST) == (
        "The total was `None`. It is 0 now, @\u2060olaf.\n\nFixes\u2060 #9.\n\n"
        f"Requested by maria ([request]({ASKED})).\n\n"
        "Closes #7."
    )
    assert described(FIRST, LATER, subjects=("Count empty carts", "Rename `total`, closes #9")) == (
        "Commits:\n\n- `Count empty carts`\n- ``Rename `total`, closes #9``\n\n"
        f"Requested by maria ([request]({ASKED})).\n\n"
        "Closes #7."
    ), "what the first answer says need not hold any more"


def test_the_agents_description_is_made_safe_and_closes_only_the_issue() -> None:
    text = described(FIRST, LATER, written="Counts empty carts with hunter2-hunter2, @olaf.\n\nFixes #9\n\nFixes: #7.")
    assert text == (
        "Counts empty carts with [redacted], @\u2060olaf.\n\nFixes\u2060 #9\n\nFixes: #7\n\n"
        f"Requested by maria ([request]({ASKED}))."
    )
    marks = f"```\n{pull_requests.END}\n{pull_requests.BEGIN}\n```"
    framed = pull_requests.framed(described(written=marks))
    assert framed.count("threadtree:description") == 2
    assert pull_requests.rewritten(framed, "New.") == pull_requests.framed("New.")


TEMPLATE = "## What\n<!-- Be brief. -->\n\n## How was it tested\n\nFixes #(issue)\n\n- [ ] Tests pass\n- [ ] Docs\n"


def test_a_template_that_the_agent_filled_in_is_taken_as_it_is() -> None:
    filled = "## What\nCounts.\n\n## How was it tested\n\n`pytest`: 3 passed\n\nFixes #(issue)\n\n"
    filled += "- [x] Tests pass\n- [ ] Docs"
    assert described(FIRST, template=TEMPLATE, written=f"<!-- Be brief. -->{filled}") == (
        filled.replace("#(issue)", "#7") + f"\n\nRequested by maria ([request]({ASKED}))."
    )
    without = described(template=TEMPLATE, written="It counts. Fixes nothing else.")
    assert without.startswith("## What\n\nIt counts. Fixes nothing else.\n\n<!-- Be brief. -->"), "it left headings out"
    assert "Fixes #7" in without


def test_what_people_write_around_the_marks_stays_byte_for_byte() -> None:
    body = f"Mine.\r\n\r\n{pull_requests.framed('Old.')}\r\n\\1 @olaf\t"
    assert pull_requests.rewritten(body, r"New \1 \g<text>.") == body.replace("Old.", r"New \1 \g<text>.")
    assert pull_requests.digest(body) == pull_requests.digest(pull_requests.framed("Old.\r\n\n"))
    assert pull_requests.digest(body) != pull_requests.digest(body.replace("Old", "Older"))
    assert pull_requests.digest(body.replace("Old.", " ")) == ""
    assert pull_requests.digest("Mine.") is None


def test_what_the_agent_left_begins_with_a_title_if_it_names_one() -> None:
    assert read_described("\n**Title:** Count\n\nCounts.\n") == Described("Count", "Counts.")
    assert read_described("Counts.\n\nTitle: Count\n") == Described(None, "Counts.\n\nTitle: Count")
    for left in ("", " \n", "Title: Count", "Title: Count\n\n"):
        assert read_described(left) is None


def test_only_a_text_of_some_size_is_read_of_what_the_agent_left(tmp_path: Path) -> None:
    thread_answers.make_folder(tmp_path, again=False)
    left = tmp_path / LEFT
    assert read_left(tmp_path) == ""
    left.write_text("Counts.\0 ü")
    assert read_left(tmp_path) == "Counts. ü"
    for content in (b"x" * (LARGEST_FILE_BYTES + 1), b"\xff"):
        left.write_bytes(content)
        with pytest.raises((OSError, UnicodeDecodeError)):
            read_left(tmp_path)
    left.unlink()
    left.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="link"):
        read_left(tmp_path)


def test_a_description_is_never_empty_and_shows_no_secret() -> None:
    assert described(subjects=("Log in with hunter2-hunter2",)) == (
        "Commits:\n\n- `Log in with [redacted]`\n\nCloses #7."
    )


def test_a_template_gets_the_summary_under_its_heading_and_the_number_where_it_waits() -> None:
    template = "<!-- ## Summary -->\r\n# Hello\r\n\r\n## What changed?\r\n\r\n## Checks\r\n- [ ] Closes: #___\r\n"
    text = described(Answer("Done.", "maria", ASKED), template=template)
    assert text == (
        "<!-- ## Summary -->\n# Hello\n\n## What changed?\n\n"
        f"Done.\n\nRequested by maria ([request]({ASKED})).\n\n"
        "## Checks\n- [ ] Closes: #7"
    )


def test_a_template_without_a_place_for_the_issue_has_it_in_the_summary() -> None:
    text = described(Answer("Done.", "maria", ASKED), template="## Notes\n\n- [ ] Tests")
    assert text.startswith("## Notes\n\nDone.\n\n")
    assert text.endswith("Closes #7.\n\n- [ ] Tests")


def test_a_template_without_a_heading_stands_below_the_summary() -> None:
    assert described(Answer("Done.", "maria", ASKED), template="- [ ] Tests").endswith("Closes #7.\n\n- [ ] Tests")


@given(st.text(max_size=300), st.lists(st.text(max_size=60), max_size=3))
def test_whatever_the_agent_writes_the_issue_is_closed_once_and_the_text_fits(
    template: str, answers: list[str]
) -> None:
    text = described(*(Answer(one, "maria", ASKED) for one in answers), template=template)
    assert text.count("Closes #7") + text.count("#7") >= 1
    assert 0 < len(text) <= pull_requests.LONGEST_DESCRIPTION + 1


def test_a_title_is_as_asked_for_else_the_agents_else_the_issues() -> None:
    assert title("Carts of @olaf, fixes #9", "Count") == "Carts of olaf, fixes 9"
    assert title(None, "Count empty carts") == "Count empty carts"
    assert title(None, "Count it", "Rename it", answers=(FIRST, LATER)) == "Count empty carts"
    assert title(None, "Count empty carts", "Rename it") == "Empty carts"
    assert title(None, "fix: count", "fix: rename", thread="Empty carts crash") == "fix: Empty carts crash"
    assert title(None, thread="@") == "Work on #7"


def test_the_words_after_pr_are_its_kind_and_its_title() -> None:
    assert asked("") == asked("please") == asked("ready") == Asked(draft=False, title=None)
    assert asked("Draft: Count empty carts") == Asked(draft=True, title="Count empty carts")
    assert asked("drafts of letters") == Asked(draft=False, title="drafts of letters")
