"""What people can ask for: one file for each verb, and the table of its kinds of turns."""

from bot.rules import Rules
from bot.store import fixes as rows
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn
from bot.turn.kind import Kind
from bot.verbs.fix import FIX
from bot.verbs.plan import APPROVED, PLAN
from bot.verbs.review import REVIEW
from bot.verbs.undo import UNDO
from bot.verbs.update import UPDATE
from bot.verbs.work import WORK

KINDS = {kind.name: kind for kind in (WORK, PLAN, REVIEW, UNDO, UPDATE, FIX)}
"""By the name that a turn's row holds."""


def kind_of(turn: ClaimedTurn) -> Kind:
    """Return the kind of a turn as it was asked for; a run may settle on another one."""
    if turn.mends is not None:
        return FIX
    return APPROVED if turn.plan_of is not None else KINDS[turn.mode]


async def at_end(connection: Connection, conversation_id: int, rules: Rules) -> None:
    """Do what verbs do after any turn of a conversation, last in the transaction that ends it."""
    await rows.ring(connection, conversation_id, autofix=rules.autofix)
