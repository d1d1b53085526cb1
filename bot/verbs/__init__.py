"""What people can ask for: one file for each verb, and the table of its kinds of turns."""

from bot.ask import Ask
from bot.rules import Rules
from bot.store import fixes as rows
from bot.store.database import Connection
from bot.turn.kind import Kind
from bot.verbs.create import CREATE
from bot.verbs.fix import FIX, PLANNED_FIX
from bot.verbs.plan import APPROVED, PLAN
from bot.verbs.pull_request import PULL_REQUEST
from bot.verbs.remove import REMOVE
from bot.verbs.reset import RESET
from bot.verbs.restore import RESTORE
from bot.verbs.review import REVIEW
from bot.verbs.undo import UNDO
from bot.verbs.update import UPDATE
from bot.verbs.work import WORK

_OF_TREE = (CREATE, RESET, REMOVE, RESTORE, PULL_REQUEST)
KINDS = {kind.name: kind for kind in (WORK, PLAN, REVIEW, UNDO, UPDATE, FIX, *_OF_TREE)}
"""By the name that a turn's row holds."""


def kind_of(ask: Ask) -> Kind:
    """Return the kind of turn that was asked for; a run may settle on another one."""
    if "plan" in ask.of:
        return APPROVED
    return PLANNED_FIX if ask.verb == "plan" and "head" in ask.of else KINDS[ask.verb]


async def at_end(connection: Connection, conversation_id: int, rules: Rules) -> None:
    """Do what verbs do after any turn of a conversation, last in the transaction that ends it."""
    await rows.ring(connection, conversation_id, autofix=rules.autofix)
