"""The JSON of the API's answers, as JSON Schema (draft 2020-12) for its OpenAPI document."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from bot.messages.tracking import EntryState
from bot.model import DeliveryState, EndReason, TurnState, WorktreeState

Schema = Mapping[str, Any]

INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
TEXT: Final[Schema] = {"type": "string"}
TRUTH: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}

WORKTREE_STATES: Final = (*get_args(WorktreeState), "missing")
TURN_STATES: Final = get_args(TurnState)
DELIVERY_STATES: Final = get_args(DeliveryState)
OPERATION_STATES: Final = ("queued", "running", "done", "failed")


def maybe(schema: Schema) -> Schema:
    """Allow null too."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def record(**fields: Schema) -> Schema:
    """Return an object with exactly these fields."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(fields),
        "additionalProperties": False,
    }


def page_of(schema: Schema) -> Schema:
    """Return a page of a list; `next` is for `?after=`, null on the last page."""
    return record(items=list_of(schema), next=maybe(TEXT))


ERROR: Final = record(error=TEXT)
WORKTREE: Final = record(
    id=INTEGER,
    codebase=TEXT,
    path=TEXT,
    branch=maybe(TEXT),
    node=TEXT,
    state=one_of(*WORKTREE_STATES),
    conversations=list_of(TEXT),
    created_at=TIME,
    updated_at=TIME,
)
_SESSION: Final[dict[str, Schema]] = {
    "id": INTEGER,
    "agent": TEXT,
    "active": TRUTH,
    "created_at": TIME,
    "last_active_at": TIME,
    "ended_at": maybe(TIME),
    "end_reason": maybe(one_of(*get_args(EndReason))),
}
SESSION: Final = record(**_SESSION, conversation=TEXT, assistant_session_id=maybe(TEXT))
_CONVERSATION: Final[dict[str, Schema]] = {
    "id": INTEGER,
    "conversation": TEXT,
    "kind": one_of("issue", "pull"),
    "title": TEXT,
    "state": one_of("open", "closed"),
    "worktree": maybe(INTEGER),
    "branch": maybe(TEXT),
    "pull_requests": list_of(TEXT),
    "session": maybe(INTEGER),
    "turns": INTEGER,
    "cost_usd": maybe(NUMBER),
    "created_at": TIME,
    "updated_at": TIME,
}
CONVERSATION: Final = record(**_CONVERSATION)
_TURN: Final[dict[str, Schema]] = {
    "id": INTEGER,
    "conversation": TEXT,
    "state": one_of(*TURN_STATES),
    "reason": maybe(TEXT),
    "waiting": maybe(TEXT),
    "phase": maybe(TEXT),
    "requested_by": TEXT,
    "comment_url": maybe(TEXT),
    "agent": maybe(TEXT),
    "model": maybe(TEXT),
    "cost_usd": maybe(NUMBER),
    "tokens": maybe(INTEGER),
    "created_at": TIME,
    "started_at": maybe(TIME),
    "finished_at": maybe(TIME),
}
TURN: Final = record(**_TURN)
WHOLE_TURN: Final = record(
    **_TURN,
    request=maybe(TEXT),
    expired=TRUTH,
    plan=list_of(record(state=one_of(*get_args(EntryState)), text=TEXT)),
    latest_words=TEXT,
    steps=list_of(record(at=TIME, words=TEXT)),
)
COSTS: Final = record(
    day={"type": "string", "format": "date"},
    codebase=TEXT,
    turns=INTEGER,
    untold=INTEGER,
    cost_usd=maybe(NUMBER),
    tokens=maybe(INTEGER),
)
_NOT_OF_A_THREAD: Final = ("conversation", "comment_url", "agent", "model", "tokens")
WHOLE_CONVERSATION: Final = record(
    **_CONVERSATION,
    requests=list_of(record(**{name: schema for name, schema in _TURN.items() if name not in _NOT_OF_A_THREAD})),
    sessions=list_of(record(**_SESSION)),
)
DELIVERY: Final = record(
    guid=TEXT,
    event=TEXT,
    action=maybe(TEXT),
    conversation=maybe(TEXT),
    state=one_of(*DELIVERY_STATES),
    received_at=TIME,
    attempts=INTEGER,
    error=maybe(TEXT),
)
RESCUE: Final = record(
    id=INTEGER,
    worktree=INTEGER,
    codebase=TEXT,
    conversations=list_of(TEXT),
    branch=maybe(TEXT),
    removal=maybe(TEXT),
    name=TEXT,
    files=INTEGER,
    commits=INTEGER,
    bytes=INTEGER,
    node=TEXT,
    created_at=TIME,
    expires_at=TIME,
    restored_at=maybe(TIME),
)
NODE: Final = record(
    id=TEXT,
    name=TEXT,
    state=one_of("alive", "silent"),
    started_at=TIME,
    heartbeat_at=maybe(TIME),
    worktrees=INTEGER,
    running=INTEGER,
    queued=INTEGER,
    disk={"type": "object", "additionalProperties": INTEGER},
    disk_measured_at=maybe(TIME),
    kept=list_of(record(name=TEXT, bytes=INTEGER, created_at=TIME, expires_at=TIME)),
)
OPERATION: Final = record(
    id=INTEGER,
    kind=TEXT,
    worktree=INTEGER,
    state=one_of(*OPERATION_STATES),
    outcome=maybe(TEXT),
    requested_by=TEXT,
    turns_ahead=INTEGER,
    waits_for=maybe(TEXT),
    created_at=TIME,
    finished_at=maybe(TIME),
)
