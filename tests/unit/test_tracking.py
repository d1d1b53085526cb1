"""The one comment of a turn: what takes long before the agent begins, and notices with something to unfold."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompt import remarks
from bot.prompt.foreign import Foreign
from bot.thread import notices, reasons, tracking
from bot.thread.tracking import PlanEntry, TurnResult
from tests.support.rendered import html


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        (tracking.fetching(None, first=True), "Cloning the repository."),
        (
            tracking.fetching("Receiving objects 43%, 1.2 GiB", first=True),
            "Cloning the repository: receiving objects 43%, 1.2 GiB",
        ),
        (tracking.fetching("Resolving deltas 7%", first=False), "Fetching new commits: resolving deltas 7%"),
        (tracking.SETTING_UP, "Running `.threadtree/setup`."),
    ],
)
def test_what_takes_long_before_the_agent_begins_is_shown(phase: str, shown: str) -> None:
    assert tracking.running([], [], timedelta(seconds=9), phase) == f"Working on it, for 9 s so far.\n\n{shown}"


def test_without_a_phase_there_is_only_the_agent() -> None:
    assert tracking.running([PlanEntry("Read", "pending")], [], timedelta(0)) == (
        "Working on it, for 0 s so far.\n\n- [ ] Read"
    )


@given(st.text(max_size=400))
def test_what_git_says_of_itself_is_no_markup(detail: str) -> None:
    shown = html(tracking.fetching(detail, first=True))
    assert re.sub("</?code>", "", shown).count("<") == 2, "one paragraph"


def test_a_failed_script_is_told_with_its_output_folded_away() -> None:
    notice = notices.setup_failed(reasons.program_ended(2), "npm ERR!\n\nno such file")
    (body,) = tracking.final(
        TurnResult(
            "done",
            answer="Done so.",
            notices=(
                notice,
                notices.CONTEXT_LOST,
            ),
        )
    )
    assert body == (
        "Done so.\n\n---\n\n"
        "> [!NOTE]\n"
        "> - `.threadtree/setup` ended with exit status 2. The agent worked without it, and the next request runs the "
        "script again.\n"
        ">\n>   <details>\n>   <summary>The end of its output</summary>\n>\n"
        ">   ```\n>   npm ERR!\n>\n>   no such file\n>   ```\n>\n>   </details>\n"
        "> - The agent could not resume its earlier conversation and started without that context."
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=300))
def test_no_output_leaves_its_fold(output: str) -> None:
    notice = notices.setup_failed(reasons.program_ended(2), output)
    (body,) = tracking.final(
        TurnResult(
            "done",
            notices=(
                notice,
                "After it.",
            ),
        )
    )
    last_item = html(body).replace("<p>", "").replace("</p>", "").replace("</", " </").split("<li>")[-1]
    assert last_item.split() == ["After", "it.", "</li>", "</ul>", "</blockquote>"]
    assert html(body).count("<pre>") == (1 if output else 0)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (reasons.program_ended(-9), "was ended by signal 9"),
        (notices.setup_out_of_time(600), "was stopped after 10 min 0 s"),
        (
            notices.setup_not_startable("No such file or directory"),
            "could not be started (No such file or directory)",
        ),
        (
            notices.setup_unusable("main", 1 << 20),
            "on `main` is not a regular file of at most 1 MiB, and was not run",
        ),
    ],
)
def test_how_a_script_failed_is_a_clause(how: str, words: str) -> None:
    assert notices.setup_failed(how, "").startswith(f"`.threadtree/setup` {words}. The agent worked without it")


def test_the_agent_is_told_what_the_script_said_last() -> None:
    failed = "`.threadtree/setup`, which prepares it, ended with status 2."
    assert remarks.setup_failed("ended with status 2", "one\ntwo") == (failed, " It wrote last: ", Foreign("one\ntwo"))
    assert remarks.setup_failed("ended with status 2", "") == (failed,)
