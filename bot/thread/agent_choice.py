"""Answers to `/agent` and `/model`."""

from collections.abc import Iterable, Sequence

from bot.thread.formatting import clause, inline_code, truncate
from bot.thread.reasons import models

AGENT_SUMMARY = "chooses who works on this thread's next requests: `/agent NAME`; alone it shows who can"
MODEL_SUMMARY = "chooses the agent's model for the next requests here: `/model NAME`; alone it shows which one is used"
Worker = tuple[str, str | None]
"""The agent of the thread's next request, and its model; None for the agent's own."""


def no_such_agent(name: str, agents: Iterable[str]) -> str:
    """`name` is what a person wrote."""
    return f"There is no agent {inline_code(truncate(name))} here. {_choices(agents)}"


def agent_shown(now: Worker, agents: Iterable[str], *, is_chosen: bool) -> str:
    """`agents` are those that can be asked. `is_chosen`: by `/agent` or `/model`."""
    how = "was chosen for this thread; `/agent default` takes that back" if is_chosen else "is the default here"
    others = [name for name in agents if name != now[0]]
    choices = _choices(others) if others else "There is no other one."
    return f"{_with_model(now)} is asked on this thread: {inline_code(now[0])} {how}. {choices}"


def agent_chosen(before: Worker, now: Worker, dropped: str | None) -> str:
    """`before` would have been asked next; `dropped` is the model that was chosen for that agent on the thread."""
    if now[0] == before[0]:
        return f"{_from_now(now)} That agent was asked before, too."
    begins = "It begins a new conversation in the same files, and is told this thread's last answers."
    if dropped is not None:
        begins += f" The choice of the model {inline_code(dropped)} ended: it was for {inline_code(before[0])}."
    return f"{_from_now(now)} {begins}"


def model_shown(now: Worker, *, is_chosen: bool, offered: Sequence[str]) -> str:
    """As `agent_shown`; `offered` are the models that the agent told when it worked here last."""
    offers = f" It offers {clause(models(offered))}." if offered else ""
    back = " `/model default` takes the choice back." if is_chosen else ""
    chooses = f"`/model NAME` chooses another, by its vendor's name.{offers}{back}"
    return f"{_with_model(now)} is asked on this thread. {chooses}"


def model_chosen(now: Worker) -> str:
    """As `agent_chosen`."""
    return f"{_from_now(now)} Its conversation goes on. If it cannot use that model, the next request says why."


def no_name_of_model(name: str) -> str:
    """`name` is what a person wrote."""
    return (
        f"{inline_code(truncate(name))} cannot be a model's name. Write it as its vendor does, without blanks, such as "
        "`claude-sonnet-4-5` or `gpt-5`."
    )


def _from_now(now: Worker) -> str:
    return f"From the next request on, {_with_model(now)} is asked on this thread."


def _with_model(now: Worker) -> str:
    model = f"the model {inline_code(now[1])}" if now[1] else "its own default model"
    return f"{inline_code(now[0])} with {model}"


def _choices(agents: Iterable[str]) -> str:
    return f"Choose with {' or '.join(f'`/agent {name}`' for name in agents)}."
