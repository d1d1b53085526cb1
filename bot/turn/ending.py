"""How a run leaves its turn: ended on the thread, queued again until a time, or handed back to another run."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from asyncpg import PostgresError

from bot import failpoints
from bot.ask import Ask
from bot.model import ThreadRef
from bot.redaction import Redactor
from bot.rules import Rules
from bot.sandbox import trash
from bot.store import conversations, turns
from bot.store.database import DATABASE_AWAY, Connection, statement
from bot.store.jobs import ring_for_work
from bot.store.turns import ClaimedTurn
from bot.thread import notices, reasons, thread_comments, tracking
from bot.thread import outbox_rows as outbox
from bot.thread.agent_answer import answer_parts
from bot.thread.commit_message import split_subject
from bot.thread.formatting import plain
from bot.thread.outcome import ComesTo, Outcome, came_of
from bot.thread.questions import TO_ANSWER
from bot.thread.tracking import TurnResult
from bot.tree import Metadata
from bot.turn import message_rows as messages
from bot.turn import notify, questions_left, waits_rows
from bot.turn.context import TurnContext
from bot.turn.kind import Kind, Post
from bot.turn.message_rows import Message
from bot.turn.messages import asked_in
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import Blocked, Wait

_log = structlog.get_logger()


async def stopped(run: TurnRun) -> TurnResult:
    """Return the end of a turn that was stopped, with the reason. Raises ClaimLostError."""
    if run.disk_full is not None:
        return TurnResult("failed", run.disk_full)
    reason = await run.write(turns.stop_requested, run.turn.claim)
    return TurnResult("stopped", reason or reasons.stopped_by(None))


@dataclass(frozen=True, slots=True)
class Ending:
    """A turn that ends, in whatever way. `added`: what its agent was told beside the request."""

    turn_id: int
    ask: Ask
    kind: Kind[TurnRun]
    thread_ref: ThreadRef
    worktree_id: int
    rules: Rules
    added: Sequence[Message] = ()
    post: Post | None = None
    """What posts the answer otherwise than as comments."""
    in_threads: Mapping[int, str] = field(default_factory=dict)
    """What is answered in the threads of inline comments, by the comment's id."""


async def tell_end(
    connection: Connection, ctx: TurnContext, turn: Ending, result: TurnResult, parts: Sequence[str]
) -> None:
    """Write the answer in these parts, the doorbell for the next turn and all else that follows from the end.

    For every turn that ran, in the transaction that ends it, so that whoever waits for its answer learns of the end.
    """
    turn_id, thread_ref = turn.turn_id, turn.thread_ref
    is_of_thread, is_done = bool(thread_ref.conversation_id), result.state == "done"
    if not is_of_thread:
        pass  # who asked looks
    elif turn.post is not None:
        await turn.post(connection, parts)
    else:
        also = [(message.turn_id, message.ask.target) for message in turn.added if message.joins == turn_id]
        at = (connection, thread_ref, turn_id, turn.ask.target)
        await thread_comments.ended(*at, parts, result.state, ctx.clock(), also=also)
    for comment, words in turn.in_threads.items():
        await thread_comments.answer_inline(connection, thread_ref, comment, words, turn.ask.by.id)
    if is_of_thread and is_done:
        await waits_rows.settle(connection, thread_ref.conversation_id)
    if ctx.notifies:
        await notify.of_end(connection, turn_id, result.state, is_asked=turn.kind.carry_out is None)
    if is_of_thread:
        await conversations.end_use(connection, thread_ref.conversation_id, turn.worktree_id)
    elif not turn.kind.makes:
        await conversations.release_worktree(connection, turn.worktree_id)
    if ctx.purge_on_success and is_done and turn.kind.carry_out is None:
        await conversations.release_worktree(connection, turn.worktree_id, "purged")
    await ring_for_work(connection, ctx.node)
    if is_of_thread:
        await ctx.verbs.at_end(connection, thread_ref.conversation_id, turn.rules)


async def finish(run: TurnRun, end: TurnResult) -> None:
    """End the turn of a run. Raises ClaimLostError."""
    ctx, turn = run.ctx, run.turn
    needed_no_agent = run.kind.agent != "always" and not run.progress.agent_began
    added = await run.write(messages.told, turn.id)
    answer = end.answer or (split_subject(run.answer)[0] if run.answer is not None else "")
    end = replace(
        end,
        answer=answer if end.review is not None or end.whole else run.kind.whole(run, answer),
        notices=tuple(dict.fromkeys(run.notices)),
        read=run.read,
        steps=tuple(run.progress.steps),
        cost_usd=run.progress.use.cost_usd,
        tokens=run.progress.use.tokens,
        model=run.progress.use.model or (None if needed_no_agent else ctx.rules.agent),
        asked=run.asked,
        added=tuple(asked_in(run, message) for message in added),
        duration=ctx.clock() - turn.started_at,
        check=run.check,
        check_output=run.check_output,
    )
    if end.state == "done" and TO_ANSWER in answer:
        asked, _ = await asyncio.to_thread(questions_left.read_left, ctx.home(turn.conversation.id))
        end = replace(end, boxes=asked)
    run.look_for_variables()
    # In a thread: a long answer takes seconds.
    result = await asyncio.to_thread(_without_secrets, end, ctx.redactor)
    result = await _news(run, result)
    parts = await asyncio.to_thread(tracking.final, result, server_url=ctx.server_url)
    post = await asyncio.to_thread(run.kind.post, run, result)
    in_threads = await asyncio.to_thread(_in_threads, run) if result.state == "done" else {}

    at = (turn.id, turn.ask, run.kind, run.thread_ref, turn.worktree.id, ctx.rules)
    outcome = _outcome(run, result)
    ending = Ending(*at, added, post, in_threads)

    async def write(connection: Connection) -> None:
        if result.whole and result.state == "done":
            await turns.save_answer(connection, turn.claim, result.answer, result.notices, ())
        reason = result.reason and plain(result.reason)
        await turns.end(connection, turn.claim, result.state, reason, result.notices, outcome.to_json())
        await tell_end(connection, ctx, ending, result, parts)

    # Before the end is written: after it the worktree may be removed at any moment.
    await asyncio.to_thread(_record_end, ctx, turn, result)
    await run.write(write)
    failpoints.reached("turn-end-written")
    for place in run.trashed:
        await trash.delete(place)
    await _delete_old_sessions(ctx)


async def _news(run: TurnRun, result: TurnResult) -> TurnResult:
    """Return the end without the standing facts that an earlier answer of the thread told."""
    if not run.is_of_thread:
        return result
    place, told, why = (run.turn.conversation.id, run.turn.id), list[str](), result.nothing and result.nothing.why
    for notice in result.notices:
        stands = notices.is_standing(notice) and notice != why
        if not (stands and await run.write(_told_last, *place, notice.partition(": `")[0]) == notice):
            told.append(notice)
    missed = tracking.not_all(run.read)
    knows = bool(missed) and await run.write(_was_read, *place, missed)
    return replace(result, notices=tuple(told), read=() if knows else result.read)


@statement("""
select notice from turns t, unnest(t.notices) as notice
where t.conversation_id = $1 and t.id < $2 and t.finished_at is not null and starts_with(notice, $3)
order by t.id desc limit 1
""")
async def _told_last(connection: Connection, conversation_id: int, turn_id: int, beginning: str) -> str | None:
    """Return the last notice of an earlier turn of the conversation that begins so."""


@statement("""
select 1 from turns where conversation_id = $1 and id < $2 and finished_at is not null and read @> $3::text[] limit 1
""")
async def _was_read(connection: Connection, conversation_id: int, turn_id: int, clauses: Sequence[str]) -> bool:
    """Return whether an earlier turn of the conversation told the same of what its agent did not get."""


def _outcome(run: TurnRun, end: TurnResult) -> Outcome:
    """Return what came of a turn, whose texts hold no secret any more."""
    kind = run.kind
    comes_to: ComesTo = "done" if kind.carry_out is not None else kind.comes_to
    claims = kind.agent != "always" or split_subject(run.answer or "")[1] is not None
    told = end.answer, end.changes, end.nothing, run.proved
    came = came_of(comes_to, *told, is_done=end.state == "done", claims=claims)
    return replace(came, pictures=run.pictures)


async def put_back(run: TurnRun, wait: Wait) -> bool:
    """Queue the turn again until a time and say so on the thread; False if it is to stop. Raises ClaimLostError."""
    ctx, turn, thread_ref, now = run.ctx, run.turn, run.thread_ref, run.ctx.clock()
    redact = run.ctx.redactor.redact
    why = wait.why
    blocked = why if isinstance(why, Blocked) else Blocked(reasons.waits(why, wait.until, now, wait.step))
    words = redact(blocked.words)
    told = tuple(map(redact, dict.fromkeys(run.notices)))

    async def write(connection: Connection) -> bool:
        if not await turns.put_back(
            connection,
            turn.claim,
            plain(words),
            wait.until,
            now,
            wait.since,
            told,
            goes_on=wait.step != "start",
            blocked_by=blocked.by or None,
            asks=blocked.asks,
        ):
            return False
        if blocked.asks and ctx.notifies and turn.so_far.asks_since is None:
            await notify.of_question(connection, turn.id)
        if wait.holds_writer:
            await outbox.pause_writer(connection, thread_ref.repository.writer, wait.until)
        if run.is_of_thread:
            await thread_comments.track(connection, thread_ref, turn.id, turn.ask.target, tracking.waiting(words))
        return True

    return await run.write(write)


async def hand_back(run: TurnRun) -> None:
    """Requeue the turn: this process stops, and another run continues it."""
    turn, words = run.turn, tracking.HANDED_BACK
    async with run.ctx.pool.acquire() as connection, connection.transaction():
        if await turns.requeue(connection, turn.claim) and run.is_of_thread:
            await thread_comments.track(connection, run.thread_ref, turn.id, turn.ask.target, words)
            _log.info("turn-requeued")


def _in_threads(run: TurnRun) -> dict[int, str]:
    """Return what the agent answers in the threads of inline comments, made harmless, by the comment's id."""
    found = {}
    for saved in run.thread_answers:
        comment, _, words = saved.partition(" ")
        parts, _ = answer_parts(words, server_url=run.ctx.server_url)
        found[int(comment)] = parts[0]
    return found


def _without_secrets(result: TurnResult, redactor: Redactor) -> TurnResult:
    """Return the end of a turn as it is stored and shown: no text of the agent, of git or of GitHub holds a secret."""
    redact = redactor.public
    return replace(
        result,
        reason=result.reason and redact(result.reason),
        answer=redact(result.answer),
        whole=redact(result.whole),
        changes=redact(result.changes) if isinstance(result.changes, str) else result.changes,
        nothing=result.nothing and replace(result.nothing, why=redact(result.nothing.why)),
        notices=tuple(map(redact, result.notices)),
        steps=tuple(map(redact, result.steps)),
        read=tuple(map(redact, result.read)),
        last_words=redact(result.last_words),
        boxes=redact(result.boxes),
        check=redact(result.check),
        check_output=redact(result.check_output),
    )


def _record_end(ctx: TurnContext, turn: ClaimedTurn, end: TurnResult) -> None:
    """Count the run and its error in the worktree's metadata. A failure to do so is only logged."""
    path = ctx.directory(turn.worktree.path)
    known = Metadata.read(path)
    if not isinstance(known, Metadata) or known.id != str(turn.worktree.id):
        return
    error = None if end.state == "done" or end.reason is None else plain(end.reason)
    updated = replace(known, updated_at=ctx.clock(), execution_count=known.execution_count + 1, last_error=error)
    try:
        updated.write(path)
    except OSError as problem:
        _log.warning("metadata-not-written", path=turn.worktree.path, problem=str(problem))


async def _delete_old_sessions(ctx: TurnContext) -> None:
    """Delete ended sessions past their time. A failure to do so is only logged: a timer does it too."""
    try:
        async with ctx.pool.acquire() as connection:
            await conversations.delete_old_sessions(connection, ctx.session_ttl_seconds, ctx.clock())
    except (*DATABASE_AWAY, PostgresError) as problem:
        _log.warning("sessions-not-deleted", problem=type(problem).__name__)
