-- The comment that says that an operation is queued becomes its result.
alter table operations add column reply_id bigint references outbox (id) on delete set null;

-- Finals that GitHub refused for good. The text of one that another comment links is said there.
create view unposted_answers as
select turn_id, part, error from outbox o
where kind = 'comment' and turn_id is not null and state = 'failed' and urgency = 1
  and not exists (select from outbox linking where linking.waits_for = o.id and linking.state <> 'failed');
