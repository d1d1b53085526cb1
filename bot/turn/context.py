"""The context that all turns of a node share; the composition root makes it."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from bot.agents.driver import AgentEvent, CannotOpenError, Launch, Outcome, PromptLimits
from bot.agents.opening import driver_for
from bot.agents.presets import api_of, preset, variables_of
from bot.github.client import GitHub
from bot.model import Repository
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.sandbox.bwrap import Bind
from bot.sandbox.disk import DiskWatch, watched
from bot.sandbox.net.model_answers import ModelAnswers
from bot.sandbox.net.models import ModelRoute
from bot.sandbox.system import UnsafeCommandError
from bot.store.database import Connection, statement
from bot.store.turns import ClaimedTurn, active_session
from bot.thread.authority import Policy
from bot.thread.reasons import CapReached
from bot.tree import GitError, Identity, Signing
from bot.turn import skills, thread_answers
from bot.turn.kind import Kind
from bot.turn.parsing import CommentParser
from bot.turn.request import Verbs

MOST_USD_WITHOUT_LIMIT = 10.0
"""What a turn counts at most where no MAX_COST_USD_PER_TURN is set."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SpentToday:
    """What is known of today's cost (UTC) in US dollars: of one repository, and of all. What runs now counts too."""

    repository_usd: float
    all_usd: float


@statement("""
select coalesce(sum(cost_usd) filter (where (platform, repository_id) = ($1, $2)), 0) as repository_usd,
       coalesce(sum(cost_usd), 0) as all_usd
from costs_on((now() at time zone 'UTC')::date)
""")
async def spent_today(connection: Connection, repository: Repository) -> SpentToday:
    """Return what was spent today, on all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext(NodeContext):
    """The context of this node's turns."""

    github: GitHub
    policy: Policy
    author: Identity
    agent_variables: Mapping[str, Mapping[str, str]]
    """The variables of each agent."""
    allow_workflow_changes: bool
    verbs: Verbs
    limits: PromptLimits
    signing: Signing = field(default_factory=Signing)
    include_outsiders: bool = False
    session_ttl_seconds: float = 3600
    max_cost_usd_per_day: float | None = None
    """The cap on all repositories of this database together."""
    notifies: bool = False
    """Whether there is a NOTIFY_URL."""

    @property
    def parser(self) -> CommentParser:
        """Return what reads texts as the repository's rules want."""
        return CommentParser(self.policy.bot_name, self.verbs.commands.values(), bare_commands=self.rules.bare_commands)

    def signing_in(self, repository: Repository) -> Signing:
        """Return how commits are signed, with what asks GitHub for those that it makes in the repository."""
        if self.signing.how != "github":
            return self.signing
        return replace(self.signing, create=partial(self.github.create_commit, repository))

    @property
    def most_usd_of_turn(self) -> float:
        """Return how much of what an agent says of its cost counts, at most: it may say anything."""
        limit = self.rules.max_cost_usd_per_turn
        return MOST_USD_WITHOUT_LIMIT if limit is None else limit

    async def cap_reached(self, repository: Repository, turn_usd: float | None = None) -> CapReached | None:
        """Return the first cap on cost that is reached; `turn_usd` is what is known of a turn's cost. None to go on.

        The caps of the day count what is known of all turns on all nodes, also of those that run.
        """
        per_turn, per_repository, per_day = (
            self.rules.max_cost_usd_per_turn,
            self.rules.max_cost_usd_per_repository_per_day,
            self.max_cost_usd_per_day,
        )
        if per_turn is not None and turn_usd is not None and turn_usd >= per_turn:
            return CapReached("turn", turn_usd, per_turn)
        if per_repository is None and per_day is None:
            return None
        spent = await persist(self.pool, spent_today, repository)
        if per_repository is not None and spent.repository_usd >= per_repository:
            return CapReached("repository", spent.repository_usd, per_repository)
        if per_day is not None and spent.all_usd >= per_day:
            return CapReached("day", spent.all_usd, per_day)
        return None

    @asynccontextmanager
    async def launching(
        self, turn: ClaimedTurn, kind: Kind[Any], answers: ModelAnswers, *, again: bool = False
    ) -> AsyncIterator[tuple[Launch, DiskWatch]]:
        """Return how to start the agent of a turn: in its worktree, with the conversation's HOME, in the sandbox if
        there is one, where it can change files only if the kind writes. The turn's network lasts as long as the
        context. Raises GitError, OSError, UnsafeCommandError.

        `answers` hears what the agent's model answers. `again`: the agent finds what it left for the host.
        """
        home = self.home(turn.conversation.id)
        thread_answers.make_folder(home, again=again or turn.so_far.resuming)
        attachments = self.attachments / str(turn.id)
        agent, route = self.rules.agent, None
        chosen, own = preset(agent), self.agent_variables[agent]
        model = (self.rules.model or "") if chosen is None else ""  # a preset takes it as a variable
        api = api_of(chosen, own)
        if api is not None:
            # The agent gets a key of this turn, the proxy has the real one.
            route = ModelRoute(api.address(own), own[api.key], api.base_url, api.key, api.endpoints, answers)
        with _fresh_folder(attachments), tempfile.TemporaryDirectory(prefix="threadtree-") as sockets:
            # Without an author git commits nothing. One that a repository's tests set for their own counts more.
            (git_config := Path(sockets) / "gitconfig").write_text(self.author.configuration)
            out = str(home / thread_answers.OUT)
            given = {"GIT_CONFIG_SYSTEM": str(git_config), **own, "THREADTREE_OUT": out}
            async with self.launcher.open(
                self.tree(turn.worktree),
                home,
                Path(sockets),
                chosen=chosen,
                route=route,
                variables=partial(variables_of, chosen, api, self.rules.model, given),
                servers=self.launcher.mcp_servers,
                read_only=not kind.writes,
            ) as (launch, disk):
                laid = await skills.lay(self.clone(turn.worktree.folder), turn.worktree.repository.default_branch, home)
                shown = Bind(attachments), Bind(git_config), *([Bind(laid)] if laid else [])
                yield (
                    replace(launch(self.launcher.agents[agent], shown), plans=kind.plans, skills=laid, model=model),
                    disk,
                )

    async def go_on(
        self,
        turn: ClaimedTurn,
        kind: Kind[Any],
        prompt: tuple[str, ...],
        limits: PromptLimits,
        answers: ModelAnswers,
        stop: asyncio.Event,
        note: Callable[[AgentEvent], None],
        on_overflow: Callable[[int], None],
    ) -> Outcome | None:
        """Prompt the agent of a turn once more in its session, in the worktree that it may change; None where it cannot
        be asked.
        """
        _, known_as, its_agent = await active_session(self.pool, turn.conversation.id) or (None, None, None)
        if known_as is None or its_agent != self.rules.agent:
            return None
        try:
            async with (
                self.launching(turn, kind, answers, again=True) as (launch, disk),
                driver_for(self.rules.agent, launch) as agent,
                watched(disk, on_overflow),
            ):
                resumed = (await agent.open(known_as)).resumed
                return await agent.prompt(prompt, limits, stop, note) if resumed else None
        except (CannotOpenError, GitError, OSError, UnsafeCommandError) as problem:
            _log.warning("agent-not-asked-again", problem=str(problem))
            return None


@contextmanager
def _fresh_folder(folder: Path) -> Iterator[None]:
    """Make an empty folder for as long as the block lasts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
