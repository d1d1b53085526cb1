"""Somebody who may asked for something: the rows that follow, in one transaction of the caller."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

from bot import sentences
from bot.decide.actions import Hear
from bot.decide.asks import Command, UnknownCommand
from bot.decide.closing import stop_turns
from bot.decide.placing import Make, PullPlace, Share, place
from bot.github.answers import ThreadState
from bot.model import Repository
from bot.reply import voice
from bot.reply.voice import Here
from bot.store import bells, conversations, requests
from bot.store.database import Connection
from bot.store.jobs import defer

# GitHub's times are whole seconds: what was asked in the same second was asked before.
_GITHUB_CLOCK_TICK = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Premises:
    """This node, and where its worktrees are: `<worktrees>/<owner>/<repo>/<name>`."""

    node: str
    worktrees: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What was looked up on GitHub before the transaction began."""

    now: datetime
    pull: PullPlace | None = None
    closes: tuple[int, ...] = ()
    request: str | None = None
    thread: ThreadState | None = None
    turns_per_person_per_day: int = 50
    bot_name: str = ""


async def serve(connection: Connection, premises: Premises, hear: Hear, facts: Facts) -> None:
    """Does the commands in order, then queues one turn for the request; each only if it was not done before."""
    here, folder = await _arrive(connection, hear)
    if facts.thread is not None:
        await conversations.set_state(connection, here.conversation_id, facts.thread.closed_at)
    desk = _Desk(connection, premises, hear.repository, hear.thread.number, here, folder, facts)
    for index, command in enumerate(hear.asks.commands):
        if await conversations.first_seen(connection, hear.effect(index)):
            await _command(desk, hear, command)
    if facts.request is None or not await conversations.first_seen(connection, hear.effect(len(hear.asks.commands))):
        return
    own_text = hear.target.id is None
    if own_text and await requests.asked_just_now(connection, here.conversation_id, facts.request, hear.asked_at):
        return
    await desk.queue(
        requests.Request(
            text=facts.request,
            requested_by=hear.speaker.login,
            requested_by_id=hear.speaker.id,
            asked_at=hear.asked_at,
            target=hear.target,
            review_id=hear.review_id,
            pinned_sha=facts.pull.head_sha if facts.pull and not facts.pull.same_repository else None,
            context=hear.context,
        )
    )


async def deny(connection: Connection, hear: Hear) -> None:
    """A person who may not gets one 😕 on what addressed the bot, and nothing else."""
    await voice.confused(connection, (await _arrive(connection, hear))[0], hear.target)


async def give_up(connection: Connection, hear: Hear, guid: str) -> None:
    """The bot could not handle what was asked: 😕 and one sentence, so that nobody waits."""
    here, _ = await _arrive(connection, hear)
    await voice.confused(connection, here, hear.target)
    await voice.reply(connection, here, hear.target, sentences.gave_up(guid))


async def _arrive(connection: Connection, hear: Hear) -> tuple[Here, str]:
    """The rows of the repository and the thread as GitHub just described them, and the folder of the clone."""
    thread = hear.thread
    folder = await conversations.save_codebase(connection, hear.repository)
    conversation = await conversations.save_conversation(
        connection, hear.repository, thread.number, thread.kind, thread.title, thread.closed_at
    )
    return Here(hear.repository, conversation.id), folder


async def _command(desk: "_Desk", hear: Hear, command: Command | UnknownCommand) -> None:
    connection, here, target = desk.connection, desk.here, hear.target
    await voice.seen(connection, here, target)
    if isinstance(command, UnknownCommand):
        await voice.reply(connection, here, target, sentences.unknown_command(f"/{command.name}"))
        return
    match command.name:
        case "help":
            await voice.reply(connection, here, target, sentences.help_text(desk.facts.bot_name))
        case "status":
            await voice.reply(connection, here, target, await desk.status())
        case "reset-context":
            ended = await conversations.end_session(connection, here.conversation_id, "reset-requested")
            words = sentences.CONTEXT_RESET if ended else sentences.NO_SESSION_TO_RESET
            await voice.reply(connection, here, target, words)
        case "stop":
            reason = sentences.stopped_by(hear.speaker.login)
            stopped = await stop_turns(
                connection,
                here,
                reason,
                asked_before=hear.asked_at + _GITHUB_CLOCK_TICK,
                queued=command.argument == "all",
            )
            if not stopped:
                await voice.reply(connection, here, target, sentences.stopping(running=False, dropped=0))
        case "retry":
            last = await requests.last_not_done(connection, here.conversation_id)
            if last is None:
                await voice.reply(connection, here, target, sentences.nothing_to_retry())
            else:
                await desk.queue(_again(last, hear))
        case _:
            assert_never(command.name)


def _again(last: dict[str, Any], hear: Hear) -> requests.Request:
    return requests.Request(
        text=last["request"],
        requested_by=hear.speaker.login,
        requested_by_id=hear.speaker.id,
        asked_at=hear.asked_at,
        target=hear.target,
        pinned_sha=last["pinned_sha"],
        context=last["context"],
    )


@dataclass(frozen=True, slots=True)
class _Desk:
    """Everything that writing down one conversation's turns takes."""

    connection: Connection
    premises: Premises
    repository: Repository
    number: int
    here: Here
    folder: str
    facts: Facts

    async def queue(self, request: requests.Request) -> None:
        """The turn, its place in line on the thread, and the doorbell of its node; over a limit: a refused turn."""
        connection, here = self.connection, self.here
        limit = self.facts.turns_per_person_per_day
        if await requests.asked_today(connection, request.requested_by_id) >= limit:
            reason = sentences.over_daily_limit(limit)
            turn_id = await requests.ask(connection, here.conversation_id, None, request, refused=reason)
            if turn_id is not None:
                await voice.ended(connection, here, turn_id, request.target, "refused", reason)
            return
        worktree_id, node, shared = await self._worktree()
        if shared is not None:
            request = request.with_notice(sentences.in_worktree_of(shared))
        turn_id = await requests.ask(connection, here.conversation_id, worktree_id, request)
        if turn_id is None:
            return  # the review already is one turn
        await voice.seen(connection, here, request.target)
        ahead = await requests.place_in_line(connection, turn_id)
        await voice.queued(connection, here, turn_id, request.target, ahead)
        await defer(connection, bells.turns_bell(node))

    async def _worktree(self) -> tuple[int, str, int | None]:
        """(worktree, its node, the issue whose it is if it was just shared): its own, a shared or a reserved one."""
        connection, conversation_id = self.connection, self.here.conversation_id
        own = await conversations.worktree_of(connection, conversation_id)
        if own is not None:
            live = await conversations.live_worktree(connection, own)
            if live is not None:
                return live.id, live.node, None
        pull = self.facts.pull
        linked = await conversations.worktrees_of_issues(connection, self.repository, list(self.facts.closes))
        on_branch = await conversations.worktree_on_branch(connection, self.repository, pull.head_ref) if pull else None
        match place(self.number, pull, linked, on_branch):
            case Share(worktree=worktree, issue=issue):
                await conversations.use_worktree(connection, conversation_id, worktree.id)
                return worktree.id, worktree.node, issue
            case Make(folder=name, start=start):
                path = f"{self.premises.worktrees}/{self.folder}/{name}"
                made = await conversations.reserve_worktree(
                    connection, self.repository, node=self.premises.node, path=path, start=start
                )
                await conversations.use_worktree(connection, conversation_id, made)
                return made, self.premises.node, None

    async def status(self) -> str:
        """What `/status` answers: what runs and waits here, the worktree, the session."""
        now = await conversations.overview(self.connection, self.here.conversation_id)
        running_for = self.facts.now - now.running_since if now.running_since else None
        return sentences.status(sentences.Status(now.branch, running_for, now.waiting, now.session_active))
