"""What differs between the kinds of turns. The run asks the kind, and names none (`bot.turn.turn`)."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from bot.github.errors import GitHubError
from bot.store import turns
from bot.store.fixes import chosen as chosen_autofix
from bot.store.plans import is_by_outsider
from bot.store.turns import ClaimedTurn
from bot.thread import fixes, notices
from bot.thread.commit_message import split_subject
from bot.thread.reviews import CHANGED_ALL_THE_SAME
from bot.thread.tracking import Changes, TurnResult
from bot.tree.git import refs
from bot.tree.git.errors import GitError
from bot.turn import review
from bot.turn.checkout import Ready
from bot.turn.plan import Seen, files_seen, tell_of_plan
from bot.turn.turn_run import TurnRun
from bot.turn.undo import take_back
from bot.turn.update import merge_base, not_merged


async def _no(run: TurnRun) -> bool:
    return False


async def _nothing(run: TurnRun, ready: Ready) -> None:
    return None


async def _nothing_to_say(run: TurnRun, ready: Ready, changes: Changes | str | None, told: Sequence[str]) -> None:
    return None


async def _told(run: TurnRun, answer: str, seen: Seen | None) -> TurnResult:
    return TurnResult("done", answer=split_subject(answer)[0])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of turn. `agent`: whether it asks one. `writes`: what it changed is committed and pushed.

    `of_outsider`: somebody without write access has a say in it. `may_begin` returns why it is refused by now, `begin`
    an answer for which no agent is needed, or the end. `answered` ends a turn that does not write; `published` says
    what is to be said after a push.
    """

    agent: Literal["always", "perhaps", "never"] = "always"
    writes: bool = True
    of_outsider: Callable[[TurnRun], Awaitable[bool]] = _no
    may_begin: Callable[[TurnRun, Ready], Awaitable[str | None]] = _nothing
    begin: Callable[[TurnRun, Ready], Awaitable[str | TurnResult | None]] = _nothing
    answered: Callable[[TurnRun, str, Seen | None], Awaitable[TurnResult]] = _told
    published: Callable[[TurnRun, Ready, Changes | str | None, Sequence[str]], Awaitable[None]] = _nothing_to_say


async def _of_plan(run: TurnRun) -> bool:
    return run.turn.plan_of is not None and await is_by_outsider(run.ctx.pool, run.turn.plan_of)


async def _planned(run: TurnRun, answer: str, seen: Seen | None) -> TurnResult:
    text, _ = split_subject(answer)
    await tell_of_plan(run, text, seen)
    return TurnResult("done", answer=text)


async def _reviewed(run: TurnRun, answer: str, seen: Seen | None) -> TurnResult:
    if seen is not None and await files_seen(run) != seen:
        run.notices.append(CHANGED_ALL_THE_SAME)
    if run.review is None:
        return await _told(run, answer, seen)
    resolved = await review.resolve(run.ctx, run.thread_ref, run.review)
    web = f"{run.ctx.server_url}/{run.turn.worktree.repository.full_name}"
    return TurnResult("done", answer=answer, review=review.result_of(web, run.review, resolved))


async def _updated(run: TurnRun, ready: Ready, changes: Changes | str | None, told: Sequence[str]) -> None:
    if run.progress.agent_began and not told:
        with suppress(GitError, GitHubError):
            run.notices += await not_merged(run, ready)


async def _goes_on_with_others(run: TurnRun) -> bool:
    told = (run.turn.conversation_id, run.turn.id, notices.VARIABLES_WITHHELD)
    return await run.write(turns.was_told, *told)


async def _mends_no_more(run: TurnRun, ready: Ready) -> str | None:
    """Return why a turn that waited is not to mend the checks of its commit by now. Raises GitError, GitHubError."""
    ctx, turn, branch, head = run.ctx, run.turn, ready.branch, run.turn.mends or ""
    clone, repository = ctx.clone(turn.worktree.folder), turn.worktree.repository
    if not branch or await clone.commit_at(refs.remote(branch)) != head:
        return fixes.moved_on(head)
    if turn.retry_of is not None:  # a person asks
        return None
    if not ctx.rules.mends(await chosen_autofix(ctx.pool, turn.conversation_id)):
        return fixes.SWITCHED_OFF
    return None if any(one.is_open for one in await ctx.github.pulls_of(repository, branch)) else fixes.NOT_OPEN


async def _mended(run: TurnRun, ready: Ready, changes: Changes | str | None, told: Sequence[str]) -> None:
    if changes is None:
        run.notices.append(fixes.NOTHING_PUSHED)


_KINDS = {
    "work": Kind(of_outsider=_of_plan),
    "plan": Kind(writes=False, answered=_planned),
    "review": Kind(writes=False, answered=_reviewed),
    "undo": Kind(agent="never", begin=take_back),
    "update": Kind(agent="perhaps", begin=merge_base, published=_updated),
}
_FIX = Kind(of_outsider=_goes_on_with_others, may_begin=_mends_no_more, published=_mended)


def kind_of(turn: ClaimedTurn) -> Kind:
    """Return the kind of a turn; that of one that works can change to a plan until its agent begins."""
    return _FIX if turn.mends is not None else _KINDS[turn.mode]
