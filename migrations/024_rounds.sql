-- Fairness between persons: a person has one turn in each round, and earlier rounds go first. Who asks for the first
-- time joins the round that is under way.
alter table turns add column round integer not null default 0;
create index turns_rounds on turns (queue_node, round) where state = 'queued';
create index turns_rounds_of_person on turns (requested_by_id, round) where state in ('queued', 'running');
drop index turns_queued;
create index turns_queued on turns (queue_node, queue_platform, queue_repository_id, round, id) where state = 'queued';

create or replace function threadtree_place_turn() returns trigger language plpgsql as $$
begin
    select node, platform, repository_id into new.queue_node, new.queue_platform, new.queue_repository_id
    from worktrees where id = new.worktree_id;
    if tg_op = 'INSERT' and new.state = 'queued' then
        new.round = greatest(
            0,
            (select min(round) from turns where queue_node = new.queue_node and state = 'queued'),
            (select max(round) + 1 from turns
             where requested_by_id = new.requested_by_id and state in ('queued', 'running')));
    end if;
    return new;
end
$$;

-- So are writes to GitHub: ten of a person's in each round, of which the more urgent go first. 😕 come after all rounds.
alter table outbox add column asked_by bigint;    -- GitHub's id of the person; null where nobody or nobody known asked
alter table outbox add column round integer not null default 0;
drop index outbox_to_send;
create index outbox_to_send on outbox (writer, round, urgency, id) where state in ('waiting', 'sending');
create index outbox_rounds_of_person on outbox (writer, asked_by, round) where state in ('waiting', 'sending');

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
