"""One turn, from its claim to its visible end: authority, worktree, session, agent, push, answer."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar, assert_never

import structlog
from structlog.contextvars import bound_contextvars

from bot import counters, failpoints
from bot.agents.driver import Cancelled, Completed, Failed, OpenFailed, Outcome, TimedOut, Usage
from bot.agents.opening import driver_for
from bot.authority import Denied, before_asking_github, by_permission
from bot.beside import beside
from bot.clones.clone import StoppedError, reading
from bot.clones.listing import Listing
from bot.clones.metadata import record_use
from bot.messages import commit_message, notices, reasons, tracking
from bot.messages.formatting import plain
from bot.messages.tracking import Changes, TurnResult
from bot.model import Actor, ThreadRef
from bot.network.usage_limit import UsageLimit, reset_in_words
from bot.node.transactions import persist
from bot.prompt.collect import Collected
from bot.reply import thread_comments
from bot.run.checkout import NotReady, Ready, list_branches, prepare
from bot.run.context import TurnContext
from bot.run.ending import finish
from bot.run.progress import Progress
from bot.run.prompt import Prompt, make_prompt, read_thread
from bot.run.publishing import guard_of, publish
from bot.run.pull_request import pull_request_of
from bot.run.setup_script import prepare_checkout
from bot.run.switching import TurnMovedError
from bot.run.waiting import Wait, after, put_back, wait_for_limit
from bot.sandbox.disk import watched
from bot.store import conversations, turns, worktrees
from bot.store.database import Connection
from bot.store.failures import log_failure
from bot.store.turns import ClaimedTurn, ClaimLostError

LOOK_AGAIN_SECONDS = 2.0
NEARLY_NO_BYTES = 4 << 20
NAMES_ARE_NEW = timedelta(minutes=1)
"""How long after the request the names in its payload are taken as GitHub's."""
T = TypeVar("T")
ReadThread = asyncio.Task[Collected | None]
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
        self._progress = Progress(ctx.redactor.redact, turn.steps)
        self._read = turn.read
        self._disk_full: str | None = None
        self._use = turn.use
        self._model: str | None = None
        self._limit = UsageLimit(ctx.clock)
        self._answer = turn.answer
        self._branch = turn.worktree.branch
        self._listed: asyncio.Task[Listing | None] | None = None

    @property
    def _answer_text(self) -> str:
        """The saved answer as people see it, without the line for the commit."""
        return commit_message.split_subject(self._answer)[0] if self._answer is not None else ""

    @property
    def worktree_id(self) -> int:
        """The worktree in which it runs."""
        return self._turn.worktree.id

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
            end = await self._to_an_end()
            if isinstance(end, Wait):
                if await put_back(self._ctx, self._turn, self._thread_ref, end, tuple(dict.fromkeys(self._notices))):
                    _log.info("turn-put-back", why=end.why, until=end.until.isoformat())
                    return
                end = await self._stopped()
            await self._finish(end)
            _log.info("turn-ended", state=end.state, reason=end.reason and plain(end.reason))
        except TurnMovedError:
            _log.info("turn-moved")
        except ClaimLostError:
            counters.count("lost_claims_total", "turn")
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
            return self._after(problem)
        finally:
            for task in (watch, work):
                task.cancel()
            await asyncio.gather(watch, work, return_exceptions=True)

    def _after(self, problem: Exception) -> TurnResult | Wait:
        """Return how the turn goes on after a problem."""
        began, answered = self._progress.agent_began, self._answer is not None
        # What was met before the agent began is over.
        since = None if began else self._turn.waiting_since
        disk_is_full = shutil.disk_usage(self._ctx.data_dir).free < NEARLY_NO_BYTES
        match after(problem, since, self._ctx.clock(), began=began, answered=answered, disk_is_full=disk_is_full):
            case Wait() as wait:
                _log.warning("turn-waits", until=wait.until.isoformat(), problem=str(problem))
                return wait
            case "not-published":
                # The work stays in the worktree, and the next turn pushes it.
                _log.warning("publish-failed", problem=str(problem))
                self._notices.append(notices.push_failed(self._branch, str(problem)))
                return TurnResult("done")
            case "failed":
                _log.warning("turn-failed", problem=str(problem))
                return TurnResult("failed", reasons.trouble(str(problem)))
            case "crashed":
                _log.error("turn-crashed", exc_info=problem)
                return TurnResult("failed", reasons.own_error(self._turn.id))

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

    async def _follow_rename(self) -> None:
        """Use the present names of the repository and its default branch, if they may be new since the request."""
        before = self._turn.worktree.repository
        if self._ctx.clock() - self._turn.asked_at < NAMES_ARE_NEW:
            return
        now = await self._ctx.github.as_named_now(before)
        if now != before:
            await self._persist(lambda connection: conversations.save_codebase(connection, now))
            _log.info("repository-renamed", before=before.full_name, now=now.full_name, default=now.default_branch)
            self._turn = replace(self._turn, worktree=replace(self._turn.worktree, repository=now))
            self._thread_ref = replace(self._thread_ref, repository=now)

    async def _work(self) -> TurnResult | Wait:
        await self._follow_rename()
        turn = self._turn
        # GitHub takes longest to answer, and the worktree is prepared meanwhile.
        async with (
            beside(read_thread(self._ctx, turn)) as thread,
            beside(list_branches(self._ctx, turn)) as self._listed,
        ):
            if turn.answer is None and (reason := await _denied(self._ctx, turn)) is not None:
                return TurnResult("refused", reason)
            return await self._work_with(thread)

    async def _work_with(self, thread: ReadThread) -> TurnResult | Wait:
        async with self._progress.shown(self._ctx.pool, self._thread_ref, self._turn, self._ctx.clock):
            outside = self._ctx
            async with reading(outside.clone(self._turn.worktree.folder)) as clone:
                self._ctx = replace(outside, opened=clone)
                try:
                    return await self._work_in_its_worktree(thread)
                finally:
                    self._ctx = outside

    async def _work_in_its_worktree(self, thread: ReadThread) -> TurnResult | Wait:
        turn = self._turn
        ready = await self._prepared()
        if ready is None:
            return await self._stopped()
        if isinstance(ready, NotReady):
            if self._answer is None:
                return TurnResult("refused", ready.reason)
            self._notices.append(ready.reason)
            return TurnResult("done")
        self._notices += ready.notices
        self._branch = ready.branch
        head_before = await self._persist(lambda connection: self._save_worktree(connection, ready))
        await asyncio.to_thread(
            record_use,
            self._ctx.directory(turn.worktree.path),
            turn.worktree,
            ready.branch,
            ready.base_branch,
            self._ctx.clock(),
        )
        if self._stop.is_set():
            return await self._stopped()
        if self._answer is not None:
            # The agent was done before the run was cut off or put back: it does not run again.
            return await self._deliver(ready, head_before, self._answer)
        if self._ctx.setup_script:
            await self._set_up()
            if self._stop.is_set():
                return await self._stopped()
        outcome = await self._ask_agent(ready, thread)
        reset = self._limit.until
        if reset is None and isinstance(outcome, Failed):
            reset = reset_in_words(outcome.reason, self._ctx.clock())  # no proxy sees an agent with a login of its own
        if reset is not None and isinstance(outcome, (TurnResult, Failed, TimedOut)):
            # An agent gives up after some attempts, or is silent until the limit's end.
            wait = wait_for_limit(reset, turn.asked_at, self._ctx.clock())
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
                told = tuple(self._notices)
                await self._persist(lambda connection: turns.save_answer(connection, turn.claim, text, told))
                self._answer = text
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
        work = prepare(self._ctx, turn, lambda line: progress.enter(fetching(line)), self._listed)
        return await self._until_stopped(work)

    async def _until_stopped(self, work: Awaitable[T]) -> T | None:
        """Return the result of `work`, or None if the turn is to stop before it is there."""
        working = asyncio.ensure_future(work)
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

    async def _ask_agent(self, ready: Ready, thread: ReadThread) -> Outcome | TurnResult:
        turn, ctx = self._turn, self._ctx
        stored = await self._persist(lambda connection: turns.active_session(connection, turn.conversation_id))
        async with (
            ctx.launching(turn, limit=self._limit) as (launch, disk),
            driver_for(ctx.agent, launch) as agent,
            # Most sessions are resumed, and the prompt is ready before most agents are.
            beside(self._prompt(ready, thread, stored[0] if stored else None)) as prompting,
        ):
            opened = await agent.open(stored[1] if stored else None)
            if isinstance(opened, OpenFailed):
                _log.warning("agent-not-started", reason=opened.reason)
                words = reasons.agent_not_started(opened.reason, opened.next_step)
                return TurnResult("failed", words, last_words=opened.stderr_tail)
            is_lost = stored is not None and not opened.resumed
            if is_lost:
                _log.warning("context-lost", why=opened.lost)
                self._notices.append(notices.CONTEXT_LOST)
            await self._persist(
                lambda connection: self._join_session(
                    connection, stored[0] if stored else None, opened.assistant_session_id, resumed=opened.resumed
                )
            )
            prompt = await self._until_stopped(prompting)
            if prompt is not None and is_lost:
                prompt = await self._until_stopped(self._prompt(ready, thread, None))
            if prompt is None:
                return await self._stopped()
            if ctx.opened is not None and ctx.opened.objects is not None:
                await ctx.opened.objects.close()  # the agent may be at work for long
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

    async def _prompt(self, ready: Ready, thread: ReadThread, session: int | None) -> Prompt:
        """Build the prompt once the thread was read; `session` is the resumed session's id."""
        self._progress.enter(tracking.READING)
        remarks = (*ready.remarks, *self._remarks)
        prompt = await make_prompt(self._ctx, self._turn, ready, remarks, session, await thread)
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
        text, subject = commit_message.split_subject(answer)
        if await self._persist(lambda connection: turns.stop_requested(connection, self._turn.claim)) is not None:
            return await self._stopped()
        changes: Changes | str | None = None
        try:
            async with beside(guard_of(self._ctx, self._turn, ready)) as guard:
                changes, told = await publish(self._ctx, self._turn, ready, head_before, guard, subject, self._stop)
            self._notices += told
            if changes is None and not told:
                text = answer  # nothing was committed, so the line is part of what the agent says
        except StoppedError:
            return await self._stopped()
        if isinstance(changes, Changes):
            pull_request, notice = await pull_request_of(self._ctx, self._turn, ready, changes)
            changes = replace(changes, pull_request=pull_request)
            self._notices += [notice] if notice else []
        return TurnResult("done", answer=text, changes=changes)

    async def _finish(self, end: TurnResult) -> None:
        """End the turn, with everything that its run knows. An answer is shown, however the turn ends."""
        turn, ctx = self._turn, self._ctx
        result = replace(
            end,
            answer=end.answer or self._answer_text,
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
        await finish(ctx, turn, self._thread_ref, result)

    async def _hand_back(self) -> None:
        """Requeue the turn: this process stops, and another run continues it."""
        turn, words = self._turn, tracking.HANDED_BACK
        async with self._ctx.pool.acquire() as connection, connection.transaction():
            if await turns.requeue(connection, turn.claim):
                await thread_comments.track(connection, self._thread_ref, turn.id, turn.target, words)
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
