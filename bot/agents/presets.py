"""A table of what differs between agents: program, environment, and repository files that must not run."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, Literal

from bot.sandbox.untrusted_files import list_untrusted, read_untrusted

CLAUDE_SDK = "claude-agent-sdk>=0.2.186,<0.3"
_MAX_CONFIGURATION_BYTES = 1 << 20
_MOST_SKILL_FOLDERS = 2_000
# The kernel takes variables of up to 128 KB: https://man7.org/linux/man-pages/man2/execve.2.html
_MOST_SKILL_CHARACTERS = 80_000
PLANNING = ("plan", "read-only", "ask")
"""The modes in which agents change nothing, the best first: https://agentclientprotocol.com/protocol/session-modes"""


@dataclass(frozen=True, slots=True)
class ModelApi:
    """A vendor's API: the variables that hold its key and another address for it, and its own address ("" for none).

    `endpoints` are all the requests that agents need: a method, and a regular expression for the whole path.
    """

    key: str
    base_url: str
    upstream: str
    endpoints: tuple[tuple[str, str], ...]

    def address(self, given: Mapping[str, str]) -> str:
        """Return the address of its requests, whose paths begin with `/v1`; the gateway's if `given` names one."""
        # OpenAI's own programs expect that the gateway's address ends with it.
        return (given.get(self.base_url) or self.upstream).rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Access:
    """An agent's settings for an API: a base URL instead of `upstream`, a key, and the model that was chosen.

    Without an `api`, the agent has credentials of its own, which AGENT_ENV names.
    """

    api: ModelApi | None = None
    url: str = ""
    key: str = ""
    model: str | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The variables that hold the key and the address."""
        return {self.api.key: self.key, self.api.base_url: self.url} if self.api else {}


_MODEL = "[A-Za-z0-9][A-Za-z0-9._-]*"
ANTHROPIC = ModelApi(
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "https://api.anthropic.com",
    (("POST", "/v1/messages(/count_tokens)?"), ("GET", f"/v1/models(/{_MODEL})?")),
)
# A gateway's token, and that of a subscription: https://code.claude.com/docs/en/authentication
ANTHROPIC_TOKEN = replace(ANTHROPIC, key="ANTHROPIC_AUTH_TOKEN")
SUBSCRIPTION = replace(ANTHROPIC, key="CLAUDE_CODE_OAUTH_TOKEN")
# A key of Amazon's: https://code.claude.com/docs/en/amazon-bedrock. Each region has an address of its own.
BEDROCK = ModelApi(
    "AWS_BEARER_TOKEN_BEDROCK",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "",
    # An ARN as a model's id has colons and slashes.
    (
        (
            "POST",
            "/model/[A-Za-z0-9]([A-Za-z0-9._:-]|%3[Aa]|%2[Ff](?=[A-Za-z0-9]))*"
            "/(invoke|invoke-with-response-stream|count-tokens)",
        ),
    ),
)
OPENAI = ModelApi(
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "https://api.openai.com",
    # Codex shortens long conversations with `compact`.
    (("POST", "/v1/(responses(/compact)?|chat/completions)"), ("GET", f"/v1/models(/{_MODEL})?")),
)
GEMINI = ModelApi(
    "GEMINI_API_KEY",
    "GOOGLE_GEMINI_BASE_URL",
    "https://generativelanguage.googleapis.com",
    (
        ("POST", f"/v1(beta)?/models/{_MODEL}:(generateContent|streamGenerateContent|countTokens)"),
        ("GET", f"/v1(beta)?/models(/{_MODEL})?"),
    ),
)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The differences between agents in a session.

    `meta`: the agent's own extensions, sent in `_meta`. `mode`: the mode to choose if the agent has it. `plan_option`:
    the option of a session that is `plan` or `default`, where another mode than PLANNING makes plans.
    `replay`: when the agent sends the past of a session that it loads: before its answer, as the protocol says
    (https://agentclientprotocol.com/protocol/session-setup#loading-sessions), after it, or unknown.
    """

    meta: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    replay: Literal["before", "after", "unknown"] = "before"
    plan_option: str | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """One agent. Its environment is built from nothing: HOME, PATH, LANG, what AGENT_ENV names, `environment`."""

    agent: str
    command: tuple[str, ...]
    package: str
    tested: str
    apis: tuple[ModelApi, ...]
    environment: Callable[[Access], dict[str, str]]
    session_options: SessionOptions = field(default_factory=SessionOptions)
    system_files: Mapping[str, str] = field(default_factory=dict)
    """Files of the machine that the sandbox must show, by absolute path. They overrule the repository's."""
    own_files: tuple[Path, ...] = ()
    """Files of the bot that the sandbox must show at their own paths."""
    plugin_folders: tuple[str, ...] = ()
    """Folders of a worktree whose files the agent runs as its own code, whatever its settings say."""
    skill_folders: tuple[str, ...] = ()
    """Folders of a worktree whose skills the agent loads, whatever its settings say, unless each is named."""
    plugin_lists: tuple[str, ...] = ()
    """Files of a worktree that can name such files. Those that hold the word `plugin` count."""
    tells_cost: Literal["while it works", "at the end of an answer", "never"] = "never"
    """When the agent tells what its session has cost, in US dollars."""
    oldest_node: int | None = None
    """The first version of node that runs the package from npm; None for a package from PyPI."""

    @property
    def install(self) -> str:
        """The command that installs it."""
        if self.oldest_node is None:
            return f"{sys.executable} -m pip install '{self.package}'"
        return f"npm install -g {self.package} (node {self.oldest_node} or later)"


@dataclass(frozen=True, slots=True)
class NotInstalled:
    """The agent's program is not there; `next_step` names what to install."""

    reason: str
    next_step: str


def preset(agent: str) -> Preset | None:
    """Return the row for this value of AGENT; None for `custom`. Raises KeyError for other words."""
    return None if agent == "custom" else PRESETS[agent]


def model_variables(agents: Iterable[str] | None = None) -> frozenset[str]:
    """Return the names that hold the model keys of these presets, or of all, and the addresses for them."""
    rows = [PRESETS[agent] for agent in (PRESETS if agents is None else agents) if agent in PRESETS]
    return frozenset(name for row in rows for api in row.apis for name in (api.key, api.base_url))


def api_of(chosen: Preset | None, given: Mapping[str, str]) -> ModelApi | None:
    """Return the first API of a preset whose key is given, None where the agent has other credentials or none."""
    return next((api for api in chosen.apis if api.key in given), None) if chosen else None


def variables_of(
    chosen: Preset | None, api: ModelApi | None, model: str | None, given: Mapping[str, str], served: Mapping[str, str]
) -> dict[str, str]:
    """Return an agent's variables besides HOME, PATH and LANG: `given` by AGENT_ENV and `served` by its network.

    Of a preset's model keys and addresses, the agent gets only the served ones.
    """
    if chosen is None:
        return {**given, **served}
    if api is None:
        return {**given, **served, **chosen.environment(Access(model=model))}
    own = model_variables([chosen.agent])
    rest = {name: value for name, value in {**given, **served}.items() if name not in own}
    return {**rest, **chosen.environment(Access(api, served[api.base_url], served[api.key], model))}


def command_of(chosen: Preset, search_path: str) -> tuple[str, ...] | NotInstalled:
    """Return the preset's command with the absolute path of its program."""
    program = _bundled_claude() if chosen.agent == "claude" else shutil.which(chosen.command[0], path=search_path)
    if program is None:
        what = "claude-agent-sdk" if chosen.agent == "claude" else f"`{chosen.command[0]}`"
        return NotInstalled(f"{what} is not installed.", f"Install it: {chosen.install}")
    return (str(program), *chosen.command[1:])


def plugin_of_repository(chosen: Preset, worktree: Path) -> str | None:
    """Return the first path of a worktree that can run as part of the agent.

    Links and files that cannot be read within limits count: the agent would follow them and read them.
    """
    for path in (*chosen.plugin_folders, *chosen.plugin_lists):
        try:
            if path in chosen.plugin_lists:
                if b"plugin" in read_untrusted(worktree, PurePath(path), _MAX_CONFIGURATION_BYTES):
                    return path
            elif names := list_untrusted(worktree, PurePath(path)):
                return f"{path}/{names[0]}"
        except FileNotFoundError:
            continue
        except OSError:
            return path
    return None


def with_skills(options: SessionOptions, folder: Path) -> SessionOptions:
    """Return the options of a session with a plugin for Claude; the others look for skills in HOME by themselves."""
    if "claudeCode" not in options.meta:
        return options
    plugins = [{"type": "local", "path": str(folder)}]
    claude = options.meta["claudeCode"]["options"] | {"plugins": plugins}
    return replace(options, meta={"claudeCode": {"options": claude}})


def skills_of_repository(chosen: Preset, worktree: Path) -> tuple[str, ...] | None:
    """Return the files of skills of a worktree that the agent would load. None where a link leads out of it, or there
    are too many: then they cannot all be named.
    """
    root, found = worktree.resolve(), set[str]()
    waiting, seen = [worktree / one for one in chosen.skill_folders], set[Path]()
    while waiting:
        folder = waiting.pop()
        try:
            place = folder.resolve(strict=True)
            if not place.is_relative_to(root) or len(seen) > _MOST_SKILL_FOLDERS:
                return None
            if place in seen:
                continue
            seen.add(place)
            for child in os.scandir(place):
                if child.name.lower() == "skill.md":
                    found |= {f"{folder / child.name}", child.path, os.path.realpath(child.path)}
                elif child.is_dir():
                    waiting.append(folder / child.name)
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError):
            return None
    return tuple(sorted(found)) if sum(map(len, found)) <= _MOST_SKILL_CHARACTERS else None


def without_skills(environment: Mapping[str, str], files: tuple[str, ...]) -> dict[str, str]:
    """Return codex's variables with these skills switched off: it has no setting for all of a worktree."""
    config = json.loads(environment["CODEX_CONFIG"])
    config["skills"] = {"config": [{"path": path, "enabled": False} for path in files]}
    return {**environment, "CODEX_CONFIG": json.dumps(config)}


def _bundled_claude() -> str | None:
    """Return the program in the SDK's wheel, without an import of the SDK."""
    spec = find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bundled" / "claude"
    return str(program) if program.is_file() else shutil.which("claude")


_OF_CLAUDE = (ANTHROPIC, ANTHROPIC_TOKEN, SUBSCRIPTION, BEDROCK)
# As root, Claude works unattended only if it is told that it is in a sandbox.
_CLAUDE = {
    "IS_SANDBOX": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # The prompt says what becomes of changes and how commits are named.
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
    "DISABLE_AUTOUPDATER": "1",
}


def _claude(access: Access) -> dict[str, str]:
    cloud = {"CLAUDE_CODE_USE_BEDROCK": "1"} if access.api == BEDROCK else {}
    return {**_CLAUDE, **cloud, **access.variables, **_named(access, "ANTHROPIC_MODEL")}


def _named(access: Access, variable: str) -> dict[str, str]:
    """Return the variable in which an agent takes the name of its model."""
    return {variable: access.model} if access.model else {}


_CODEX_MODE = "agent-full-access"


def _codex(access: Access) -> dict[str, str]:
    """https://developers.openai.com/codex/config-reference. These settings win over a repository's."""
    config: dict[str, object] = {
        **({"model": access.model} if access.model else {}),
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        # A worktree's AGENTS.md may be an outsider's: the prompt holds that of the default branch.
        "project_doc_max_bytes": 0,
        # The vendor would run it, and the proxy refuses such a tool with AGENT_NETWORK=none.
        "web_search": "disabled",
        "features": {"hooks": False, "plugins": False, "apps": False},
    }
    provider = {"name": "OpenAI", "base_url": f"{access.url}/v1", "env_key": OPENAI.key, "wire_api": "responses"}
    if access.api:
        config |= {"model_provider": "threadtree", "model_providers": {"threadtree": provider}}
    return {
        **({OPENAI.key: access.key, "MODEL_PROVIDER": "threadtree"} if access.api else {}),
        "CODEX_CONFIG": json.dumps(config),
        # Its own sandbox cannot be set up inside ours.
        "INITIAL_AGENT_MODE": _CODEX_MODE,
        "NO_BROWSER": "1",
    }


# System settings: Gemini's retention deletes every session that was loaded twice.
_GEMINI_SETTINGS = Path(__file__).with_name("gemini.json")


def _gemini(access: Access) -> dict[str, str]:
    return {
        **access.variables,
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(_GEMINI_SETTINGS),
        # In an untrusted folder it does not read the folder's settings, hooks, extensions and MCP servers.
        "GEMINI_CLI_TRUST_WORKSPACE": "false",
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_PROMPT_GIT": "0",
        "NO_BROWSER": "true",
        **_named(access, "GEMINI_MODEL"),
    }


_OPENCODE_PROVIDERS = {ANTHROPIC: ("anthropic", "/v1"), OPENAI: ("openai", "/v1"), GEMINI: ("google", "/v1beta")}


def _opencode(access: Access) -> dict[str, str]:
    """https://opencode.ai/docs/config"""
    config: dict[str, object] = {
        "permission": "allow",
        "share": "disabled",
        "autoupdate": False,
        "skills": {"paths": ["~/.agents/skills"]},
    }
    if access.api:
        provider, suffix = _OPENCODE_PROVIDERS[access.api]
        options: dict[str, object] = {"options": {"baseURL": access.url + suffix, "apiKey": access.key}}
        # Otherwise it uses a free model of its own vendor if no model is chosen.
        config |= {"provider": {provider: options}, "enabled_providers": [provider]}
        if access.model:
            name = access.model.removeprefix(f"{provider}/")
            options["models"] = {name: {}}  # it may be newer than its own list
            config["model"] = f"{provider}/{name}"
    elif access.model:
        config["model"] = access.model
    off = (
        *("PROJECT_CONFIG", "DEFAULT_PLUGINS", "EXTERNAL_SKILLS", "CLAUDE_CODE"),
        *("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE"),
    )
    return {
        **({access.api.key: access.key} if access.api else {}),
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        **{f"OPENCODE_DISABLE_{what}": "1" for what in off},
        "OPENCODE_PURE": "1",
    }


# The adapter trusts every folder, so a repository's MCP servers would run. The list of permitted ones is empty.
# https://developers.openai.com/codex/security#managed-configuration
_CODEX_REQUIREMENTS = "[mcp_servers]\n\n[features]\nhooks = false\n"

PRESETS = {
    row.agent: row
    for row in (
        Preset(
            agent="claude",
            command=("claude",),
            tells_cost="while it works",
            package=CLAUDE_SDK,
            tested="claude-agent-sdk 0.2.186 (Claude Code 2.1.329)",
            apis=_OF_CLAUDE,
            environment=lambda access: {**_claude(access), "CLAUDE_CODE_ENTRYPOINT": "sdk-py"},
        ),
        Preset(
            agent="claude-acp",
            tells_cost="at the end of an answer",
            command=("claude-agent-acp",),
            package="@agentclientprotocol/claude-agent-acp",
            oldest_node=22,
            tested="0.100.0",
            apis=_OF_CLAUDE,
            environment=_claude,
            session_options=SessionOptions(
                meta={
                    "claudeCode": {"options": {"settingSources": [], "strictMcpConfig": True, "verbatimPrompts": True}}
                },
                mode="bypassPermissions",
            ),
        ),
        Preset(
            agent="codex",
            command=("codex-acp",),
            package="@agentclientprotocol/codex-acp",
            oldest_node=22,
            tested="2.6.0 (codex 0.166.0)",
            apis=(OPENAI,),
            environment=_codex,
            system_files={"/etc/codex/requirements.toml": _CODEX_REQUIREMENTS},
            skill_folders=(".agents/skills", ".codex/skills"),
            session_options=SessionOptions(mode=_CODEX_MODE, plan_option="collaboration_mode"),
        ),
        Preset(
            agent="gemini",
            command=("gemini", "--acp"),
            package="@google/gemini-cli",
            oldest_node=20,
            tested="0.61.0",
            apis=(GEMINI,),
            environment=_gemini,
            own_files=(_GEMINI_SETTINGS,),
            session_options=SessionOptions(replay="after"),
        ),
        Preset(
            agent="opencode",
            tells_cost="while it works",
            command=("opencode", "acp"),
            package="opencode-ai",
            oldest_node=18,
            tested="1.18.33",
            apis=(ANTHROPIC, OPENAI, GEMINI),
            environment=_opencode,
            # https://github.com/anomalyco/opencode/issues/49836
            plugin_folders=(".opencode/plugin", ".opencode/plugins"),
            plugin_lists=tuple(
                folder + name for folder in ("", ".opencode/") for name in ("opencode.json", "opencode.jsonc")
            ),
        ),
    )
}
