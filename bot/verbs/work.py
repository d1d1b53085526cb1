"""A request in words: an agent works on it, and what it changed is pushed. Each mention is one."""

from bot.turn.kind import Kind
from bot.turn.request import Verb

VERB = Verb(kinds=(Kind("work", joins=True, waits_for_blockers=True),))
