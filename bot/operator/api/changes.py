"""What can be done. The API changes rows only: the node that owns a worktree carries out what is asked of it."""

from datetime import timedelta
from typing import Any, Final, Literal

from bot.care import on_request_rows
from bot.care import retention_rows as retention
from bot.care.asked import Pruning, Repairing, SessionPruning, age_of
from bot.care.on_request_rows import OperationKind
from bot.inbox.decider_rows import asked_by_operator
from bot.model import Rescue
from bot.node import rescue_rows as rescues
from bot.operator.api import listings
from bot.operator.api.calls import ByGuid, ById, Call, CallError, Endpoint, NewWorktree, change
from bot.operator.api.rows import (
    AskedDelivery,
    AskedOfNodes,
    AskedOperation,
    AskedTurn,
    PrunedSessions,
    StoppedTurn,
    TouchedWorktree,
)
from bot.store import deliveries, turns
from bot.store.conversations import delete_old_sessions
from bot.store.turns import TurnOfThread
from bot.turn import request_rows as requests


@change(
    "POST",
    "/worktrees",
    "create",
    "Make a worktree",
    "Make it",
    "The checkout of a conversation is made before its next request.",
    "A worker asks GitHub about {conversation}, then its worktree is made.",
)
async def create_worktree(call: Call, asked: NewWorktree) -> AskedDelivery:
    """Ask a worker: only GitHub knows the thread."""
    details = {"conversation": asked.conversation, "channel": call.caller.channel}
    key = f"{call.ctx.platform}/{asked.conversation}"
    return await _ask_worker(call, asked_by_operator("create", details, asked.conversation, key))


@change(
    "DELETE",
    "/worktrees/{id}",
    "remove",
    "Remove worktree {id}",
    "Remove it",
    "What GitHub does not have is rescued first. Then the directory is deleted, with its ignored files, which are "
    "not rescued. The next request on the thread makes it again.",
    "Worktree {id} will be removed.",
    is_dangerous=True,
)
async def remove_worktree(call: Call, asked: ById) -> AskedTurn:
    return await _ask(call, asked.id, "remove")


@change(
    "POST",
    "/worktrees/{id}/reset",
    "reset",
    "Reset worktree {id}",
    "Reset it",
    "What GitHub does not have is rescued first. Then all files go back to the branch's base. "
    "Ignored files are deleted and are not rescued.",
    "Worktree {id} will be reset.",
    is_dangerous=True,
)
async def reset_worktree(call: Call, asked: ById) -> AskedTurn:
    return await _ask(call, asked.id, "reset")


@change(
    "POST",
    "/worktrees/{id}/restore",
    "restore",
    "Restore the latest rescue of worktree {id}",
    "Restore it",
    "The latest rescue comes back into the worktree, if nothing was changed there since.",
    "The latest rescue of worktree {id} will be restored.",
)
async def restore_worktree(call: Call, asked: ById) -> AskedTurn:
    return await _ask(call, asked.id, "restore")


@change(
    "POST",
    "/worktrees/{id}/touch",
    "touch",
    "Keep worktree {id}",
    "Count it as used now",
    "The worktree counts as used now, so that it is not pruned as unused.",
    "Worktree {id} counts as used now.",
    status=200,
)
async def touch_worktree(call: Call, asked: ById) -> TouchedWorktree:
    found = await _worktree(call, asked.id)
    if await retention.touch(call.connection, found.id, call.ctx.clock()) is None:
        raise CallError(409, f"Worktree {found.id} is {found.state}; only a live one can be touched.")
    return TouchedWorktree(worktree=found.id)


@change(
    "POST",
    "/worktrees/prune",
    "prune",
    "Prune worktrees",
    "Prune them",
    "On each node what was not used for long is removed. What GitHub does not have is rescued first; ignored "
    "files are not. A worktree in which a request waits or runs stays.",
    "Asked of {answer.nodes}: the result comes here.",
    is_dangerous=True,
)
async def prune_worktrees(call: Call, asked: Pruning) -> AskedOfNodes:
    return await _ask_nodes(call, "prune", asked.model_dump(exclude_defaults=True))


@change(
    "POST",
    "/worktrees/repair",
    "repair",
    "Repair worktrees",
    "Repair them",
    "On each node the rows, the directories and git's records are made to agree. A directory that belongs to no "
    "worktree becomes an orphan, and nothing that GitHub does not have is deleted.",
    "Asked of {answer.nodes}: the result comes here.",
)
async def repair_worktrees(call: Call, asked: Repairing) -> AskedOfNodes:
    node = (await _worktree(call, asked.worktree)).node if asked.worktree is not None else None
    return await _ask_nodes(call, "repair", asked.model_dump(exclude_defaults=True), node)


async def _ask_nodes(
    call: Call, kind: OperationKind, details: dict[str, object], node: str | None = None
) -> AskedOfNodes:
    async with call.connection.transaction():
        ids = await on_request_rows.enqueue(call.connection, kind, details, _by(call), node)
    if not ids:
        raise CallError(409, "No node has started yet: start a worker.")
    return AskedOfNodes(operations=ids)


@change(
    "POST",
    "/sessions/prune",
    "prune",
    "Prune sessions",
    "Prune them",
    "The agents' sessions that ended longer ago than SESSION_TTL_SECONDS are deleted. Their requests stay.",
    "{answer.words}",
    status=200,
)
async def prune_sessions(call: Call, asked: SessionPruning) -> PrunedSessions:
    age = age_of(asked.older_than)
    kept_for = call.ctx.sessions_kept_for if age is None else age
    count = await delete_old_sessions(
        call.connection, kept_for.total_seconds(), call.ctx.clock(), asked.repo, dry_run=asked.dry_run
    )
    return PrunedSessions(deleted=count, dry_run=asked.dry_run)


@change(
    "POST",
    "/rescues/{id}/restore",
    "restore",
    "Restore rescue {id}",
    "Restore it",
    "It comes back into its worktree, which is made again where it was removed. Nothing is overwritten: a worktree "
    "with changes is left as it is.",
    "Rescue {id} will be restored.",
)
async def restore_rescue(call: Call, asked: ById) -> AskedTurn:
    rescue = await _rescue(call, asked.id)
    newer = await rescues.newer(call.connection, rescue)
    if newer is not None:
        raise CallError(409, f"Rescue {newer.id} of the same worktree is newer; only the latest can be restored.")
    return await _ask(call, await rescues.home(call.connection, rescue.id), "restore", rescue.id)


@change(
    "DELETE",
    "/rescues/{id}",
    "drop",
    "Delete rescue {id}",
    "Delete it for good",
    "The rescued work is deleted. It cannot be brought back.",
    "Rescue {id} will be deleted.",
    is_dangerous=True,
)
async def drop_rescue(call: Call, asked: ById) -> AskedOperation:
    rescue = await _rescue(call, asked.id)
    return AskedOperation(operation=(await _ask_nodes(call, "drop", {"rescue": rescue.id}, rescue.node)).operations[0])


async def _ask(
    call: Call, worktree_id: int, verb: Literal["remove", "reset", "restore"], rescue_id: int | None = None
) -> AskedTurn:
    found = await _worktree(call, worktree_id)
    if found.state == "orphan" and (verb == "remove" or verb == "restore"):
        asked = await _ask_nodes(call, verb, {"path": found.path}, found.node)
        return AskedTurn(operation=asked.operations[0])
    if found.state not in ("reserved", "ready") and (verb, found.state) != ("restore", "removed"):
        raise CallError(409, f"Worktree {found.id} is {found.state}.")
    words = f"worktrees {verb} {found.id}" if rescue_id is None else f"rescues restore {rescue_id}"
    for_turn = verb, words, _by(call), call.ctx.clock(), rescue_id
    return AskedTurn(turn=await requests.enqueue_for_operator(call.connection, found.id, *for_turn))


def _by(call: Call) -> str:
    return requests.operator(call.caller.channel, call.caller.login)


async def _worktree(call: Call, worktree_id: int) -> listings.FoundWorktree:
    found = await listings.find_worktree(call.connection, "", worktree_id, ())
    if found is None:
        raise CallError(404, f"There is no worktree {worktree_id}.")
    return found


async def _rescue(call: Call, rescue_id: int) -> Rescue:
    found = await rescues.with_id(call.connection, rescue_id)
    if found is None:
        raise CallError(404, f"There is no rescue {rescue_id}.")
    return found


@change(
    "POST",
    "/turns/{id}/stop",
    "stop",
    "Stop turn {id}",
    "Stop it",
    "The agent is stopped within seconds. What it did so far stays in the worktree and is not pushed. "
    "The thread is told that the operator stopped it.",
    "Turn {id} is being stopped.",
    is_dangerous=True,
)
async def stop_turn(call: Call, asked: ById) -> StoppedTurn:
    # It renders Markdown, for which the web process has no other use.
    from bot.thread import reasons
    from bot.verbs.fix import rows as fixes
    from bot.verbs.stop import stop_turns

    async with call.connection.transaction():
        place = await _turn_of_thread(call, asked.id)
        stopped = await stop_turns(
            call.connection,
            place.thread_ref if place is not None else None,
            place.conversation.number if place is not None else 0,
            call.ctx.server_url,
            reasons.stopped_by(call.caller.login) if call.caller.login else reasons.STOPPED_BY_OPERATOR,
            # By GitHub's clock, which may be ahead of ours.
            asked_before=call.ctx.clock() + timedelta(days=1),
            now=call.ctx.clock(),
            turn_id=asked.id,
        )
        # A run rings at its end; what waited has none.
        if place is not None:
            await fixes.ring(call.connection, place.thread_ref.conversation_id, autofix=True)
    if not stopped:
        raise CallError(409, f"Turn {asked.id} has ended, or is being stopped already.")
    return StoppedTurn(turn=asked.id)


@change(
    "POST",
    "/turns/{id}/retry",
    "retry",
    "Ask turn {id} again",
    "Ask it again",
    "The same request is queued again, as /retry on the thread does.",
    "Turn {id} is asked again, as delivery {answer.delivery}.",
)
async def retry_turn(call: Call, asked: ById) -> AskedDelivery:
    """Ask a worker, as `/retry` on the thread does: GitHub may have to be asked about the thread."""
    place = await _turn_of_thread(call, asked.id)
    last = None
    if place is not None:
        last = await requests.last_not_done(call.connection, place.thread_ref.conversation_id)
    if place is None or last is None or last[1] != asked.id:
        raise CallError(
            409, f"Turn {asked.id} is not the last unfinished one of its conversation, or its text has expired."
        )
    repository = place.thread_ref.repository
    name, key = (
        f"{repository.full_name}#{place.conversation.number}",
        f"{repository.platform}/{repository.id}#{place.conversation.number}",
    )
    return await _ask_worker(call, asked_by_operator("retry", {"turn": asked.id}, name, key))


async def _ask_worker(call: Call, made: deliveries.NewDelivery) -> AskedDelivery:
    await deliveries.store(call.connection, [made])
    return AskedDelivery(delivery=made.guid)


async def _turn_of_thread(call: Call, turn_id: int) -> TurnOfThread | None:
    if await listings.turn(call.connection, turn_id, call.caller.scope) is None:
        raise CallError(404, f"There is no turn {turn_id}.")
    return await turns.of_thread(call.connection, turn_id)


@change(
    "POST",
    "/deliveries/{guid}/replay",
    "replay",
    "Replay delivery {guid}",
    "Replay it",
    "The delivery is handled again. Nothing is done twice.",
    "Delivery {guid} is handled again.",
)
async def replay_delivery(call: Call, asked: ByGuid) -> AskedDelivery:
    match await deliveries.replay(call.connection, asked.guid):
        case "replayed":
            return AskedDelivery(delivery=asked.guid)
        case "unknown":
            raise CallError(404, f"There is no delivery {asked.guid}.")
        case "waiting":
            raise CallError(409, f"{asked.guid} is waiting to be handled already.")
        case "nothing-to-run":
            raise CallError(
                409, f"{asked.guid} cannot be run: it meant nothing to the bot, or its body is no longer kept."
            )


CHANGES: Final[tuple[Endpoint[Any, Any], ...]] = (
    *(create_worktree, remove_worktree, reset_worktree, restore_worktree, touch_worktree, prune_worktrees),
    *(repair_worktrees, prune_sessions, restore_rescue, drop_rescue, stop_turn, retry_turn, replay_delivery),
)
