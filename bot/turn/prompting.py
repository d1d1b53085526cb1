"""The prompt of a turn: fetch what it needs, then build it."""

import asyncio
import secrets
from collections.abc import Awaitable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

from bot.agents.driver import Block, Image
from bot.ask import Ask
from bot.github.thread import Text, WholeThread
from bot.github.thread_parts import Moment
from bot.github.uploads import Uploads
from bot.markdown import MarkdownError
from bot.prompt import attachments
from bot.prompt.attachments import MOST_IMAGES_SHOWN, Fetched, Source
from bot.prompt.builder import Attachment, Built, Task, build_prompt
from bot.prompt.collect import Collected, collect
from bot.prompt.foreign import Fence
from bot.prompt.hidden import strip_hidden
from bot.prompt.instructions import read_instructions
from bot.prompt.selection import Scope, select, select_description
from bot.store import turns
from bot.store.turns import ClaimedTurn
from bot.thread import notices, tracking
from bot.thread.commit_message import is_conventional, split_subject
from bot.turn import message_rows as messages
from bot.turn import skills
from bot.turn.context import TurnContext
from bot.turn.kind import Ready
from bot.turn.parsing import CommentParser
from bot.turn.publishing import recent_subjects
from bot.turn.pull_request import asked_of_agent
from bot.turn.turn_run import TurnRun


async def read_thread(ctx: TurnContext, turn: ClaimedTurn) -> Collected | None:
    """Read the thread on GitHub as it was when the turn, or the plan that it carries out, was asked for.

    None if it cannot be read, or there is no agent to tell.
    """
    if turn.so_far.answer is not None or ctx.verbs.kind_of(turn.ask).agent == "never":
        return None
    # Nobody is told what is read here unless the person who asks may write (`bot.turn.confirm`); a bot need not.
    writer = turn.ask.by.id if turn.ask.by.id not in ctx.policy.allowed_bots else None
    moment = Moment(turn.ask.as_of or turn.ask.at, ctx.policy.bot_id, turn.ask.pinned_sha, writer)
    failed = ctx.verbs.kind_of(turn.ask).failed_checks(turn.ask)
    return await collect(ctx.github, turn.worktree.repository, turn.conversation.number, moment, failed)


async def make_prompt(
    run: TurnRun, ready: Ready, thread_read: Awaitable[Collected | None], session: int | None
) -> tuple[Block, ...]:
    """Return what the agent is sent, once the thread was read, the request last. What was given is recorded.

    `session` is the resumed session's id, None for a new one. Raises GitError, ClaimLostError, NotConfirmedError.
    """
    ctx, turn = run.ctx, run.turn
    run.progress.enter(tracking.READING)
    collected = await thread_read
    since = await turns.last_read_in(ctx.pool, session, turn.id) if session is not None else None
    known = turn.worktree.id, turn.id, turn.conversation.id
    answers = await turns.earlier_answers(ctx.pool, *known, since)
    scope = Scope(
        asked_at=turn.ask.as_of or turn.ask.at,
        is_public=collected is None or collected.thread.is_public,
        writers=collected.writers | {ctx.policy.bot_id} if collected else frozenset(),
        include_outsiders=ctx.include_outsiders,
        since=since,
        without_commands=partial(_without_commands, ctx.parser),
    )
    thread, fetched, brief = None, Fetched(), await run.kind.brief(run, ready, collected)
    if collected is not None:
        known_already = await messages.told_in(ctx.pool, session) if session is not None else set()
        thread = _without_request_and_bot(ctx, turn, collected.thread, known_already)
        asked = next((text for text in collected.thread.comments if text.id == turn.ask.target.id), thread.description)
        fetched = await _attachments(ctx, turn, asked.node_id, thread, scope)
    clone, default_branch = ctx.clone(turn.worktree.folder), turn.worktree.repository.default_branch
    changed = [file.path for file in thread.pull.files] if thread is not None and thread.pull is not None else []
    rules = ctx.rules
    instructions = await read_instructions(
        clone, default_branch, ready.head, rules.agent, changed, since, rules.instructions
    )
    conventional = is_conventional(await recent_subjects(clone, turn.worktree))
    fence = Fence(secrets.token_hex(4))
    task = Task(
        nonce=fence.nonce,
        author=turn.ask.by.login,
        thread=f"{turn.worktree.repository.full_name}#{turn.conversation.number}",
        kind=turn.conversation.kind,
        branch=ready.branch,
        request=turn.ask.text,
        code_context=turn.ask.context,
        remarks=(*ready.remarks, *brief.remarks),
        resuming=turn.so_far.resuming,
        conventional_commits=conventional,
        description=await asked_of_agent(run, ready, fence, conventional=conventional),
        instructions=instructions,
        earlier_answers=tuple((number, split_subject(answer)[0]) for number, answer in answers),
        attachments=fetched.saved,
        unfetched=fetched.left_out,
        added=tuple((message.ask.by.login, message.ask.text) for message in run.messages),
        brief=brief,
        # In the thread of the comment that asks comes the answer to the request.
        asked_inline=frozenset(part for part in _parts(turn.ask) if part > 0 and part != turn.ask.target.id),
    )

    def build() -> Built:
        built = build_prompt(task, thread, scope)
        *context, request = built.blocks
        # Only the bot's own secrets are left out of the request: it may be about tokens.
        blocks = (*map(ctx.redactor.redact, context), ctx.redactor.redact_known(request))
        return built._replace(blocks=blocks)

    # In a thread: a long Markdown text takes the parser seconds.
    blocks, read, run.inline = await asyncio.to_thread(build)
    run.notices += [] if read else [notices.THREAD_NOT_READ]
    if read:
        laid = await skills.find(clone, default_branch)
        read = (*read, *await skills.clauses(ctx.pool, laid, turn.conversation.id, turn.id))
    run.read = read
    is_whole = thread is not None and not thread.missing and turn.ask.as_of is None
    await run.write(turns.record_read, turn.claim, read, whole_thread=is_whole)
    return (*blocks[:-1], *_images(fetched.saved), blocks[-1])


def _parts(ask: Ask) -> tuple[int, ...]:
    return ask.review.parts if ask.review is not None else ()


def _without_commands(parser: CommentParser, text: str) -> str:
    try:
        return parser.rest_of(text)
    except MarkdownError:
        return text


def _without_request_and_bot(ctx: TurnContext, turn: ClaimedTurn, thread: WholeThread, known: Set[int]) -> WholeThread:
    """Leave out the request itself, which stands at the end, and the bot's comments: its answers are in the rows.

    Comments that the agent was told already are left out too: the `known` ones.
    """

    def own(text: Text) -> bool:
        return ctx.policy.is_own(text.author, text.body)

    asked = {turn.ask.target.id, *map(abs, _parts(turn.ask))}

    def without(texts: Sequence[Text]) -> tuple[Text, ...]:
        return tuple(text for text in texts if text.id not in asked and text.id not in known and not own(text))

    pull, description = thread.pull, thread.description
    if turn.ask.target.id is None:  # the thread's own text is the request
        description = replace(description, body="")
    if pull is not None:
        unresolved = [one for one in pull.review_threads if not one.is_resolved]
        threads = [replace(one, comments=without(one.comments)) for one in unresolved]
        pull = replace(pull, review_threads=tuple(one for one in threads if one.comments))
    return replace(thread, description=description, comments=without(thread.comments), pull=pull)


async def _attachments(
    ctx: TurnContext, turn: ClaimedTurn, asked: str | None, thread: WholeThread, scope: Scope
) -> Fetched:
    """Save what is attached to the request (GitHub's id of it: `asked`) and to the texts that the agent may read."""
    repository = turn.worktree.repository
    uploads = Uploads(ctx.server_url, repository, is_public=thread.is_public)

    found = await asyncio.to_thread(lambda: attachments.find_links(_sources(turn, asked, thread, scope), uploads))
    if not found:
        return Fetched()
    folder = ctx.attachments / str(turn.id)
    return await attachments.fetch(ctx.github, repository, found, uploads, folder, ctx.redactor)


def _sources(turn: ClaimedTurn, asked: str | None, thread: WholeThread, scope: Scope) -> Iterator[Source]:
    """Yield the texts that the agent may read, the most important first."""
    yield Source("the request", strip_hidden(turn.ask.text), asked)
    described = [("the description", thread.description)]
    if scope.since is None:
        described += [
            (f"the description of #{linked.number}", linked.description)
            for linked in thread.linked
            if linked.kind == "issue"
        ]
    for name, description in described:
        for text in select_description(description, scope).texts:
            yield Source(name, text.body, text.node_id)
    said = [("a comment", thread.comments)]
    said += [("a review comment", one.comments) for one in reversed(thread.pull.review_threads if thread.pull else ())]
    for name, texts in said:
        for text in reversed(select(texts, scope).texts):
            yield Source(f"{name} of @{text.author.login}", text.body, text.node_id)


def _images(saved: Sequence[Attachment]) -> list[Image]:
    shown = [Image(Path(one.path), one.media_type) for one in saved if one.media_type is not None]
    return shown[:MOST_IMAGES_SHOWN]
