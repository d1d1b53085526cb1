"""After the agent: commit what it left, prove it, push the worktree's branch, and end the turn with its answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import assert_never

import structlog

from bot import refs
from bot.github.client import CLASSIC
from bot.model import DetachedHead, WorktreeRow
from bot.node.transactions import persist
from bot.node.variables import values_of
from bot.store import turns
from bot.store.turns import ClaimedTurn
from bot.tasks import concurrently
from bot.thread import commit_message, links, notices, tracking
from bot.thread.outcome import NO_CHANGE, Nothing
from bot.thread.tracking import Changes, TurnResult
from bot.tree import Clone, Committed, Guard, Identity, OpenTree, Push, RescueLabel, StoppedError
from bot.turn.confirm import NotConfirmedError, confirm
from bot.turn.context import TurnContext
from bot.turn.kind import Ready, Seen
from bot.turn.proof import Proof
from bot.turn.pull_request import pull_request_of, pulls_while_pushed
from bot.turn.turn_run import TurnRun
from bot.turn.variables import give_variables

_log = structlog.get_logger()

NOREPLY_HOST = "users.noreply"
"""https://docs.github.com/account-and-profile/reference/email-addresses-reference#your-noreply-email-address"""


async def deliver(run: TurnRun, ready: Ready, answer: str, seen: Seen | None) -> TurnResult:
    """Commit and push what a turn that works changed. Raises StoppedError if a stop was accepted before the push.

    `seen` are the files before a turn that does not write.
    """
    if run.turn.so_far.answer is not None and values_of(run.ctx.data_dir, run.turn.worktree.repository):
        # The agent had them in an earlier run, and the check needs them too.
        with suppress(NotConfirmedError):
            await give_variables(run, await confirm(run.ctx, run.turn))
    turn = run.turn
    text, subject = commit_message.split_subject(answer)
    if await run.write(turns.stop_requested, turn.claim) is not None:
        raise StoppedError
    kind = run.kind
    if not kind.writes:
        return await kind.answered(run, answer, seen)
    may_go = asyncio.Event()
    async with concurrently(pulls_while_pushed(run, ready.branch, may_go)) as pulls:
        changes, nothing = await publish(run, ready, Proof(run, ready, subject), may_go)
        if isinstance(changes, Changes):
            may_go.set()
            changes = replace(changes, pull_request=await pull_request_of(run, ready, changes, pulls))
    claims = subject is not None
    run.notices += [nothing.why] if nothing is not None and (nothing.held or claims) else []
    await kind.published(run, ready, changes, nothing)
    said = commit_message.split_subject(run.answer or text)[0]
    return TurnResult("done", answer=said, changes=changes, nothing=nothing)


async def guard_of(ctx: TurnContext, turn: ClaimedTurn, ready: Ready, branch: str) -> Guard:
    """Return the rules for a push, as GitHub has them now: its default branch, and the rules of the branch. Raises
    GitHubError.
    """
    known = turn.worktree.repository
    # One that GitHub does not have is not protected there.
    is_there = await ctx.clone(turn.worktree.folder).tip(branch) is not None
    async with concurrently(ctx.github.as_named_now(known)) as asking:
        rules = await ctx.github.branch_rules(known, branch, is_there=is_there)
        default = (await asking).default_branch
    bases = dict.fromkeys(filter(None, (ready.base_branch, default)))
    protected = {*bases, branch} if CLASSIC in rules else {*bases}
    if ctx.signing.how != "off":
        rules -= {"required_signatures"}  # GitHub judges the signatures
    return Guard(frozenset(protected), ctx.redactor, tuple(bases), ctx.allow_workflow_changes, rules)


async def publish(
    run: TurnRun, ready: Ready, proof: Proof, may_go: asyncio.Event
) -> tuple[Changes | str | None, Nothing | None]:
    """Commit, check and push; return what changed, or a patch of it, and why nothing was pushed.

    `may_go` is set once the push may go. Raises StoppedError if a stop was accepted before the push, ClaimLostError,
    GitError, GitHubError, OSError.
    """
    ctx, turn = run.ctx, run.turn
    held: Nothing | None = None
    async with _opened(run) as tree:
        run.head_before = tree.remade(run.head_before)
        while True:
            if ready.branch is not None:
                label = RescueLabel(turn.worktree.id, ready.branch, turn.worktree.conversations, ctx.clock())
                if (stray := await tree.return_to_branch(ready.branch, label)) is not None:
                    # What is left are files that another branch ignored: no work of this turn.
                    held = Nothing(notices.stray_work(stray.ref, stray.uncovered))
                    run.notices.append(held.why)
                    break
            committed, held = await _commit(run, tree, proof.subject)
            if ready.branch is None:
                await tree.adopt(None)
            elif committed.unresolved:
                return None, held
            head = committed.sha or (await tree.checkout()).commit
            script = None if committed.unresolved else await proof.script(tree.clone, head)
            if head is None or script is None:
                break
            await tree.adopt(ready.branch)
            async with tree.let_go():
                ends = await proof.ends(head, script)
            if ends:
                break
        if ready.branch is None:
            since = ready.edits_since or turn.ask.pinned_sha or turn.worktree.start_sha or run.head_before
            patch = await _patch(tree, since)
            if patch and isinstance(turn.worktree.start, DetachedHead) and turn.ask.pinned_sha is None:
                return patch, Nothing(notices.TAKES_NO_PUSHES)
            return patch, None if patch else held or NO_CHANGE
        rescue = refs.rescue_ref(str(turn.worktree.id), ctx.clock())
        parked = f"{ready.branch}-turn-{turn.id}"
        signing = ctx.signing_in(turn.worktree.repository)
        own = Push(ready.branch, parked, ctx.author, run.head_before, rescue=rescue, signing=signing)
        wanted = await tree.to_push(own)
        changed: Changes | str | None
        if wanted is None:
            changed = await _changes(ctx, tree.clone, turn, ready.branch, run.head_before)
        else:
            async with tree.let_go():
                guard = await run.unless_stopped(guard_of(ctx, turn, ready, ready.branch))
            changed, withheld = await _push(run, tree, wanted, guard, may_go)
            held = withheld or held
        if not isinstance(changed, Changes):
            return changed, held or NO_CHANGE
        await proof.show_pictures(tree, ready.branch)
        if names := await _live_commits(ctx, tree.clone, turn, changed.head, run.head_before):
            run.notices.append(notices.live_commits(names))
        return changed, None


@asynccontextmanager
async def _opened(run: TurnRun) -> AsyncIterator[OpenTree]:
    """Yield the worktree; tell at the end what could not stay on its branch."""
    async with run.ctx.tree(run.turn.worktree).open(run.stop, history=True) as tree:
        tree.lets_go = True
        yield tree
        run.notices += notices.commits_kept(tree.kept)


async def _patch(tree: OpenTree, since: str) -> str | None:
    return (await tree.patch(since)).decode("utf-8", "replace") or None


async def _commit(run: TurnRun, tree: OpenTree, subject: str | None) -> tuple[Committed, Nothing | None]:
    """Commit what is uncommitted, unless conflicts prevent it; return what keeps changes back, too."""
    message = await _message(run.ctx, tree.clone, run.turn, subject)
    made = await tree.commit(message, run.ctx.author, _requester(run.turn))
    left_out = {why: notices.files_left_out(why, names) for why, names in sorted(made.left_out.items())}
    run.notices += left_out.values()
    # Build products are no change.
    held = [words for why, words in left_out.items() if why != "product"]
    held[:0] = [notices.unresolved(made.unresolved)] if made.unresolved else []
    return made, Nothing(held[0]) if held else None


async def _push(
    run: TurnRun, tree: OpenTree, wanted: Push, guard: Guard, may_go: asyncio.Event
) -> tuple[Changes | str | None, Nothing | None]:
    """Push; return what changed on GitHub, or the patch of what it does not take, and what kept it back."""
    ctx, turn, clone, branch = run.ctx, run.turn, tree.clone, wanted.branch
    theirs = await clone.tip(branch) or next(filter(None, [await clone.tip(base) for base in guard.bases]), None)

    async def let_go() -> None:
        # Last, because the search takes its time (DESIGN.md §2: the row is checked right before the push).
        if await persist(ctx.pool, turns.stop_requested, turn.claim) is not None:
            raise StoppedError
        may_go.set()

    result = await tree.push(wanted, guard, let_go)
    run.head_before = tree.remade(run.head_before)
    match result.how:
        case "nothing" | "pushed" | "merged":
            changed = await _changes(ctx, clone, turn, branch, run.head_before, merged=result.how == "merged")
            if changed is None and result.how != "nothing":
                run.notices.append(notices.earlier_work_pushed(branch, links.branch_page(_web(ctx, turn), branch)))
            return changed, None
        case "parked" | "name-taken":
            page = links.branch_page(_web(ctx, turn), result.branch)
            why: notices.Elsewhere = "conflict" if result.onto is None else "taken-off"
            why = "excluded" if result.how == "name-taken" else why
            run.notices.append(notices.pushed_elsewhere(result.branch, page, branch, why))
            return await _changes(ctx, clone, turn, result.branch, result.onto or run.head_before), None
        case "rejected":
            _log.warning("push-rejected", branch=branch, detail=result.detail)
            signs, signs_off = ctx.signing.how != "off", ctx.signing.signs_off
            words = notices.push_refused(branch, result.detail, signs=signs, signs_off=signs_off)
            return await _patch(tree, theirs or run.head_before), Nothing(words)
        case "withheld":
            held = Nothing(notices.not_pushed(result.rule, branch, result.names)) if result.rule else None
            is_shown = result.rule in notices.SHOWN_AS_PATCH
            return await _patch(tree, theirs or run.head_before) if is_shown else None, held
        case "needs-taken":
            return None, Nothing(notices.needs_taken(branch, result.names))
        case _:
            assert_never(result.how)


async def _changes(
    ctx: TurnContext, clone: Clone, turn: ClaimedTurn, branch: str, head_before: str, *, merged: bool = False
) -> Changes | None:
    """Return what the turn changed on GitHub since the commit it began at, also where an earlier run of it pushed."""
    after = await clone.tip(branch)
    # What people pushed on top meanwhile is here too, once a turn of another thread has fetched it.
    after = after and (await clone.commit_at(refs.local(branch)) or after)
    if after is None or after == head_before or await clone.commit_at(head_before) is None:
        return None
    counts = await clone.count_changes(head_before, after)
    web = _web(ctx, turn)
    branch_url, diff_url = links.branch_page(web, branch), links.diff_page(web, head_before, after)
    return Changes(branch, branch_url, diff_url, *counts, head=after, merged=merged)


async def _live_commits(ctx: TurnContext, clone: Clone, turn: ClaimedTurn, head: str, head_before: str) -> list[str]:
    """Return the short names of the new commits up to `head` whose messages do something on GitHub."""
    base = turn.worktree.repository.default_branch
    known = (f"^{refs.remote(base)}",) if base and await clone.tip(base) else ()
    listed = await clone.log("%h %B", "--max-count=200", f"{head_before}..{head}", *known)
    # The address in the bot's own sign-off mentions nobody.
    messages = (one.replace(f"Signed-off-by: {ctx.author}", "").partition(" ") for one in listed)
    return [name for name, _, words in messages if commit_message.is_live(words, turn.conversation.number)]


async def _message(ctx: TurnContext, clone: Clone, turn: ClaimedTurn, subject: str | None) -> str:
    line = commit_message.subject(
        subject or ctx.verbs.kind_of(turn.ask).subject,
        turn.conversation.title,
        turn.conversation.number,
        ctx.redactor,
        conventional=commit_message.is_conventional(await recent_subjects(clone, turn.worktree)),
    )
    request = tracking.asked(turn.ask, ctx.server_url, turn.worktree.repository, turn.conversation.number, turn.id)
    return commit_message.message(line, request.login, request.url)


async def recent_subjects(clone: Clone, worktree: WorktreeRow) -> tuple[str, ...]:
    """Return the last subjects on the worktree's base branch, newest first; none where the clone lacks it."""
    base = worktree.repository.default_branch or worktree.base_branch
    tip = await clone.tip(base) if base is not None and refs.is_branch(base) else None
    if tip is None:
        return ()
    newest = f"--max-count={commit_message.SUBJECTS_TO_LOOK_AT}"
    return tuple((await clone.constant("log", "-z", "--format=%s", "--no-merges", newest, tip, "--")).fields)


def _web(ctx: TurnContext, turn: ClaimedTurn) -> str:
    return f"{ctx.server_url}/{turn.worktree.repository.full_name}"


def _requester(turn: ClaimedTurn) -> Identity:
    host = turn.worktree.repository.platform.partition(":")[0]
    return Identity(turn.ask.by.login, f"{turn.ask.by.id}+{turn.ask.by.login}@{NOREPLY_HOST}.{host}")
