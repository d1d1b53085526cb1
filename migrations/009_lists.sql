-- The lists and figures that operators read.

-- Who may look. People see the rows of the repositories that they can read on GitHub, so each list tells its repository.
-- Without `seen` everything is seen.
create function threadtree_sees(of_platform text, seen bigint[], platform text, repository_id bigint) returns boolean
language sql immutable as $$ select seen is null or (platform = of_platform and repository_id = any (seen)) $$;

-- Each list has the columns by which `operator/api/listings` selects: its place in the list, its repository and its state.

create view listed_worktrees as
select w.id as place, w.id, b.owner || '/' || b.name as codebase, w.path, w.branch, n.name as node, w.state,
       array(select b.owner || '/' || b.name || '#' || c.number from conversations c
             where c.worktree_id = w.id order by c.number) as conversations,
       w.created_at, w.updated_at, n.id as node_id, w.platform, w.repository_id
from worktrees w join codebases b using (platform, repository_id) join nodes n on n.id = w.node;

-- In the shape of worktrees, from which their ids differ.
create view listed_orphans as
select o.id as place, o.id, o.codebase, o.path, null as branch, n.name as node, 'orphan' as state,
       '{}'::text[] as conversations, o.seen_at as created_at, o.seen_at as updated_at, n.id as node_id,
       o.platform, o.repository_id
from orphan_rows o join nodes n on n.id = o.node;

create view listed_sessions as
select s.id as place, s.id, s.conversation_id, b.owner || '/' || b.name as codebase,
       case when s.active then 'active' else 'ended' end as state,
       b.owner || '/' || b.name || '#' || c.number as conversation, s.agent, s.assistant_session_id, s.active,
       s.created_at, s.last_active_at, s.ended_at, s.end_reason, c.platform, c.repository_id
from sessions s join conversations c on c.id = s.conversation_id join codebases b using (platform, repository_id);

-- The comment is the first that is there: the tracking comment, or the answer that took its place. The pull request is the
-- thread itself, or that of its branch.
create view listed_turns as
select t.id as place, t.id, t.conversation_id, b.owner || '/' || b.name as codebase,
       b.owner || '/' || b.name || '#' || c.number as conversation,
       coalesce(c.title, '') as thread_title, r.verb, left(coalesce(r.ask->>'title', r.ask->>'text'), 400) as title, t.state,
       nullif(concat_ws(' ', t.reason, (select 'GitHub did not accept the answer: ' || u.error || '.'
                                        from unposted_answers u where u.turn_id = t.id order by u.part limit 1)), '')
           as reason,
       threadtree_outcome(t.state, t.outcome) as outcome, t.outcome->'check' as "check",
       t.outcome->>'nothing' as nothing_pushed, coalesce((t.outcome->>'asked')::boolean, false) as asked,
       case when t.state = 'running' then t.phase end as phase, r.requested_by,
       (select o.comment_url from outbox o where o.turn_id = t.id and o.kind = 'comment' and o.comment_url is not null
        order by o.part limit 1) as comment_url, t.agent, t.model,
       b.owner || '/' || b.name || '#' || case c.kind when 'pull' then c.number else c.pull_request end as pull_request,
       t.cost_usd, t.tokens, t.created_at, t.started_at, t.finished_at,
       threadtree_waits_for(t) as waits_for,
       t.queue_platform as platform, t.queue_repository_id as repository_id
from turns t join requests r on r.turn_id = t.id left join conversations c on c.id = t.conversation_id
     join codebases b on (b.platform, b.repository_id) = (t.queue_platform, t.queue_repository_id);

-- By what a search finds a request: its title and text, who asked, the thread's title, number and repository. Words are
-- letters and digits; what stands between them is not looked at.
create function threadtree_search_words() returns trigger language plpgsql as $$
begin
    select to_tsvector('simple', regexp_replace(
               concat_ws(' ', new.ask #>> '{by,login}', c.title, b.owner, b.name, c.number, new.ask->>'title',
                         left(new.ask->>'text', 20000)),
               '[\x01-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+', ' ', 'g'))
    into new.words
    from conversations c join codebases b using (platform, repository_id) where c.id = new.conversation_id;
    return new;
end
$$;

create trigger threadtree_search_words before insert or update of ask on requests
    for each row execute function threadtree_search_words();

-- The lock of a delivery names its repository by GitHub's id: a name may be another's by now.
create view listed_deliveries as
select seq as place, guid, event, action, conversation, split_part(conversation, '#', 1) as codebase, state, received_at,
       attempts, error, split_part(lock_key, '/', 1) as platform,
       substring(lock_key from '^[^/]+/([0-9]{1,18})#')::bigint as repository_id
from deliveries;

create view listed_conversations as
select c.id as place, c.id, b.owner || '/' || b.name as codebase, b.owner || '/' || b.name || '#' || c.number as conversation,
       c.kind, c.title, c.state, c.worktree_id as worktree, w.branch,
       array(select b.owner || '/' || b.name || '#' || o.number from conversations o
             where (o.id = c.id or o.worktree_id = c.worktree_id) and o.kind = 'pull'
             union select b.owner || '/' || b.name || '#' || c.pull_request where c.pull_request is not null
             order by 1) as pull_requests,
       (select s.id from sessions s where s.conversation_id = c.id and s.active) as session,
       (select count(*) from turns t where t.conversation_id = c.id) as turns,
       (select sum(t.cost_usd) from turns t where t.conversation_id = c.id) as cost_usd,
       c.created_at, c.updated_at, c.platform, c.repository_id
from conversations c join codebases b using (platform, repository_id) left join worktrees w on w.id = c.worktree_id;

create view listed_rescues as
select r.id as place, r.id, r.worktree_id as worktree, r.codebase, r.branch, r.removal,
       coalesce(r.kept, r.ref) as name, r.files, r.commits, r.bytes, r.node_name as node, r.created_at, r.restored_at,
       case when r.restored_at is null then 'kept' else 'restored' end as state,
       array(select r.codebase || '#' || number from unnest(r.conversations) as number) as conversations,
       r.platform, r.repository_id
from rescue_rows r;

-- The title is that of its thread, as the bot gave it, or that of the thread whose request pushed last. Agent and model are
-- those of that request. The cost is that of all requests on its thread or branch.
create view listed_outcomes as
select o.id as place, o.id, b.owner || '/' || b.name as codebase,
       b.owner || '/' || b.name || '#' || o.number as pull_request, o.branch,
       coalesce((select nullif(c.title, '') from conversations c
                 where (c.platform, c.repository_id, c.number) = (o.platform, o.repository_id, o.number)),
                (select p.titles[cardinality(p.titles)] from pull_requests p
                 where (p.platform, p.repository_id, p.number) = (o.platform, o.repository_id, o.number)),
                (select c.title from conversations c where c.id = work.conversation_id), '') as title,
       case when o.reverted_by is not null then 'reverted' when o.merged then 'merged' else 'closed' end as state,
       o.rewritten, b.owner || '/' || b.name || '#' || o.reverted_by as reverted_by, o.opened_at, o.closed_at,
       case when o.merged then extract(epoch from o.closed_at - o.opened_at)::float8 end as seconds_to_merge,
       work.turns, work.cost_usd, work.tokens, work.agent, work.model, work."check", o.platform, o.repository_id
from outcomes o join codebases b using (platform, repository_id) cross join lateral (
    select count(*) as turns, sum(t.cost_usd) as cost_usd, sum(t.tokens)::bigint as tokens,
           (array_agg(t.agent order by t.pushed_head is null, t.id desc))[1] as agent,
           (array_agg(t.model order by t.pushed_head is null, t.id desc))[1] as model,
           (array_agg(t.outcome->'check' order by t.pushed_head is null, t.id desc))[1] as "check",
           (array_agg(t.conversation_id order by t.pushed_head is null, t.id desc))[1] as conversation_id
    from turns t
    where (t.pushed_to = o.branch and (t.queue_platform, t.queue_repository_id) = (o.platform, o.repository_id))
       or t.conversation_id = (select c.id from conversations c
                               where (c.platform, c.repository_id, c.number) = (o.platform, o.repository_id, o.number))
    ) work;

create view listed_audit as
select a.id as place, a.id, a.at, a.person, a.channel, a.action, a.target, a.codebase, a.details,
       coalesce(a.outcome,
                (select case when t.finished_at is null then t.state else coalesce(t.reason, t.answer, t.state) end
                 from turns t where t.id = coalesce(a.turn, d.turn_id)),
                (select string_agg(coalesce(o.outcome, o.state), ' ' order by o.id)
                 from operations o where o.id = any (a.operations)),
                d.error, d.state, '') as outcome
from audit a left join deliveries d on d.guid = a.delivery;

-- The figures that are counted in rows when somebody asks; each read is small, or on an index. `sample` is what
-- Prometheus adds to the name. States that have a figure from the beginning count as 0: Prometheus sees no change from
-- nothing to one. An infinite time can be subtracted from Postgres 17 on only.
create view figures as
with found as (
    -- Those that wait or went wrong; the rest is in the counters.
    select 'deliveries' as figure, jsonb_build_object('state', state) as labels, count(d.guid) as number,
           min(d.received_at) as since
    from unnest(array['received', 'failed', 'dead']) as state left join deliveries d using (state) group by state
    union all
    select 'turns', jsonb_build_object('state', s.state), count(t.id), min(t.created_at)
    from unnest(array['running', 'queued', 'waiting']) as s (state)
         left join (select id, created_at, case when state = 'queued' and not_before > now() then 'waiting' else state end
                                           as state
                    from turns where state in ('queued', 'running')) t using (state)
    group by s.state
    union all
    -- What is to be sent at once is due since '-infinity'.
    select 'outbox', jsonb_build_object('state', state), count(o.id),
           min(coalesce(nullif(o.due_at, '-infinity'), o.created_at))
    from unnest(array['waiting', 'sending', 'failed']) as state left join outbox o using (state) group by state
    union all
    select 'waiting', jsonb_build_object('for', waits_for), count(w.turn_id), min(w.since)
    from unnest(array['approve', 'answer', 'retry', 'review']) as waits_for left join waiting w using (waits_for)
    group by waits_for
), ended as (
    select state, coalesce(agent, '') as agent, threadtree_outcome(state, outcome) as came,
           outcome #>> '{check,state}' as checked, count(*) as turns, coalesce(sum(cost_usd), 0) as cost_usd,
           coalesce(sum(tokens), 0) as tokens
    from turns where state not in ('queued', 'running') group by 1, 2, 3, 4
), took as (
    select width_bucket(seconds, array[10, 30, 60, 120, 300, 600, 1200, 1800, 3600]::float8[]) as above,
           count(*) as turns, sum(seconds) as seconds
    from (select extract(epoch from finished_at - started_at)::float8 as seconds from turns
          where state not in ('queued', 'running') and started_at is not null) ended
    group by 1
)
select figure, '' as sample, labels, number::float8 as value from found
union all
select figure || '_oldest_seconds', '', labels, extract(epoch from now() - since)::float8 from found
where since is not null
union all
select figure, '_total', jsonb_build_object('state', state, 'agent', agent), sum(value)
from ended cross join lateral (values ('turns_ended', turns::float8), ('cost_usd', cost_usd), ('tokens', tokens::float8))
     as each (figure, value)
group by figure, state, agent
union all
select 'outcomes', '_total', jsonb_build_object('outcome', came), sum(turns)::float8 from ended group by came
union all
select 'checks', '_total', jsonb_build_object('state', each.state), coalesce(sum(turns), 0)::float8
from unnest(array['passed', 'failed', 'failed-on-base-too', 'not-run']) as each (state)
     left join ended on checked = each.state
group by each.state
union all
select 'turn_seconds', '_bucket', jsonb_build_object('le', edge.le),
       coalesce((select sum(turns) from took where above < edge.place), 0)::float8
from unnest(array['10.0', '30.0', '60.0', '120.0', '300.0', '600.0', '1200.0', '1800.0', '3600.0', '+Inf'])
     with ordinality as edge (le, place)
union all
select 'turn_seconds', '_count', '{}', coalesce(sum(turns), 0)::float8 from took
union all
select 'turn_seconds', '_sum', '{}', coalesce(sum(seconds), 0) from took
union all
select 'operations', '', jsonb_build_object('kind', kind, 'state', state), count(*)::float8
from operations group by kind, state
union all
select 'writers_held', '', '{}', count(*)::float8 from writers where held_until > now()
union all
select 'writers_held_seconds', '', '{}', coalesce(max(extract(epoch from held_until - now())), 0)::float8
from writers where held_until > now()
union all
select 'log_read_seconds', '', '{}', extract(epoch from now() - max(tried_at))::float8
from recoveries having max(tried_at) is not null
union all
select 'worktrees', '', jsonb_build_object('node', n.name, 'state', w.state), count(*)::float8
from worktrees w join nodes n on n.id = w.node group by n.name, w.state
union all
select 'bytes', '', jsonb_build_object('kind', 'rescues'), coalesce(sum(bytes), 0)::float8 from rescues
union all
select 'bytes', '', jsonb_build_object('kind', 'database'), pg_database_size(current_database())::float8
union all
select 'disk_bytes', '', jsonb_build_object('node', n.name, 'kind', d.key), sum(d.value::float8)
from nodes n cross join jsonb_each_text(n.disk) d group by n.name, d.key
union all
-- Names are labels, and two nodes may have one: the figure is that of the one that was alive last.
select 'node_silent_seconds', '', jsonb_build_object('node', name),
       extract(epoch from now() - max(heartbeat_at))::float8
from nodes where heartbeat_at > '-infinity' group by name;
