-- When the writer is to look again, however much waits.
create index outbox_due on outbox (writer, due_at) where state in ('waiting', 'sending');
