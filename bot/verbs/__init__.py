"""What people can ask for: one file for each verb, and the table of its kinds of turns."""

from bot.ask import Ask
from bot.rules import Rules
from bot.store import fixes as rows
from bot.store.database import Connection
from bot.turn.kind import Kind
from bot.verbs.fix import FIX, PLANNED_FIX
from bot.verbs.plan import APPROVED, PLAN
from bot.verbs.review import REVIEW
from bot.verbs.undo import UNDO
from bot.verbs.update import UPDATE
from bot.verbs.work import WORK

KINDS = {kind.name: kind for kind in (WORK, PLAN, REVIEW, UNDO, UPDATE, FIX)}
"""By the verb that was asked for."""


def kind_of(ask: Ask) -> Kind:
    """Return the kind of turn that was asked for; a run may settle on another one."""
    if "plan" in ask.of:
        return APPROVED
    return PLANNED_FIX if ask.verb == "plan" and "head" in ask.of else KINDS[ask.verb]


async def at_end(connection: Connection, conversation_id: int, rules: Rules) -> None:
    """Do what verbs do after any turn of a conversation, last in the transaction that ends it."""
    await rows.ring(connection, conversation_id, autofix=rules.autofix)
