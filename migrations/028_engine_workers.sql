-- The process of each of the engine's workers: its node knows at once when the process is dead.
create table engine_workers (
    worker_id bigint primary key references procrastinate_workers (id) on delete cascade,
    node text not null,
    process text not null
);
