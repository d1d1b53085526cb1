"""Answers to `/agent` and `/model`."""

from collections.abc import Iterable

from bot.messages.formatting import inline_code, truncate
from bot.rules import Rules

AGENT_SUMMARY = "chooses who works on this thread's next requests: `/agent NAME`; alone it shows who can"
MODEL_SUMMARY = "chooses the agent's model for the next requests here: `/model NAME`; alone it shows which one is used"
NO_MODEL_OF_CUSTOM = "The model of the agent `custom` is set by the bot's operator; `/model` cannot change it."


def no_such_agent(name: str, agents: Iterable[str]) -> str:
    """`name` is what a person wrote."""
    return f"There is no agent {inline_code(truncate(name))} here. {_choices(agents)}"


def agent_shown(now: Rules, *, is_chosen: bool) -> str:
    """`now` has the agent and the model of the thread's next request. `is_chosen`: by `/agent` or `/model`."""
    how = "It was chosen for this thread; `/agent default` takes that back." if is_chosen else "It is the usual one."
    others = [name for name in now.agents if name != now.agent]
    choices = _choices(others) if others else "There is no other one."
    return f"{_who_works(now)} {how} {choices}"


def agent_chosen(before: Rules, now: Rules) -> str:
    """`before` and `now` have the agent and the model of the thread's next request."""
    if now.agent == before.agent:
        return f"{_who_works(now)} It was the agent before, too."
    lost = f" The model {inline_code(before.model)} was {inline_code(before.agent)}'s." if before.model else ""
    return (
        f"{_who_works(now)}{lost} It starts without the earlier agent's conversation, in the same files, and is told "
        "this thread's last answers."
    )


def model_shown(now: Rules, *, is_chosen: bool) -> str:
    """As `agent_shown`."""
    back = " `/model default` takes the choice back." if is_chosen else ""
    return f"{_who_works(now)} `/model NAME` chooses another model, by its vendor's name for it.{back}"


def model_chosen(now: Rules) -> str:
    """As `agent_chosen`."""
    return f"{_who_works(now)} The agent keeps its conversation. If it cannot use this model, the request says so."


def no_name_of_model(name: str) -> str:
    """`name` is what a person wrote."""
    return (
        f"{inline_code(truncate(name))} cannot be a model's name. Write it as its vendor does, without blanks, such as "
        "`claude-sonnet-4-5` or `gpt-5`."
    )


def _who_works(now: Rules) -> str:
    model = f"the model {inline_code(now.model)}" if now.model else "its own usual model"
    return f"From the next request on, {inline_code(now.agent)} works here with {model}."


def _choices(agents: Iterable[str]) -> str:
    return f"Choose with {' or '.join(f'`/agent {name}`' for name in agents)}."
