-- What the agent was given to read. `read` is for people: it stands in the answer, also of a turn that is resumed.
-- After a turn that read the whole thread, its session is told only what is new.
alter table turns
    add column read text[] not null default '{}',
    add column read_whole_thread boolean not null default false;
