"""What a turn that runs shows of its agent's words: their end, and never a part of a secret."""

import asyncio
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.agents.driver import Said, ToolEnded, ToolStarted
from bot.redaction import Redactor
from bot.turn.progress import (
    MAX_OUTPUT_CHARACTERS,
    MAX_STEPS,
    MAX_WORDS_CHARACTERS,
    Progress,
    latest_words,
    shortened,
)

SECRET = "ghp_0123456789abcdefghijklmnopqrstuvwx"
redact = Redactor([SECRET]).redact


@given(before=st.text("ab \n", max_size=30), after=st.text("ab \n", max_size=700), cut=st.integers(0, 80))
def test_no_part_of_a_secret_is_shown_however_the_agents_words_are_cut(before: str, after: str, cut: int) -> None:
    so_far = f"{before} {SECRET} {after}"[:cut]
    end_of_much = f"{SECRET} {after}"[cut:].rjust(16 * 1024, "a") if cut < len(SECRET) else ""

    assert SECRET[:6] not in latest_words(so_far, redact)
    assert SECRET[-6:] not in latest_words(end_of_much, redact)
    assert len(latest_words(so_far, redact)) <= MAX_WORDS_CHARACTERS


@pytest.mark.parametrize(
    ("heard", "shown"),
    [
        ("", ""),
        ("Half", ""),
        ("I read a.txt and the", "I read a.txt and"),
        ("I am done.\n", "I am done."),
        ("long " * 300, "…" + ("long " * 300).strip()[-599:]),
    ],
)
def test_the_last_words_are_whole_ones(heard: str, shown: str) -> None:
    assert latest_words(heard, redact) == shown


def test_words_before_a_tool_are_whole_and_earlier_steps_are_kept() -> None:
    progress = Progress(redact, ["Read"])
    progress.note(Said("I test"))
    progress.note(ToolStarted(f"curl {SECRET}"))
    assert latest_words(progress._heard, redact) == "I test"
    assert progress.steps == ["Read", "curl [redacted]"]


def test_a_command_that_fails_is_one_step() -> None:
    progress = Progress(redact, ["Read"])
    for call, title in enumerate(("Test", "Test", "Build")):
        progress.note(ToolStarted(title, str(call)))
    progress.note(ToolEnded("Test", ok=False, call="0"))
    progress.note(ToolEnded("Build all", ok=True, call="2"))
    assert progress.steps == ["Read", "Test (failed)", "Test", "Build all"]
    assert progress._unsaved == {2: "Test (failed)", 3: "Test", 4: "Build all"}


def test_what_no_row_takes_is_bounded_and_what_waits_there_is_still_corrected() -> None:
    """The database is away."""
    progress = Progress(redact)
    for number in range(3 * MAX_STEPS):
        progress.note(ToolStarted(f"Step {number}", str(number)))
    progress.note(ToolEnded("Step 1", ok=False, call="1", output="x"))
    for number in range(2, 3 * MAX_STEPS):
        progress.note(ToolEnded(f"Step {number}", ok=True, call=str(number), output="x" * MAX_OUTPUT_CHARACTERS))
    assert progress.steps[-1] == f"Step {3 * MAX_STEPS - 1}"
    assert (len(progress.steps), len(progress._unsaved)) == (MAX_STEPS, MAX_STEPS)
    assert progress._unsaved[2] == "Step 1 (failed)"
    assert len(progress._outputs) <= 1 + 256 * 1024 // MAX_OUTPUT_CHARACTERS


def test_what_a_tool_printed_is_kept_with_its_beginning_and_end_and_no_part_of_a_secret() -> None:
    assert shortened("60 passed\n", redact) == "60 passed\n"
    for before in (0, 2040, 2048, 9000):
        kept = shortened("a" * before + SECRET + "b" * 20_000 + "the end", redact)
        assert SECRET[:8] not in kept
        assert SECRET[-8:] not in kept
        assert kept.endswith("the end")
        assert len(kept) < MAX_OUTPUT_CHARACTERS + 50


def test_the_line_for_the_commit_is_not_among_the_last_words() -> None:
    assert latest_words("I fixed it.\n\nCommit: Fix the total\n", redact) == "I fixed it."


async def test_a_turn_that_ends_in_the_moment_in_which_its_agent_begins_shows_nothing_more() -> None:
    progress, nothing = Progress(redact, []), Mock(spec=())
    showing = asyncio.create_task(progress._show(nothing, nothing, nothing, nothing))
    await asyncio.sleep(0)
    progress.agent_begins()
    showing.cancel()
    await asyncio.wait({showing})
    assert showing.cancelled()
