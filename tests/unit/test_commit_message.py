"""The message of the host's commit: its subject, Conventional Commits, and the line of the agent's answer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.redaction import Redactor
from bot.thread import commit_message, links
from bot.thread.commit_message import is_conventional, split_subject

SECRET = "hunter2-hunter2"
CLOSES = re.compile(
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?::?\s+|:)(?:[\w.-]+/[\w.-]+)?(?:#(?!7\b)\d|GH-\d|https?://)", re.I
)


def subject(asked_for: str | None, title: str = "Login fails on Safari", *, conventional: bool = False) -> str:
    return commit_message.subject(asked_for, title, 7, Redactor([SECRET]), conventional=conventional)


def test_the_last_line_of_an_answer_may_ask_for_a_subject() -> None:
    for answer, text, asked_for in [
        ("It works now.\n\nCommit: Keep the cookie", "It works now.", "Keep the cookie"),
        ("It works now.\n\n**Commit:** `Keep the cookie`\n", "It works now.", "Keep the cookie`"),
        ("Commit: Keep the cookie", "", "Keep the cookie"),
        ("It works now.\nCommit:", "It works now.\nCommit:", None),
        ("Commit: Keep the cookie\nThat is all.", "Commit: Keep the cookie\nThat is all.", None),
        ("Commit: " + "x" * 2000, "Commit: " + "x" * 2000, None),
        ("", "", None),
    ]:
        assert split_subject(answer) == (text, asked_for)


def test_a_subject_is_one_harmless_line() -> None:
    for asked_for, line in [
        ("Keep the session cookie on Safari.", "Keep the session cookie on Safari"),
        ("**`Keep the cookie`**", "Keep the cookie"),
        ("@maria asked for @angular/core", "maria asked for angular/core"),
        ("Fix #7 and close #8, fixes: acme/pay#9", "Fix #7 and close 8, fixes: acme/pay 9"),
        ("Resolves https://github.com/a/b/issues/3", "Resolves github.com/a/b/issues/3"),
        (f"Log in with {SECRET}", "Log in with [redacted]"),
        ("Keep\u202e the\x1b[31m cookie\u200b", "Keep the [31m cookie"),
        (
            "Stop dropping the session cookie on Safari when a person has two tabs open",
            "Stop dropping the session cookie on Safari when a person has two tabs…",
        ),
        ("—", "Login fails on Safari"),
        (None, "Login fails on Safari"),
    ]:
        assert subject(asked_for) == line


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("@threadtree-bot please mend the basket", "Mend the basket"),
        ("@some-app[bot]: mend the basket", "Mend the basket"),
        ("@bot", "bot"),
        ("Ask @maria about the basket", "Ask maria about the basket"),
        ("e-mail a@b.example to me", "e-mail a@b.example to me"),
    ],
)
def test_a_title_that_addresses_the_bot_names_the_work_alone(title: str, line: str) -> None:
    assert subject(None, title) == line


def test_without_any_words_the_subject_names_the_thread() -> None:
    assert subject(None, "@ \u200b") == "Work on #7"


@pytest.mark.parametrize(
    ("asked_for", "line"),
    [
        ("feat(auth)!: drop cookies", "feat(auth)!: drop cookies"),
        ("Add a button", "fix: Add a button"),
        ("Fix the login", "fix: Fix the login"),
        ("Fix #8 at last", "fix: Fix 8 at last"),
        ("Bump the version", "fix: Bump the version"),
        (None, "fix: Login fails on Safari"),
    ],
)
def test_where_the_repository_uses_conventional_commits_a_subject_has_a_type(asked_for: str | None, line: str) -> None:
    assert subject(asked_for, conventional=True) == line


def test_an_address_does_not_hide_the_closing_reference_that_begins_in_it() -> None:
    assert subject("Closes: https://a.example/)fixes #8", "x", conventional=False) == "Closes: a.example/)fixes 8"


def test_a_subject_without_a_known_verb_or_trouble_is_a_chore() -> None:
    assert subject("Bump the version", "Versions", conventional=True) == "chore: Bump the version"


def test_conventional_commits_are_recognised_by_most_of_the_last_subjects() -> None:
    assert is_conventional(["fix: a", "feat(x): b", "chore!: c", "Merge it", "docs: d"])
    assert not is_conventional(["fix: a", "Add b", "Note: c", "Remove d", "Add e"])
    assert not is_conventional(["fix: a", "fix: b"]), "too few to tell"


@given(st.text(max_size=300), st.text(max_size=200), st.booleans())
def test_no_subject_is_long_or_mentions_or_closes(asked_for: str, title: str, conventional: bool) -> None:
    line = subject(asked_for, title, conventional=conventional)
    assert 0 < len(line) <= commit_message.LONGEST_SUBJECT
    assert line.isprintable()
    assert not re.search(r"(?<![A-Za-z0-9])@[A-Za-z0-9]", line)
    assert not CLOSES.search(line)


@given(
    st.lists(
        st.sampled_from(["fix", "Closes", ":", " ", "#8", "#7", "GH-9", "a/b", "@", "@", "maria", "https://x"]),
        max_size=9,
    ).map("".join)
)
def test_no_mix_of_keywords_closes_or_mentions(asked_for: str) -> None:
    line = subject(asked_for, "x", conventional=True)
    assert not CLOSES.search(line)
    assert not re.search(r"(?<![A-Za-z0-9])@[A-Za-z0-9]", line)


@given(st.text(max_size=5000), st.text(max_size=256))
def test_a_prefilled_page_has_an_address_that_servers_accept(body: str, title: str) -> None:
    url = links.new_pull_request_page("https://github.example/acme/shop", "main", "threadtree/issue-7", title, body)
    assert len(url) <= links.LONGEST_URL
    assert re.fullmatch(r"[!-~]+", url)


def test_a_message_that_mentions_or_closes_another_issue_is_live() -> None:
    for words in ["Closes #8", "Work\n\nfixes GH-8", "thanks @acme/everyone", "Resolves o/r#7"]:
        assert commit_message.is_live(words, 7)


def test_a_message_about_its_own_issue_is_not_live() -> None:
    for words in ["Closes #7", "Fix #hash", "Co-authored-by: m <1+m@users.example>", "see #8"]:
        assert not commit_message.is_live(words, 7)
