"""A turn that only plans: when it is one, and that it changed nothing."""

from dataclasses import replace

import structlog

from bot.handlers.plan import asks_back, is_open
from bot.rules import RequirePlan
from bot.store import plans
from bot.thread import plans as words
from bot.thread.questions import TO_ANSWER
from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import look_at
from bot.tree.clone.status import Change
from bot.turn.confirm import Confirmed, may_all_ask
from bot.turn.turn_run import TurnRun

_log = structlog.get_logger()
Seen = tuple[str | None, tuple[tuple[Change, int, int], ...]]
"""The commit of a worktree, and what differs from it: each file with its time and size."""


async def settle_mode(run: TurnRun, confirmed: Confirmed) -> None:
    """Let a turn that works only plan, where its words or the repository's rules want that; say why.

    What answers the question of a plan is planned too; what was approved is carried out, and so are commands. Raises
    ClaimLostError, GitHubError.
    """
    ctx, turn, rule = run.ctx, run.turn, run.ctx.rules.require_plan
    if turn.mode not in ("work", "plan") or turn.plan_of is not None:
        return
    before = await plans.newest(ctx.pool, turn.conversation_id, turn.id)
    follows = before if before is not None and is_open(before) else None
    plans_anyway = turn.mode == "plan" or confirmed.plans or (follows is not None and asks_back(follows))
    if rule == "never" and not plans_anyway:
        return
    by_outsider = not await may_all_ask(ctx, turn, confirmed.authors)
    why = _why_required(rule, by_outsider=by_outsider, follows_plan=follows is not None)
    if why is None and not plans_anyway:
        return
    await run.write(plans.begin, turn.claim, by_outsider=by_outsider)
    run.turn = replace(turn, mode="plan")
    run.notices += [why] if why is not None and not confirmed.plans else []


def _why_required(rule: RequirePlan, *, by_outsider: bool, follows_plan: bool) -> str | None:
    """Return why a request is planned first: who may ask goes on from an open plan in words of their own."""
    if rule == "never":
        return None
    if by_outsider:
        return words.REQUIRED_FOR_OUTSIDERS
    return words.REQUIRED_FOR_ALL if rule == "always" and not follows_plan else None


async def files_seen(run: TurnRun) -> Seen | None:
    """Return what a turn that plans or reviews could change; None where its sandbox lets it change nothing.

    Raises GitError, OSError.
    """
    ctx, row = run.ctx, run.turn.worktree
    if run.turn.mode == "work" or ctx.git.cage.isolates:
        return None
    found = await look_at(ctx.clone(row.folder), ctx.directory(row.path))
    if isinstance(found, Missing):
        return None, ()
    files = []
    for change in await found.changes():
        try:
            stat = (found.path / change.name).lstat()
            files.append((change, stat.st_mtime_ns, stat.st_size))
        except OSError:
            files.append((change, 0, 0))
    return found.head.commit, tuple(files)


async def tell_of_plan(run: TurnRun, answer: str, before: Seen | None) -> None:
    """Say what can be done with the plan, and whether files changed although it is one. Raises GitError, OSError."""
    if TO_ANSWER not in answer:
        by_outsider = await plans.is_by_outsider(run.ctx.pool, run.turn.id)
        run.notices.append(words.PLANNED_FOR_OUTSIDER if by_outsider else words.PLANNED)
    if before is not None and await files_seen(run) != before:
        _log.warning("plan-changed-files", worktree=run.turn.worktree.path)
        run.notices.append(words.CHANGED_ALL_THE_SAME)
