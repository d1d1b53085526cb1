-- A turn that met a problem that passes is queued again until a time; `reason` tells why.
alter table turns add column not_before timestamptz;
alter table turns add column waiting_since timestamptz; -- when the first such problem was met; null once the agent began
