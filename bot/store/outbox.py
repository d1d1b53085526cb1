"""What GitHub is to show: each row states a comment or a reaction, and `bot.reply.outbox` makes GitHub agree."""

from bot.model import Target
from bot.store.database import Connection

ENQUEUE_COMMENT = """
-- The comment keeps its place (target, comment_id); a row in flight goes back to waiting when its request returns.
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, target_id, content, waits_for,
                    due_at)
values ($1, $2, 'comment', $3, $4, $5, $6, $7, $8, $9, '-infinity')
on conflict (turn_id, part) where kind = 'comment' and turn_id is not null do update
set content = excluded.content, urgency = excluded.urgency, waits_for = excluded.waits_for, error = null,
    version = outbox.version + 1, state = case outbox.state when 'sending' then 'sending' else 'waiting' end
where (outbox.content, outbox.waits_for) is distinct from (excluded.content, excluded.waits_for)
   or outbox.state = 'failed'
returning id
"""

COMMENT_OF_PART = """
select id from outbox where kind = 'comment' and turn_id = $1 and part = $2
"""

ENQUEUE_REPLY = """
insert into outbox (writer, conversation_id, kind, urgency, target_kind, target_id, content, due_at)
values ($1, $2, 'comment', $3, $4, $5, $6, '-infinity') returning id
"""

ENQUEUE_REACTION = """
insert into outbox (writer, conversation_id, kind, urgency, target_kind, target_id, content, due_at)
values ($1, $2, 'reaction', 0, $3, $4, $5, '-infinity')
on conflict (conversation_id, target_kind, coalesce(target_id, 0), content) where kind = 'reaction' do nothing
"""


async def enqueue_comment(
    connection: Connection,
    *,
    writer: str,
    conversation_id: int,
    turn_id: int,
    part: int,
    target: Target,
    content: str,
    urgency: int,
    waits_for: int | None = None,
) -> int:
    """State what the turn's comment `part` shall say; the row's id. The same text again changes nothing.

    `%ANSWER_URL%` in the content becomes the address of the comment of row `waits_for`.
    """
    values = (writer, conversation_id, turn_id, part, urgency, target.kind, target.id, content, waits_for)
    changed = await connection.fetchval(ENQUEUE_COMMENT, *values)
    if changed is None:
        changed = await connection.fetchval(COMMENT_OF_PART, turn_id, part)
    return int(changed)


async def enqueue_reply(
    connection: Connection, *, writer: str, conversation_id: int, target: Target, content: str, urgency: int = 0
) -> int:
    """State a comment that belongs to no turn, such as a command's answer; the row's id."""
    values = (writer, conversation_id, urgency, target.kind, target.id, content)
    return int(await connection.fetchval(ENQUEUE_REPLY, *values))


async def enqueue_reaction(
    connection: Connection, *, writer: str, conversation_id: int, target: Target, content: str
) -> None:
    """State a reaction by GitHub's name for it, such as `eyes`; asking again changes nothing."""
    await connection.execute(ENQUEUE_REACTION, writer, conversation_id, target.kind, target.id, content)
