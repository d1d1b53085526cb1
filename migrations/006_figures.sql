-- Counters that no other row can provide: each process adds its own, so that all report the same.
create table counters (
    name  text             not null,
    label text             not null,
    value double precision not null,
    primary key (name, label)
);
