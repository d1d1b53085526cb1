"""One turn, from its claim to its visible end: authority, worktree, session, agent, push, answer."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, assert_never

import structlog
from asyncpg import PostgresError
from structlog.contextvars import bound_contextvars

from bot import failpoints
from bot.agents.driver import Cancelled, Completed, Failed, OpenFailed, Outcome, TimedOut, Usage
from bot.agents.opening import driver_for
from bot.authority import Denied, before_asking_github, by_permission
from bot.clones import metadata
from bot.clones.clone import StoppedError
from bot.clones.metadata import Metadata, record_use
from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.github.errors import GitHubError
from bot.messages import commit_message, notices, reasons, tracking
from bot.messages.formatting import plain
from bot.messages.tracking import Changes, TurnResult
from bot.model import Actor, ThreadRef
from bot.network.usage_limit import UsageLimit
from bot.node.transactions import persist
from bot.redaction import Redactor
from bot.reply import thread_comments
from bot.run.checkout import NotReady, Ready, prepare
from bot.run.context import TurnContext
from bot.run.progress import Progress
from bot.run.prompt import Prompt, read_thread
from bot.run.publishing import guard_of, publish
from bot.run.pull_request import pull_request_of
from bot.run.setup_script import prepare_checkout
from bot.run.switching import TurnMovedError
from bot.run.waiting import Wait, wait_for, wait_for_limit
from bot.sandbox.disk import watched
from bot.sandbox.system import UnsafeCommandError
from bot.store import conversations, outbox, retention, turns, worktrees
from bot.store.database import DATABASE_AWAY, Connection
from bot.store.failures import log_failure
from bot.store.jobs import defer, turns_bell
from bot.store.turns import ClaimedTurn, ClaimLostError

LOOK_AGAIN_SECONDS = 2.0
T = TypeVar("T")
_log = structlog.get_logger()


class TurnRun:
    """Run one claimed turn. Every effect is written under its claim; a lost claim ends the run without a word."""

    def __init__(self, ctx: TurnContext, turn: ClaimedTurn) -> None:
        self._ctx = ctx
        self._turn = turn
        self._thread_ref = ThreadRef(turn.worktree.repository, turn.conversation_id)
        self._notices = list(turn.notices)
        if turn.resuming and not turn.was_put_back:
            self._notices.append(notices.RESUMED_AFTER_CUT_OFF)
        self._stop = asyncio.Event()
        self._remarks: list[str] = []
        self._progress = Progress(ctx.redactor.redact)
        self._read = turn.read
        self._disk_full: str | None = None
        self._use = turn.use
        self._model: str | None = None
        self._limit = UsageLimit(ctx.clock)

    @property
    def turn_id(self) -> int:
        """The turn's id."""
        return self._turn.id

    def look_again(self) -> None:
        """Stop now: the turn was asked to stop, and the next look at the row is seconds away."""
        self._stop.set()

    async def run(self) -> None:
        """Run until the turn has ended, was requeued, or belongs to another claim. Raises only cancellation."""
        conversation = f"{self._turn.worktree.repository.full_name}#{self._turn.number}"
        with bound_contextvars(turn=self._turn.id, conversation=conversation):
            await self._run()

    async def _run(self) -> None:
        _log.info("turn-started", resuming=self._turn.resuming)
        try:
            reached = await self._to_an_end()
            end = await self._put_back(reached) if isinstance(reached, Wait) else reached
            if end is None:
                return
            await self._finish(end)
            _log.info("turn-ended", state=end.state, reason=end.reason and plain(end.reason))
        except TurnMovedError:
            _log.info("turn-moved")
        except ClaimLostError:
            _log.warning("claim-lost")
        except asyncio.CancelledError:
            await asyncio.shield(self._hand_back())
            raise

    async def _to_an_end(self) -> TurnResult | Wait:
        watch = asyncio.create_task(self._watch())
        work = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if work not in done:
                watch.result()  # only a lost claim ends the watch
            return await work
        except ClaimLostError:
            raise
        except Exception as problem:  # noqa: BLE001 - a bug is logged with its traceback, and the turn still ends visibly
            if not self._progress.agent_began:
                wait = wait_for(problem, self._turn.waiting_since, self._ctx.clock())
                if wait is not None:
                    _log.warning("turn-waits", until=wait.until.isoformat(), problem=str(problem))
                    return wait
            if isinstance(problem, (GitError, GitHubError, InvalidNameError, UnsafeCommandError, OSError)):
                _log.warning("turn-failed", problem=str(problem))
                return TurnResult("failed", reasons.trouble(str(problem)))
            _log.exception("turn-crashed")
            return TurnResult("failed", reasons.own_error(self._turn.id))
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)

    async def _watch(self) -> None:
        """Look at the row now and then: for a stop whose notification was lost, and for a claim that was taken away."""
        while True:
            try:
                async with self._ctx.pool.acquire() as connection:
                    if await turns.stop_requested(connection, self._turn.claim) is not None:
                        self._stop.set()
            except ClaimLostError:
                raise
            except Exception as problem:  # noqa: BLE001 - a look that fails costs no turn its agent
                log_failure("turn-watch", problem)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _work(self) -> TurnResult | Wait:
        turn = self._turn
        if turn.answer is None and (reason := await _denied(self._ctx, turn)) is not None:
            return TurnResult("refused", reason)
        async with self._progress.shown(self._ctx.pool, self._thread_ref, turn, self._ctx.clock):
            return await self._work_in_its_worktree()

    async def _work_in_its_worktree(self) -> TurnResult | Wait:
        turn = self._turn
        ready = await self._prepared()
        if ready is None:
            return await self._stopped()
        if isinstance(ready, NotReady):
            return TurnResult("refused", ready.reason)
        self._notices += ready.notices
        head_before = await self._persist(lambda connection: self._save_worktree(connection, ready))
        await asyncio.to_thread(record_use, turn.worktree, ready.branch, ready.base_branch, self._ctx.clock())
        if self._stop.is_set():
            return await self._stopped()
        if turn.answer is not None:
            # Cut off after the agent was done: the agent does not run again.
            return await self._deliver(ready, head_before, turn.answer)
        if self._ctx.setup_script:
            await self._set_up()
            if self._stop.is_set():
                return await self._stopped()
        outcome = await self._ask_agent(ready)
        if self._limit.until is not None and isinstance(outcome, (TurnResult, Failed, TimedOut)):
            # An agent gives up after some attempts, or is silent until the limit's end.
            wait = wait_for_limit(self._limit.until, turn.asked_at, self._ctx.clock())
            if wait is not None and not self._stop.is_set():
                _log.warning("usage-limit-reached", until=wait.until.isoformat())
                return wait
        if isinstance(outcome, TurnResult):
            return outcome
        match outcome:
            case Completed(text=text, usage=usage):
                if usage is not None:
                    await self._note_use(usage)
                text = await asyncio.to_thread(self._ctx.redactor.redact, text)
                notices = tuple(self._notices)
                await self._persist(lambda connection: turns.save_answer(connection, turn.claim, text, notices))
                return await self._deliver(ready, head_before, text)
            case Cancelled():
                return await self._stopped()
            case TimedOut(kind=kind, seconds=seconds):
                return TurnResult("timed-out", reasons.timed_out(kind, seconds))
            case Failed(reason=reason, stderr_tail=stderr_tail):
                _log.warning("agent-failed", reason=reason)
                return TurnResult("failed", reason, last_words=stderr_tail)
            case _:
                assert_never(outcome)

    async def _prepared(self) -> Ready | NotReady | None:
        """Prepare the checkout; return None if the turn is to stop. Each step can be cut off and done again."""
        turn, progress = self._turn, self._progress
        fetching = partial(tracking.fetching, first=not self._ctx.clone(turn.worktree.folder).path.is_dir())
        progress.enter(fetching(None))
        return await self._until_stopped(prepare(self._ctx, turn, lambda line: progress.enter(fetching(line))))

    async def _until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, or None if the turn is to stop before it is there."""
        working = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            for task in (working, stop):
                task.cancel()
            await asyncio.gather(working, stop, return_exceptions=True)

    async def _set_up(self) -> None:
        """Run the setup script unless it succeeded in this checkout before."""
        turn, ctx = self._turn, self._ctx
        if await self._persist(lambda connection: worktrees.is_set_up(connection, turn.worktree.id)):
            return
        prepared = await prepare_checkout(ctx, turn, self._progress, self._stop, self._disk_overflowed)
        failpoints.reached("worktree-set-up")
        self._notices += prepared.notices
        self._remarks += prepared.remarks
        if prepared.done:
            await self._persist(lambda connection: turns.record_setup(connection, turn.claim))

    async def _note_use(self, usage: Usage) -> None:
        cost = usage.session_cost if usage.currency in (None, "USD") else None
        both = (usage.input_tokens, usage.output_tokens)
        tokens = usage.total_tokens if None in both else sum(filter(None, both))
        claim = self._turn.claim
        self._model = usage.model
        self._use = await self._persist(
            lambda connection: turns.record_use(connection, claim, cost, tokens, usage.model)
        )

    async def _stopped(self) -> TurnResult:
        if self._disk_full is not None:
            return TurnResult("failed", self._disk_full)
        reason = await self._persist(lambda connection: turns.stop_requested(connection, self._turn.claim))
        return TurnResult("stopped", reason or reasons.stopped_by(None))

    async def _save_worktree(self, connection: Connection, ready: Ready) -> str:
        turn = self._turn
        before = await turns.save_worktree(connection, turn.claim, ready.branch, ready.base_branch, ready.head)
        if ready.made_again or not turn.worktree.is_made:
            await worktrees.forget_setup(connection, turn.worktree.id)
        if ready.made_again:
            await conversations.end_session(connection, turn.conversation_id, "worktree-missing")
        return before

    async def _ask_agent(self, ready: Ready) -> Outcome | TurnResult:
        turn, ctx = self._turn, self._ctx
        stored = await self._persist(lambda connection: turns.active_session(connection, turn.conversation_id))
        async with ctx.launching(turn, limit=self._limit) as (launch, disk), driver_for(ctx.agent, launch) as agent:
            opened = await agent.open(stored[1] if stored else None)
            if isinstance(opened, OpenFailed):
                _log.warning("agent-not-started", reason=opened.reason)
                words = reasons.agent_not_started(opened.reason, opened.next_step)
                return TurnResult("failed", words, last_words=opened.stderr_tail)
            if stored is not None and not opened.resumed:
                _log.warning("context-lost", why=opened.lost)
                self._notices.append(notices.CONTEXT_LOST)
            await self._persist(
                lambda connection: self._join_session(
                    connection, stored[0] if stored else None, opened.assistant_session_id, resumed=opened.resumed
                )
            )
            session = stored[0] if stored is not None and opened.resumed else None
            prompt = await self._until_stopped(self._prompt(ready, session))
            if prompt is None:
                return await self._stopped()
            self._progress.agent_begins()
            async with watched(disk, self._disk_overflowed):
                return await agent.prompt(prompt.blocks, ctx.limits, self._stop, self._progress.note)

    async def _join_session(
        self, connection: Connection, stored: int | None, assistant_session_id: str, *, resumed: bool
    ) -> None:
        turn = self._turn
        session = stored
        if stored is not None and not resumed:
            await conversations.end_session(connection, turn.conversation_id, "agent-lost")
        if session is None or not resumed:
            session = await turns.start_session(connection, turn.claim, self._ctx.agent, assistant_session_id)
        await turns.use_session(connection, turn.claim, session)

    async def _prompt(self, ready: Ready, session: int | None) -> Prompt:
        """Fetch the thread and build the prompt; `session` is the resumed session's id."""
        self._progress.enter(tracking.READING)
        remarks = (*ready.remarks, *self._remarks)
        prompt = await read_thread(self._ctx, self._turn, ready, remarks, session)
        if not prompt.read:
            self._notices.append(notices.THREAD_NOT_READ)
        self._read, claim = prompt.read, self._turn.claim
        await self._persist(
            lambda connection: turns.record_read(connection, claim, prompt.read, whole_thread=prompt.whole_thread)
        )
        return prompt

    def _disk_overflowed(self, limit_bytes: int) -> None:
        self._disk_full = reasons.disk_full(limit_bytes)
        self._stop.set()

    async def _deliver(self, ready: Ready, head_before: str, answer: str) -> TurnResult:
        """Commit and push, unless a stop was accepted before the push."""
        stopped = await self._persist(lambda connection: turns.stop_requested(connection, self._turn.claim))
        text, subject = commit_message.split_subject(answer)
        if stopped is not None:
            return TurnResult("stopped", stopped, answer=text)
        changes: Changes | str | None = None
        try:
            guard = await guard_of(self._ctx, self._turn, ready)
            changes, told = await publish(self._ctx, self._turn, ready, head_before, guard, subject, self._stop)
            self._notices += told
            if changes is None and not told:
                text = answer  # nothing was committed, so the line is part of what the agent says
        except StoppedError:
            return replace(await self._stopped(), answer=text)
        except (GitError, GitHubError, InvalidNameError, OSError) as problem:
            # The answer exists; the work stays in the worktree, and the next turn pushes it.
            _log.warning("publish-failed", problem=str(problem))
            self._notices.append(notices.push_failed(ready.branch))
        if isinstance(changes, Changes):
            pull_request, notice = await pull_request_of(self._ctx, self._turn, ready, changes)
            changes = replace(changes, pull_request=pull_request)
            self._notices += [notice] if notice else []
        return TurnResult("done", answer=text, changes=changes)

    async def _finish(self, end: TurnResult) -> None:
        """Write the end, the answer and the doorbell for the next turn in one transaction."""
        turn, ctx = self._turn, self._ctx
        result = replace(
            end,
            notices=tuple(dict.fromkeys(self._notices)),
            steps=tuple(self._progress.steps),
            read=self._read,
            asked=tracking.asked(
                turn.requested_by, ctx.server_url, turn.worktree.repository, turn.number, turn.target, turn.id
            ),
            duration=ctx.clock() - turn.started_at,
            cost_usd=self._use.cost_usd,
            tokens=self._use.tokens,
            model=self._model or ctx.agent,
        )

        # In a thread: a long answer takes seconds.
        result = await asyncio.to_thread(_without_secrets, result, ctx.redactor)
        parts = await asyncio.to_thread(tracking.final, result, server_url=ctx.server_url)

        async def write(connection: Connection) -> None:
            reason = result.reason and plain(result.reason)
            await turns.end(connection, turn.claim, result.state, reason, result.notices)
            await thread_comments.ended(
                connection, self._thread_ref, turn.id, turn.target, parts, end.state, ctx.clock()
            )
            await conversations.end_use(connection, turn.conversation_id, turn.worktree.id)
            if ctx.purge_on_success and end.state == "done":
                await worktrees.purge(connection, turn.worktree.id)
            await defer(connection, turns_bell(ctx.node))

        # Before the end is written: after it the worktree may be removed at any moment.
        await asyncio.to_thread(_record_end, ctx, turn, result)
        await self._persist(write)
        failpoints.reached("turn-end-written")
        await _delete_old_sessions(ctx)

    async def _put_back(self, wait: Wait) -> TurnResult | None:
        """Queue the turn again until a time and say so on the thread; return its end if it is to stop."""
        turn, now = self._turn, self._ctx.clock()
        words = reasons.waits(wait.why, wait.until, now)
        told = tuple(dict.fromkeys(self._notices))

        async def write(connection: Connection) -> bool:
            if not await turns.put_back(
                connection, turn.claim, plain(words), wait.until, wait.since, told, resumes=wait.resumes
            ):
                return False
            if wait.holds_writer:
                await outbox.pause_writer(connection, self._thread_ref.repository.writer, wait.until)
            await thread_comments.track(connection, self._thread_ref, turn.id, turn.target, tracking.waiting(words))
            return True

        if await self._persist(write):
            _log.info("turn-put-back", why=wait.why, until=wait.until.isoformat())
            return None
        return await self._stopped()

    async def _hand_back(self) -> None:
        """Requeue the turn: this process stops, and another run continues it."""
        async with self._ctx.pool.acquire() as connection:
            if await turns.requeue(connection, self._turn.claim):
                _log.info("turn-requeued")

    async def _persist(self, write: Callable[[Connection], Awaitable[T]]) -> T:
        return await persist(self._ctx.pool, write)


async def _denied(ctx: TurnContext, turn: ClaimedTurn) -> str | None:
    """Return the reason to refuse the turn now, or None, after asking for permission again. Raises GitHubError."""
    sender = Actor(turn.requested_by, turn.requested_by_id, turn.requested_by_id in ctx.policy.allowed_bots)
    verdict = before_asking_github(ctx.policy, sender, turn.worktree.repository)
    if verdict is None:
        verdict = by_permission(await ctx.github.permission(turn.worktree.repository, turn.requested_by))
    return reasons.permission_withdrawn(turn.requested_by) if isinstance(verdict, Denied) else None


def _without_secrets(result: TurnResult, redactor: Redactor) -> TurnResult:
    """Return the end of a turn as it is stored and shown: no text of the agent, of git or of GitHub holds a secret."""
    redact = redactor.redact
    return replace(
        result,
        reason=result.reason and redact(result.reason),
        answer=redact(result.answer),
        changes=redact(result.changes) if isinstance(result.changes, str) else result.changes,
        notices=tuple(map(redact, result.notices)),
        steps=tuple(map(redact, result.steps)),
        read=tuple(map(redact, result.read)),
        last_words=redact(result.last_words),
    )


def _record_end(ctx: TurnContext, turn: ClaimedTurn, end: TurnResult) -> None:
    """Count the run and its error in the worktree's metadata. A failure to do so is only logged."""
    path = Path(turn.worktree.path)
    known = metadata.read(path)
    if not isinstance(known, Metadata) or known.id != str(turn.worktree.id):
        return
    error = None if end.state == "done" or end.reason is None else plain(end.reason)
    updated = replace(known, updated_at=ctx.clock(), execution_count=known.execution_count + 1, last_error=error)
    try:
        metadata.write(path, updated)
    except OSError as problem:
        _log.warning("metadata-not-written", path=turn.worktree.path, problem=str(problem))


async def _delete_old_sessions(ctx: TurnContext) -> None:
    """Delete ended sessions past their time. A failure to do so is only logged: a timer does it too."""
    try:
        async with ctx.pool.acquire() as connection:
            await retention.delete_old_sessions(connection, ctx.session_ttl_seconds, ctx.clock())
    except (*DATABASE_AWAY, PostgresError) as problem:
        _log.warning("sessions-not-deleted", problem=type(problem).__name__)
