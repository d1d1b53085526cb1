create index turns_by_end on turns (finished_at) where finished_at is not null;

-- What takes the space of a node, as its last round of housekeeping measured it: bytes by kind.
alter table nodes add column disk jsonb not null default '{}';
alter table nodes add column disk_measured_at timestamptz;
