"""What all turns of a node share, as one value made by the composition root."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bot.agents.driver import Launch, Limits
from bot.agents.presets import ModelApi, Preset, preset, variables_of
from bot.authority import Policy
from bot.git.runner import Identity
from bot.github.client import GitHub
from bot.network.models import ModelRoute
from bot.network.turn_network import NetworkMode, open_network
from bot.node.context import NodeContext
from bot.run.script import Script
from bot.sandbox import agent_argv, agent_environment
from bot.sandbox.cage import Bind
from bot.sandbox.disk import DiskWatch
from bot.store.turns import ClaimedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext(NodeContext):
    """What the turns of this node work with."""

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
    limits: Limits
    secrets: tuple[str, ...]
    setup_script: bool = False
    purge_on_success: bool = False
    session_ttl_seconds: float = 3600

    @asynccontextmanager
    async def launching(
        self, turn: ClaimedTurn, script: Script | None = None
    ) -> AsyncIterator[tuple[Launch, DiskWatch | None]]:
        """Return how to start the agent of a turn: in its worktree, with the conversation's HOME, in the cage if there
        is one. The turn's network lasts as long as the context. Raises GitError, OSError, UnsafeCommandError.

        With `script`, the script starts in the agent's place, without access to a model and without the agent's
        variables.
        """
        home, path = self.data_dir / "homes" / str(turn.conversation_id), Path(turn.worktree.path)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        chosen = preset(self.agent)
        cage = self.git.cage
        with tempfile.TemporaryDirectory(prefix="threadtree-") as sockets:
            mode = self.network if cage else "host"
            async with open_network(mode, Path(sockets), None if script else self._route(), ()) as network:
                variables = network.environment
                if script is None:
                    variables = variables_of(chosen, self._api(), self.agent_variables, network.environment)
                environment = agent_environment(home, self.search_path, self.lang, variables)
                if cage is None:
                    yield Launch(agent_argv(script.command if script else self.agent_command), environment, path), None
                    return
                view = await self.clone(turn.worktree.folder).view(path)
                own = [Bind(script.path)] if script else []
                argv = cage.agent_argv(
                    view,
                    self.agent_command,
                    home,
                    path,
                    network="none" if network.own_namespace else "host",
                    wrapper=network.wrapper,
                    binds=[*(Bind(shown) for shown in network.binds), *shown_for(chosen, Path(sockets)), *own],
                )
                if script is not None:
                    # The same cage as the agent's, whatever the script's first line names.
                    argv = (*argv[: -len(self.agent_command)], *script.command)
                yield Launch(argv, environment, path), cage.disk_watch(view, home)

    def _route(self) -> ModelRoute | None:
        """Return the route to a preset's model: the agent gets a key of this turn, the proxy has the real one."""
        api = self._api()
        if api is None:
            return None
        upstream = self.agent_variables.get(api.base_url, api.upstream)
        return ModelRoute(upstream, self.agent_variables[api.key], api.base_url, api.key, api.endpoints)

    def _api(self) -> ModelApi | None:
        """Return the first of the preset's model APIs that has a key."""
        chosen = preset(self.agent)
        return next((api for api in chosen.apis if api.key in self.agent_variables), None) if chosen else None


def shown_for(chosen: Preset | None, scratch: Path) -> Iterator[Bind]:
    """Return what a preset's agent needs in its cage: files of the bot, and machine-wide settings files."""
    if chosen is None:
        return
    yield from (Bind(path) for path in chosen.own_files)
    for number, (path, text) in enumerate(chosen.system_files.items()):
        written = scratch / f"system-{number}"
        written.write_text(text)
        yield Bind(written, at=Path(path))
