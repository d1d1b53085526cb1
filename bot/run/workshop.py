"""What every run of a node shares, as one value made by the composition root."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bot.authority import Policy
from bot.github.client import GitHub
from bot.run.agents.driver import Launch, Limits
from bot.run.clone import Clone, clone_at
from bot.run.git import Git, Identity
from bot.run.sandbox import agent_argv, agent_environment
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
    limits: Limits
    secrets: tuple[str, ...]
    clock: Callable[[], datetime]

    def clone(self, folder: str) -> Clone:
        """The clone of a codebase, by the folder its row names."""
        owner, _, name = folder.partition("/")
        return clone_at(self.data_dir, owner, name, self.git)

    def launch(self, turn: ClaimedTurn) -> Launch:
        """How the agent is started for a turn: in its worktree, with a HOME of the conversation."""
        home = self.data_dir / "homes" / str(turn.conversation_id)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = agent_environment(home, self.search_path, self.lang, self.agent_variables)
        return Launch(agent_argv(self.agent_command), environment, Path(turn.path))
