"""`/start`: a request that waits for the issues that block its own begins at once, and later ones here do not wait."""

from bot.ask import Ask
from bot.store.database import Connection, statement
from bot.store.jobs import WORK_WAITS
from bot.thread import thread_comments, tracking
from bot.turn.request import Handler, RequestContext, Verb

SUMMARY = "begins a request that waits for the issues that block this one"
NOTHING_WAITS = "No request here waits for another issue, so there is nothing to start."


@statement(f"""
with begun as (
    update turns set not_before = null, reason = null, asks_since = null
    where conversation_id = $1 and state = 'queued' and blocked_by is not null returning id, queue_node
), told as (
    update requests r set ask = ask || '{{"starts": true}}' from begun where turn_id = begun.id returning turn_id, ask
)
select told.ask, told.turn_id, pg_notify('{WORK_WAITS}', queue_node) is not null as rings
from begun join told on told.turn_id = begun.id
""")  # noqa: S608 - of a constant
async def _begin(connection: Connection, conversation_id: int) -> tuple[Ask, int] | None:
    """Let the thread's request that waits for issues begin; return it with its turn, None without one."""


async def _start(ctx: RequestContext, _: str | None) -> None:
    if (begun := await _begin(ctx.connection, ctx.conversation_id)) is None:
        await ctx.reply(NOTHING_WAITS)
        return
    ask, turn_id = begun
    await thread_comments.track(ctx.connection, ctx.thread_ref, turn_id, ask.target, tracking.queued(0))


VERB = Verb(commands=(Handler("start", summary=SUMMARY, run=_start),), recorded=("start",))
