-- The texts of a request go HISTORY_RETENTION_DAYS after its end; its row, its state, its cost and its times stay.
alter table turns alter column request drop not null;        -- null: its texts were deleted
alter table turns add check (request is not null or state not in ('queued', 'running'));
create index turns_with_texts on turns (finished_at) where request is not null and finished_at is not null;

-- A comment outlives the one that it links by no more than a round of housekeeping.
alter table outbox drop constraint outbox_waits_for_fkey;
alter table outbox add constraint outbox_waits_for_fkey
    foreign key (waits_for) references outbox (id) on delete set null;
create index outbox_ended on outbox (created_at) where state in ('sent', 'failed');
create index operations_ended on operations (finished_at) where finished_at is not null;
