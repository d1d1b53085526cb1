"""Triggers x who x outcome: each is played, and docs/commands.md has the table that comes out."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from bot.github.answers import Permission
from bot.github.events import Event, Gesture, Remark, Ticked, Written
from bot.inbox.actions import Ignore, action_of, is_remark, request_of
from bot.model import Actor, Repository, Target, Thread
from bot.thread import boxes
from bot.thread.authority import Denied, Policy, before_asking_github, by_permission
from bot.thread.marker import turn_marker
from bot.turn.parsing import CommentParser, Request
from bot.verbs import VERBS, plan
from tests.support.doc_tables import is_in_the_docs

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
REPOSITORY = Repository("github.com", 1, "octo", "hello", "main")
OPEN = Policy(bot_id=99, bot_login="bot[bot]", bot_name="bot", label="threadtree")
MENTIONED = replace(OPEN, bare_commands=False)
ISSUE, PULL = Thread(4, "issue", "A title", None), Thread(4, "pull", "A title", None)


@dataclass(frozen=True)
class Who:
    """Somebody, with their permission, and the bot's lists."""

    name: str
    actor: Actor
    permission: Permission = "none"
    allowed_users: tuple[str, ...] = ()


ADA: Final = Actor("ada", 7)
PEOPLE = (
    Who("write, maintain or admin", ADA, "write"),
    Who("another person with write access", ADA, "write", ("somebody", "else")),
    Who("read or triage", ADA, "read"),
    Who("outsider", ADA),
    Who("bot in `ALLOWED_BOTS`", Actor("renovate[bot]", 41, is_bot=True), "write"),
    Who("any other bot", Actor("other[bot]", 42, is_bot=True), "write"),
    Who("the bot itself", Actor("bot[bot]", 99, is_bot=True), "write"),
)


PLAN = f"A plan.\n\n{boxes.boxes((plan.CARRY_OUT,))}\n\n{turn_marker(3, 1)}"


def tick(by: Actor) -> Written:
    """Return the edit of a plan that ticks its box."""
    body = PLAN.replace("[ ]", "[x]")
    return Written(REPOSITORY, by, ISSUE, Remark(Target("comment", 11), "C", body, PEOPLE[-1].actor, NOON), NOON, PLAN)


def comment(body: str, by: Actor, before: str | None = None) -> Written:
    return Written(REPOSITORY, by, ISSUE, Remark(Target("comment", 11), "C", body, by, NOON), NOON, before)


def in_pull(body: str, by: Actor, target: Target, review_id: int | None = None, before: str | None = None) -> Written:
    remark = Remark(target, "C", body, by, NOON)
    return Written(REPOSITORY, by, PULL, remark, NOON, before, "app.py:3", review_id if before is None else None)


def on_own_pull(body: str, by: Actor, *, review: bool = False, before: str | None = None) -> tuple[Event, bool]:
    """Return a review or an inline comment on a pull request that the bot opened."""
    return in_pull(body, by, Target("review", 5) if review else Target("review-comment", 11), 5, before), True


def opened(body: str, by: Actor, thread: Thread) -> Written:
    return Written(REPOSITORY, by, thread, Remark(Target(thread.kind), "I", body, by, NOON), NOON)


def gesture(by: Actor, label: str = "", assignee: int | None = None) -> Gesture:
    remark = Remark(Target("issue"), "I", "Fix the login", Actor("author", 5), NOON)
    return Gesture(REPOSITORY, by, ISSUE, remark, label, assignee)


def triggers(by: Actor) -> dict[str, Event | tuple[Event, Policy | bool]]:
    """Return one event for each way to ask, or to seem to."""
    return {
        "comment that mentions the bot": comment("@bot fix it", by),
        "inline comment that mentions it": in_pull("@bot fix it", by, Target("review-comment", 11)),
        "review whose text mentions it": in_pull("@bot fix it", by, Target("review", 5), 5),
        "new issue whose description mentions it": opened("@bot fix it", by, ISSUE),
        "new pull request whose description mentions it": opened("@bot fix it", by, PULL),
        "edit that adds a mention": comment("@bot fix it", by, "fix it"),
        "edit of a text that mentioned it before": comment("@bot fix it, please", by, "@bot fix it"),
        f"tick of *{plan.CARRY_OUT}* below a plan": tick(by),
        "label `BOT_LABEL`": gesture(by, label="threadtree"),
        "another label": gesture(by, label="bug"),
        "assignment of the bot": gesture(by, assignee=99),
        "assignment of somebody else": gesture(by, assignee=7),
        "`/status` alone on its line": comment("/status", by),
        "`/status` alone, with `BARE_COMMANDS=false`": (comment("/status", by), MENTIONED),
        "`@bot /status`": comment("@bot /status", by),
        "`@bot /status`, with `BARE_COMMANDS=false`": (comment("@bot /status", by), MENTIONED),
        "`/lgtm`, a command of others": comment("/lgtm", by),
        "mention in a quotation or in code": comment("> @bot fix it\n\n`@bot`", by),
        "comment without a mention": comment("nice work", by),
        "review without a mention, on a pull request of the bot": on_own_pull("Too slow.", by, review=True),
        "inline comment without a mention, there": on_own_pull("Why not a set?", by),
        "suggestion alone, there": on_own_pull("```suggestion\nx = 1\n```", by),
        "inline comment to somebody else, there": on_own_pull("@zoe what do you think?", by),
        "quotation, code, emoji or `/lgtm` alone, there": on_own_pull("> Too slow.\n\n`x = 1` 👍\n\n/lgtm", by),
        "edit of an inline comment, there": on_own_pull("Why not a set?", by, before="Why a list?"),
        "review without a mention, on another's pull request": in_pull("Too slow.", by, Target("review", 5), 5),
    }


def outcome(event: Event, who: Who, policy: Policy, *, on_own_pull: bool = False) -> str:
    policy = replace(policy, allowed_users=who.allowed_users, allowed_bots=frozenset({41}))
    parser = CommentParser(policy.bot_name, VERBS.commands.values(), bare_commands=policy.bare_commands)
    action = action_of(event, policy, parser, on_own_pull=on_own_pull and is_remark(event))
    if isinstance(action, Ignore):
        return "nothing"
    if isinstance(action, Ticked):
        shown = replace(action, edit_id="UCE", posted=PLAN, before=PLAN, now=action.remark.body)
        action = request_of(shown, VERBS.boxes)
    assert isinstance(action, Request)
    verdict = before_asking_github(policy, action.author, action.repository) or by_permission(who.permission)
    if isinstance(verdict, Denied):
        return "refused" if verdict.visible and action.addresses_bot else "nothing"
    return "runs" if action.asks else "carried out"


def played(trigger: Event | tuple[Event, Policy | bool], who: Who) -> str:
    event, how = trigger if isinstance(trigger, tuple) else (trigger, OPEN)
    return outcome(event, who, how if isinstance(how, Policy) else OPEN, on_own_pull=how is True)


def test_triggers_by_who_asks() -> None:
    rows = [["what happens on GitHub", *(who.name for who in PEOPLE)]]
    rows += [[name, *(played(triggers(who.actor)[name], who) for who in PEOPLE)] for name in triggers(ADA)]
    is_in_the_docs("triggers", rows)
