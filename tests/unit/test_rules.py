"""A repository's file of rules: what is right in it, what is said of the rest, and what the operator allows of it."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.rules import KEYS, Config, Rules, Standing, as_stored, counting, read_config, stored_config, within
from bot.sandbox.net.rules import Destination
from bot.serve.parts import rules_of
from bot.settings import WORKER, read
from bot.thread import repository_rules as words
from bot.thread import tracking
from bot.thread.tracking import TurnResult
from bot.turn.words import Leave, leave
from tests.support.fuzz import FUZZ
from tests.support.rendered import html

OPERATORS = Rules(agents=("claude", "codex"), agent="claude", model="opus")
WRONG = """\
agent = "../claude"
model = "two words"
instructions = 3
allowed = "maria"
auto_pull_request = true
require_plan = "sometimes"
review = "always"
setup = "yes"
check = 1
autofix = []
max_fix_attempts = 0
network = ["db.corp.internal:5432"]
bare_commands = "false"
max_cost_usd_per_turn = -1
max_cost_usd_per_day = nan
alowed = ["maria"]
standing_paused = "yes"
standing = "mon 06:00"
"""
HOSTS = st.one_of(
    st.ip_addresses().map(lambda address: f"[{address}]:80" if address.version == 6 else f"{address}:80"), st.text()
)


def config(text: str) -> Config:
    """Return a file without problems."""
    found = read_config(text.encode())
    assert found.problems == ()
    assert found.config is not None
    return found.config


def chosen(text: str, operators: Rules = OPERATORS) -> tuple[Rules, dict[str, tuple[str, str]]]:
    return within(operators, config(text))


def test_the_example_of_the_documentation_has_every_key_and_is_right() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]

    rules, beyond = chosen(example, replace(OPERATORS, max_fix_attempts=5))

    assert tuple(tomllib.loads(example)) == KEYS
    assert beyond == {}
    assert rules.agent == "codex"
    assert rules.allowed == ("octocat", "acme/web")
    assert rules.max_cost_usd_per_repository_per_day == 20
    assert Destination("db.example.com", 5432) in rules.network


def test_each_wrong_value_is_named_with_its_line_and_counts_as_not_there(
    matches_snapshot: Callable[[str, str], None],
) -> None:
    found = read_config(WRONG.encode())

    notice = words.notice("main", found.problems, is_read=True)
    matches_snapshot("wrong-rules", tracking.final(TurnResult("done", answer="Done.", notices=(notice,)))[0])
    assert len(found.problems) == len(KEYS) + 1
    assert found.config == Config(allowed=[], require_plan="always"), "who may ask stays narrow"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        *(("\n\nsetup = 1", 3), ('instructions = """\nsetup = 1\n"""\nsetup = 1', 4), ("  'setup' = 1", 1)),
        *(("[setup]\nx = 1", 1), ("[[setup]]\nx = 1", 1), ("setup.x = 1", 1), ("setup = [\n\n1,\n]", 1)),
        *(('model = "a"\r\nsetup = 1', 2), ('"set\\u0075p" = 1', 1)),
    ],
)
def test_the_line_is_where_the_key_begins(text: str, line: int) -> None:
    found = read_config(text.encode())
    assert [found.lines["setup"], *found.problems] == [
        line,
        f"Line {line}: `setup` must be true or false.",
    ]


ENTRY = '[[standing]]\nevery = "{}"\nask = "{}"\nas = "maria"\n'


def test_each_wrong_standing_request_is_named_with_its_line_and_the_others_hold() -> None:
    wrong = [
        *(ENTRY.format(every, "Look") for every in ("feb 30", "0m", "14m", "745h", "mon 24:00", "6 h", "mon 06:00 ")),
        ENTRY.format("6h", " "),
        '[[standing]]\nask = "Look"\nas = "maria"\nevery = "6h"\nmax_open = 0\n',
        '[[standing]]\nevery = "6h"\nask = "Look"\nas = "acme/web"\n',
        '[[standing]]\nevery = "6h"\nask = "Look"\n',
        '[[standing]]\nevery = "6h"\nask = "Look"\nas = "maria"\nuntil = "july"\n',
    ]
    right = [ENTRY.format("mon 06:00", "Update"), ENTRY.format("15m", "Look"), ENTRY.format("15m", "Look")]
    found = read_config("".join([right[0], *wrong, *right[1:]]).encode())

    assert found.config is not None
    assert [(one.every, one.as_, one.max_open) for one in found.config.standing or ()] == [
        ("mon 06:00", "maria", 1),
        ("15m", "maria", 1),
    ]
    assert found.standing_lines == (1, 54)
    assert [problem.partition(" must be ")[0].partition(" is no ")[0] for problem in found.problems] == [
        *(f"Line {line}: `every`" for line in range(5, 33, 4)),
        *("Line 33: `ask`", "Line 37: `max_open`", "Line 42: `as`", "Line 46: `as`", "Line 49: `until`"),
        "Line 58: this `[[standing]]` is the one of line 54 again; it counts once.",
    ]
    assert stored_config(as_stored(found.config)) == found.config


def test_of_500_standing_requests_the_first_twenty_count() -> None:
    found = read_config("".join(ENTRY.format("6h", number) for number in range(500)).encode())
    assert found.config is not None
    assert [one.ask for one in found.config.standing or ()] == [str(number) for number in range(20)]
    assert found.problems == (words.too_many_entries(81, 20),)


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 -- bounds


def only(every: str) -> Standing:
    """Return the one standing request of a file."""
    found = config(ENTRY.format(every, "Look")).standing
    assert found is not None
    return found[0]


@given(
    day=st.sampled_from(["day", *DAYS]), at=st.times(), now=MOMENTS, since=MOMENTS, minutes=st.integers(15, 31 * 1440)
)
def test_the_next_time_is_the_first_one_after_now(
    day: str, at: Any, now: datetime, since: datetime, minutes: int
) -> None:
    found = only(f"{day} {at:%H:%M}").next_after(now, since)
    assert (found.hour, found.minute, found.second) == (at.hour, at.minute, 0)
    assert day in ("day", DAYS[found.weekday()])
    assert timedelta() < found - now <= timedelta(days=1 if day == "day" else 7)

    interval, found = timedelta(minutes=minutes), only(f"{minutes}m").next_after(now, since)
    assert (found - since) % interval == timedelta()
    assert now < found
    assert found <= max(now, since) + interval


def test_a_misspelt_key_has_no_effect_and_many_are_counted() -> None:
    found = read_config(b'Setup = true\n"a`b\\nc" = 1\n' + b"".join(b"k%d = 1\n" % n for n in range(20)))
    assert found.config == Config()
    assert found.problems[0] == "Line 1: `Setup` is no key of this file; did you mean `setup`?"
    assert found.problems[1] == "Line 2: ``a`b c`` is no key of this file; take it out."
    assert found.problems[-1] == "14 more keys are unknown."


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"setup = tru", "it is no TOML: Invalid value"),
        (b"setup = true\nsetup = true", "it is no TOML: Cannot overwrite a value"),
        (b"a = " + b"[" * 60_000, "nested too deeply"),
        (b"a = " + b"{a=" * 10_000, "nested too deeply"),
        (b"a" + b".a" * 30_000 + b" = 1", "too many dots"),
        (b"a = " + b"9" * 60_000, "it is no TOML"),
        (b"\xff\xfe", "no text in UTF-8"),
    ],
)
def test_what_cannot_be_read_has_no_effect_at_all(text: bytes, why: str) -> None:
    found = read_config(text)
    assert found.config is None
    assert len(found.problems) == 1
    assert why in found.problems[0]
    known = Config(require_plan="always", allowed=["octocat"])
    assert counting(found, known) == (known, (f"{found.problems[0]} {words.STILL_HOLDS}",))


def test_of_a_file_that_cannot_be_read_where_none_was_known_only_maintainers_may_ask() -> None:
    found = read_config(b"allowed = [")
    holds, (problem,) = counting(found, None)
    assert holds == Config(allowed=[])
    assert problem == f"{found.problems[0]} {words.ONLY_MAINTAINERS}"
    assert counting(found, holds) == (holds, (problem,)), "the next request says the same"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(b"max_cost_usd_per_turn = 0x" + b"f" * 50_000)
@example(b"max_fix_attempts = 0x" + b"f" * 50_000)
def test_any_bytes_are_read_and_what_is_said_of_them_is_inert(text: bytes) -> None:
    found = read_config(text)
    for problem in found.problems:
        assert "<a" not in html(problem)
    if found.config is not None:
        assert stored_config(as_stored(found.config)) == found.config


def test_no_depth_of_nesting_is_too_much_for_one_step_alone() -> None:
    for depth in range(200, 1000, 1 if FUZZ > 1 else 5):
        assert read_config(b"agent = " + b"[" * depth + b"]" * depth).problems


def test_a_row_of_another_release_keeps_people_out() -> None:
    assert stored_config('{"later": 1}') == Config(allowed=[], require_plan="always")


@given(HOSTS)
def test_no_private_host_is_opened(host: str) -> None:
    found = read_config(f"network = [{as_toml(host)}]".encode("utf-8", "replace"))
    for one in within(OPERATORS, found.config or Config())[0].network:
        assert "." in one.host if isinstance(one.host, str) else one.host.is_global


def as_toml(text: str) -> str:
    return '"' + "".join(c if c.isalnum() or c in ".:-[]" else f"\\U{ord(c):08x}" for c in text if c < "\ud800") + '"'


@pytest.mark.parametrize(
    "host", ["10.1.2.3:80", "127.0.0.1", "localhost:80", "db", "a.internal", "169.254.169.254", "[::1]:80", "x:0", ""]
)
def test_these_hosts_are_the_operators_to_open(host: str) -> None:
    (problem,) = read_config(f'network = ["{host}"]'.encode()).problems
    assert "ALLOWED_HOSTS" in problem


def test_a_host_without_a_port_is_reached_on_the_ports_of_the_web() -> None:
    rules, _ = chosen('network = ["1.1.1.1", "db.example.com:5432"]')
    address = IPv4Address("1.1.1.1")
    assert rules.network == {Destination(address, 80), Destination(address, 443), Destination("db.example.com", 5432)}


@pytest.mark.parametrize(
    ("decided", "choice", "holds"),
    [
        ({}, "setup = true", True),
        ({"SETUP_SCRIPT": "false"}, "setup = true", False),
        ({"SETUP_SCRIPT": "true"}, "setup = false", False),
        ({"CHECK_SCRIPT": "false"}, "check = true", False),
        ({"CHECK_SCRIPT": "true"}, "check = false", False),
        ({"BARE_COMMANDS": "true"}, "bare_commands = false", False),
        ({"BARE_COMMANDS": "false"}, "bare_commands = true", False),
        ({}, 'auto_pull_request = "ready"', "ready"),
        ({"AUTO_PULL_REQUEST": "draft"}, 'auto_pull_request = "ready"', "draft"),
        ({"AUTO_PULL_REQUEST": "draft"}, 'auto_pull_request = "never"', "never"),
        ({}, "max_fix_attempts = 9", 3),
        ({}, "max_fix_attempts = 2", 2),
        ({}, "max_cost_usd_per_turn = 7", 7.0),
        ({"MAX_COST_USD_PER_TURN": "5"}, "max_cost_usd_per_turn = 7", 5.0),
        ({"MAX_COST_USD_PER_TURN": "5"}, "max_cost_usd_per_turn = 0.5", 0.5),
        ({"MAX_COST_USD_PER_REPOSITORY_PER_DAY": "5"}, "max_cost_usd_per_day = 7", 5.0),
        ({"AGENT_NETWORK": "none"}, 'network = ["1.1.1.1:53"]', frozenset()),
    ],
)
def test_the_smaller_of_both_holds(decided: dict[str, str], choice: str, holds: Any) -> None:
    settings, _ = read({"HOME": "/nonexistent", **decided}, dotenv=None, needs=WORKER)
    key, value = choice.split(" = ")

    rules, beyond = chosen(choice, rules_of(settings))

    assert getattr(rules, key.replace("usd_per_day", "usd_per_repository_per_day")) == holds
    is_kept = str(holds).lower() in (value.strip('"'), f"{value}.0")
    assert beyond.keys() == (set() if is_kept else {key})


def test_an_agent_that_is_not_there_is_named_and_its_model_is_left_out() -> None:
    rules, beyond = chosen('agent = "gemini"\nmodel = "pro"')
    assert (rules.agent, rules.model) == ("claude", "opus")
    assert beyond == dict.fromkeys(("agent", "model"), ("AGENT", "claude, codex"))


def test_the_operators_model_is_not_another_agents() -> None:
    assert chosen('agent = "codex"')[0].model is None
    assert chosen('agent = "codex"\nmodel = "gpt"')[0].model == "gpt"
    assert chosen('agent = "claude"')[0].model == "opus"


@pytest.mark.parametrize("by_outsider", [False, True])
@pytest.mark.parametrize("at_fork", [False, True])
def test_whether_words_may_be_worked_on_follows_from_their_authors_and_the_rule(
    *, by_outsider: bool, at_fork: bool
) -> None:
    for rule, goes_on, planned in [
        *(("never", False, None), ("never", True, None)),
        *(("outsiders", goes_on, "outsiders" if by_outsider else None) for goes_on in (False, True)),
        *(
            ("always", False, "outsiders" if by_outsider else "all"),
            ("always", True, "outsiders" if by_outsider else None),
        ),
    ]:
        assert leave(rule, by_outsider=by_outsider, at_fork=at_fork, goes_on=goes_on) == Leave(  # type: ignore[arg-type]
            variables=not by_outsider and not at_fork,
            planned_first=planned,  # type: ignore[arg-type]
        )
