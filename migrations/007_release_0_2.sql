-- Release 0.2.

-- Who may look. People see the rows of the repositories that they can read on GitHub, so each list tells its repository.
-- Without `seen` everything is seen.
create function threadtree_sees(of_platform text, seen bigint[], platform text, repository_id bigint) returns boolean
language sql immutable as $$ select seen is null or (platform = of_platform and repository_id = any (seen)) $$;

create or replace view listed_worktrees as
select w.id as place, w.id, b.owner || '/' || b.name as codebase, w.path, w.branch, n.name as node, w.state,
       array(select b.owner || '/' || b.name || '#' || c.number from conversations c
             where c.worktree_id = w.id order by c.number) as conversations,
       w.created_at, w.updated_at, n.id as node_id, w.platform, w.repository_id
from worktrees w join codebases b using (platform, repository_id) join nodes n on n.id = w.node;

create or replace view orphan_rows as
select o.id, o.node, o.path, o.seen_at, coalesce(b.owner || '/' || b.name, o.folder) as codebase,
       b.platform, b.repository_id
from (select *, split_part(path, '/', 2) || '/' || split_part(path, '/', 3) as folder from orphans) o
left join codebases b using (folder);

create or replace view listed_orphans as
select o.id as place, o.id, o.codebase, o.path, null as branch, n.name as node, 'orphan' as state,
       '{}'::text[] as conversations, o.seen_at as created_at, o.seen_at as updated_at, n.id as node_id,
       o.platform, o.repository_id
from orphan_rows o join nodes n on n.id = o.node;

create or replace view listed_sessions as
select s.id as place, s.id, s.conversation_id, b.owner || '/' || b.name as codebase,
       case when s.active then 'active' else 'ended' end as state,
       b.owner || '/' || b.name || '#' || c.number as conversation, s.agent, s.assistant_session_id, s.active,
       s.created_at, s.last_active_at, s.ended_at, s.end_reason, c.platform, c.repository_id
from sessions s join conversations c on c.id = s.conversation_id join codebases b using (platform, repository_id);

-- The lock of a delivery names its repository by GitHub's id: a name may be another's by now.
create or replace view listed_deliveries as
select seq as place, guid, event, action, conversation, split_part(conversation, '#', 1) as codebase, state, received_at,
       attempts, error, split_part(lock_key, '/', 1) as platform,
       substring(lock_key from '^[^/]+/([0-9]{1,18})#')::bigint as repository_id
from deliveries;

create or replace view listed_rescues as
select r.id as place, r.id, r.worktree_id as worktree, r.codebase, r.branch, r.removal,
       coalesce(r.kept, r.ref) as name, r.files, r.commits, r.bytes, r.node_name as node, r.created_at, r.restored_at,
       case when r.restored_at is null then 'kept' else 'restored' end as state,
       array(select r.codebase || '#' || number from unnest(r.conversations) as number) as conversations,
       r.platform, r.repository_id
from rescue_rows r;

-- What people did beside asking the agent, written in the transaction that does it.
create table audit (
    id         bigint      generated always as identity primary key,
    at         timestamptz not null default now(),
    person     text        not null,                       -- a login, `admin-token`, or `command line (USER)`
    channel    text        not null check (channel in ('dashboard', 'API', 'command line', 'thread')),
    action     text        not null,                       -- in the words of the command: `reset`, `stop all`
    target     text        not null,                       -- what it was done to, for people
    codebase   text,                                       -- owner/name of its repository then; null: of none or several
    details    jsonb       not null default '{}',          -- what else was asked
    turn       bigint,                                     -- what carries it out,
    operations bigint[]    not null default '{}',          -- or these of nodes,
    delivery   text,                                       -- or what becomes of this
    outcome    text                                        -- where nothing carries it out later
);
create index audit_by_time on audit (at);

create view listed_audit as
select a.id as place, a.id, a.at, a.person, a.channel, a.action, a.target, a.codebase, a.details,
       coalesce(a.outcome,
                (select case when t.finished_at is null then t.state else coalesce(t.reason, t.answer, t.state) end
                 from turns t where t.id = coalesce(a.turn, d.turn_id)),
                (select string_agg(coalesce(o.outcome, o.state), ' ' order by o.id)
                 from operations o where o.id = any (a.operations)),
                d.error, d.state, '') as outcome
from audit a left join deliveries d on d.guid = a.delivery;
