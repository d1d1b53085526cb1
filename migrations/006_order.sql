-- Which turn may run, in which order waiting work is done, and who is woken for it.

-- Directories in the way of worktree w: l is being removed, or is lost and not let go yet, and has the path or the branch
-- of w. One that was lost before its row knew its branch is on the branch of its issue.
create view directories_in_the_way as
select w.id as worktree_id, l.id as directory_of, l.removal_error
from worktrees w
join worktrees l on l.node = w.node and l.id <> w.id and l.state in ('removing', 'lost')
     and (l.path = w.path
          or (l.platform, l.repository_id) = (w.platform, w.repository_id)
             and (l.branch = coalesce(w.branch, w.start_ref)
                  or l.branch is null and (l.start_kind, l.start_number) = (w.start_kind, w.start_number)));

-- May this queued turn run now, and if not, why? A view with the time of whoever asks. Without obstacle, a turn is
-- claimed as soon as its node has room. A turn without an agent goes in line with all turns of its worktree, and may work
-- where that was removed. The cheap questions come before those that look at other rows. Whoever asks
-- restricts it to queued turns: with the state here, an index of what waits would be read whole for each turn while the
-- statistics are those of a quiet time.
create function turn_obstacles(at timestamptz) returns table (turn_id bigint, obstacle text) language sql stable as $$
    select t.id, case
        when t.not_before > at then 'time'
        when t.worktree_id in (select r.worktree_id from turns r where r.state = 'running') then 'turn'
        when t.id > (select min(e.id) from turns e
                     where e.conversation_id = t.conversation_id and e.state in ('queued', 'running')) then 'turn'
        when t.id > case when t.needs_agent then
                        (select min(e.id) from turns e where e.worktree_id = t.worktree_id
                         and e.state in ('queued', 'running') and not e.needs_agent)
                    else (select min(e.id) from turns e where e.worktree_id = t.worktree_id
                          and e.state in ('queued', 'running')) end then 'turn'
        when t.needs_agent and exists (select from held_repositories h
                     where (h.platform, h.repository_id) = (t.queue_platform, t.queue_repository_id)
                       and h.held_until > at) then 'github-limit'
        when (select not w.is_live and (t.needs_agent or w.state <> 'removed') from worktrees w where w.id = t.worktree_id)
            then 'worktree'
        when exists (select from directories_in_the_way d where d.worktree_id = t.worktree_id) then 'directory'
    end
    from turns t
$$;

-- A turn carries where it runs and its repository, so that neither its node nor a list of a repository's turns looks at
-- other rows. A queued one that needs an agent carries its round, too: a person has one such turn in each round, and
-- earlier rounds go first. A person's first request joins the current round. What no person asked goes after all.
create function threadtree_place_turn() returns trigger language plpgsql as $$
begin
    select w.node, coalesce(w.platform, c.platform), coalesce(w.repository_id, c.repository_id)
    into new.queue_node, new.queue_platform, new.queue_repository_id
    from (select) turn
    left join conversations c on c.id = new.conversation_id left join worktrees w on w.id = new.worktree_id;
    if tg_op = 'INSERT' and new.state = 'queued' and new.queue_node is not null and new.needs_agent then
        new.round = case when new.requested_by_id is null and new.conversation_id is not null
            then 2147483647 else greatest(
            0,
            (select round from turns where queue_node = new.queue_node and state = 'queued' and needs_agent
             and round < 2147483647 order by round limit 1),
            (select round + 1 from turns
             where requested_by_id = new.requested_by_id and state in ('queued', 'running') and needs_agent
             order by round desc limit 1)) end;
    end if;
    return new;
end
$$;

create trigger threadtree_place_turn
    before insert or update of worktree_id on turns
    for each row when (new.worktree_id is not null or new.queue_platform is null) execute function threadtree_place_turn();

-- A request to stop reaches the process of a running turn within a moment instead of at its next look.
create function threadtree_notify_stop() returns trigger language plpgsql as $$
begin
    perform pg_notify('threadtree_stop', new.id::text);
    return null;
end
$$;

create trigger threadtree_stop_requested
    after update of stop_requested_at on turns
    for each row when (new.stop_requested_at is not null and old.stop_requested_at is null and new.state = 'running')
    execute function threadtree_notify_stop();

-- The engine wakes workers when a job is inserted, but not when a lock is freed or a retry makes a job due
-- again: the next job of that lock would wait for the poll. This tells the queue's workers to look.
-- A job that succeeded is deleted, so the lock is freed by a delete as often as by an update.
create function threadtree_wake_queue() returns trigger language plpgsql as $$
begin
    perform pg_notify('procrastinate_queue_v1#' || old.queue_name,
                      json_build_object('type', 'job_inserted', 'job_id', old.id)::text);
    return null;
end
$$;

create trigger threadtree_wake_queue_when_a_job_leaves_doing
    after update of status on procrastinate_jobs
    for each row when (old.status = 'doing' and new.status <> 'doing' and old.lock is not null)
    execute function threadtree_wake_queue();

create trigger threadtree_wake_queue_when_a_job_is_done
    after delete on procrastinate_jobs
    for each row when (old.status = 'doing' and old.lock is not null)
    execute function threadtree_wake_queue();

-- The priority of a conversation's next decision is that of its last one at most: see what is stored with a delivery.
create index threadtree_jobs_by_lock on procrastinate_jobs (lock, priority) where status in ('todo', 'doing');
