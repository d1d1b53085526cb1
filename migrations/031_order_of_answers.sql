-- The answers of a conversation that wait: a later turn's goes after an earlier turn's, whatever their rounds.
create index outbox_answers on outbox (conversation_id, turn_id) where urgency = 1 and state in ('waiting', 'sending');
