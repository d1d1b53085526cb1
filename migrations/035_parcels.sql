-- A rescue on its way to another node: that one asks for it, its own node packs it. Gone once it has arrived.
create table parcels (
    rescue_id bigint      not null references rescues (id) on delete cascade,
    node      text        not null references nodes (id) on delete cascade,   -- where it goes
    has       text[]      not null,                      -- commits that are there already
    sha       text,                                      -- the rescue's commit, once all parts are here
    problem   text        check (problem in ('large', 'gone')),               -- why it is not sent
    asked_at  timestamptz not null default now(),
    primary key (rescue_id, node)
);
create table parcel_parts (
    rescue_id bigint      not null,
    node      text        not null,
    place     integer     not null,
    content   bytea       not null,
    primary key (rescue_id, node, place),
    foreign key (rescue_id, node) references parcels (rescue_id, node) on delete cascade
);
alter table parcel_parts alter column content set storage external;           -- git has compressed it
