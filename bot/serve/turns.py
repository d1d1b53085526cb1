"""The context of a node's turns, for its worker; and for a command that carries out what its operator asks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import TypeVar

from bot.agents.driver import PromptLimits
from bot.github.answers import BotIdentity
from bot.github.auth import AppCredentials
from bot.github.client import GitHub
from bot.locks import worker_lock
from bot.node.context import NodeContext
from bot.serve.parts import Surroundings, jobs_of_node, open_client
from bot.settings import Settings
from bot.thread.authority import Policy
from bot.tree import Identity, Signing
from bot.turn.context import TurnContext
from bot.turn.runner import Runner
from bot.verbs import VERBS

POLL_SECONDS = 0.5
T = TypeVar("T")


def turn_context(on_node: NodeContext, settings: Settings, github: GitHub, me: BotIdentity) -> TurnContext:
    """Return the context of the node's turns; `me` is the bot's account."""
    return TurnContext(
        **{one.name: getattr(on_node, one.name) for one in fields(NodeContext) if one.name != "github"},
        github=github,
        policy=policy_of(settings, me),
        author=author_of(settings, me),
        agent_variables={agent: settings.variables_for(agent) for agent in settings.agent},
        verbs=VERBS,
        allow_workflow_changes=settings.allow_workflow_changes,
        signing=Signing(settings.sign_commits, settings.signing_key_path, settings.sign_off),
        limits=PromptLimits(settings.turn_timeout_seconds, settings.turn_idle_timeout_seconds),
        include_outsiders=settings.include_outsiders,
        session_ttl_seconds=settings.session_ttl_seconds,
        max_cost_usd_per_day=settings.max_cost_usd_per_day,
        notifies=settings.notify_url is not None,
    )


def author_of(settings: Settings, me: BotIdentity) -> Identity:
    """Return the bot as its commits name it, with GitHub's own address of its account."""
    return Identity(me.login, f"{me.id}+{me.login}@users.noreply.{settings.platform.split(':')[0]}")


def policy_of(settings: Settings, me: BotIdentity) -> Policy:
    """Return whom the bot answers, and as whom."""
    return Policy(
        bot_id=me.id,
        bot_login=me.login,
        bot_name=settings.bot_name or me.mention,
        label=settings.bot_label,
        allowed_repositories=settings.allowed_repos,
        allowed_users=settings.allowed_users,
        allowed_bots=settings.allowed_bots,
        turns_per_person_per_day=settings.max_turns_per_person_per_day,
        comments_per_hour=settings.max_comments_per_hour,
        bare_commands=settings.bare_commands,
    )


@asynccontextmanager
async def work_of_operators(on_node: NodeContext, settings: Settings) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yield what does the jobs of the node, and the turns that operators ask for, while no worker may run.

    GitHub need not confirm those turns.
    """
    async with AsyncExitStack() as stack:
        github = on_node.github
        if github is None:  # what GitHub is asked then, it does not answer
            opening = open_client(GitHub, settings, Surroundings(), on_node.redactor, AppCredentials("", ""))
            github = await stack.enter_async_context(opening)
        ctx = turn_context(on_node, settings, github, BotIdentity("threadtree", 0, "threadtree"))
        runner = Runner(ctx, stack.enter_context(worker_lock(ctx.workers)), 0, 0, only_operators=True)
        run_jobs = await stack.enter_async_context(jobs_of_node(on_node, settings.retention))

        async def work() -> None:
            await run_jobs()
            await runner.run_due()

        yield work


async def until_ended(
    ctx: NodeContext,
    settings: Settings,
    look: Callable[[], Awaitable[T | None]],
    on_wait: Callable[[], None],
) -> T:
    """Return what `look` finds once that has ended: it is done here, with what waits before it, or by a worker."""
    is_told = False
    async with work_of_operators(ctx, settings) as work:
        while True:
            await work()
            if (end := await look()) is not None:
                return end
            if not is_told:
                is_told = True
                on_wait()
            await asyncio.sleep(POLL_SECONDS)
