"""What a turn that runs shows of its agent's words: their end, and never a part of a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.agents.driver import Said, ToolStarted
from bot.redaction import Redactor
from bot.run.progress import MAX_WORDS_CHARACTERS, Progress, latest_words

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
