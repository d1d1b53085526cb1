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
