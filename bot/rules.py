"""The rules of a repository's requests: the operator's settings, and what the repository chose within them. Pure.

DESIGN.md §5: the environment, and `.threadtree/config.toml`.
"""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bot.sandbox.net.rules import (
    WEB_PORTS,
    Destination,
    NotReachableError,
    is_public,
    parse_target,
    require_public_name,
)
from bot.thread import repository_rules as words

AutoPullRequest = Literal["never", "draft", "ready"]
"""Whether a turn that pushed an issue's branch opens a pull request, and how."""

RequirePlan = Literal["never", "outsiders", "always"]
"""Whose requests are planned first and carried out once a person approved the plan."""

Review = Literal["never", "opened"]
"""Which pull requests are reviewed without being asked: none, or each one once it is opened, or ready for review."""
PERSON_OR_TEAM: Final = r"[a-z0-9][a-z0-9_-]*(/[a-z0-9_][a-z0-9_.-]*)?"
"""Logins have hyphens, those of managed users end with an underscore and a code; a team has a slug of its name."""
_SAME: Final = (
    *("auto_pull_request", "autofix", "max_fix_attempts", "bare_commands"),
    *("max_cost_usd_per_turn", "max_cost_usd_per_repository_per_day"),
)
SETTINGS: Final = {"setup": "setup_script", "check": "check_script", **dict(zip(_SAME, _SAME, strict=True))}
"""The operator's settings behind rules of the same meaning."""
CONFIG_PATH: Final = ".threadtree/config.toml"
MAX_CONFIG_BYTES: Final = 64 * 1024
# tomllib keeps all beginnings of a dotted key: one of many thousand parts would take gigabytes. No key of ours has any.
_MOST_DOTS = 100
_MOST_UNKNOWN = 8
MOST_STANDING: Final = 20
SHORTEST_INTERVAL, LONGEST_INTERVAL = timedelta(minutes=15), timedelta(days=31)
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_AT: Final = re.compile(rf"({'|'.join(_DAYS)}|day) ([01][0-9]|2[0-3]):([0-5][0-9])")
_INTERVAL: Final = re.compile(r"([1-9][0-9]{0,4})([hm])")
_STANDING_BEGINS: Final = re.compile(r"[ \t]*\[\[[ \t]*[\"']?standing[\"']?[ \t]*\]\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for the requests of one repository, or of all where none chose anything.

    `agents` are those that can be asked, `agent` is the one for a conversation that chose none, `model` is that one's.
    `allowed` are the repository's own logins and teams, in lower case: None for all, empty for those with admin or
    maintain. Caps are in US dollars, None for none. `decided` are the names of the rules that the operator set: a
    repository can only make them narrower.
    """

    agents: tuple[str, ...]
    agent: str
    model: str | None = None
    instructions: str = ""
    allowed: tuple[str, ...] | None = None
    auto_pull_request: AutoPullRequest = "never"
    require_plan: RequirePlan = "never"
    review: Review = "never"
    setup: bool = False
    check: bool = True
    autofix: bool = False
    max_fix_attempts: int = 3
    network: frozenset[Destination] = frozenset()
    bare_commands: bool = True
    max_cost_usd_per_turn: float | None = None
    max_cost_usd_per_repository_per_day: float | None = None
    decided: frozenset[str] = frozenset()

    @property
    def forbids_autofix(self) -> bool:
        """Whether nobody can switch it on: the operator or the repository set it to false."""
        return "autofix" in self.decided and not self.autofix

    def fixes(self, chosen: bool | None) -> bool:
        """Whether failing checks are fixed in a thread whose people chose that; None: they chose nothing."""
        return not self.forbids_autofix and (self.autofix if chosen is None else chosen)

    @property
    def worker(self) -> tuple[str, str | None]:
        """The agent and its model."""
        return self.agent, self.model


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a conversation's people chose: its agent, and a model of that agent; None for the usual ones."""

    agent: str | None = None
    model: str | None = None

    def within(self, rules: Rules, asked: str | None = None) -> Rules:
        """Return the rules with the agent and the model of a request, which may itself name the agent `asked`.

        What cannot be asked by now is passed over. A model belongs to the agent it was chosen for.
        """
        agent = next((name for name in (asked, self.agent) if name in rules.agents), None) or rules.agent
        usual = rules.model if agent == rules.agent else None
        return replace(rules, agent=agent, model=(self.model if agent == self.agent else None) or usual)


def _person(text: str) -> str:
    found = text.lower().removeprefix("@")
    if not re.fullmatch(PERSON_OR_TEAM, found):
        raise ValueError(text)
    return found


def _hosts(text: str) -> set[Destination]:
    """Return the host with its port, or with the web's; raise NotReachableError, a ValueError, for a private one."""
    found = {parse_target(text, port) for port in WEB_PORTS}
    for host in {one.host for one in found}:
        if isinstance(host, str):
            require_public_name(host)
        elif not is_public(host):
            raise NotReachableError(text)
    return found


def _host(text: str) -> str:
    _hosts(text)
    return text


# A title says what the value must be.
_Switch = Annotated[bool | None, Field(title="true or false")]
ModelName = Annotated[
    Annotated[str, Field(pattern=r"^[0-9A-Za-z_./:@+\[\]-]{1,100}$")] | None,
    Field(title="the name of a model, without blanks"),
]
Dollars = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
    Field(title="an amount of US dollars above 0, such as 2.50"),
]


def _interval(every: str) -> timedelta | None:
    """Return the interval of `6h` or `30m`, None of a time such as `mon 06:00`. Raises ValueError for anything else."""
    if _AT.fullmatch(every):
        return None
    found = _INTERVAL.fullmatch(every)
    length = timedelta(**{"hours" if found[2] == "h" else "minutes": int(found[1])}) if found else timedelta()
    if not SHORTEST_INTERVAL <= length <= LONGEST_INTERVAL:
        raise ValueError(every)
    return length


def _every(text: str) -> str:
    _interval(text)
    return text


class Standing(BaseModel):
    """A request that is asked again and again at its times, on the authority of a person."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    every: Annotated[str, AfterValidator(_every)] = Field(title=words.EVERY)
    ask: str = Field(pattern=r"\S", max_length=8000, title="a request of at most 8,000 characters")
    as_: str = Field(alias="as", pattern=r"^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$", title="the login of a person")
    max_open: int = Field(default=1, ge=1, le=10, title="a whole number from 1 to 10")

    @property
    def key(self) -> str:
        """What makes it the same entry: one that asks something else, or at other times, is new."""
        return hashlib.sha256("\0".join((self.every, self.as_.lower(), self.ask)).encode()).hexdigest()[:32]

    def next_after(self, now: datetime, since: datetime) -> datetime:
        """Return the first of its times (UTC) after `now`; those of an interval are counted from `since`."""
        if (interval := _interval(self.every)) is not None:
            return since + interval * max(1, (now - since) // interval + 1)
        day, at = self.every.split(" ")
        hour, minute = at.split(":")
        found = now.astimezone(UTC).replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
        while found <= now or day not in ("day", _DAYS[found.weekday()]):
            found += timedelta(days=1)
        return found


_PEOPLE = 'a list of 1 to 200 logins and teams, such as ["octocat", "acme/web"]'
_HOSTS = (
    'a list of at most 20 public hosts, such as ["db.example.com:5432"]; the operator opens private ones by '
    "ALLOWED_HOSTS"
)


class Config(BaseModel):
    """What a repository chose in its `.threadtree/config.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent: str | None = Field(default=None, pattern=r"^[a-z-]{1,40}$", title='the name of an agent, such as "claude"')
    model: ModelName = None
    instructions: str | None = Field(default=None, max_length=32_000, title="a text of at most 32,000 characters")
    # No right file has an empty list: it stands for a wrong one.
    allowed: list[Annotated[str, AfterValidator(_person)]] | None = Field(default=None, max_length=200, title=_PEOPLE)
    auto_pull_request: AutoPullRequest | None = Field(default=None, title=words.one_of(get_args(AutoPullRequest)))
    require_plan: RequirePlan | None = Field(default=None, title=words.one_of(get_args(RequirePlan)))
    review: Review | None = Field(default=None, title=words.one_of(get_args(Review)))
    setup: _Switch = None
    check: _Switch = None
    autofix: _Switch = None
    max_fix_attempts: int | None = Field(default=None, ge=1, le=1000, title="a whole number from 1 to 1000")
    network: list[Annotated[str, AfterValidator(_host)]] | None = Field(default=None, max_length=20, title=_HOSTS)
    bare_commands: _Switch = None
    max_cost_usd_per_turn: Dollars = None
    max_cost_usd_per_day: Dollars = None
    standing_paused: _Switch = None
    standing: list[Standing] | None = Field(default=None, title="tables [[standing]] with every, ask and as")


KEYS: Final = tuple(Config.model_fields)
RULE_OF: Final = {"max_cost_usd_per_day": "max_cost_usd_per_repository_per_day"}
"""The rules of keys that are called otherwise."""
NO_RULES: Final = ("standing_paused", "standing")
"""The keys that ask something, in place of ruling what is asked."""
_WHEN_WRONG: Mapping[str, tuple[Any, str]] = {
    "allowed": ([], words.ONLY_MAINTAINERS),
    "require_plan": ("always", words.ALWAYS_PLANNED),
}
"""What holds instead of a wrong value that may have been there to keep people out, and the words for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a file says: the keys that are right, the line of each key, and what is wrong, a sentence for each problem.

    `config` is None where the file cannot be read at all; `counting` says what holds then. `standing_lines` are those
    on which the right entries of `standing` begin.
    """

    config: Config | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    standing_lines: tuple[int, ...] = ()


def counting(found: Found, before: Config | None) -> tuple[Config, tuple[str, ...]]:
    """Return what holds by a file, and what is wrong in it.

    One that cannot be read may be there to keep people out: what held `before` still holds, and where no file was
    known, only those with admin or maintain may ask.
    """
    if found.config is not None:
        return found.config, found.problems
    holds = before or Config(allowed=[])
    until = words.ONLY_MAINTAINERS if holds.allowed == [] else words.STILL_HOLDS
    return holds, tuple(f"{why} {until}" for why in found.problems)


def read_config(text: bytes) -> Found:
    """Read a file. A key that is wrong is left out by itself."""
    if len(text) > MAX_CONFIG_BYTES:
        return Found(problems=(words.unreadable(words.irregular(MAX_CONFIG_BYTES)),))
    try:
        source = text.decode()
        if any(line.count(".") > _MOST_DOTS for line in source.split("\n")):
            return Found(problems=(words.unreadable("a line has too many dots"),))
        given = tomllib.loads(source)
    except UnicodeDecodeError:
        return Found(problems=(words.unreadable("it is no text in UTF-8"),))
    except RecursionError:
        return Found(problems=(words.unreadable("it is nested too deeply"),))
    except ValueError as problem:  # also a number of too many digits
        return Found(problems=(words.unreadable(words.no_toml(str(problem))),))
    begin, wrong_entries = _right_entries(given, source)
    wrong = {"allowed"} if given.get("allowed") == [] else set()
    try:
        Config.model_validate(given)
    except ValidationError as error:
        wrong |= {str(one["loc"][0]) for one in error.errors(include_url=False, include_input=False)}
    unknown = [key for key in given if key not in KEYS]
    lines = {key: _line_of(source, key) for key in [key for key in KEYS if key in given] + unknown[:_MOST_UNKNOWN]}
    problems = []
    for key in sorted(wrong & lines.keys(), key=lambda key: (lines[key], key)):
        if key in KEYS:
            instead = _WHEN_WRONG[key][1] if key in _WHEN_WRONG else ""
            problems.append(words.wrong(key, lines[key], Config.model_fields[key].title or "", instead))
        else:
            near = get_close_matches(key[:40].lower(), KEYS, n=1)
            problems.append(words.unknown(key, lines[key], near[0] if near else None))
    if (more := len(unknown) - _MOST_UNKNOWN) > 0:
        problems.append(words.more_unknown(more))
    right = {key: value for key, value in given.items() if key not in wrong}
    instead_of = {key: _WHEN_WRONG[key][0] for key in wrong if key in _WHEN_WRONG}
    return Found(Config.model_validate(right | instead_of), lines, (*problems, *wrong_entries), begin)


def _right_entries(given: dict[str, Any], source: str) -> tuple[tuple[int, ...], list[str]]:
    """Leave the right ones of `standing` in what a file gives; return their lines, and what is wrong in the others."""
    tables = given.get("standing")
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        return (), []
    begin = [at for at, line in enumerate(source.split("\n"), 1) if _STANDING_BEGINS.match(line)]
    if len(begin) != len(tables):  # in one line, or a text has such a line
        begin = [_line_of(source, "standing")] * len(tables)
    right: dict[str, tuple[Standing, int]] = {}
    problems = []
    for table, line in zip(tables[:MOST_STANDING], begin, strict=False):
        try:
            entry = Standing.model_validate(table)
        except ValidationError as error:
            key = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
            named = {field.alias or name: field.title for name, field in Standing.model_fields.items()}
            problems.append(
                words.wrong_entry(line, key, named[key] or "") if key in named else words.unknown_in_entry(line, key)
            )
            continue
        if entry.key in right:
            problems.append(words.entry_is_there_twice(line, right[entry.key][1]))
        right.setdefault(entry.key, (entry, line))
    if len(tables) > MOST_STANDING:
        problems.append(words.too_many_entries(begin[MOST_STANDING], MOST_STANDING))
    given["standing"] = [entry.model_dump(by_alias=True) for entry, _ in right.values()]
    return tuple(line for _, line in right.values()), problems


def stored_config(text: str) -> Config:
    """Return what is right in a file, as it is in a row."""
    try:
        return Config.model_validate_json(text)
    except ValidationError:  # of another release
        return Config.model_validate({key: value for key, (value, _) in _WHEN_WRONG.items()})


def as_stored(config: Config) -> str:
    """Return the JSON for a row."""
    return config.model_dump_json(exclude_none=True, by_alias=True)


def within(rules: Rules, config: Config) -> tuple[Rules, dict[str, tuple[str, str]]]:
    """Return the rules with what the repository chose, and the choices that the operator's `rules` do not allow.

    These are left out; each has the setting that is against it, and the setting's value.
    """
    chosen: dict[str, Any] = {}
    beyond: dict[str, tuple[str, str]] = {}
    for key in KEYS:
        if key in NO_RULES or (value := getattr(config, key)) is None:
            continue
        rule = RULE_OF.get(key, key)
        own = getattr(rules, rule)
        if key == "agent":
            if value not in rules.agents:
                beyond[key] = "AGENT", ", ".join(rules.agents)
                continue
            if value != own:
                chosen["model"] = None  # the operator's is of another agent
        elif key == "model" and "agent" in beyond:
            beyond[key] = beyond["agent"]
            continue
        elif key == "network":
            if key in rules.decided:
                beyond[key] = "AGENT_NETWORK", "none"
                continue
            value = frozenset().union(*map(_hosts, value))
        elif key == "allowed":
            value = tuple(value)
        elif rule in SETTINGS and (rule in rules.decided or key.startswith("max_")) and _rank(value) > _rank(own):
            beyond[key] = SETTINGS[rule].upper(), words.as_written(own)
            continue
        chosen[rule] = value
    return replace(rules, **chosen), beyond


def _rank(value: Any) -> float:
    """Return how much a value allows."""
    if value is None:
        return math.inf
    return get_args(AutoPullRequest).index(value) if isinstance(value, str) else float(value)


def _line_of(source: str, key: str) -> int:
    """Return the line on which a key begins. The parser tells where its value ends: there a second one is refused."""
    end = 0
    try:
        tomllib.loads(f"{json.dumps(key, ensure_ascii=False)} = 0\n{source}\n")
    except (ValueError, RecursionError) as problem:
        told = re.search(r"at line (\d+)", str(problem))
        end = int(told[1]) - 1 if told else 0
    begins = re.compile(rf"[ \t\[]*[\"']?{re.escape(key)}\b")
    lines = source.split("\n")[:end]
    return next((at for at in range(len(lines), 0, -1) if begins.match(lines[at - 1])), end)
