-- News carries all that listeners need, except for a plan, which may be longer than a notification: its row is read.
-- Each is far below Postgres' limit of 8,000 bytes.
create function threadtree_tell(event text, news jsonb) returns void language sql as $$
    select pg_notify('threadtree_events', jsonb_build_object('event', event, 'news', news)::text)
$$;

-- News for those who listen: the operator's pages, the API's event stream and the command line.

create function threadtree_tell_of_turn() returns trigger language plpgsql as $$
begin
    perform threadtree_tell(
        case new.state when 'running' then 'turn-started' when 'queued' then 'turn-queued' else 'turn-ended' end,
        jsonb_build_object('turn', new.id, 'state', new.state, 'reason', left(new.reason, 300), 'cost_usd', new.cost_usd,
                           'outcome', threadtree_outcome(new.state, new.outcome), 'check', new.outcome->'check',
                           'conversation', (select conversation from conversation_names n
                                            where n.id = new.conversation_id)));
    return null;
end
$$;

create trigger threadtree_turn_changes after update of state on turns
    for each row when (new.state <> old.state) execute function threadtree_tell_of_turn();
create trigger threadtree_turn_is_asked after insert on turns
    for each row execute function threadtree_tell_of_turn();

create function threadtree_tell_of_progress() returns trigger language plpgsql as $$
begin
    perform threadtree_tell('turn-progress', jsonb_build_object('turn', new.id));
    return null;
end
$$;

create trigger threadtree_turn_progress after update of plan, latest_words, phase on turns
    for each row when (new.state = 'running'
                       and (new.plan, new.latest_words, new.phase) is distinct from (old.plan, old.latest_words, old.phase))
    execute function threadtree_tell_of_progress();

create function threadtree_tell_of_step() returns trigger language plpgsql as $$
begin
    perform threadtree_tell('turn-step', jsonb_build_object('turn', new.turn_id, 'place', new.place, 'words', new.words));
    return null;
end
$$;

create trigger threadtree_step after insert or update of words on steps for each row execute function threadtree_tell_of_step();

create function threadtree_tell_of_worktree() returns trigger language plpgsql as $$
begin
    perform threadtree_tell('worktree-' || new.state, jsonb_build_object('worktree', new.id, 'state', new.state,
                                                                         'branch', left(new.branch, 300)));
    return null;
end
$$;

create trigger threadtree_worktree_changes after update of state on worktrees
    for each row when (new.state <> old.state) execute function threadtree_tell_of_worktree();

create function threadtree_tell_of_operation() returns trigger language plpgsql as $$
begin
    perform threadtree_tell(
        case new.state when 'failed' then 'worktree-failed' else 'operation-ended' end,
        jsonb_build_object('operation', new.id, 'kind', new.kind, 'state', new.state,
                           'outcome', left(new.outcome, 300)));
    return null;
end
$$;

create trigger threadtree_operation_ends after update of state on operations
    for each row when (new.state in ('done', 'failed') and old.state <> new.state)
    execute function threadtree_tell_of_operation();
