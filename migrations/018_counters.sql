-- What processes count and no other row tells: each adds its own, so that all tell the same.
create table counters (
    name  text             not null,
    label text             not null,
    value double precision not null,
    primary key (name, label)
);
