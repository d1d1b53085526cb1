-- A node whose worker was asked to end: it is alive, and gets no new threads.
alter table nodes add column draining boolean not null default false;
