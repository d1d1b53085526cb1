"""`/plan` asks for a plan alone, which `/approve` has carried out; `require_plan` lets all requests begin with one."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from bot.ask import Ask
from bot.prompt.builder import Brief
from bot.prompt.collect import Collected
from bot.prompt.hidden import strip_hidden
from bot.rules import Rules
from bot.store.database import Connection, Pool, statement
from bot.store.turns import ClaimedTurn, TurnState
from bot.thread import boxes
from bot.thread.agent_answer import answer_parts
from bot.thread.commit_message import split_subject
from bot.thread.questions import TO_ANSWER
from bot.thread.tracking import TurnResult
from bot.turn.checkout import files_seen
from bot.turn.context import TurnContext
from bot.turn.kind import Kind, Ready, Seen
from bot.turn.queueing import queue_turn
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.turn_run import TurnRun
from bot.turn.words import Asked

_log = structlog.get_logger()

PLAN_SUMMARY = "asks for a plan alone: `/plan` and the request; no file is changed"
APPROVE_SUMMARY = "has the last plan carried out as it was shown"

NOTHING_TO_PLAN = "There is no request to plan. Write `/plan` and then what is wanted, in the same comment."
NOTHING_TO_APPROVE = "There is no plan here to approve. `/plan` with a request asks for one."
PLAN_TOO_LONG = "The comments do not show the end of the plan, so nobody can approve it. Ask for a shorter one."
NOT_THE_NEWEST = "Nothing was done: this is not the newest plan here. `/plan` with a request asks for another one."
PLAN_NOT_THERE = "The plan is not there yet. Read it first; then write `/approve`."

CARRY_OUT = "Carry this plan out"
PLANNED = (
    "This is a plan: nothing was committed. `/approve`, or a tick below, has it carried out as it stands here. To "
    'change it, mention the bot with what to do differently, such as "go ahead, but …", or ask for another one with '
    "`/plan`."
)
PLANNED_FOR_OUTSIDER = (
    "This is a plan: nothing was committed. `/approve`, or a tick below, by somebody with write access has it carried "
    "out exactly as it stands here, whatever the thread says by then."
)
REQUIRED_FOR_ALL = "In this repository each request begins with a plan (`require_plan`)."
REQUIRED_FOR_OUTSIDERS = (
    "Words of this request are of somebody without write access. In this repository such a request begins with a plan "
    "(`require_plan`)."
)
CHANGED_ALL_THE_SAME = (
    "The agent changed files while it should only plan: it runs without a sandbox. Nothing of that was committed. It "
    "is left in the worktree, and the next request that changes files would push it; `/worktree reset` takes it back."
)


def not_open(plan: int, followed_by: int, *, approved: bool) -> str:
    """Answer the approval of the plan of a turn that another turn carries out already."""
    if approved:
        return f"The plan of turn {plan} was approved already: turn {followed_by} carries it out."
    return (
        f"The plan of turn {plan} is not open any more: the request of turn {followed_by} came after it. "
        "`/plan` with a request asks for another one."
    )


ONLY_A_PLAN = """\
# Only a plan is wanted

Change no file this time: the worktree is read-only for you, and nothing is committed. Look at what you need. Then \
answer with a plan that a person can approve: what you would change, in which files, in which order, and how it would \
be tested; and what is still open. Your final message is the whole plan, because it is carried out from its words \
alone. It ends without a line for the commit."""


def carry_out(plan: str) -> str:
    """Return the request that carries out a plan as it was shown."""
    return (
        "Carry out this plan. It was shown on the thread and approved as it is: do all that it says and nothing "
        f"beyond it. Say in your answer where it could not be followed.\n\n{plan}"
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A turn that plans, or asks back. `is_kept`: its answer is there, and neither context nor files were reset since.
    `posted_at`: when all of it was on the thread, None before.

    `followed_by` is a later request that changes files and did not fail: it carries the plan out, as it is where
    `is_approved`.
    """

    turn_id: int
    ask: Ask
    state: TurnState
    answer: str
    is_kept: bool
    posted_at: datetime | None
    followed_by: int | None
    is_approved: bool

    def is_unread(self, at: datetime) -> bool:
        """Return whether nobody could read the plan when something was written, in GitHub's whole seconds."""
        return self.state != "done" or self.posted_at is None or at + timedelta(seconds=1) <= self.posted_at


@statement("""
select p.id as turn_id, asked.ask, p.state, coalesce(p.answer, '') as answer,
       p.answer <> '' and exists (select from kept_sessions k where k.id = p.session_id) as is_kept,
       (select case when bool_and(o.state = 'sent') then max(o.sending_at) end from outbox o
        where o.turn_id = p.id and o.kind = 'comment' and o.waits_for is null) as posted_at,
       later.turn_id as followed_by, later.is_approved is true as is_approved
from requests asked
join turns p on p.id = asked.turn_id
left join lateral (
    select l.turn_id, (l.ask #>> '{of,plan}')::bigint is not distinct from p.id as is_approved
    from requests l join turns t on t.id = l.turn_id
    where l.conversation_id = $1 and l.turn_id > p.id and ($2::bigint is null or l.turn_id < $2)
      and l.verb = 'work' and t.state in ('queued', 'running', 'done')
    order by is_approved desc, l.turn_id limit 1) later on true
where asked.conversation_id = $1 and ($2::bigint is null or asked.turn_id < $2)
  and asked.verb = 'plan' and p.state in ('queued', 'running', 'done')
order by asked.turn_id desc limit 1
""")
async def newest(connection: Pool | Connection, conversation_id: int, before: int | None = None) -> Plan | None:
    """Return the thread's newest plan that did not fail, of the turns `before` that one; None without any."""


def is_open(plan: Plan | None) -> bool:
    """Return whether the plan is there, and nothing has come of it yet."""
    return plan is not None and plan.state == "done" and plan.is_kept and plan.followed_by is None


def asks_back(plan: Plan) -> bool:
    """Return whether the agent has a question before it can plan."""
    return TO_ANSWER in plan.answer


def as_shown(answer: str, server_url: str) -> str | None:
    """Return what a reader of the comments sees: what nobody saw, nobody approved. None where they lack its end.

    It is read from what was posted, never from the answer, which another grammar may read otherwise.
    """
    text, _ = split_subject(answer)
    posted, was_cut = answer_parts(text, server_url=server_url)
    return None if was_cut else "\n\n".join(map(strip_hidden, posted))


async def _plan(ctx: RequestContext, _: str | None) -> None:
    await ctx.reply(NOTHING_TO_PLAN)


async def _approve(ctx: RequestContext, _: str | None) -> None:
    plan = await newest(ctx.connection, ctx.conversation_id)
    if ctx.request.ticks and (plan is None or plan.turn_id != await ctx.turn_of_target()):
        await ctx.reply(NOT_THE_NEWEST)
    elif plan is not None and plan.is_unread(ctx.request.ask.at):
        await ctx.reply(PLAN_NOT_THERE)
    elif plan is None or not plan.is_kept or asks_back(plan):
        await ctx.reply(NOTHING_TO_APPROVE)
    elif plan.followed_by is not None:
        await ctx.reply(not_open(plan.turn_id, plan.followed_by, approved=plan.is_approved))
    elif (text := await asyncio.to_thread(as_shown, plan.answer, ctx.server_url)) is None:
        await ctx.reply(PLAN_TOO_LONG)
    else:
        of = {"plan": plan.turn_id, "by_outsider": plan.ask.of.get("by_outsider", False)}
        ask = ctx.asks(carry_out(text), "work", title="/approve of the plan", as_of=plan.ask.at, of=of)
        await queue_turn(ctx, replace(ask, pinned_sha=plan.ask.pinned_sha))
        await ctx.take_ticks()


COMMAND = Handler("plan", lambda words: (words or None, ""), summary=PLAN_SUMMARY, run=_plan, asks="plan")
APPROVE = Handler("approve", summary=APPROVE_SUMMARY, run=_approve, queues_turn=True)


async def _settle(asked: Asked, rules: Rules) -> tuple[Ask, str | None] | None:
    """Let what works only plan, where its words or the repository's rules want that; say why.

    What answers the question of a plan is planned too; what was approved is carried out. Raises GitHubError.
    """
    ctx, turn, verbs = asked.ctx, asked.turn, asked.confirmed.verbs
    kind = ctx.verbs.kind_of(turn.ask)
    is_plan = kind.name == PLAN.name
    if kind is APPROVED or not (is_plan or kind.joins):
        return None
    before = await newest(ctx.pool, turn.conversation.id, asked.turn_id)
    follows = before if before is not None and is_open(before) else None
    plans_anyway = is_plan or PLAN.name in verbs or (follows is not None and asks_back(follows))
    if rules.require_plan == "never" and not plans_anyway:
        return None
    first = (await asked.leave(rules, goes_on=follows is not None)).planned_first
    if first is None and not plans_anyway:
        return None
    of = {"planned": kind.name, **turn.ask.of, "by_outsider": await asked.by_outsider()}
    why = None if first is None or PLAN.name in verbs else _WHY_REQUIRED[first]
    return replace(turn.ask, verb=PLAN.name, of=of), why


_WHY_REQUIRED = {"outsiders": REQUIRED_FOR_OUTSIDERS, "all": REQUIRED_FOR_ALL}


async def _of_outsider(ctx: TurnContext, turn: ClaimedTurn) -> bool:
    return bool(turn.ask.of["by_outsider"])


async def _brief(run: TurnRun, ready: Ready, thread: Collected | None) -> Brief:
    return Brief(last=ONLY_A_PLAN)


async def _planned(run: TurnRun, answer: str, before: Seen | None) -> TurnResult:
    """Say what can be done with the plan, and whether files changed although it is one. Raises GitError, OSError."""
    text, _ = split_subject(answer)
    asks = TO_ANSWER in text
    if not asks:
        run.notices.append(PLANNED_FOR_OUTSIDER if run.turn.ask.of.get("by_outsider") else PLANNED)
    if before is not None and await files_seen(run) != before:
        _log.warning("plan-changed-files", worktree=run.turn.worktree.path)
        run.notices.append(CHANGED_ALL_THE_SAME)
    return TurnResult("done", answer=text, boxes="" if asks else boxes.boxes((CARRY_OUT,)))


def _plans(kind: Kind[TurnRun]) -> Kind[TurnRun]:
    """Return the kind that plans what `kind` would do. Rows call it a plan, so that it can be approved."""
    planned = replace(kind, name="plan", writes=False, plans=True, joins=False)
    return replace(planned, brief=_brief, answered=_planned, comes_to="plan")


PLAN = _plans(Kind("plan", waits_for_blockers=True))
APPROVED: Kind[TurnRun] = Kind(
    "work", "command", APPROVE.name, of_outsider=_of_outsider, joins=True, waits_for_blockers=True
)
"""Carries out a plan in the words that the bot stored."""


def _kind_of(ask: Ask, kinds: Mapping[str, Kind[TurnRun]]) -> Kind[TurnRun] | None:
    if ask.verb == PLAN.name:
        return _plans(kinds[ask.of["planned"]]) if "planned" in ask.of else None
    return APPROVED if ask.verb == APPROVED.name and "plan" in ask.of else None


VERB = Verb(
    commands=(COMMAND, APPROVE), kinds=(PLAN,), boxes={CARRY_OUT: APPROVE.name}, kind_of=_kind_of, settle=_settle
)
