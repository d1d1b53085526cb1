"""`/review`, a label or a request for review: an agent leaves remarks on the lines of a pull request."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from bot.github.answers import OwnReview
from bot.prompt.builder import Brief
from bot.prompt.collect import Collected
from bot.store.database import Connection
from bot.thread import replies, thread_comments, tracking
from bot.thread.outbox import REVIEW as POSTED
from bot.thread.tracking import TurnResult
from bot.turn.checkout import files_seen
from bot.turn.kind import Kind, Post, Ready, Seen
from bot.turn.parsing import REVIEW as WORDS
from bot.turn.request import Handler, RequestContext, Verb
from bot.turn.turn_run import TurnRun
from bot.verbs.review import left, opened, told, words
from bot.verbs.review.left import SAVED, Reviewing, SavedReview


async def _brief(run: TurnRun, ready: Ready, thread: Collected | None) -> Brief:
    pull = thread.thread.pull if thread is not None else None
    run.subject = subject = await left.reviewing(run.ctx, run.turn, pull, run.turn.ask.pinned_sha or ready.head)
    elsewhere = subject.pull.head_sha != ready.head
    run.notices += [words.OTHER_FILES] if elsewhere else []
    return told.brief(subject.task, elsewhere=elsewhere)


async def _take(run: TurnRun, answer: str, answered: Collection[int]) -> str:
    """Return the text of the review; the rest is kept with it. Without a subject the agent was told of none."""
    if not isinstance(run.subject, Reviewing):
        return answer
    text, saved, said = await left.take(run.ctx, run.turn, run.subject, answer, answered)
    run.kept, run.notices = SAVED.dump_json(saved).decode(), [*run.notices, *said]
    return text


def _saved(run: TurnRun) -> SavedReview | None:
    return SAVED.validate_json(run.kept) if run.kept is not None else None


async def _answered(run: TurnRun, answer: str, seen: Seen | None) -> TurnResult:
    if seen is not None and await files_seen(run) != seen:
        run.notices.append(words.CHANGED_ALL_THE_SAME)
    if (saved := _saved(run)) is None:
        return TurnResult("done", answer=answer)
    resolved = await left.resolve(run.ctx, run.thread_ref, saved)
    web = f"{run.ctx.server_url}/{run.turn.worktree.repository.full_name}"
    return TurnResult("done", answer=answer, review=left.result_of(web, saved, resolved))


def _whole(run: TurnRun, answer: str) -> str:
    saved = _saved(run)
    return words.with_remarks(answer, saved.remarks) if saved is not None else answer


def _post(run: TurnRun, result: TurnResult) -> Post | None:
    """Post it as a review. Where GitHub takes none, its text with all remarks is posted."""
    if result.review is None or (saved := _saved(run)) is None:
        return None
    whole = tracking.final(replace(result, answer=_whole(run, result.answer)), server_url=run.ctx.server_url)
    posted = POSTED.dump_json(OwnReview(saved.head, saved.remarks, whole[0])).decode()

    async def post(connection: Connection, parts: Sequence[str]) -> None:
        await thread_comments.reviewed(connection, run.thread_ref, run.turn.id, run.turn.ask.target, parts[0], posted)

    return post


REVIEW = Kind(
    "review",
    only_on_pulls=replies.NOTHING_TO_REVIEW,
    gesture_says=WORDS,
    tells_dirty=False,  # it is of what is on GitHub
    writes=False,
    brief=_brief,
    take=_take,
    answered=_answered,
    whole=_whole,
    post=_post,
    comes_to="review",
)


async def _nothing(ctx: RequestContext, _: str | None) -> None:
    await ctx.reply(replies.NOTHING_TO_REVIEW)


COMMAND = Handler(
    "review",
    lambda text: (text or None, ""),
    summary=replies.REVIEW_SUMMARY,
    run=_nothing,
    asks="review",
    stands_alone=True,
)
VERB = Verb(commands=(COMMAND,), kinds=(REVIEW,), kind_of=opened.kind_of, at_opening=opened.at_opening)
