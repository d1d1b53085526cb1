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

-- Stop requests reach the running turn's process within a moment instead of at its next look.
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
