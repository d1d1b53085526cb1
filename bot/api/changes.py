"""What can be done. The API changes rows only: the node that owns a worktree carries out what is asked of it."""

from datetime import timedelta
from typing import Final

from bot.api import schemas
from bot.api.calls import THREAD, Call, CallError, Endpoint, Handler
from bot.store import deliveries, listings, operations, requests, rescues, retention, turns
from bot.store.operations import OperationKind
from bot.store.turns import TurnThread


def _operate(kind: OperationKind) -> Handler:
    async def handler(call: Call) -> object:
        return await _operate_on(call, call.id, kind)

    return handler


async def _operate_on(call: Call, worktree_id: int, kind: OperationKind, rescue_id: int | None = None) -> object:
    found = await _worktree(call, worktree_id)
    if not operations.fits(kind, found.state):
        raise CallError(409, f"Worktree {found.id} is {found.state}.")
    asked = operations.by_operator(call.channel, call.ctx.clock())
    return {"operation": await operations.enqueue(call.connection, found.id, kind, asked, rescue_id=rescue_id)}


async def _worktree(call: Call, worktree_id: int) -> listings.FoundWorktree:
    found = await listings.find_worktree(call.connection, "", worktree_id, ())
    if found is None:
        raise CallError(404, f"There is no worktree {worktree_id}.")
    return found


async def _restore_rescue(call: Call) -> object:
    rescue = await _rescue(call)
    newer = await rescues.newer(call.connection, rescue)
    if newer is not None:
        raise CallError(409, f"Rescue {newer.id} of the same worktree is newer; only the latest can be restored.")
    worktree_id, _ = await rescues.home(call.connection, rescue)
    return await _operate_on(call, worktree_id, "restore", rescue.id)


async def _drop_rescue(call: Call) -> object:
    rescue = await _rescue(call)
    asked = operations.by_operator(call.channel, call.ctx.clock())
    dropping = operations.enqueue(call.connection, rescue.worktree_id, "drop", asked, rescue_id=rescue.id)
    return {"operation": await dropping}


async def _rescue(call: Call) -> rescues.Rescue:
    found = await rescues.with_id(call.connection, call.id)
    if found is None:
        raise CallError(404, f"There is no rescue {call.id}.")
    return found


async def _touch(call: Call) -> object:
    found = await _worktree(call, call.id)
    if await retention.touch(call.connection, found.id, call.ctx.clock()) is None:
        raise CallError(409, f"Worktree {found.id} is {found.state}; only a live one can be touched.")
    return {"worktree": found.id}


async def _create(call: Call) -> object:
    """Ask a worker: only GitHub knows the thread."""
    thread = call.asked.body["conversation"]
    if not THREAD.fullmatch(thread):
        raise CallError(400, f"{thread[:64]!r} names no conversation; write it like octo/hello#42.")
    asked = deliveries.asked_by_operator(
        "create",
        {"conversation": thread, "channel": call.channel},
        thread,
        f"{call.ctx.platform}/{thread}",
    )
    await deliveries.store(call.connection, [asked])
    return {"delivery": asked.guid}


async def _stop(call: Call) -> object:
    # It renders Markdown, for which the web process has no other use.
    from bot.handlers.stop import stop_turns
    from bot.messages import reasons

    async with call.connection.transaction():
        place = await _thread_of_turn(call)
        stopped = await stop_turns(
            call.connection,
            place.thread_ref,
            place.number,
            call.ctx.server_url,
            reasons.STOPPED_BY_OPERATOR,
            # By GitHub's clock, which may be ahead of ours.
            asked_before=call.ctx.clock() + timedelta(days=1),
            now=call.ctx.clock(),
            turn_id=call.id,
        )
    if not stopped:
        raise CallError(409, f"Turn {call.id} has ended, or is being stopped already.")
    return {"turn": call.id}


async def _thread_of_turn(call: Call) -> TurnThread:
    if await listings.turn(call.connection, call.id) is None:
        raise CallError(404, f"There is no turn {call.id}.")
    return await turns.thread_of(call.connection, call.id)


async def _retry(call: Call) -> object:
    """Ask a worker, as `/retry` on the thread does: GitHub may have to be asked about the thread."""
    place = await _thread_of_turn(call)
    last = await requests.last_not_done(call.connection, place.thread_ref.conversation_id)
    if last is None or last["id"] != call.id:
        raise CallError(
            409, f"Turn {call.id} is not the last unfinished request of its conversation, or its text has expired."
        )
    repository = place.thread_ref.repository
    asked = deliveries.asked_by_operator(
        "retry",
        {"turn": call.id},
        f"{repository.full_name}#{place.number}",
        f"{repository.platform}/{repository.id}#{place.number}",
    )
    await deliveries.store(call.connection, [asked])
    return {"delivery": asked.guid}


async def _replay(call: Call) -> object:
    guid = call.asked.path["guid"]
    match await deliveries.replay(call.connection, guid):
        case "replayed":
            return {"delivery": guid}
        case "unknown":
            raise CallError(404, f"There is no delivery {guid}.")
        case "waiting":
            raise CallError(409, f"{guid} is waiting to be handled already.")
        case "nothing-to-run":
            raise CallError(409, f"{guid} cannot be run: it meant nothing to the bot, or its body is no longer kept.")


_AS_OPERATION: Final = schemas.record(operation=schemas.INTEGER)
_AS_DELIVERY: Final = schemas.record(delivery=schemas.TEXT)

CHANGES: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "POST",
        "/worktrees",
        "Make the worktree of a conversation; GET /api/deliveries/{guid} tells how it went",
        _create,
        _AS_DELIVERY,
        202,
        body={"conversation": "The thread, as owner/repo#42."},
    ),
    Endpoint(
        "DELETE",
        "/worktrees/{id}",
        "Rescue what GitHub does not have, then remove it",
        _operate("remove"),
        _AS_OPERATION,
        202,
    ),
    Endpoint(
        "POST",
        "/worktrees/{id}/reset",
        "Rescue what GitHub does not have, then reset it",
        _operate("reset"),
        _AS_OPERATION,
        202,
    ),
    Endpoint(
        "POST", "/worktrees/{id}/restore", "Bring back its latest rescue", _operate("restore"), _AS_OPERATION, 202
    ),
    Endpoint("POST", "/worktrees/{id}/touch", "Count it as used now", _touch, schemas.record(worktree=schemas.INTEGER)),
    Endpoint(
        "POST",
        "/rescues/{id}/restore",
        "Bring it back, the latest of its worktree",
        _restore_rescue,
        _AS_OPERATION,
        202,
    ),
    Endpoint("DELETE", "/rescues/{id}", "Delete it for good", _drop_rescue, _AS_OPERATION, 202),
    Endpoint(
        "POST",
        "/turns/{id}/stop",
        "Stop it, running or queued",
        _stop,
        schemas.record(turn=schemas.INTEGER),
        202,
    ),
    Endpoint(
        "POST",
        "/turns/{id}/retry",
        "Ask it again, the last unfinished one",
        _retry,
        _AS_DELIVERY,
        202,
    ),
    Endpoint(
        "POST",
        "/deliveries/{guid}/replay",
        "Handle it again; nothing is done twice",
        _replay,
        _AS_DELIVERY,
        202,
    ),
)
