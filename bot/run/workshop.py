"""What every run of a node shares, as one value made by the composition root."""

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bot.authority import Policy
from bot.github.client import GitHub
from bot.run.agents.driver import Launch, Limits
from bot.run.clone import Clone, clone_at
from bot.run.git import Git, Identity
from bot.run.network.turn_network import NetworkMode, open_network
from bot.run.sandbox import agent_argv, agent_environment
from bot.run.sandbox.cage import Bind
from bot.run.sandbox.disk import DiskWatch
from bot.store.database import Pool
from bot.store.turns import ClaimedTurn


@dataclass(frozen=True, slots=True)
class Workshop:
    """The tools of this node's runs."""

    pool: Pool
    github: GitHub
    git: Git
    node: str
    data_dir: Path
    server_url: str
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
    clock: Callable[[], datetime]

    def clone(self, folder: str) -> Clone:
        """The clone of a codebase, by the folder its row names."""
        owner, _, name = folder.partition("/")
        return clone_at(self.data_dir, owner, name, self.git)

    @asynccontextmanager
    async def launching(self, turn: ClaimedTurn) -> AsyncIterator[tuple[Launch, DiskWatch | None]]:
        """How the agent is started for a turn: in its worktree, with a HOME of the conversation, in the cage if there
        is one. The turn's network is there as long as the context. Raises GitError, OSError, UnsafeCommandError.
        """
        home, path = self.data_dir / "homes" / str(turn.conversation_id), Path(turn.path)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = agent_environment(home, self.search_path, self.lang, self.agent_variables)
        cage = self.git.cage
        if cage is None:
            yield Launch(agent_argv(self.agent_command), environment, path), None
            return
        view = await self.clone(turn.folder).view(path)
        with tempfile.TemporaryDirectory(prefix="threadtree-") as sockets:
            async with open_network(self.network, Path(sockets), None, ()) as network:
                argv = cage.agent_argv(
                    view,
                    self.agent_command,
                    home,
                    path,
                    network="none" if network.own_namespace else "host",
                    wrapper=network.wrapper,
                    binds=[Bind(shown) for shown in network.binds],
                )
                yield Launch(argv, environment | dict(network.environment), path), cage.disk_watch(view, home)
