"""What an agent leaves for the threads of inline comments: only what can be posted is taken."""

import json
import os
from pathlib import Path

import pytest

from bot.thread import notices
from bot.turn.thread_answers import (
    LARGEST_FILE_BYTES,
    LONGEST_CHARACTERS,
    MOST_ANSWERS,
    THREADS,
    make_folder,
    read_left,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_folder(tmp_path, again=False)
    return tmp_path


def leave(home: Path, content: str) -> None:
    (home / THREADS).write_text(content)


def answer(comment: object, body: object) -> dict[str, object]:
    return {"comment_id": comment, "body": body}


def test_answers_to_comments_that_the_agent_was_told_of_are_taken(home: Path) -> None:
    assert read_left(home, {7}) == ({}, None)
    leave(home, json.dumps([answer(7, "I kept it."), answer(8, "Why?")]))
    assert read_left(home, {7, 8, 9}) == ({7: "I kept it.", 8: "Why?"}, None)


@pytest.mark.parametrize(
    "bad",
    [
        answer(8, "Not told."),
        answer(7, "A second one."),
        answer(1, " \n"),
        answer(1, "\x1c\x1f"),
        answer(1, "\0 \0"),
        answer(7, "x" * (LONGEST_CHARACTERS + 1)),
        answer("7", "No number."),
        answer(True, "No number."),
        answer(7, ["no text"]),
        {"comment_id": 7},
        "words",
        None,
    ],
    ids=str,
)
def test_one_bad_answer_is_left_out_and_named(home: Path, bad: object) -> None:
    leave(home, json.dumps([answer(7, "I kept it."), bad]))
    found, notice = read_left(home, {1, 7})
    assert found == {7: "I kept it."}
    assert notice is not None
    assert notice.startswith("Left out: 1 answer of the agent to inline comments. ")


def test_an_answer_is_a_text_that_can_be_stored(home: Path) -> None:
    leave(home, json.dumps([answer(7, "I \0kept it.")]))
    assert read_left(home, {7}) == ({7: "I kept it."}, None)


def test_more_answers_than_a_person_reads_are_left_out(home: Path) -> None:
    leave(home, json.dumps([answer(number, "No.") for number in range(1, MOST_ANSWERS + 3)]))
    found, notice = read_left(home, range(1, 1000))
    assert len(found) == MOST_ANSWERS
    assert notice is not None
    assert notice.startswith("Left out: 2 answers ")


@pytest.mark.parametrize("content", ["", "{}", '{"comment_id": 7}', "[" * 100_000, "x" * (LARGEST_FILE_BYTES + 1)])
def test_a_file_that_is_no_list_is_left_out(home: Path, content: str) -> None:
    leave(home, content)
    assert read_left(home, {7}) == ({}, notices.THREADS_UNREADABLE)


def test_no_link_is_followed_and_no_pipe_is_waited_for(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "secret.json"
    elsewhere.write_text(json.dumps([answer(7, "A secret.")]))
    (home / THREADS).symlink_to(elsewhere)
    assert read_left(home, {7}) == ({}, notices.THREADS_UNREADABLE)
    (home / THREADS).unlink()
    os.mkfifo(home / THREADS)
    assert read_left(home, {7}) == ({}, notices.THREADS_UNREADABLE)
    make_folder(home, again=False)
    (home / THREADS.parent).rmdir()
    (home / THREADS.parent).symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / THREADS.name).write_text(json.dumps([answer(7, "A secret.")]))
    assert read_left(home, {7}) == ({}, notices.THREADS_UNREADABLE)
    make_folder(home, again=False)
    assert read_left(home, {7}) == ({}, None)
    assert (tmp_path / "other" / THREADS.name).exists(), "what a link leads to stays"


def test_only_a_turn_that_continues_finds_what_was_left_before(home: Path) -> None:
    leave(home, json.dumps([answer(7, "I kept it.")]))
    make_folder(home, again=True)
    assert read_left(home, {7})[0] == {7: "I kept it."}
    make_folder(home, again=False)
    assert read_left(home, {7})[0] == {}
