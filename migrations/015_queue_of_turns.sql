-- A queued turn carries where it runs: its node looks for the oldest of each repository, and at no other row.
alter table turns
    add column queue_node          text,                 -- of its worktree, as the next two; null where it has none
    add column queue_platform      text,
    add column queue_repository_id bigint;

create function threadtree_place_turn() returns trigger language plpgsql as $$
begin
    select node, platform, repository_id into new.queue_node, new.queue_platform, new.queue_repository_id
    from worktrees where id = new.worktree_id;
    return new;
end
$$;

create trigger threadtree_place_turn
    before insert or update of worktree_id on turns
    for each row when (new.worktree_id is not null)
    execute function threadtree_place_turn();

-- Turns that have ended are never claimed.
update turns set worktree_id = worktree_id where state in ('queued', 'running');

create index turns_queued on turns (queue_node, queue_platform, queue_repository_id, id) where state = 'queued';
create index turns_running on turns (queue_node) where state = 'running';

-- A removal is claimed at every bell, and a turn waits while its path is being removed.
create index worktrees_removing on worktrees (node, path) where state = 'removing';
-- Homes of agents are deleted with the last session of a conversation.
create index sessions_by_conversation on sessions (conversation_id);
-- What is older than its retention is looked for every hour. Rows come in the order of time: brin costs them nothing.
create index deliveries_with_body on deliveries (received_at) where body is not null;
create index deliveries_by_time on deliveries using brin (received_at);
create index effects_by_time on effects using brin (seen_at);
-- Foreign keys, without which the deletion of one row reads all rows that may name it.
create index outbox_by_turn on outbox (turn_id) where turn_id is not null;
create index outbox_waiting_for on outbox (waits_for) where waits_for is not null;
create index operations_by_turn on operations (turn_id) where turn_id is not null;
create index operations_by_reply on operations (reply_id) where reply_id is not null;
