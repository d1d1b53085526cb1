-- In which order waiting work is done, and who is woken for it.

-- A queued turn carries where it runs, so that its node looks at no other row, and its round: a person has one turn in
-- each round, and earlier rounds go first. A person's first request joins the current round.
create function threadtree_place_turn() returns trigger language plpgsql as $$
begin
    select node, platform, repository_id into new.queue_node, new.queue_platform, new.queue_repository_id
    from worktrees where id = new.worktree_id;
    if tg_op = 'INSERT' and new.state = 'queued' then
        new.round = greatest(
            0,
            (select round from turns where queue_node = new.queue_node and state = 'queued' order by round limit 1),
            (select round + 1 from turns
             where requested_by_id = new.requested_by_id and state in ('queued', 'running')
             order by round desc limit 1));
    end if;
    return new;
end
$$;

create trigger threadtree_place_turn
    before insert or update of worktree_id on turns
    for each row when (new.worktree_id is not null) execute function threadtree_place_turn();

-- Writes to GitHub have rounds too: ten of a person's in each, of which the more urgent go first. 😕 come after all.
create function threadtree_place_write() returns trigger language plpgsql as $$
begin
    if new.asked_by is null then
        select requested_by_id into new.asked_by from turns where id = new.turn_id;
    end if;
    new.round = case when new.urgency = 3 then 2147483647 else greatest(
        0,
        (select round from outbox
         where writer = new.writer and state in ('waiting', 'sending') and due_at <= now() and urgency < 3
         order by round limit 1),
        (select round + (count(*) >= 10)::integer from outbox
         where writer = new.writer and asked_by = new.asked_by and state in ('waiting', 'sending') and urgency < 3
         group by round order by round desc limit 1)) end;
    return new;
end
$$;

create trigger threadtree_place_write before insert on outbox
    for each row when (new.state = 'waiting') execute function threadtree_place_write();

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
