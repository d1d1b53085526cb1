-- What a turn does before its agent starts, in the words of its comment; null while the agent is at work.
alter table turns add column phase text;

drop trigger threadtree_turn_progress on turns;
create trigger threadtree_turn_progress after update of plan, latest_words, phase on turns
    for each row when (new.state = 'running'
                       and (new.plan, new.latest_words, new.phase) is distinct from (old.plan, old.latest_words, old.phase))
    execute function threadtree_tell_of_progress();

-- The directories kept whole on a node: name, bytes, and since when; measured with what takes its space.
alter table nodes add column kept jsonb not null default '[]';
