"""The checks of `threadtree doctor`: whether this installation can work, and what to do if not."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from bot import settings
from bot.agents.driver import Launch, OpenFailed
from bot.agents.opening import driver_for
from bot.agents.presets import PRESETS, NotInstalled, command_of, preset
from bot.doctor.scratch import Scratch, scratch
from bot.git.errors import GitError
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Unauthenticated
from bot.process import OutputTail, start
from bot.redaction import Redactor
from bot.sandbox.cage import Cage, Unusable, Usable, cage_for
from bot.sandbox.limits import Holder
from bot.sandbox.system import UnsafeCommandError
from bot.settings import Need, Settings, SettingsError, known_secrets

VERSION_SECONDS = 30.0
VERSION_BYTES = 4096
SHORT_SECRET = 16
# A GitHub App's web token is refused when the clocks differ by more than this
# (https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app).
MAX_CLOCK_SKEW = timedelta(seconds=60)
FEW_REQUESTS = 500
"""With fewer requests left in this hour, the check warns."""
# The first with `git merge-tree --write-tree`, the newest command that the bot needs.
OLDEST_GIT = (2, 38)
_GLOB_CHARACTERS = frozenset("*?[")
State = Literal["ok", "warning", "problem"]
Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A `problem` is what the bot cannot work with as it is set up; `next_step` says what to do."""

    check: str
    state: State
    found: str
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """The settings that can be read, and the problems of the others; `agent` is None where AGENT names none."""

    settings: Settings
    problems: tuple[str, ...]
    agent: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One agent as it is on this machine; `problem` is None where a session could be opened."""

    agent: str
    installed: bool
    version: str | None
    tested_version: str | None
    problem: str | None
    next_step: str | None


def known_settings() -> Known:
    """Return the settings of the environment and `.env`. A setting that cannot be read has its default."""
    problems: tuple[str, ...] = ()
    for needs in (settings.SERVE, frozenset({Need.AGENT}), settings.DATABASE_ONLY):
        try:
            found = settings.load(needs=needs)
        except SettingsError as error:
            problems = problems or error.lines
        else:
            return Known(found, problems, settings.chosen_agent())
    nowhere = str(Path(tempfile.gettempdir()) / "threadtree")
    return Known(
        settings.load({"PATH": settings.search_path(), "DATA_DIR": nowhere}, dotenv=None),
        problems,
        settings.chosen_agent(),
    )


async def examine(known: Known, github: GitHub | None) -> list[Check]:
    """Run every check. No model is asked, no process and no directory is left, no secret is shown.

    `github` is None where no credentials are set.
    """
    given = known.settings
    cage = await asyncio.to_thread(cage_for, given.data_dir, given.path)
    probed = await asyncio.to_thread(cage.probe)
    caged = given.agent_sandbox != "off"
    checks = [
        *settings_checks(known.problems),
        *setting_warnings(given),
        *(await github_checks(given, github) if github else []),
        await _program("git", "git", given.path, "problem", OLDEST_GIT),
        await _program("bubblewrap", cage.bwrap, given.path, "problem" if caged else "warning"),
        sandbox_check(given.agent_sandbox, probed),
        limits_check(given, cage if caged and isinstance(probed, Usable) else None),
        network_check(given),
        *await _agents(known, caged, probed),
    ]
    redactor = Redactor(known_secrets(given))
    return [_redacted(check, redactor) for check in checks]


def settings_checks(problems: Iterable[str]) -> list[Check]:
    """Return a line for each problem of the settings."""
    found = [Check("settings", "problem", *_two_sentences(line)) for line in problems]
    return found or [Check("settings", "ok", "complete for `threadtree serve`")]


def setting_warnings(given: Settings) -> list[Check]:
    """Return a warning for each setting that is accepted but unwise, or has no effect."""
    checks = [Check("settings", "warning", *_two_sentences(line)) for line in settings.doubtful_names()]
    secret = given.github_webhook_secret
    if secret is not None and len(secret.get_secret_value()) < SHORT_SECRET:
        found = f"GITHUB_WEBHOOK_SECRET has fewer than {SHORT_SECRET} characters and can be guessed"
        checks.append(Check("settings", "warning", found, "Set a long random one, here and at the webhook on GitHub."))
    return checks


def sandbox_check(setting: str, probed: Usable | Unusable) -> Check:
    """Return whether agents run in a sandbox as AGENT_SANDBOX asks."""
    match setting, probed:
        case "off", Usable():
            found = "AGENT_SANDBOX=off: agents can do all that this user can; the sandbox would work here"
            return Check("sandbox", "warning", found, "Set AGENT_SANDBOX=auto.")
        case "off", Unusable(why, step):
            found = f"AGENT_SANDBOX=off: agents can do all that this user can. The sandbox would not work here: {why}"
            advice = step.partition("Or set AGENT_SANDBOX=off")[0].strip()
            return Check("sandbox", "warning", found, f"{advice} Then set AGENT_SANDBOX=auto.".strip())
        case _, Unusable(why, step):
            return Check("sandbox", "problem", f"AGENT_SANDBOX={setting}, which cannot be used here: {why}", step)
        case _:
            return Check("sandbox", "ok", f"AGENT_SANDBOX={setting}, which works here for this user")


def limits_check(given: Settings, cage: Cage | None) -> Check:
    """Return the limits of a turn, and which part of the system enforces them."""
    turn = f"a turn: {given.turn_timeout_seconds:g} s, or {given.turn_idle_timeout_seconds:g} s without a sign of life"
    if cage is None:
        return Check("limits", "warning", f"{turn}; no others without a sandbox")
    limits, processes, memory = cage.enforcement.limits, cage.enforcement.processes, cage.enforcement.memory
    found = (
        f"{turn}; {limits.processes} processes ({_holder(processes)}), {_gib(limits.memory_bytes)} of memory "
        f"({_holder(memory)}{', each process by itself' if memory is Holder.RLIMIT else ''}), "
        f"{_gib(limits.disk_bytes)} of disk, {_gib(limits.file_bytes)} a file, {_gib(limits.scratch_bytes)} in /tmp"
    )
    if processes is Holder.NOTHING:
        step = "Run the bot as an ordinary user, or give it a cgroup in which it may make others (Delegate=yes)."
        return Check("limits", "warning", found, step)
    return Check("limits", "ok", found)


def network_check(given: Settings) -> Check:
    """Return which networks agents can reach."""
    setting = f"AGENT_NETWORK={given.agent_network}"
    if given.agent_sandbox == "off":
        found = f"{setting} has no effect without a sandbox: agents reach what this machine reaches"
        return Check("network", "warning", found, "Set AGENT_SANDBOX=auto.")
    match given.agent_network:
        case "internet":
            return Check("network", "ok", f"{setting}: the internet, not this machine and no private addresses")
        case "none":
            return Check("network", "ok", f"{setting}: nothing but the model of a preset")
        case "host":
            found = f"{setting}: agents reach what this machine reaches, its own services too"
            return Check("network", "warning", found, "Set AGENT_NETWORK=internet.")


def agent_check(finding: Finding, chosen: bool, place: str) -> Check:
    """Return the result for an agent; only the agent of AGENT can be a problem."""
    name = f"agent {finding.agent}"
    said = "chosen by AGENT; " if chosen else ""
    if not finding.installed:
        return Check(name, "problem" if chosen else "ok", f"{said}not installed", finding.next_step)
    if finding.tested_version is not None:
        said += f"{finding.version or 'tells no version'} (tested with {finding.tested_version}); "
    if finding.problem is not None:
        return Check(name, "problem" if chosen else "warning", said + finding.problem, finding.next_step)
    protocol = "driven by its SDK" if finding.agent == "claude" else "speaks ACP"
    return Check(name, "ok", f"{said}{protocol}; starts a session {place}")


async def github_checks(settings: Settings, github: GitHub) -> list[Check]:
    """Ask GitHub who the bot is, what is left of its rate limit, and what it may do where ALLOWED_REPOS has names."""
    setting = "GITHUB_TOKEN" if settings.github_token else "GITHUB_APP_ID and the App's private key"
    try:
        me = await github.identity()
        rate = await github.rate_limit()
    except Unauthenticated as problem:
        step = "Make a new one on GitHub, and set it." if settings.github_token else "Correct them."
        refused = f"{setting}: not accepted by {settings.platform} ({problem})"
        return [Check("github", "problem", refused, step), *_clock_checks(github)]
    except GitHubError as problem:
        step = "Check GITHUB_API_URL and the network."
        return [Check("github", "problem", f"{settings.github_api_url} does not answer: {problem}", step)]
    found = f"works as {me.login}; people mention @{settings.bot_name or me.mention}"
    checks = [Check("github", "ok", found), *_clock_checks(github)]
    if rate is not None:
        left = f"{rate.remaining} of {rate.limit} requests left in this hour"
        checks.append(Check("rate limit", "warning" if rate.remaining < FEW_REQUESTS else "ok", left))
    named = [full_name for full_name in settings.allowed_repos if not _GLOB_CHARACTERS & set(full_name)]
    checks += [await _repository_check(github, full_name) for full_name in named]
    if not github.is_app:
        checks += [await _missed_check(settings.platform, github, full_name) for full_name in named]
    return checks


async def _missed_check(platform: str, github: GitHub, full_name: str) -> Check:
    """Return whether the deliveries that were missed can be read; an App reads its own in any case."""
    name, instead = f"missed deliveries of {full_name}", "the threads are read instead"
    try:
        hooks = await github.webhooks(await github.repository(platform, *full_name.split("/")))
    except GitHubError as problem:
        found = f"the token may not read the repository's webhooks ({problem}): {instead}"
        step = (
            "Edits of texts that were answered before, and transfers, are missed: give the token `Webhooks: read` (or "
            "`read:repo_hook` and admin access) to find them too."
        )
        return Check(name, "warning", found, step)
    if not hooks:
        return Check(name, "warning", f"no webhook of the repository leads to /webhooks/github: {instead}")
    return Check(name, "ok", "fetched from GitHub's log, which goes back three days")


def _clock_checks(github: GitHub) -> list[Check]:
    """Return a warning where this machine's clock and GitHub's differ too much."""
    skew = github.clock_skew
    if skew is None or abs(skew) <= MAX_CLOCK_SKEW:
        return []
    direction = "behind" if skew > timedelta() else "ahead of"
    found = f"this machine's clock is {abs(skew).total_seconds():.0f} s {direction} GitHub's"
    return [Check("clock", "warning", found, "Synchronise the clock (NTP): GitHub refuses an App's tokens otherwise.")]


async def _repository_check(github: GitHub, full_name: str) -> Check:
    name = f"repository {full_name}"
    try:
        missing = await github.missing_rights(*full_name.split("/"))
    except NotFound:
        step = "Correct ALLOWED_REPOS, or give the bot access (invite its account, or install the App)."
        return Check(name, "problem", "GitHub shows the bot no such repository", step)
    except GitHubError as problem:
        return Check(name, "warning", f"the bot's rights are unknown: {problem}")
    if missing:
        return Check(name, "problem", f"the bot lacks: {', '.join(missing)}", "Give the bot these rights on GitHub.")
    return Check(name, "ok", "the bot may push and comment")


async def try_agent(agent: str, command: Command | NotInstalled, launch_of: Callable[[Command], Launch]) -> Finding:
    """Start the agent twice, for its version and for a session. No model is asked."""
    chosen = preset(agent)
    tested = chosen.tested if chosen else None
    if isinstance(command, NotInstalled):
        return Finding(agent, False, None, tested, command.reason, command.next_step)
    try:
        version = await _version(launch_of((command[0], "--version"))) if chosen else None
        async with driver_for(agent, launch_of(command)) as driver:
            opened = await driver.open(None)
    except (OSError, UnsafeCommandError) as error:
        return Finding(agent, True, None, tested, f"cannot be started: {error}", None)
    if not isinstance(opened, OpenFailed):
        return Finding(agent, True, version, tested, None, None)
    last_words = opened.stderr_tail.splitlines()[-1:]
    problem = " Its last words: ".join([opened.reason, *last_words])
    return Finding(agent, True, version, tested, problem, opened.next_step)


async def _agents(known: Known, caged: bool, probed: Usable | Unusable) -> list[Check]:
    """Return checks of agents: the agent of AGENT, the other installed ones, and the missing ones in one line."""
    given = known.settings
    if caged and isinstance(probed, Unusable):
        return _agent_checks(_not_tried(given, "there is no sandbox"), known.agent, "")
    try:
        async with scratch(given) as stage:
            place = "in the sandbox" if caged else "without a sandbox"
            findings = [finding async for finding in _findings(stage, given, known.agent)]
            return _agent_checks(findings, known.agent, place)
    except (GitError, OSError) as error:
        failed = f"no worktree can be made in the folder for temporary files: {error}"
        untried = _agent_checks(_not_tried(given, "there is no worktree"), known.agent, "")
        return [Check("worktree", "problem", failed), *untried]


def _agent_checks(findings: Iterable[Finding], chosen: str | None, place: str) -> list[Check]:
    chosen_first = sorted(findings, key=lambda finding: finding.agent != chosen)
    shown = [finding for finding in chosen_first if finding.installed or finding.agent == chosen]
    checks = [agent_check(finding, finding.agent == chosen, place) for finding in shown]
    absent = [finding.agent for finding in chosen_first if finding not in shown]
    if absent:
        found = f"not installed: {', '.join(absent)}"
        checks.append(Check("other agents", "ok", found, "Needed only if AGENT names one; README.md says how."))
    return checks


async def _findings(stage: Scratch, given: Settings, agent: str | None) -> AsyncIterator[Finding]:
    for name, command in _commands(given).items():
        handed = given.agent_env if name == agent else {}
        async with stage.launching(preset(name), handed) as launch_of:
            yield await try_agent(name, command, launch_of)


def _not_tried(given: Settings, why: str) -> list[Finding]:
    """Return findings without starting agents: only whether their programs are installed."""
    return [
        Finding(agent, False, None, None, command.reason, command.next_step)
        if isinstance(command, NotInstalled)
        else Finding(agent, True, None, None, f"installed; not started: {why}", None)
        for agent, command in _commands(given).items()
    ]


def _commands(given: Settings) -> dict[str, Command | NotInstalled]:
    """Return the commands of the presets, and of the custom agent where it has one."""
    commands = {row.agent: command_of(row, given.path) for row in PRESETS.values()}
    return {**commands, "custom": given.agent_command} if given.agent_command else commands


async def _program(name: str, program: str, search_path: str, missing: State, oldest: tuple[int, ...] = ()) -> Check:
    """Check a program that the bot itself needs, and its version."""
    path = shutil.which(program, path=search_path)
    if path is None:
        return Check(name, missing, f"`{program}` is not there", f"Install the package `{name}`.")
    try:
        version = await _version(Launch((path, "--version"), {"PATH": search_path}, Path("/")))
    except OSError as error:
        return Check(name, missing, f"{path} cannot be started: {error.strerror}", f"Install the package `{name}`.")
    number = re.search(r"\d+(\.\d+)+", version or "")
    if number is None:
        return Check(name, missing, f"{path} tells no version", f"Install the package `{name}` again.")
    if tuple(map(int, number[0].split("."))) < oldest:
        needed = ".".join(map(str, oldest))
        return Check(name, missing, f"{number[0]} ({path}) is too old", f"Install `{program}` {needed} or later.")
    return Check(name, "ok", f"{number[0]} ({path})")


async def _version(launch: Launch) -> str | None:
    """Return the last line of the program's output, None without output. Raises OSError if it cannot be started."""
    process = await start(launch.argv, launch.environment, launch.cwd, stderr=asyncio.subprocess.DEVNULL)
    try:
        output = OutputTail(process.stdout, VERSION_BYTES)
        await output.finish(VERSION_SECONDS)
    finally:
        await process.end()
    lines = output.data.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def _two_sentences(line: str) -> tuple[str, str | None]:
    """Split a line of the settings at its last semicolon, into the problem and the next step."""
    wrong, separator, step = line.rpartition("; ")
    return (wrong, step[:1].upper() + step[1:]) if separator else (line, None)


def _holder(holder: Holder) -> str:
    words = {Holder.CGROUP: "enforced by a cgroup", Holder.RLIMIT: "enforced by rlimit"}
    return words.get(holder, "not enforced")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):g} GiB"


def _redacted(check: Check, redactor: Redactor) -> Check:
    step = redactor.redact(check.next_step) if check.next_step else None
    return replace(check, found=redactor.redact(check.found), next_step=step)
