"""Writing down one conversation's turns: a place in line, and the worktree each will run in."""

from dataclasses import dataclass
from datetime import datetime

from bot.github.answers import ThreadState
from bot.handlers.choose_worktree import (
    Candidate,
    NewWorktree,
    PullRequestHead,
    SharedWorktree,
    choose_worktree,
    new_worktree,
)
from bot.messages import notices, reasons, replies
from bot.model import Repository
from bot.reply import thread_comments
from bot.reply.thread_comments import ThreadRef
from bot.store import bells, conversations, requests, sharing
from bot.store.database import Connection
from bot.store.jobs import defer


@dataclass(frozen=True, slots=True)
class NodePaths:
    """This node, and where its worktrees are: `<worktrees>/<owner>/<repo>/<name>`."""

    node: str
    worktrees: str


@dataclass(frozen=True, slots=True)
class GitHubFacts:
    """What was looked up on GitHub before the transaction began."""

    now: datetime
    pull: PullRequestHead | None = None
    closes: tuple[int, ...] = ()
    request: str | None = None
    thread: ThreadState | None = None
    turns_per_person_per_day: int = 50
    bot_name: str = ""


@dataclass(frozen=True, slots=True)
class ChosenWorktree:
    """Where the next turn runs, on which node; `switch_to`: the branch that the worktree is to have by then."""

    worktree_id: int
    node: str
    switch_to: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Everything that writing down one conversation's turns takes."""

    connection: Connection
    premises: NodePaths
    repository: Repository
    number: int
    thread_ref: ThreadRef
    folder: str
    facts: GitHubFacts

    async def queue(self, request: requests.NewTurn) -> None:
        """The turn, its place in line on the thread, and the doorbell of its node; over a limit: a refused turn."""
        connection, thread_ref = self.connection, self.thread_ref
        limit = self.facts.turns_per_person_per_day
        if await requests.asked_today(connection, request.requested_by_id) >= limit:
            reason = reasons.over_daily_limit(limit)
            turn_id = await requests.ask(connection, thread_ref.conversation_id, None, request, refused=reason)
            if turn_id is not None:
                await thread_comments.ended(connection, thread_ref, turn_id, request.target, "refused", reason)
            return
        chosen = await self.place()
        for notice in chosen.notices:
            request = request.with_notice(notice)
        turn_id = await requests.ask(
            connection, thread_ref.conversation_id, chosen.worktree_id, request, switch_to=chosen.switch_to
        )
        if turn_id is None:
            return  # the review already is one turn
        await thread_comments.seen(connection, thread_ref, request.target)
        ahead = await requests.place_in_line(connection, turn_id)
        await thread_comments.queued(connection, thread_ref, turn_id, request.target, ahead)
        await defer(connection, bells.turns_bell(chosen.node))

    async def place(self) -> ChosenWorktree:
        """The thread's worktree from now on: its own, one that it shares, or a new one that is reserved."""
        connection, conversation_id = self.connection, self.thread_ref.conversation_id
        await sharing.lock_places(connection, self.repository)
        own = await conversations.worktree_of(connection, conversation_id)
        live = await conversations.live_worktree(connection, own) if own is not None else None
        if live is not None:
            switch_to = await sharing.pending_switch(connection, conversation_id, live.id)
            return ChosenWorktree(live.id, live.node, switch_to)
        match choose_worktree(self.number, self.facts.pull, await self._linked(), await self._on_branch()):
            case SharedWorktree() as share:
                return await self._share(share)
            case NewWorktree() as make:
                return await self._make(make)

    async def _linked(self) -> list[Candidate]:
        """The live worktrees of the issues that the pull request closes."""
        found = await conversations.worktrees_of_issues(self.connection, self.repository, list(self.facts.closes))
        uses = await sharing.uses(self.connection, [one.id for _, one in found], self.thread_ref.conversation_id)
        return [Candidate(worktree, uses[worktree.id], issue) for issue, worktree in found]

    async def _on_branch(self) -> Candidate | None:
        """The worktree that has the head branch of the pull request, or soon will."""
        connection, pull = self.connection, self.facts.pull
        found = await sharing.on_branch(connection, self.repository, pull.head_ref) if pull else None
        if found is None:
            return None
        uses = await sharing.uses(connection, [found.id], self.thread_ref.conversation_id)
        return Candidate(found, uses[found.id])

    async def _share(self, share: SharedWorktree) -> ChosenWorktree:
        candidate = share.candidate
        live = await conversations.live_worktree(self.connection, candidate.worktree.id)
        if live is None:  # it was purged, and its place is another's now
            return await self._make(new_worktree(self.number, self.facts.pull))
        await conversations.use_worktree(self.connection, self.thread_ref.conversation_id, live.id)
        if candidate.issue is not None:
            words = notices.in_worktree_of(candidate.issue)
        else:
            words = notices.in_worktree_on_branch(candidate.use.owner, share.switch_to)
        return ChosenWorktree(live.id, live.node, share.switch_to, (words,))

    async def _make(self, make: NewWorktree) -> ChosenWorktree:
        path = f"{self.premises.worktrees}/{self.folder}/{make.folder}"
        made = await conversations.reserve_worktree(
            self.connection, self.repository, node=self.premises.node, path=path, start=make.start
        )
        await conversations.use_worktree(self.connection, self.thread_ref.conversation_id, made)
        words = (notices.not_shared(make.instead_of, make.start[2]),) if make.instead_of else ()
        return ChosenWorktree(made, self.premises.node, None, words)

    async def status(self) -> str:
        """What `/status` answers: what runs and waits here, the worktree, the session."""
        now = await conversations.overview(self.connection, self.thread_ref.conversation_id)
        own = await conversations.worktree_of(self.connection, self.thread_ref.conversation_id)
        soon = (
            await sharing.pending_switch(self.connection, self.thread_ref.conversation_id, own)
            if own is not None
            else None
        )
        running_for = self.facts.now - now.running_since if now.running_since else None
        branch = now.branch and (soon or now.branch)
        return replies.status(replies.Status(branch, running_for, now.waiting, now.session_active))
