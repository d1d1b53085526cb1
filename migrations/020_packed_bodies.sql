-- The bot compresses the body of a delivery itself: not every server has lz4, and pglz costs more than all the rest.
-- Older rows hold the body as it arrived.
alter table deliveries add column is_packed boolean not null default false;
alter table deliveries alter column body set storage external;
