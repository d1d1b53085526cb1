"""Writing down one conversation's turns: a place in line, and the worktree each will run in."""

from dataclasses import dataclass
from datetime import datetime

from bot import sentences
from bot.decide.placing import Make, PullPlace, Share, place
from bot.github.answers import ThreadState
from bot.model import Repository
from bot.reply import voice
from bot.reply.voice import Here
from bot.store import bells, conversations, requests
from bot.store.database import Connection
from bot.store.jobs import defer


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


@dataclass(frozen=True, slots=True)
class Desk:
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
