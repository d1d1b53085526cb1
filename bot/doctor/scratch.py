"""A scratch worktree in which `threadtree doctor` starts agents as a turn would, with a model that is nowhere."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import SecretStr

from bot.agents.driver import Launch
from bot.agents.presets import Preset, variables_of
from bot.clones.clone import Clone, clone_at, clone_lock, update
from bot.clones.start import Refused
from bot.git.refs import rescue_ref
from bot.git.runner import Git, Identity
from bot.model import IssueBranch
from bot.network.models import ModelRoute
from bot.network.turn_network import open_network
from bot.run.context import shown_for
from bot.sandbox import agent_argv, agent_environment
from bot.sandbox.cage import Bind, Cage, cage_for
from bot.sandbox.system import command_mounts
from bot.settings import Settings
from bot.worktrees.create import create

END_SECONDS = 2.0
POLL_SECONDS = 0.02
_NOBODY = Identity("Threadtree", "doctor@localhost")
# The discard port: nobody answers there.
_NOWHERE = "http://127.0.0.1:9"
_NO_KEY = "a-key-that-opens-nothing"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A worktree of a clone in a data directory of its own; agents start in it as the settings say."""

    directory: Path
    worktree: Path
    clone: Clone
    settings: Settings

    @asynccontextmanager
    async def launching(
        self, chosen: Preset | None, handed: Mapping[str, SecretStr]
    ) -> AsyncIterator[Callable[[tuple[str, ...]], Launch]]:
        """How a command of this agent is started, with a home and a network of its own as long as the context.

        `handed` are the variables it is given; of a preset's model keys the names alone count. Raises GitError,
        OSError, and the launch itself UnsafeCommandError too.
        """
        given, cage = self.settings, self.clone.git.cage
        api = next((api for api in chosen.apis if api.key in handed), chosen.apis[0]) if chosen else None
        with (
            tempfile.TemporaryDirectory(prefix="home-", dir=self.directory / "data") as home_name,
            tempfile.TemporaryDirectory(dir=self.directory) as sockets,
        ):
            home = Path(home_name)
            route = ModelRoute(_NOWHERE, _NO_KEY, api.base_url, api.key, api.endpoints) if api else None
            async with open_network(given.agent_network if cage else "host", Path(sockets), route, ()) as network:
                values = {name: secret.get_secret_value() for name, secret in handed.items()}
                variables = variables_of(chosen, api, values, network.environment)
                if cage is None:
                    # What the agent leaves there goes with everything else.
                    variables["TMPDIR"] = sockets
                environment = agent_environment(home, given.path, given.lang, variables)
                view = await self.clone.view(self.worktree) if cage else None
                shown = [*(Bind(path) for path in network.binds), *shown_for(chosen, Path(sockets))]

                def launch(command: tuple[str, ...]) -> Launch:
                    if cage is None or view is None:
                        return Launch(agent_argv(command), environment, self.worktree)
                    command_mounts(command, given.path, given.data_dir.resolve())  # refuses what turns would refuse
                    argv = cage.agent_argv(
                        view,
                        command,
                        home,
                        self.worktree,
                        network="none" if network.own_namespace else "host",
                        wrapper=network.wrapper,
                        binds=shown,
                    )
                    return Launch(argv, environment, self.worktree)

                yield launch


@asynccontextmanager
async def scratch(settings: Settings) -> AsyncIterator[Scratch]:
    """A repository with one commit, cloned and checked out as for a conversation. Raises GitError, OSError."""
    with tempfile.TemporaryDirectory(prefix="threadtree-doctor-") as name:
        directory = Path(name)
        source, data = directory / "source", directory / "data"
        data.mkdir()
        cage = cage_for(settings.agent_sandbox, data, settings.path)
        git = Git(protocols=("file",), search_path=settings.path, cage=cage)
        await git.run("init", "--quiet", "--template=", "--initial-branch=main", "--", str(source), cwd=None)
        first = ("commit", "--quiet", "--allow-empty", "--message=Scratch")
        await git.on_worktree(source, *first, environment=_NOBODY.environment)
        clone = clone_at(data, "threadtree", "scratch", git)
        worktree = data / "worktrees" / "threadtree" / "scratch" / "doctor"
        try:
            async with clone_lock(clone) as lock:
                await update(lock, source.as_uri())
                made = await create(lock, worktree, IssueBranch(1), rescue_ref("scratch", datetime.now(UTC)))
            if isinstance(made, Refused):
                raise OSError(made.next_step)
            yield Scratch(directory, worktree, clone, settings)
        finally:
            view = clone.existing_view(worktree)
            if cage is not None and view is not None:
                await _forget(cage, view.name)


async def _forget(cage: Cage, name: str) -> None:
    """Lets go of the kernel's group, which is possible a moment after the last process in it was killed."""
    group = cage.enforcement.group
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            while group is not None and any(group.parent.glob(f"*{name}")):
                cage.remove_group(name)
                await asyncio.sleep(POLL_SECONDS)
