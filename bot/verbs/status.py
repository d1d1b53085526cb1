"""`/status`: what a thread is doing, and what waits in it."""

from bot.node.node_rows import SILENT_AFTER_SECONDS
from bot.rules import Chosen
from bot.store import conversations
from bot.store.database import Connection, statement
from bot.thread import replies, tracking
from bot.thread.replies import Overview
from bot.turn import request_rows as requests
from bot.turn import waits_rows
from bot.turn.request import Handler, RequestContext, Verb


@statement("""
-- Without a worktree, the branch where work was pushed last.
select coalesce(case when w.branch is not null then (select switch_to from pending_switches p
                                                     where p.conversation_id = c.id) end, w.branch) as branch,
       pushed.branch as pushed_to, pushed.base_branch, coalesce(pushed.pushed_net, '{}') as net, c.pull_request,
       array(select o.number from conversations o
             where o.worktree_id = w.id and o.id <> c.id order by o.number) as others,
       s.agent, s.created_at as session_since, s.turns as session_turns, s.model,
       (select count(*) from rescue_rows r
        where (r.platform, r.repository_id) = (c.platform, c.repository_id)
          and r.conversations @> array[c.number] and r.restored_at is null) as rescues,
       spent.turns, spent.cost_usd, spent.untold,
       (select max(t.id) from turns t join unposted_answers on turn_id = t.id
        where t.conversation_id = c.id) as not_posted,
       n.name as silent_node, n.heartbeat_at as silent_since,
       coalesce(w.removal_error, (select removal_error from directories_in_the_way d
                                  where d.worktree_id = w.id and d.removal_error is not null limit 1)) as removal_error
from conversations c
left join worktrees w on w.id = c.worktree_id and w.is_live
left join nodes n on n.id = w.node and n.heartbeat_at < now() - make_interval(secs => $2)
left join lateral (
    select p.branch, p.base_branch, t.pushed_net from turns t join worktrees p on p.id = t.worktree_id
    where t.conversation_id in (select o.id from conversations o where o.id = c.id or o.worktree_id = w.id)
      and t.pushed_to = p.branch and (w.branch is null or w.branch = p.branch)
    order by t.id desc limit 1) pushed on true
left join lateral (
    select a.agent, a.created_at, count(t.id) as turns, max(t.model) as model
    from sessions a left join turns t on t.session_id = a.id
    where a.conversation_id = c.id and a.active group by a.id) s on true
cross join lateral (
    select count(*) as turns, sum(cost_usd) as cost_usd, count(*) filter (where untold) as untold
    from turn_costs where conversation_id = c.id and (finished_at is not null or cost_usd is not null)) spent
where c.id = $1
""")
async def overview(
    connection: Connection, conversation_id: int, silent_after_seconds: float = SILENT_AFTER_SECONDS
) -> Overview:
    """Return what `/status` tells about a conversation, beside what runs and waits."""


async def _status(ctx: RequestContext, _: str | None) -> None:
    now = await overview(ctx.connection, ctx.conversation_id)
    unfinished = await requests.unfinished(ctx.connection, ctx.conversation_id)
    wait, queue = None, [turn.id for turn in unfinished if turn.number == ctx.number]
    is_running = any(turn.state == "running" for turn in unfinished)
    if not is_running and now.silent_node is None and now.removal_error is None:
        first = await requests.why_turns_wait(ctx.connection, queue[:1], ctx.now, SILENT_AFTER_SECONDS)
        why = tracking.why_it_waits(first[0], ctx.now) if first else ""
        wait = why.removeprefix("Queued. ").removeprefix("Waiting. ") or None
    chosen = Chosen(*await conversations.chosen(ctx.connection, ctx.conversation_id))
    next_one = chosen.within(ctx.rules).worker if chosen.agent else None
    waits = await waits_rows.of_thread(ctx.connection, ctx.conversation_id)
    place = ctx.server_url, ctx.repository, ctx.number, ctx.now
    await ctx.reply(replies.status(now, unfinished, *place, wait, next_one, waits=waits))


VERB = Verb(commands=(Handler("status", needs_no_slash=True, summary=replies.STATUS_SUMMARY, run=_status),))
