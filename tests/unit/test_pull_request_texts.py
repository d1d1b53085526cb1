"""The title and the description of a pull request, from what the agent did and from the repository's template."""

from hypothesis import given
from hypothesis import strategies as st

from bot.handlers.simple import pull_request_asked
from bot.messages import pull_requests
from bot.messages.pull_requests import Answer
from bot.redaction import Redactor
from bot.store.operations import PullRequestAsked

SERVER = "https://github.example"
ASKED = f"{SERVER}/acme/shop/issues/7#issuecomment-3"
FIRST = Answer("The total was `None`. It is 0 now, @olaf.\n\nFixes #9.\n\nCommit: Count empty carts", "maria", ASKED)
LATER = Answer("Renamed it\nas you asked.\n\nNothing else.", "maria", ASKED)


def described(*answers: Answer, subjects: tuple[str, ...] = ("Count",), template: str | None = None) -> str:
    return pull_requests.description(
        answers, subjects, template, closes=7, server_url=SERVER, redactor=Redactor(["hunter2-hunter2"])
    )


def title(asked: str | None, *subjects: str, thread: str = "Empty carts", answers: tuple[Answer, ...] = ()) -> str:
    return pull_requests.title(asked, answers, subjects, thread, 7, Redactor())


def test_the_description_is_the_first_answer_later_changes_the_commits_and_the_issue() -> None:
    assert described(FIRST, LATER, subjects=("Count empty carts", "Rename `total`, closes #9")) == (
        "The total was `None`. It is 0 now, @\u2060olaf.\n\nFixes\u2060 #9.\n\n"
        "Later changes:\n\n- Renamed it as you asked.\n\n"
        "Commits:\n\n- `Count empty carts`\n- ``Rename `total`, closes #9``\n\n"
        f"Requested by maria ([request]({ASKED})).\n\n"
        "Closes #7."
    )


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
    assert (
        pull_request_asked(None)
        == pull_request_asked("please")
        == pull_request_asked("ready")
        == PullRequestAsked(draft=False, title=None)
    )
    assert pull_request_asked("Draft: Count empty carts") == PullRequestAsked(draft=True, title="Count empty carts")
    assert pull_request_asked("drafts of letters") == PullRequestAsked(draft=False, title="drafts of letters")
