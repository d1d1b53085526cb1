"""What an operator asks of this node as a whole, of an orphan, or of a rescue: by a job of the node."""

from dataclasses import dataclass
from typing import Literal, assert_never

import orjson
import structlog
from rich.filesize import decimal
from structlog.contextvars import bound_contextvars

from bot.care import on_request_rows as rows
from bot.care import reconciliation_rows as reconciliation
from bot.care.asked import PruneReport, Pruning, Repaired, Repairing, words_of_repair
from bot.care.expire import drop, end_orphan
from bot.care.on_request_rows import Operation
from bot.care.prune import prune
from bot.care.removing import delete_trashed
from bot.care.repair import repair
from bot.care.retention_rules import Policies
from bot.node import rescue_rows as rescues
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.refs import InvalidNameError
from bot.store.database import Connection
from bot.store.failures import is_transient
from bot.tree import GitError, open_clone
from bot.turn import request_rows as requests

DROPPED = "The rescue was deleted. The space of commits is free once their clone is packed."
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended, in words for people, with what a prune or a repair did.

    `restores`: a turn of the worktree with this id goes on with it.
    """

    state: Literal["done", "failed"]
    words: str
    report: PruneReport | list[Repaired] | None = None
    restores: int | None = None


async def work_on_node(ctx: NodeContext, policy_at: Policies, operation_id: int) -> None:
    """Carry out an operation of this node, for its job, unless it has ended. Every step can be repeated.

    Raises what a database raises that is away.
    """
    operation = await persist(ctx.pool, rows.begin, operation_id, ctx.node)
    if operation is None:
        return
    with bound_contextvars(operation=operation.id):
        _log.info("operation-started", kind=operation.kind, asked_by=operation.requested_by)
        try:
            end = await _carry_out(ctx, policy_at, operation)
        except (GitError, InvalidNameError, OSError) as problem:
            if is_transient(problem):
                raise
            _log.warning("operation-failed", problem=str(problem))
            end = Outcome("failed", f"Not done: {problem}.")
        except Exception as problem:
            if is_transient(problem):
                raise
            _log.exception("operation-crashed")
            where = f"which is in its log under operation {operation.id}"
            end = Outcome("failed", f"Not done: the bot hit an internal error, {where}.")
        await persist(ctx.pool, _finish, ctx, operation, end)
        _log.info("operation-ended", state=end.state, outcome=end.words)


async def _finish(connection: Connection, ctx: NodeContext, operation: Operation, end: Outcome) -> None:
    if await rows.begin(connection, operation.id, ctx.node) is None:
        return
    turn_id = None
    if end.restores is not None:
        asked = "restore", f"worktrees restore {end.restores}", operation.requested_by
        turn_id = await requests.enqueue_for_operator(connection, end.restores, *asked, ctx.clock())
    report = orjson.dumps(end.report).decode()
    await rows.finish(connection, operation.id, ctx.node, end.state, end.words, report, turn_id)


async def _carry_out(ctx: NodeContext, policy_at: Policies, operation: Operation) -> Outcome:
    match operation.kind:
        case "prune":
            report = await prune(ctx, policy_at, Pruning.model_validate_json(operation.details))
            is_done = report.aborted is None and not report.errors
            return Outcome("done" if is_done else "failed", report.words, report)
        case "repair":
            done = await repair(ctx, Repairing.model_validate_json(operation.details))
            return Outcome("done", words_of_repair(done), done)
        case "remove" | "restore" as kind:
            return await _end_orphan(ctx, operation, restores=kind == "restore")
        case "drop":
            return await _drop(ctx, orjson.loads(operation.details)["rescue"])
        case _:
            assert_never(operation.kind)


async def _end_orphan(ctx: NodeContext, operation: Operation, *, restores: bool) -> Outcome:
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
    return Outcome("done", f"It was rescued; worktree {worktree} is made again for it.", restores=worktree)


async def _drop(ctx: NodeContext, rescue_id: int) -> Outcome:
    """Delete a rescue; one that is gone already is done. Raises GitError, OSError, InvalidNameError."""
    rescue = await persist(ctx.pool, rescues.with_id, rescue_id)
    if rescue is None:
        return Outcome("done", DROPPED)
    async with open_clone(ctx.clone(rescue.folder)) as opened:
        trashed = await drop(ctx, opened, rescue)
    await delete_trashed(trashed)
    return Outcome("done", DROPPED)
