-- What a turn's agent plans and says, for those who follow it; written at most once a second.
alter table turns add column plan text[] not null default '{}';          -- each entry after its state and a space
alter table turns add column latest_words text not null default '';      -- the end of what it says, without secrets

-- A plan may be longer than a notification: those who listen read the row.
create function threadtree_tell_of_progress() returns trigger language plpgsql as $$
begin
    perform threadtree_tell('turn-progress', jsonb_build_object('turn', new.id));
    return null;
end
$$;

create trigger threadtree_turn_progress after update of plan, latest_words on turns
    for each row when (new.state = 'running' and (new.plan, new.latest_words) is distinct from (old.plan, old.latest_words))
    execute function threadtree_tell_of_progress();
