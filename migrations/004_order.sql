-- In which order waiting work is done, and who is woken for it.

-- A turn carries where it runs and its repository, so that neither its node nor a list of a repository's turns looks at
-- other rows. A queued one that needs an agent carries its round, too: a person has one such turn in each round, and
-- earlier rounds go first. A person's first request joins the current round.
create function threadtree_place_turn() returns trigger language plpgsql as $$
begin
    select w.node, coalesce(w.platform, c.platform), coalesce(w.repository_id, c.repository_id)
    into new.queue_node, new.queue_platform, new.queue_repository_id
    from (select) turn
    left join conversations c on c.id = new.conversation_id left join worktrees w on w.id = new.worktree_id;
    if tg_op = 'INSERT' and new.state = 'queued' and new.queue_node is not null and new.needs_agent then
        new.round = greatest(
            0,
            (select round from turns where queue_node = new.queue_node and state = 'queued' and needs_agent
             order by round limit 1),
            (select round + 1 from turns
             where requested_by_id = new.requested_by_id and state in ('queued', 'running') and needs_agent
             order by round desc limit 1));
    end if;
    return new;
end
$$;

create trigger threadtree_place_turn
    before insert or update of worktree_id on turns
    for each row when (new.worktree_id is not null or new.queue_platform is null) execute function threadtree_place_turn();

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

-- Writes what is known of a repository, and returns the folder of its clone. A rename on GitHub updates the names; the
-- folder stays (agents key their sessions by path). A reused name is another repository: its folder has the id in its
-- name. What is known already is not written: an update locks the row until the transaction ends, and the repository's
-- threads would be decided one after the other. `updated_at` tells who had a name last.
create function threadtree_save_codebase(platform text, id bigint, owner text, name text, branch text, installation bigint)
returns text language sql as $$
    with known as (
        select folder from codebases b
        where (b.platform, b.repository_id) = ($1, $2) and b.owner = $3 and b.name = $4
          and ($5 is null or b.default_branch = $5) and ($6 is null or b.installation_id = $6)
          and not exists (select from codebases o where o.platform = $1 and lower(o.owner) = lower($3)
                                                    and lower(o.name) = lower($4) and o.updated_at > b.updated_at)
    ), written as (
        insert into codebases as b (platform, repository_id, owner, name, folder, default_branch, installation_id)
        select $1, $2, $3, $4,
               case when exists (select from codebases o
                                 where o.folder = $3 || '/' || $4 and (o.platform, o.repository_id) <> ($1, $2))
                    then $3 || '/' || $4 || '-' || $2::text else $3 || '/' || $4 end,
               $5, $6
        where not exists (select from known)
        on conflict (platform, repository_id) do update
           set owner = excluded.owner, name = excluded.name, updated_at = now(),
               default_branch = coalesce(excluded.default_branch, b.default_branch),
               installation_id = coalesce(excluded.installation_id, b.installation_id)
        returning folder
    )
    select folder from known union all select folder from written
$$;
