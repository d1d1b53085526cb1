-- What waits is a small part of a long history, and until the next analysis Postgres believes that nothing waits. Then
-- each small index looks as cheap as any other, and to place one row all that waits was read: 10,000 turns took over ten
-- minutes. Without sorts only one index gives each order.
create or replace function threadtree_place_turn() returns trigger language plpgsql set enable_sort = off as $$
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

alter function threadtree_place_write() set enable_sort = off;

-- An analysis soon after such a change, not after a tenth of the history. Dead entries are in the way of what waits.
alter table turns set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000,
                       autovacuum_vacuum_scale_factor = 0.02);
alter table outbox set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000,
                        autovacuum_vacuum_scale_factor = 0.02);
