"""A scratch worktree in which `threadtree doctor` starts agents as a turn would, without access to a model."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bot import refs
from bot.agents.driver import Launch
from bot.agents.presets import api_of, preset, variables_of
from bot.model import IssueBranch
from bot.node.launching import Launcher
from bot.sandbox.bwrap import Bwrap, sandbox_for
from bot.sandbox.net.egress import Outside
from bot.sandbox.net.models import ModelRoute
from bot.sandbox.outbound import Outbound
from bot.sandbox.system import command_mounts
from bot.sandbox.view import name_of
from bot.settings import Settings
from bot.tree import CheckoutRefused, Clone, Git, Identity, Tree

END_SECONDS = 2.0
POLL_SECONDS = 0.02
_NOBODY = Identity("Threadtree", "doctor@localhost")
# The discard port, where nothing listens.
_NOWHERE = "http://127.0.0.1:9"
_NO_KEY = "a-key-that-opens-nothing"


@dataclass(frozen=True, slots=True)
class Scratch:
    """A worktree of a clone in its own data directory; agents start in it as the settings say."""

    directory: Path
    tree: Tree
    settings: Settings

    @asynccontextmanager
    async def launching(self, agent: str) -> AsyncIterator[Callable[[tuple[str, ...]], Launch]]:
        """Yield how to start a command of this agent; its home and its network last until the block ends.

        Of a preset's model keys it gets the names only. Raises GitError, OSError; the function that is yielded raises
        UnsafeCommandError.
        """
        given, sandbox, chosen = self.settings, self.tree.clone.git.sandbox, preset(agent)
        handed = given.variables_for(agent)
        model = given.agent_model if chosen and chosen.agent == given.agent[0] else None
        # One that is not set up starts with a key too; credentials of AGENT_ENV are as in a turn.
        api = api_of(chosen, handed) or (chosen.apis[0] if chosen and not handed else None)
        with (
            tempfile.TemporaryDirectory(prefix="home-", dir=self.directory / "data") as home_name,
            tempfile.TemporaryDirectory(dir=self.directory) as sockets,
        ):
            # Without a sandbox the agent's temporary files must go with everything else.
            own = {} if sandbox.isolates else {"TMPDIR": sockets}
            outside = Outside(Outbound(*given.outbound).with_bundle(self.directory), given.allowed_hosts)
            async with Launcher(given.agent_network, given.path, given.lang, outside=outside).open(
                self.tree,
                Path(home_name),
                Path(sockets),
                chosen=chosen,
                route=ModelRoute(_NOWHERE, _NO_KEY, api.base_url, api.key, api.endpoints) if api else None,
                variables=partial(variables_of, chosen, api, model, {**handed, **own}),
                servers=given.mcp_config,
            ) as (start, _):

                def launch(command: tuple[str, ...]) -> Launch:
                    if sandbox.isolates:
                        # A turn would refuse a command inside the real DATA_DIR; the scratch one is elsewhere.
                        servers = (one.command for one in given.mcp_config if one.command)
                        command_mounts((command, *servers), given.path, given.data_dir.resolve())
                    return start(command, ())

                yield launch


@asynccontextmanager
async def scratch(settings: Settings) -> AsyncIterator[Scratch]:
    """Yield a repository with one commit, cloned and checked out as for a conversation. Raises GitError, OSError."""
    with tempfile.TemporaryDirectory(prefix="threadtree-doctor-") as name:
        directory = Path(name)
        source, data = directory / "source", directory / "data"
        data.mkdir()
        sandbox = sandbox_for(settings.agent_sandbox, data, settings.path)
        git = Git(protocols=("file",), search_path=settings.path, sandbox=sandbox)
        await git.run("init", "--quiet", "--template=", "--initial-branch=main", "--", str(source), cwd=None)
        first = ("commit", "--quiet", "--allow-empty", "--message=Scratch")
        await git.run(*first, cwd=source, environment=_NOBODY.environment)
        worktree = data / "worktrees" / "threadtree" / "scratch" / "doctor"
        place = Tree(Clone.at(data, "threadtree/scratch", git), worktree)
        try:
            async with place.open() as tree:
                await tree.update(source.as_uri())
                made = await tree.make(IssueBranch(1), refs.rescue_ref("scratch", datetime.now(UTC)))
            if isinstance(made, CheckoutRefused):
                raise OSError(made.next_step)
            yield Scratch(directory, place, settings)
        finally:
            if isinstance(sandbox, Bwrap):
                await _forget(sandbox, name_of(sandbox.private_folder(worktree.resolve())))


async def _forget(sandbox: Bwrap, name: str) -> None:
    """Remove the cgroup, which is possible a moment after its last process was killed."""
    group = sandbox.enforcement.group
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            while group is not None and any(group.parent.glob(f"*{name}")):
                sandbox.enforcement.remove_group(name)
                await asyncio.sleep(POLL_SECONDS)
