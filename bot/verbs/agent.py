"""`/agent` and `/model`: who works on a thread's requests."""

from bot.rules import Chosen
from bot.sandbox.net.model_answers import is_model_name
from bot.store import conversations
from bot.store.database import Connection, statement
from bot.thread import agent_choice as words
from bot.turn.request import Handler, RequestContext, Verb

USUAL = "default"
"""The word that takes a choice back."""


def _first_word(text: str) -> tuple[str | None, str]:
    first, _, further = text.partition(" ")
    return first or None, further.strip()


async def _agent(ctx: RequestContext, name: str | None) -> None:
    chosen = Chosen(*await conversations.chosen(ctx.connection, ctx.conversation_id))
    before = chosen.within(ctx.rules)
    agent = name.lower() if name else None
    if agent is None:
        await ctx.reply(words.agent_shown(before.worker, ctx.rules.agents, is_chosen=chosen.agent in ctx.rules.agents))
    elif agent != USUAL and agent not in ctx.rules.agents:
        await ctx.reply(words.no_such_agent(agent, ctx.rules.agents))
    else:
        of_thread = Chosen() if agent == USUAL else Chosen(agent, chosen.model if agent == chosen.agent else None)
        await conversations.choose(ctx.connection, ctx.conversation_id, of_thread.agent, of_thread.model)
        now = of_thread.within(ctx.rules)
        await ctx.reply(words.agent_chosen(before.worker, now.worker, chosen.model))


@statement("select unnest(models) from sessions where conversation_id = $1 and agent = $2 and active")
async def _offered(connection: Connection, conversation_id: int, agent: str) -> list[str]:
    """Return the models that the agent offered when it worked on the thread last."""


async def _model(ctx: RequestContext, name: str | None) -> None:
    chosen = Chosen(*await conversations.chosen(ctx.connection, ctx.conversation_id))
    now = chosen.within(ctx.rules)
    if name is None:
        is_chosen = now.model is not None and now.model == chosen.model
        offered = await _offered(ctx.connection, ctx.conversation_id, now.agent)
        await ctx.reply(words.model_shown(now.worker, is_chosen=is_chosen, offered=offered))
    elif not is_model_name(name):
        await ctx.reply(words.no_name_of_model(name))
    else:
        # A model is one of the agent's that it was chosen for, which the thread keeps then.
        is_usual = name.lower() == USUAL
        of_thread = Chosen(chosen.agent) if is_usual else Chosen(now.agent, name)
        await conversations.choose(ctx.connection, ctx.conversation_id, of_thread.agent, of_thread.model)
        await ctx.reply(words.model_chosen(of_thread.within(ctx.rules).worker))


AGENT = Handler("agent", _first_word, summary=words.AGENT_SUMMARY, run=_agent)
MODEL = Handler("model", _first_word, summary=words.MODEL_SUMMARY, run=_model)
VERB = Verb(commands=(AGENT, MODEL))
