"""A request in words: an agent works on it, and what it changed is pushed. Each mention is one."""

from bot.turn.kind import Kind
from bot.turn.request import Verb
from bot.verbs.plan import settle

WORK = Kind("work", settle=settle, joins=True)
VERB = Verb(kinds=(WORK,))
