"""This node's turns, operations and removals: claimed when the bell rings, requeued when their process is gone."""

import asyncio
from functools import partial
from uuid import UUID

import structlog

from bot import counters
from bot.node.process_lock import is_alive
from bot.operations import execute
from bot.operations.remove import remove_all
from bot.run.context import TurnContext
from bot.run.take_over import interrupt
from bot.run.turn import TurnRun
from bot.store import claims, operations, removals, turns
from bot.store.failures import log_failure
from bot.store.operations import ClaimedOperation, OperationClaim
from bot.store.turns import Claim

OPERATIONS_AT_ONCE = 2
"""Beside the turns: a reset must not wait for the agents of other worktrees."""
_log = structlog.get_logger()


class Runner:
    """A runner of at most `slots` turns at once, under the process lock `worker` (see `bot.node.process_lock`)."""

    def __init__(self, ctx: TurnContext, worker: str, slots: int, per_repository: int) -> None:
        self._ctx = ctx
        self._worker = worker
        self._slots = slots
        self._per_repository = per_repository
        # By claim: what was queued again can be claimed again before its first run is over.
        self._runs: dict[UUID, tuple[TurnRun, asyncio.Task[None]]] = {}
        self._operations: dict[UUID, tuple[ClaimedOperation, asyncio.Task[None]]] = {}
        self._removing: asyncio.Task[None] | None = None
        self._remove_more = False
        # Between a claim and its entry above, the claim looks like that of a dead process.
        self._claiming = asyncio.Lock()
        self._bell = asyncio.Event()
        self.draining = False
        """Nothing more is claimed: the process ends."""

    def ring(self) -> None:
        """Look for work: something of this node may be due."""
        self._bell.set()

    def ring_for_turn(self) -> None:
        """Look for work if a turn could begin now; its end looks for the next one anyway."""
        if len(self._runs) < self._slots:
            self._bell.set()

    @property
    def worktrees(self) -> list[int]:
        """The worktrees in which a run of this process is at work or winds down."""
        return [run.worktree_id for run, _ in self._runs.values()]

    def stop_asked(self, turn_id: int) -> None:
        """Stop the turn if it runs here."""
        for run, _ in self._runs.values():
            if run.turn_id == turn_id:
                run.look_again()

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
        ctx = self._ctx
        while len(self._runs) < self._slots:
            async with ctx.pool.acquire() as connection:
                turn = await claims.claim_next(connection, ctx.node, self._worker, self._per_repository, ctx.clock())
            if turn is None:
                break
            run = TurnRun(ctx, turn)
            task = asyncio.create_task(run.run(), name=f"turn {turn.id}")
            self._runs[turn.claim.token] = (run, task)
            task.add_done_callback(partial(self._ended, turn.claim.token))
        while len(self._operations) < OPERATIONS_AT_ONCE:
            async with ctx.pool.acquire() as connection:
                operation = await operations.claim_next(connection, ctx.node, self._worker)
            if operation is None:
                break
            task = asyncio.create_task(execute.carry_out(ctx, operation), name=f"operation {operation.id}")
            self._operations[operation.claim.token] = (operation, task)
            task.add_done_callback(partial(self._operation_ended, operation.claim.token))
        if self._removing is not None:
            self._remove_more = True  # it may have found nothing already
        else:
            self._remove_more = False
            self._removing = asyncio.create_task(remove_all(ctx, self._worker), name="removals")
            self._removing.add_done_callback(self._removals_ended)

    def _operation_ended(self, claim: UUID, task: asyncio.Task[None]) -> None:
        operation, _ = self._operations.pop(claim)
        self._bell.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Its row is still claimed: it is found and queued again like that of a dead worker.
            log_failure("operation", problem, operation=operation.id)

    def _ended(self, claim: UUID, task: asyncio.Task[None]) -> None:
        run, _ = self._runs.pop(claim)
        self._bell.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Its row is still claimed: it is found and queued again like that of a dead worker.
            log_failure("turn", problem, turn=run.turn_id)

    def _removals_ended(self, task: asyncio.Task[None]) -> None:
        self._removing = None
        if self._remove_more:
            self._bell.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            log_failure("removals", problem)

    async def _wind_down(self, grace_seconds: float) -> None:
        tasks = [*(task for _, task in self._runs.values()), *(task for _, task in self._operations.values())]
        if tasks:
            _log.info("waiting-for-turns", turns=len(self._runs), seconds=grace_seconds)
            await asyncio.wait(tasks, timeout=grace_seconds)
        if self._removing is not None:
            tasks.append(self._removing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def recover(self) -> None:
        """Requeue what a dead process has claimed; a turn that was cut off twice ends `interrupted`."""
        async with self._claiming:
            await self._recover(self._ctx)

    async def _recover(self, ctx: TurnContext) -> None:
        async with ctx.pool.acquire() as connection:
            running = await turns.running_on(connection, ctx.node)
            removing = await removals.claimed_on(connection, ctx.node)
        for claim in running:
            if self._is_gone(claim.worker, runs_here=claim.token in self._runs):
                await self._cut_off(claim)
        if await execute.recover(ctx, self._operation_is_gone):
            self.ring()
        for worktree_id, worker in removing:
            asked = any(operation.worktree.id == worktree_id for operation, _ in self._operations.values())
            if self._is_gone(worker, runs_here=asked or self._removing is not None):
                async with ctx.pool.acquire() as connection:
                    await removals.requeue(connection, worktree_id, worker)
                self.ring()

    def _is_gone(self, worker: str, *, runs_here: bool) -> bool:
        """Return whether the claiming process is gone, or this process does not run the claim."""
        return not runs_here if worker == self._worker else not is_alive(self._ctx.workers, worker)

    def _operation_is_gone(self, claim: OperationClaim) -> bool:
        return self._is_gone(claim.worker, runs_here=claim.token in self._operations)

    async def _cut_off(self, claim: Claim) -> None:
        async with self._ctx.pool.acquire() as connection, connection.transaction():
            if await turns.requeue(connection, claim, crashed=True):
                _log.warning("turn-cut-off", turn=claim.turn_id)
            elif not await interrupt(connection, claim, self._ctx):
                return  # it has ended since it was looked for
        counters.count("recoveries_total", "turn")
        self.ring()
