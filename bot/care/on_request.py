"""What an operator asks of this node as a whole: by a job of the node, or from its command line."""

from typing import assert_never

import orjson
import structlog
from rich.filesize import decimal
from structlog.contextvars import bound_contextvars

from bot.care import reconciliation_rows as reconciliation
from bot.care.expire import end_orphan
from bot.care.prune import prune
from bot.care.repair import repair
from bot.care.retention_rules import Policies
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations.asked import Pruning, Repairing, words_of_repair
from bot.operations.shared import Outcome, judged
from bot.store import operations
from bot.store.failures import is_transient
from bot.store.operations import NodeOperation

_log = structlog.get_logger()


async def work_on_node(ctx: NodeContext, policy_at: Policies, operation_id: int) -> None:
    """Carry out an operation of this node, for its job, unless it has ended. Every step can be repeated.

    Raises what a database raises that is away.
    """
    operation = await persist(ctx.pool, operations.begin_on_node, operation_id, ctx.node)
    if operation is None:
        return
    with bound_contextvars(operation=operation.id):
        _log.info("operation-started", kind=operation.kind, asked_by=operation.requested_by)
        try:
            end = await _carry_out(ctx, policy_at, operation)
        except Exception as problem:
            if is_transient(problem):
                raise
            end = Outcome("failed", f"Not done: {judged(problem, operation.id)}.")
        if end is None:
            return
        report = orjson.dumps(end.report).decode()
        await persist(ctx.pool, operations.finish_on_node, operation.id, ctx.node, end.state, end.words, report)
        _log.info("operation-ended", state=end.state, outcome=end.words)


async def _carry_out(ctx: NodeContext, policy_at: Policies, operation: NodeOperation) -> Outcome | None:
    """Return how it ended; None where it goes on as an operation of a worktree."""
    match operation.kind:
        case "prune":
            report = await prune(ctx, policy_at, Pruning.model_validate_json(operation.details))
            is_done = report.aborted is None and not report.errors
            return Outcome("done" if is_done else "failed", report.words, report=report)
        case "repair":
            done = await repair(ctx, Repairing.model_validate_json(operation.details))
            return Outcome("done", words_of_repair(done), report=done)
        case "remove" | "restore" as kind:
            return await _end_orphan(ctx, operation, restores=kind == "restore")
        case _:
            assert_never(operation.kind)


async def _end_orphan(ctx: NodeContext, operation: NodeOperation, *, restores: bool) -> Outcome | None:
    """Rescue an orphan and remove it; one that is to be restored goes on as the worktree of its conversation."""
    path = orjson.loads(operation.details)["path"]
    freed = await end_orphan(ctx, ctx.directory(path), needs_row=restores)
    if freed is None:
        return Outcome("failed", f"{path} is no orphan any more.")
    if not restores:
        return Outcome("done", f"Removed; {decimal(freed)} freed. Among the rescues is what was rescued or kept.")
    worktree = await reconciliation.removed_at(ctx.pool, ctx.node, [path])
    if worktree is None:
        return Outcome("failed", f"Nothing tells whose {path} is. Remove it: it is kept aside then.")
    await persist(ctx.pool, operations.move_to_worktree, operation.id, ctx.node, worktree)
    return None
