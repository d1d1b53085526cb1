-- What GitHub is to show, and within which limits.

-- What GitHub is to show. A row states the wish (content, version); the sender makes GitHub agree (sent_version).
create table outbox (
    id              bigint      generated always as identity primary key,
    writer          text        not null,                  -- an App's installation, or the token: its writes are serial
    conversation_id bigint      references conversations (id), -- null of an issue that the bot opened
    kind            text        not null check (kind in ('reaction', 'comment', 'pull-request')), -- or such an issue
    turn_id         bigint      references turns (id),
    part            integer,                               -- 1 is the turn's tracking comment
    urgency         smallint    not null,                  -- 0 reactions and command answers, 1 finals, 2 progress, 3 😕
    asked_by        bigint,                                -- GitHub's id of the person; null: nobody, or nobody known
    round           integer     not null default 0,        -- a person has ten writes in each round; earlier rounds go first
    target_kind     text        not null check (target_kind in ('comment', 'review-comment', 'review', 'issue', 'pull')),
    target_id       bigint,                                -- comment id; null: the thread itself
    content         text        not null,                  -- Markdown, or the reaction's name
    version         integer     not null default 1,
    sent_version    integer     not null default 0,
    waits_for       bigint      references outbox (id) on delete set null, -- its comment takes the place of this one, which goes then
    state           text        not null default 'waiting' check (state in ('waiting', 'sending', 'sent', 'failed')),
    due_at          timestamptz not null default now(),
    sending_at      timestamptz,
    posted_at       timestamptz,                           -- when it was created on GitHub: what the write limits count
    comment_id      bigint,
    comment_url     text,
    attempts        integer     not null default 0,
    error           text,
    created_at      timestamptz not null default now(),
    review          text,                                  -- JSON: the comment goes as a review with these remarks
    check ((turn_id is null) = (part is null) or kind = 'reaction'),
    check (kind = 'comment' or sent_version <= 1),
    check (kind = 'pull-request' or conversation_id is not null)
);
create unique index outbox_one_comment_per_part on outbox (turn_id, part) where kind = 'comment' and turn_id is not null;
create unique index outbox_one_reaction on outbox (conversation_id, target_kind, coalesce(target_id, 0), content) where kind = 'reaction';
create index outbox_to_send on outbox (writer, round, urgency, id) where state in ('waiting', 'sending');
create index outbox_due on outbox (writer, due_at) where state in ('waiting', 'sending');
create index outbox_rounds_of_person on outbox (writer, asked_by, round) where state in ('waiting', 'sending');
-- What a later turn's answer goes after, whatever their rounds: answers of a conversation that wait, and the comments of
-- turns that are on GitHub not yet.
create index outbox_order on outbox (conversation_id, turn_id)
    where state in ('waiting', 'sending') and (urgency = 1 or part = 1 and comment_id is null and waits_for is null);
-- What GitHub's limits count: what was posted in the last hour, and what was sent and has no answer.
create index outbox_posted on outbox (writer, posted_at);
create index outbox_without_answer on outbox (writer, sending_at) where posted_at is null and sending_at is not null;
-- The answers to a comment that belong to no turn: it was acted on.
create index outbox_replies on outbox (conversation_id, target_kind, target_id) where kind = 'comment' and turn_id is null;
-- The comments of a conversation within an hour: MAX_COMMENTS_PER_HOUR.
create index outbox_comments on outbox (conversation_id, posted_at) where kind = 'comment';
create index outbox_ended on outbox (created_at) where state in ('sent', 'failed');
create index outbox_by_turn on outbox (turn_id) where turn_id is not null;
create index outbox_waiting_for on outbox (waits_for) where waits_for is not null;
alter table outbox set (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000,
                        autovacuum_vacuum_scale_factor = 0.02);

-- A rate limit of GitHub's holds all writes of a writer, whoever sends next and after whatever restart.
create table writers (
    writer     text        primary key,
    held_until timestamptz not null
);

-- Repositories to which the bot may not write now, because GitHub limits their writer.
create view held_repositories as
select b.platform, b.repository_id, h.held_until
from codebases b join writers h on h.writer = b.platform || '/' || coalesce(b.installation_id::text, 'token');

-- Final comments that GitHub refused for good. Where another comment links one, that comment carries its text instead.
create view unposted_answers as
select turn_id, part, error from outbox o
where kind = 'comment' and turn_id is not null and state = 'failed' and urgency = 1
  and not exists (select from outbox linking where linking.waits_for = o.id and linking.state <> 'failed');

-- Writes to GitHub have rounds too: ten of a person's in each, of which the more urgent go first. 😕 come after all.
create function threadtree_place_write() returns trigger language plpgsql as $$
begin
    if new.asked_by is null then
        select requested_by_id into new.asked_by from turns where id = new.turn_id;
    end if;
    new.round = case when new.urgency = 3 then 2147483647 else greatest(
        0,
        (select round from outbox
         where writer = new.writer and state in ('waiting', 'sending') and due_at <= now() and urgency < 3
         order by round limit 1),
        (select round + (count(*) >= 10)::integer from outbox
         where writer = new.writer and asked_by = new.asked_by and state in ('waiting', 'sending') and urgency < 3
         group by round order by round desc limit 1)) end;
    return new;
end
$$;

create trigger threadtree_place_write before insert on outbox
    for each row when (new.state = 'waiting') execute function threadtree_place_write();

-- What may be sent to GitHub once it is due.
-- Left out: a later part of a turn until its earlier one is on GitHub, and a row that waits for another comment's
-- address (unless that comment was refused). An earlier part that waits for this very row delays nothing. Left out as
-- well: the answer of a turn (urgency 1) while an earlier turn of the conversation has an answer that waits, or no
-- comment on GitHub yet. All are asked row by row, in the order of an index: a join would read all that waits. While the
-- statistics are those of a quiet time, so would `exists` with the states of what waits: hence the first turn in order,
-- and `not in` for a part of a turn.
create view sendable as
select o.* from outbox o
where o.state in ('waiting', 'sending')
  and coalesce((select linked.comment_url is not null or linked.state = 'failed'
                from outbox linked where linked.id = o.waits_for), true)
  and case when o.part > 1 then
      not exists (select from outbox earlier where earlier.kind = 'comment' and earlier.turn_id = o.turn_id
                    and earlier.part < o.part and earlier.comment_id is null
                    and earlier.state not in ('sent', 'failed') and earlier.waits_for is distinct from o.id)
      else true end
  and case when o.urgency = 1 and o.turn_id is not null then
      o.turn_id = (select first.turn_id from outbox first where first.conversation_id = o.conversation_id
                     and first.state in ('waiting', 'sending')
                     and (first.urgency = 1 or first.part = 1 and first.comment_id is null and first.waits_for is null)
                   order by first.turn_id limit 1)
      else true end;
