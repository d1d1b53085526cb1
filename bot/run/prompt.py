"""The prompt of a turn: fetch what it needs, then build it."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace

from bot.messages.commit_message import is_conventional
from bot.prompt.builder import Prompt, Task, build_prompt
from bot.prompt.collect import Collected, collect
from bot.prompt.instructions import read_instructions
from bot.prompt.selection import Scope
from bot.run.checkout import Ready
from bot.run.context import TurnContext
from bot.run.publishing import recent_subjects
from bot.store import turns
from bot.store.turns import ClaimedTurn


async def fetch_thread(ctx: TurnContext, turn: ClaimedTurn) -> Collected | None:
    """Return the thread without the request itself and without the bot's own comments, or None. Never raises for it."""
    collected = await collect(ctx.github, turn.worktree.repository, turn.number)
    if collected is None:
        return None
    said = [
        text
        for text in collected.thread.comments
        if text.id != turn.target.id and not ctx.policy.is_own(text.author, text.body)
    ]
    thread = replace(collected.thread, comments=tuple(said))
    return Collected(thread, collected.writers | {ctx.policy.bot_id})


async def prompt_of(
    ctx: TurnContext,
    turn: ClaimedTurn,
    ready: Ready,
    remarks: Sequence[str],
    fetched: Collected | None,
    session: int | None,
) -> Prompt:
    """Return the prompt. `session` is the resumed session's id, None for a new one. Raises GitError."""
    async with ctx.pool.acquire() as connection:
        since = await turns.last_read_in(connection, session, turn.id) if session is not None else None
        answers = await turns.earlier_answers(connection, turn) if session is None else ()
    clone = ctx.clone(turn.worktree.folder)
    task = Task(
        nonce=secrets.token_hex(4),
        author=turn.requested_by,
        thread=f"{turn.worktree.repository.full_name}#{turn.number}",
        kind=turn.kind,
        branch=ready.branch,
        request=turn.request,
        code_context=turn.context,
        remarks=tuple(remarks),
        resuming=turn.resuming,
        conventional_commits=is_conventional(await recent_subjects(clone, turn.worktree)),
        instructions=await read_instructions(clone, turn.worktree.repository.default_branch, ready.head, ctx.agent),
        earlier_answers=answers,
    )
    scope = Scope(
        asked_at=turn.asked_at,
        is_public=fetched is None or fetched.thread.is_public,
        writers=fetched.writers if fetched else frozenset(),
        include_outsiders=ctx.include_outsiders,
        since=since,
    )

    def build() -> Prompt:
        prompt = build_prompt(task, fetched.thread if fetched else None, scope)
        *context, request = prompt.blocks
        # Only the bot's own secrets are left out of the request: it may be about tokens.
        redacted = (*map(ctx.redactor.redact, context), ctx.redactor.redact_known(request))
        return replace(prompt, blocks=redacted)

    # In a thread: a long Markdown text takes the parser seconds.
    return await asyncio.to_thread(build)
