"""The context that all turns of a node share; the composition root makes it."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bot.agents.driver import Launch, PromptLimits
from bot.agents.presets import ModelApi, Preset, preset, variables_of
from bot.authority import Policy
from bot.clones.checkout import view_of
from bot.clones.clone import Clone
from bot.git.runner import Identity
from bot.github.client import GitHub
from bot.model import AutoPullRequest
from bot.network.models import ModelRoute
from bot.network.turn_network import NetworkMode, open_network
from bot.network.usage_limit import UsageLimit
from bot.node.context import NodeContext
from bot.sandbox import agent_environment
from bot.sandbox.cage import Bind
from bot.sandbox.disk import DiskWatch
from bot.store.turns import ClaimedTurn


@dataclass(frozen=True, slots=True)
class Script:
    """A script, at a path that is the same in the cage, and the command that runs it."""

    path: Path
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext(NodeContext):
    """The context of this node's turns."""

    github: GitHub
    policy: Policy
    author: Identity
    agent: str
    agent_command: tuple[str, ...]
    agent_variables: Mapping[str, str]
    search_path: str
    lang: str
    network: NetworkMode
    allow_workflow_changes: bool
    limits: PromptLimits
    setup_script: bool = False
    include_outsiders: bool = False
    auto_pull_request: AutoPullRequest = "never"
    purge_on_success: bool = False
    session_ttl_seconds: float = 3600

    @asynccontextmanager
    async def launching(
        self, turn: ClaimedTurn, script: Script | None = None, limit: UsageLimit | None = None
    ) -> AsyncIterator[tuple[Launch, DiskWatch]]:
        """Return how to start the agent of a turn: in its worktree, with the conversation's HOME, in the cage if there
        is one. The turn's network lasts as long as the context. Raises GitError, OSError, UnsafeCommandError.

        With `script`, the script starts in the agent's place, without access to a model and without the agent's
        variables. `limit` hears of the model's usage limit.
        """
        home = self.data_dir / "homes" / str(turn.conversation_id)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        attachments = self.attachments / str(turn.id)

        def variables(of_network: Mapping[str, str]) -> Mapping[str, str]:
            if script is not None:
                return of_network
            return variables_of(preset(self.agent), self._api(), self.agent_variables, of_network)

        with tempfile.TemporaryDirectory(prefix="threadtree-") as sockets, _fresh_folder(attachments):
            async with open_launcher(
                self.clone(turn.worktree.folder),
                self.directory(turn.worktree.path),
                home,
                Path(sockets),
                chosen=preset(self.agent),
                mode=self.network,
                route=None if script else self._route(limit),
                variables=variables,
                search_path=self.search_path,
                lang=self.lang,
            ) as (launch, disk):
                started = launch(self.agent_command, (Bind(attachments if script is None else script.path),))
                if script is not None:
                    # The same cage as the agent's, whatever the script's first line names.
                    argv = (*started.argv[: -len(self.agent_command)], *script.command)
                    started = replace(started, argv=argv)
                yield started, disk

    def _route(self, limit: UsageLimit | None) -> ModelRoute | None:
        """Return the route to a preset's model: the agent gets a key of this turn, the proxy has the real one."""
        api = self._api()
        if api is None:
            return None
        upstream = self.agent_variables.get(api.base_url, api.upstream)
        return ModelRoute(upstream, self.agent_variables[api.key], api.base_url, api.key, api.endpoints, limit)

    def _api(self) -> ModelApi | None:
        """Return the first of the preset's model APIs that has a key."""
        chosen = preset(self.agent)
        return next((api for api in chosen.apis if api.key in self.agent_variables), None) if chosen else None


@contextmanager
def _fresh_folder(folder: Path) -> Iterator[None]:
    """Make an empty folder for as long as the block lasts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Launching = Callable[[tuple[str, ...], Sequence[Bind]], Launch]
"""Return how a command is started; its cage shows the binds too. Raises UnsafeCommandError."""


@asynccontextmanager
async def open_launcher(
    clone: Clone,
    worktree: Path,
    home: Path,
    sockets: Path,
    *,
    chosen: Preset | None,
    mode: NetworkMode,
    route: ModelRoute | None,
    variables: Callable[[Mapping[str, str]], Mapping[str, str]],
    search_path: str,
    lang: str,
) -> AsyncIterator[tuple[Launching, DiskWatch]]:
    """Open the network of an agent; yield what starts commands in it, and the watch over their disk usage.

    `variables` makes the agent's variables from those of the network. Raises GitError, OSError.
    """
    cage, view = clone.git.cage, await view_of(clone, worktree)
    async with open_network(mode if cage.isolates else "host", sockets, route) as network:
        environment = agent_environment(home, search_path, lang, variables(network.environment))
        always = (*(Bind(path) for path in network.binds), *shown_for(chosen, sockets))
        reach: Literal["none", "host"] = "none" if network.own_namespace else "host"

        def launch(command: tuple[str, ...], binds: Sequence[Bind]) -> Launch:
            argv = cage.agent_argv(
                view, command, home, worktree, network=reach, wrapper=network.wrapper, binds=[*always, *binds]
            )
            return Launch(argv, environment, worktree)

        yield launch, cage.disk_watch(view, home)


def shown_for(chosen: Preset | None, scratch: Path) -> Iterator[Bind]:
    """Return what a preset's agent needs in its cage: files of the bot, and machine-wide settings files."""
    if chosen is None:
        return
    yield from (Bind(path) for path in chosen.own_files)
    for number, (path, text) in enumerate(chosen.system_files.items()):
        written = scratch / f"system-{number}"
        written.write_text(text)
        yield Bind(written, at=Path(path))
