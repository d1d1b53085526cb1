-- How far GitHub's logs of deliveries, or else the threads themselves, were compared with the inbox.
create table recoveries (
    source     text        primary key,                  -- `app`, or platform/repository id
    seen_until timestamptz not null,
    problem    text                                      -- the permission that is missing: threads are read instead
);
