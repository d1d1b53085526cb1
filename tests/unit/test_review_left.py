"""The review that an agent leaves: only what is on a line of the diff is posted there, and nothing in it is trusted."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.github.answers import LineRemark
from bot.github.thread import ChangedFile, PullRequest, ReviewThread, Text
from bot.model import Actor
from bot.thread.agent_answer import answer_parts
from bot.thread.authority import Policy
from bot.turn.thread_answers import make_folder
from bot.verbs.review import words as reviews
from bot.verbs.review.left import (
    LARGEST_FILE_BYTES,
    LONGEST_REMARK,
    LONGEST_SUMMARY,
    MOST_CHARACTERS,
    MOST_REMARKS,
    REVIEW,
    Left,
    Reviewing,
    fixed,
    read_left,
)

PATCH = """\
@@ -1,4 +1,5 @@ def total
 one
-two
+2
+2.5
 three

@@ -20,2 +21,1 @@
-twenty
 twenty-one
\\ No newline at end of file"""
FILES = (ChangedFile("src/cart.py", "modified", 2, 2, PATCH), ChangedFile("logo.png", "added", 0, 0, None))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_folder(tmp_path, again=False)
    return tmp_path


def leave(home: Path, *comments: object, summary: object = "Two things.") -> Left:
    (home / REVIEW).write_text(json.dumps({"summary": summary, "comments": comments}))
    return read_left(home, FILES, "The answer.")


def on(line: object, **more: object) -> dict[str, object]:
    return {"path": "src/cart.py", "line": line, "body": "Why?", **more}


@pytest.mark.parametrize(
    ("comment", "placed"),
    [
        (on(2), (2, "RIGHT", None)),
        (on(4, side="RIGHT"), (4, "RIGHT", None)),
        (on(2, side="LEFT"), (2, "LEFT", None)),
        (on(20, side="LEFT"), (20, "LEFT", None)),
        (on(21), (21, "RIGHT", None)),
        (on(3, start_line=2), (3, "RIGHT", 2)),
        (on(3, start_line=3), (3, "RIGHT", None)),
        (on(3, start_line=None, side=None), (3, "RIGHT", None)),
        (on(7), None),
        (on(1, side="LEFT"), None),
        (on(21, start_line=2), None),
        (on(2, start_line=3), None),
        (on(3, start_line="2"), None),
        (on(3, start_line=-1), None),
        (on(2, side="BOTH"), None),
        (on(2, side=["LEFT"]), None),
        (on("2"), None),
        (on(True), None),
        (on(2.0), None),
        (on(None), None),
        (on(0), None),
        (on(10**30), None),
        (on(2, path="logo.png"), None),
        (on(2, path="../src/cart.py"), None),
        (on(2, path="/etc/passwd"), None),
        (on(2, path="src/cart.py\n\n# Title"), None),
    ],
    ids=str,
)
def test_a_remark_is_on_a_line_of_the_diff_or_in_the_text(
    home: Path, comment: dict[str, object], placed: tuple[int, str, int | None] | None
) -> None:
    found = leave(home, comment)
    assert found.notices == ()
    if placed is None:
        assert found.remarks == ()
        assert found.text.startswith("Two things.\n\n**Remarks that are on no line of the diff**\n\n`")
        assert found.text.endswith("`\n\nWhy?")
    else:
        line, side, start = placed
        assert found.remarks == (LineRemark("src/cart.py", line, "LEFT" if side == "LEFT" else "RIGHT", "Why?", start),)
        assert found.text == "Two things."


@pytest.mark.parametrize(
    "bad",
    [
        "words",
        None,
        [],
        {"path": "src/cart.py", "line": 2},
        on(2, body=" \n"),
        on(2, body="\x1c"),
        on(2, body=7),
        on(2, path=""),
        on(2, path=7),
        on(2, body="x" * (LONGEST_REMARK + 1)),
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_a_remark_that_says_nothing_readable_is_left_out_and_counted(home: Path, bad: object) -> None:
    found = leave(home, on(2), bad)
    assert len(found.remarks) == 1
    assert found.notices == (reviews.left_out(1, MOST_REMARKS, LONGEST_REMARK),)


def test_no_more_is_posted_than_a_person_reads_and_one_text_holds(home: Path) -> None:
    found = leave(home, *(on(2 + n % 2) for n in range(1000)), summary="x" * 20_000)
    assert len(found.remarks) == MOST_REMARKS
    assert len(found.text) == LONGEST_SUMMARY
    assert found.notices == (
        reviews.left_out(1000 - MOST_REMARKS, MOST_REMARKS, LONGEST_REMARK),
        reviews.summary_cut(LONGEST_SUMMARY),
    )
    long = [on(2, body="x" * LONGEST_REMARK) for _ in range(20)]
    assert sum(len(one.body) for one in leave(home, *long).remarks) <= MOST_CHARACTERS


@pytest.mark.parametrize("content", ["", "[]", '{"summary": 7}', '{"comments": {}}', "[" * 100_000, "x" * 10_000_000])
def test_a_file_in_another_form_leaves_the_answer_as_it_stands(home: Path, content: str) -> None:
    assert read_left(home, FILES, "The answer.") == Left("The answer.", notices=(reviews.NOT_LEFT,))
    (home / REVIEW).write_text(content)
    assert read_left(home, FILES, "The answer.") == Left("The answer.", notices=(reviews.UNREADABLE,))


def test_no_link_is_followed_and_no_pipe_is_waited_for(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "secret.json"
    elsewhere.write_text('{"summary": "A secret."}')
    (home / REVIEW).symlink_to(elsewhere)
    assert read_left(home, FILES, "").notices == (reviews.UNREADABLE,)
    (home / REVIEW).unlink()
    os.mkfifo(home / REVIEW)
    assert read_left(home, FILES, "").notices == (reviews.UNREADABLE,)
    assert LARGEST_FILE_BYTES < 10_000_000


def test_what_is_said_is_redacted_and_made_harmless(home: Path) -> None:
    comments = [on(2, body="@olaf fixes #1 a-secret <b>\0"), on(99, body="a-secret", path="a-secret")]
    (home / REVIEW).write_text(json.dumps({"summary": "APPROVED: a-secret", "comments": comments}))

    def harmless(body: str) -> str:
        return answer_parts(body, server_url="https://github.example")[0][0]

    found = read_left(home, FILES, "", lambda text: text.replace("a-secret", "[redacted]").replace("\0", ""), harmless)
    assert found.remarks[0].body == "@\u2060olaf fixes\u2060 #1 [redacted] &lt;b>"
    assert "a-secret" not in found.text
    assert "`[redacted]:99`\n\n[redacted]" in found.text


def test_nothing_found_is_said(home: Path) -> None:
    assert leave(home, summary="").text == "No remarks."
    assert leave(home, on(2), summary="").text == "The remarks are on the lines of the diff."
    assert leave(home, on(99), summary="").text.startswith("**Remarks that are on no line of the diff**")


BOT, MARIA = Actor("threadtree-bot", 7, True), Actor("maria", 1)
POLICY = Policy(BOT.id, BOT.login, BOT.login, "threadtree")


def said(author: Actor, number: int) -> Text:
    return Text(author, "Why?", datetime(2026, 5, 1, tzinfo=UTC), id=number)


def test_only_own_outdated_threads_without_a_further_word_are_mended() -> None:
    thread = ReviewThread("a.py", None, "", (said(BOT, 1),), "T1", is_outdated=True)
    answered_by_a_person = replace(thread, id="T2", comments=(said(BOT, 2), said(MARIA, 3)))
    own = [
        thread,
        answered_by_a_person,
        replace(thread, id="T3", is_outdated=False),
        replace(thread, id="T4", is_resolved=True),
        replace(thread, id="T5", comments=(said(BOT, 5),)),
    ]
    assert list(fixed(own, POLICY, answered={5})) == ["T1"]


def test_a_remark_of_its_own_that_people_have_hidden_is_not_told_again_and_counted() -> None:
    shown, hidden = (Text(Actor("bot", 3), body, datetime(2026, 3, 1, tzinfo=UTC), id=5) for body in ("Why?", "Spam"))
    own = tuple(ReviewThread("a.py", 1, "@@", (one,)) for one in (shown, replace(hidden, is_hidden=True)))
    task = Reviewing(PullRequest("main", "fix", "2" * 40), own, "1" * 40, unread=("the changed files",)).task
    assert [one.text.body for one in task.earlier] == ["Why?"]
    assert task.unread == ("the changed files", "1 remark hidden by people left out")
