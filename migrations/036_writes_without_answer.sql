-- Writes that were sent and have no answer: they count among those of the last hour. Without this index all that waits
-- was read before each write.
create index outbox_without_answer on outbox (writer, sending_at) where posted_at is null and sending_at is not null;
