"""How a program is started in a worktree: in the sandbox if there is one, with its own network and environment."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from bot.agents.driver import Launch
from bot.agents.mcp import McpServer, for_claude, for_codex
from bot.agents.presets import Preset, variables_of
from bot.sandbox.bwrap import Bind, agent_environment
from bot.sandbox.disk import DiskWatch
from bot.sandbox.net.egress import Outside
from bot.sandbox.net.models import ModelRoute
from bot.sandbox.net.turn_network import NetworkMode, open_network
from bot.tree import Tree

Launching = Callable[[tuple[str, ...], Sequence[Bind]], Launch]
"""Return how a command is started; its sandbox shows the binds too. Raises UnsafeCommandError."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """What all programs in worktrees of this node have in common. `agents`: the commands of those of AGENT."""

    network: NetworkMode
    search_path: str
    lang: str
    agents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outside: Outside = field(default_factory=Outside)
    mcp_servers: tuple[McpServer, ...] = ()
    """For agents, not for scripts."""

    @asynccontextmanager
    async def open(
        self,
        tree: Tree,
        home: Path,
        sockets: Path,
        *,
        chosen: Preset | None,
        route: ModelRoute | None,
        variables: Callable[[Mapping[str, str]], Mapping[str, str]],
        servers: tuple[McpServer, ...] = (),
        read_only: bool = False,
    ) -> AsyncIterator[tuple[Launching, DiskWatch]]:
        """Open the network of an agent; yield what starts commands in it, and the watch over their disk usage.

        The agent may use the MCP `servers`. `variables` makes the agent's variables from those of the network.
        `read_only`: what runs in a sandbox changes nothing in the worktree. Raises GitError, OSError.
        """
        git, view = tree.clone.git, await tree.view()
        sandbox, worktree = git.sandbox, tree.path
        mode = self.network if sandbox.isolates else "host"
        async with open_network(mode, sockets, route, outside=self.outside) as network:
            given = git.lfs_environment(view) | dict(variables(network.environment))
            environment = agent_environment(home, self.search_path, self.lang, given)
            always = [*network.binds, *_shown_for(chosen, sockets, servers)]
            mcp_file = None
            if servers:
                mcp_file = sockets / "mcp.json"
                mcp_file.touch(mode=0o600)
                mcp_file.write_text(for_claude(servers))
                always.append(Bind(mcp_file))
            also = [one.command for one in servers]
            reach: Literal["none", "host"] = "none" if network.own_namespace else "host"

            def launch(command: tuple[str, ...], binds: Sequence[Bind]) -> Launch:
                shown = [*always, *binds]
                argv = sandbox.agent_argv(
                    view,
                    command,
                    home,
                    worktree,
                    network=reach,
                    wrapper=network.wrapper,
                    binds=shown,
                    also=also,
                    read_only=read_only,
                )
                return Launch(argv, environment, worktree, servers, mcp_file, sandboxed=sandbox.isolates)

            yield launch, sandbox.disk_watch(view, home)

    @asynccontextmanager
    async def script(
        self,
        tree: Tree,
        home: Path,
        script: Path,
        command: tuple[str, ...],
        given: Mapping[str, str],
        binds: Sequence[Bind] = (),
    ) -> AsyncIterator[tuple[Launch, DiskWatch]]:
        """Yield how to start a script, by its command, in the agent's place: without a model and AGENT_ENV.

        It has the variables `given`, and sees the `binds`. Its path is the same in the sandbox. Raises GitError,
        OSError, UnsafeCommandError.
        """
        variables = partial(variables_of, None, None, None, given)
        with tempfile.TemporaryDirectory(prefix="threadtree-") as sockets:
            opened = self.open(tree, home, Path(sockets), chosen=None, route=None, variables=variables)
            async with opened as (launch, disk):
                # The same sandbox as the agent's, whatever the script's first line names.
                agent = next(iter(self.agents.values()), ("true",))
                started = launch(agent, (Bind(script), *binds))
                yield replace(started, argv=(*started.argv[: -len(agent)], *command)), disk


def _shown_for(chosen: Preset | None, scratch: Path, servers: tuple[McpServer, ...]) -> Iterator[Bind]:
    """Return what a preset's agent needs in its sandbox: files of the bot, and machine-wide settings files."""
    if chosen is None:
        return
    yield from (Bind(path) for path in chosen.own_files)
    permitted = for_codex(servers) if chosen.agent == "codex" else ""
    for number, (path, text) in enumerate(chosen.system_files.items()):
        written = scratch / f"system-{number}"
        written.write_text(text + permitted)
        yield Bind(written, at=Path(path))
