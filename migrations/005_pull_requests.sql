-- The bot's pull requests, and what became of them.

-- The pull requests of the bot's branches: those that it opened, and those that people opened. What the bot writes there
-- stays the bot's until a person changes it.
create table pull_requests (
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    branch        text        not null,
    closes        integer     not null,                    -- the issue that it was opened for
    titles        text[]      not null,                    -- all that the bot gave it; another one is a person's
    texts         text[]      not null,                    -- SHA-256 of each description that the bot wrote between its marks
    told          boolean     not null default false,      -- people were told that the description is theirs
    opened_at     timestamptz not null default now(),
    reviewed_at   timestamptz,                             -- when somebody with write access reviewed it last, and
    reviewed_turn bigint,                                  -- which turn had pushed last then
    check_at      timestamptz default now() + interval '1 minute', -- ask GitHub then about conflicts; null: it is closed
    in_conflict   boolean     not null default false,      -- as GitHub told last
    conflict_told text,                                    -- the head of which people were told so
    primary key (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index pull_requests_by_branch on pull_requests (platform, repository_id, branch);
create index pull_requests_to_check on pull_requests (check_at) where check_at is not null;

-- What became of a pull request to whose branch the bot pushed; written when it is closed, gone when it is reopened.
create table outcomes (
    id            bigint      generated always as identity unique,
    platform      text        not null,
    repository_id bigint      not null,
    number        integer     not null,
    branch        text        not null,
    opened_at     timestamptz not null,
    closed_at     timestamptz not null,
    merged        boolean     not null,
    rewritten     boolean     not null,                    -- people pushed after the bot's last push
    reverted_by   integer,                                 -- the pull request that took it back
    primary key (platform, repository_id, number),
    foreign key (platform, repository_id) references codebases (platform, repository_id)
);
create index outcomes_merged on outcomes (closed_at) where merged;

-- What waits for a person, whatever its pull request: plans, questions, and what failed. It ends when somebody has
-- approved, answered, retried or undone it, when a later request of the thread is done and the check does not fail, and
-- when the thread is closed. A plan is open for as long as its session is kept: see `/approve`.
create view waiting_turns as
select t.id as turn_id, t.conversation_id, t.queue_platform as platform, t.queue_repository_id as repository_id,
       t.needs as waits_for, coalesce(t.finished_at, t.asks_since) as since
from turns t join requests r on r.turn_id = t.id join conversations c on c.id = t.conversation_id and c.state = 'open'
where t.needs is not null
  and (t.needs <> 'approve' or (select true from kept_sessions k where k.id = t.session_id))
  and not exists (
      select from requests l join turns a on a.id = l.turn_id
      where l.conversation_id = t.conversation_id and l.turn_id > t.id and case t.needs
          when 'approve' then l.verb in ('plan', 'work') and a.state in ('queued', 'running', 'done')
          when 'answer' then t.finished_at is not null and a.needs_agent and a.state not in ('stopped', 'refused')
          else a.undoes = t.id and a.state = 'done'
               or l.retry_of = coalesce(r.retry_of, t.id) and a.state <> 'refused'
               or a.state = 'done' and (a.needs_agent or l.verb = r.verb)
                  and case t.state when 'done' then a.outcome #>> '{check,state}' in ('passed', 'failed-on-base-too')
                      else a.outcome #>> '{check,state}' is distinct from 'failed' end end);

-- The pull requests that wait for a review, each with the turn that pushed last to its branch: not while people have
-- something else to do about that one.
create view waiting_reviews as
select t.id as turn_id, t.conversation_id, p.platform, p.repository_id, p.branch, p.number,
       greatest(t.finished_at, p.opened_at) as since
from pull_requests p cross join lateral (
    select t.id, t.conversation_id, t.finished_at, t.needs from turns t
    where t.pushed_to = p.branch and (t.queue_platform, t.queue_repository_id) = (p.platform, p.repository_id)
    order by t.id desc limit 1) t
where p.check_at is not null and t.finished_at is not null and t.needs is null
  and (p.reviewed_turn is null or p.reviewed_turn < t.id)
  and (select c.state from conversations c where c.id = t.conversation_id) = 'open'
  and not exists (select from pull_requests n where (n.platform, n.repository_id, n.branch)
                  = (p.platform, p.repository_id, p.branch) and n.number > p.number and n.check_at is not null);

-- All that waits for a person, each turn once.
create view waiting as
select turn_id, conversation_id, platform, repository_id, waits_for, since, null::integer as pull_request
from waiting_turns
union all
select r.turn_id, r.conversation_id, r.platform, r.repository_id, 'review', r.since, r.number
from waiting_reviews r;

-- The same of one turn, found by its id and its branch.
create function threadtree_waits_for(t turns) returns text language sql stable as $$
    select coalesce((select w.waits_for from waiting_turns w where w.turn_id = t.id),
                    (select 'review' from waiting_reviews r
                     where (r.platform, r.repository_id, r.branch)
                           = (t.queue_platform, t.queue_repository_id, t.pushed_to) and r.turn_id = t.id))
$$;
