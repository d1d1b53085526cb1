"""This node's turns: claimed when the bell rings, requeued when their process is gone."""

import asyncio
from functools import partial
from uuid import UUID

import structlog

from bot import counters
from bot.locks import is_alive
from bot.store import turns
from bot.store.failures import log_failure
from bot.store.turns import Claim, ClaimedTurn
from bot.turn import claims
from bot.turn.context import TurnContext
from bot.turn.take_over import interrupt
from bot.turn.turn import run_turn
from bot.turn.turn_run import TurnRun

WITHOUT_AGENT_AT_ONCE = 6
"""Turns without an agent beside the others: a reset waits neither for the agents nor for the set-up of others."""
_log = structlog.get_logger()


class Runner:
    """A runner of turns, at most `slots` that need an agent at once, under the process lock `worker` (see `bot.locks`).

    `only_operators`: of those that operators ask for.
    """

    def __init__(
        self, ctx: TurnContext, worker: str, slots: int, per_repository: int, *, only_operators: bool = False
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._slots = slots
        self._per_repository = per_repository
        self._only_operators = only_operators
        # By claim: what was queued again can be claimed again before its first run is over.
        self._runs: dict[UUID, tuple[TurnRun, asyncio.Task[None]]] = {}
        # Between a claim and its entry above, the claim looks like that of a dead process.
        self._claiming = asyncio.Lock()
        self._bell = asyncio.Event()
        self.draining = False
        """Nothing more is claimed: the process ends."""

    def ring(self) -> None:
        """Look for work: something of this node may be due."""
        self._bell.set()

    def ring_for_turn(self) -> None:
        """Look for work if a turn with an agent could begin now; its end looks for the next one anyway."""
        if self._has_place(with_agent=True):
            self._bell.set()

    def _has_place(self, *, with_agent: bool) -> bool:
        most = self._slots if with_agent else WITHOUT_AGENT_AT_ONCE
        return sum(run.turn.needs_agent == with_agent for run, _ in self._runs.values()) < most

    @property
    def worktrees(self) -> list[int]:
        """The worktrees in which a run of this process is at work or winds down."""
        return [run.turn.worktree.id for run, _ in self._runs.values()]

    def stop_asked(self, turn_id: int) -> None:
        """Stop the turn if it runs here."""
        for run, _ in self._runs.values():
            if run.turn.id == turn_id:
                run.stop.set()  # the next look at the row is seconds away

    def message_waits(self, turn_id: int) -> None:
        """Let the turn look for messages if it runs here."""
        for run, _ in self._runs.values():
            if run.turn.id == turn_id:
                run.message_waits.set()

    async def serve(self, stopping: asyncio.Event, grace_seconds: float) -> None:
        """Claim and run until `stopping`; then give running turns the grace and requeue the rest."""
        stop = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                self._bell.clear()
                try:
                    async with self._claiming:
                        await self._claim_all()
                except Exception as problem:  # noqa: BLE001 - an error of one attempt does not stop the claims
                    log_failure("claims", problem)
                rung = asyncio.create_task(self._bell.wait())
                await asyncio.wait({rung, stop}, return_when=asyncio.FIRST_COMPLETED)
                rung.cancel()
        finally:
            stop.cancel()
            self.draining = True
            # Without a request to end, something else of this process failed: it ends now.
            await self._wind_down(grace_seconds if stopping.is_set() else 0)

    async def _claim_all(self) -> None:
        for with_agent in (False, True):
            while self._has_place(with_agent=with_agent) and (turn := await self._claim(with_agent=with_agent)):
                run = TurnRun(self._ctx, turn)
                task = asyncio.create_task(run_turn(run), name=f"turn {turn.id}")
                self._runs[turn.claim.token] = (run, task)
                task.add_done_callback(partial(self._ended, turn.claim.token))

    async def _claim(self, *, with_agent: bool) -> ClaimedTurn | None:
        ctx, mine = self._ctx, (self._worker, self._per_repository)
        async with ctx.pool.acquire() as connection:
            return await claims.claim_next(
                connection,
                ctx.node,
                *mine,
                ctx.clock(),
                with_agent=with_agent,
                only_operators=self._only_operators,
            )

    async def run_due(self) -> None:
        """Claim what is due, also what dead processes left and what follows, and run it to its end."""
        await self.recover()
        while True:
            async with self._claiming:
                await self._claim_all()
            if not self._runs:
                return
            await asyncio.gather(*(task for _, task in self._runs.values()))
            await asyncio.sleep(0)  # they leave `_runs`

    def _ended(self, claim: UUID, task: asyncio.Task[None]) -> None:
        run, _ = self._runs.pop(claim)
        self._bell.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Its row is still claimed: it is found and queued again like that of a dead worker.
            log_failure("turn", problem, turn=run.turn.id)

    async def _wind_down(self, grace_seconds: float) -> None:
        tasks = [task for _, task in self._runs.values()]
        if tasks:
            _log.info("waiting-for-turns", turns=len(self._runs), seconds=grace_seconds)
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def recover(self) -> None:
        """Requeue the turns that a dead process has claimed; one that was cut off twice ends `interrupted`."""
        ctx = self._ctx
        async with self._claiming:
            running = await turns.running_on(ctx.pool, ctx.node)
            for claim in running:
                here = claim.worker == self._worker
                if claim.token not in self._runs if here else not is_alive(ctx.workers, claim.worker):
                    await self._cut_off(claim)

    async def _cut_off(self, claim: Claim) -> None:
        async with self._ctx.pool.acquire() as connection, connection.transaction():
            if await turns.requeue(connection, claim, crashed=True):
                _log.warning("turn-cut-off", turn=claim.turn_id)
            elif not await interrupt(connection, claim, self._ctx):
                return  # it has ended since it was looked for
        counters.RECOVERIES.labels("turn").inc()
        self.ring()
