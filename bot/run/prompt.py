"""The prompt of a turn: fetch what it needs, then build it."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bot.agents.driver import Block, Image
from bot.github.thread import Text, Thread
from bot.github.thread_parts import Moment
from bot.github.uploads import Uploads
from bot.messages.commit_message import is_conventional
from bot.prompt import attachments
from bot.prompt.attachments import MOST_IMAGES_SHOWN, Fetched, Link, Source
from bot.prompt.builder import Attachment, Task, build_prompt
from bot.prompt.collect import Collected, collect
from bot.prompt.hidden import strip_hidden
from bot.prompt.instructions import read_instructions
from bot.prompt.selection import Scope, select, select_description
from bot.run.checkout import Ready
from bot.run.context import TurnContext
from bot.run.publishing import recent_subjects
from bot.store import turns
from bot.store.turns import ClaimedTurn


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the agent is sent, the request last; for people, what it was given to read; whether that is all there is."""

    blocks: tuple[Block, ...]
    read: tuple[str, ...]
    whole_thread: bool


async def read_thread(ctx: TurnContext, turn: ClaimedTurn) -> Collected | None:
    """Read the thread on GitHub as it was when the turn was asked for.

    None if it cannot be read, or the agent is done already.
    """
    if turn.answer is not None:
        return None
    moment = Moment(turn.asked_at, ctx.policy.bot_id, turn.pinned_sha)
    return await collect(ctx.github, turn.worktree.repository, turn.number, moment)


async def make_prompt(
    ctx: TurnContext,
    turn: ClaimedTurn,
    ready: Ready,
    session: int | None,
    collected: Collected | None,
) -> Prompt:
    """Return the prompt with the thread that was `collected`; what could not be read is named in it.

    `session` is the resumed session's id, None for a new one. Raises GitError.
    """
    async with ctx.pool.acquire() as connection:
        since = await turns.last_read_in(connection, session, turn.id) if session is not None else None
        answers = await turns.earlier_answers(connection, turn, since)
    scope = Scope(
        asked_at=turn.asked_at,
        is_public=collected is None or collected.thread.is_public,
        writers=collected.writers | {ctx.policy.bot_id} if collected else frozenset(),
        include_outsiders=ctx.include_outsiders,
        since=since,
    )
    thread, fetched = None, Fetched()
    if collected is not None:
        thread = _without_request_and_bot(ctx, turn, collected.thread)
        asked = next((text for text in collected.thread.comments if text.id == turn.target.id), thread.description)
        fetched = await _attachments(ctx, turn, asked.node_id, thread, scope)
    clone, default_branch = ctx.clone(turn.worktree.folder), turn.worktree.repository.default_branch
    changed = [file.path for file in thread.pull.files] if thread is not None and thread.pull is not None else []
    instructions = await read_instructions(clone, default_branch, ready.head, ctx.agent, changed, since)
    task = Task(
        nonce=secrets.token_hex(4),
        author=turn.requested_by,
        thread=f"{turn.worktree.repository.full_name}#{turn.number}",
        kind=turn.kind,
        branch=ready.branch,
        request=turn.request,
        code_context=turn.context,
        remarks=ready.remarks,
        resuming=turn.resuming,
        conventional_commits=is_conventional(await recent_subjects(clone, turn.worktree)),
        instructions=instructions,
        earlier_answers=answers,
        attachments=fetched.saved,
        unfetched=fetched.left_out,
    )

    def build() -> tuple[tuple[str, ...], tuple[str, ...]]:
        (*context, request), read = build_prompt(task, thread, scope)
        # Only the bot's own secrets are left out of the request: it may be about tokens.
        return (*map(ctx.redactor.redact, context), ctx.redactor.redact_known(request)), read

    # In a thread: a long Markdown text takes the parser seconds.
    blocks, read = await asyncio.to_thread(build)
    whole = thread is not None and not thread.missing
    return Prompt((*blocks[:-1], *_images(fetched.saved), blocks[-1]), read, whole)


def _without_request_and_bot(ctx: TurnContext, turn: ClaimedTurn, thread: Thread) -> Thread:
    """Leave out the request itself, which stands at the end, and the bot's comments: its answers are in the rows."""

    def own(text: Text) -> bool:
        return ctx.policy.is_own(text.author, text.body)

    asked = {turn.target.id, *(abs(part) for part in turn.review_parts)}

    def without(texts: Sequence[Text]) -> tuple[Text, ...]:
        return tuple(text for text in texts if text.id not in asked and not own(text))

    pull, description = thread.pull, thread.description
    if turn.target.id is None:  # the thread's own text is the request
        description = replace(description, body="")
    if pull is not None:
        threads = [replace(one, comments=without(one.comments)) for one in pull.review_threads]
        pull = replace(pull, review_threads=tuple(one for one in threads if one.comments))
    return replace(thread, description=description, comments=without(thread.comments), pull=pull)


async def _attachments(ctx: TurnContext, turn: ClaimedTurn, asked: str | None, thread: Thread, scope: Scope) -> Fetched:
    """Save what is attached to the request (GitHub's id of it: `asked`) and to the texts that the agent may read."""
    repository = turn.worktree.repository
    uploads = Uploads(ctx.server_url, repository, is_public=thread.is_public)

    def links() -> tuple[Link, ...]:
        sources = [Source("the request", strip_hidden(turn.request), asked)]
        sources += [
            Source("the description", text.body, text.node_id)
            for text in select_description(thread.description, scope).texts
        ]
        sources += [
            Source(f"the description of #{linked.number}", text.body, text.node_id)
            for linked in thread.linked
            if linked.kind == "issue" and scope.since is None
            for text in select_description(linked.description, scope).texts
        ]
        sources += [
            Source(f"a comment of @{text.author.login}", text.body, text.node_id)
            for text in reversed(select(thread.comments, scope).texts)
        ]
        sources += [
            Source(f"a review comment of @{text.author.login}", text.body, text.node_id)
            for one in reversed(thread.pull.review_threads if thread.pull else ())
            for text in reversed(select(one.comments, scope).texts)
        ]
        return attachments.find_links(sources, uploads)

    found = await asyncio.to_thread(links)
    if not found:
        return Fetched()
    folder = ctx.attachments / str(turn.id)
    return await attachments.fetch(ctx.github, repository, found, uploads, folder, ctx.redactor)


def _images(saved: Sequence[Attachment]) -> list[Image]:
    shown = [Image(Path(one.path), one.media_type) for one in saved if one.media_type is not None]
    return shown[:MOST_IMAGES_SHOWN]
