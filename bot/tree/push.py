"""After a turn that is done: its branch is pushed, and no other ref."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from bot import refs
from bot.failpoints import reached
from bot.thread.notices import PushRule
from bot.tree.clone import branch_history
from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.fetch import PUSH_REMOTE, fetch
from bot.tree.clone.importing import import_commits
from bot.tree.clone.published import publish
from bot.tree.clone.start import in_its_way
from bot.tree.git.errors import GitError
from bot.tree.git.runner import Identity, failure
from bot.tree.merge import commit_tree, make_anew, merged_tree
from bot.tree.signing import Signing, sign, sign_branch


@dataclass(frozen=True, slots=True)
class Pushed:
    """How a push ended.

    `merged`: the remote took the branch after newer commits of the remote were merged. `parked`: other commits on the
    remote do not merge with ours, which were pushed to the `branch` instead; `name-taken`: so they were, because the
    remote has a branch whose name excludes that of ours. `nothing`: there is nothing of ours that the remote lacks.
    `rejected`: the remote refused for a reason that a merge does not remove (a hook, a rule); `detail` is in its words.
    `withheld`: a rule of the guard forbids it, because of what is in `names`. `needs-taken`: ours changes what was
    taken off the remote's branch, in the files `names`, so it cannot be there alone.

    `onto`: the remote's commit on which the parked commits were made anew, without what was taken off the branch.
    """

    how: Literal["pushed", "merged", "parked", "name-taken", "nothing", "rejected", "withheld", "needs-taken"]
    branch: str = ""
    detail: str = ""
    rule: PushRule | None = None
    names: tuple[str, ...] = ()
    onto: str | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """What is to be pushed: a branch, or else to `park_as`. `identity` makes the merge commit, and what is made anew.

    `began`: the commit at which the turn began; None counts as another one. `bases` are branches on GitHub whose
    commits are nobody's to take off. `is_linear`: the branch takes no merges. `rescue`: the ref for what is made anew.
    `seen`: the remote's tip and ours, imported, of which it is known already that there is something to push, and
    nothing that was taken off.
    """

    branch: str
    park_as: str
    identity: Identity
    began: str | None = None
    bases: tuple[str, ...] = ()
    is_linear: bool = False
    rescue: str | None = None
    seen: tuple[str | None, str] | None = None
    signing: Signing = field(default_factory=Signing)


_log = structlog.get_logger()

BeforePush = Callable[[str, str], Awaitable[None]]
"""Gets a commit and the branch on GitHub that it goes to, right before each push; raises to prevent it."""


async def to_push(checkout: Checkout, wanted: Push) -> Push | None:
    """Return what to push with what was `seen`; None if the remote's branch lacked nothing of ours at the last fetch.
    Raises GitError, InvalidNameError, OSError.
    """
    clone, branch = checkout.clone, wanted.branch
    await import_commits(checkout, branch)
    theirs, tip = await clone.commit_at(refs.remote(branch)), await clone.commit_at(refs.local(branch))
    if tip is None:
        return None
    taken = await branch_history.taken_off(clone, branch, tip, wanted.bases)
    if not await _has_commits_to_push(clone, wanted, theirs, tip, taken):
        return None
    return wanted if taken else replace(wanted, seen=(theirs, tip))


async def push(checkout: Checkout, wanted: Push, check: BeforePush) -> Pushed:
    """Push the branch only, without force: what the turn made, and what earlier turns left unpublished.

    The remote takes it only if its branch is where it was at the last fetch. Where it has newer commits, they are
    merged, once. What it had and has no more is pushed nowhere: then ours goes to `park_as`, made anew on what the
    remote has. Raises GitError (network, credentials), InvalidNameError, OSError, what `check` raises.
    """
    clone, lock, branch = checkout.clone, checkout.lock, wanted.branch
    if wanted.seen is None:
        await import_commits(checkout, branch)
    for merged in (False, True):
        theirs, tip = await clone.commit_at(refs.remote(branch)), await clone.commit_at(refs.local(branch))
        if tip is None:
            return Pushed("nothing")
        taken = frozenset[str]()
        if (theirs, tip) != wanted.seen:
            taken = await branch_history.taken_off(clone, branch, tip, wanted.bases)
            if not await _has_commits_to_push(clone, wanted, theirs, tip, taken):
                return Pushed("nothing")
        if not taken and (theirs is None or await clone.is_ancestor(theirs, tip)):
            tip = await _checked(checkout, wanted, tip, branch, check)
            refused = await _push_commit(lock, tip, branch, theirs)
            if refused is None:
                reached("branch-pushed")
                await branch_history.record_pushed(lock, branch, tip)
                return Pushed("merged" if merged else "pushed")
            await fetch(lock)
            if await in_its_way(clone, "refs/remotes/origin/", branch) is not None:
                other = branch.replace("/", "-")
                await check(tip, other)
                refused = await _push_commit(lock, tip, other)
                return Pushed("name-taken", other) if refused is None else Pushed("rejected", detail=refused)
            if not _is_race(refused):
                return Pushed("rejected", detail=refused)
        else:
            await fetch(lock)
        taken = await branch_history.taken_off(clone, branch, tip, wanted.bases)
        if not await _has_commits_to_push(clone, wanted, await clone.tip(branch), tip, taken):
            return Pushed("nothing")
        if not (taken or merged or await branch_history.is_rewritten(clone, branch)) and await _join(checkout, wanted):
            continue
        return await _park(checkout, wanted, tip, taken, check)
    raise AssertionError("the second round ends in every case")


async def _checked(checkout: Checkout, wanted: Push, tip: str, target: str, check: BeforePush) -> str:
    """Return the commit that may be pushed: `tip`, or what it is once it is signed, which is checked too."""
    await check(tip, target)
    signed = await sign_branch(checkout, wanted.branch, wanted.signing, wanted.identity, tip)
    if signed != tip:
        await check(signed, target)
    return signed


async def _park(checkout: Checkout, wanted: Push, tip: str, taken: frozenset[str], check: BeforePush) -> Pushed:
    """Push to another branch: the commits as they are, or those that were not taken off the branch, made anew."""
    lock, onto = checkout.lock, await checkout.clone.tip(wanted.branch)
    if not taken or onto is None:
        tip = await _checked(checkout, wanted, tip, wanted.park_as, check)
        refused = await _push_commit(lock, tip, wanted.park_as)
        return Pushed("parked", wanted.park_as) if refused is None else Pushed("rejected", detail=refused)
    made = await _make_anew(checkout, wanted, onto, tip, taken)
    if not isinstance(made, str):
        return Pushed("needs-taken", names=made)
    made = await _checked(checkout, wanted, made, wanted.park_as, check)
    if (refused := await _push_commit(lock, made, wanted.park_as)) is not None:
        return Pushed("rejected", detail=refused)
    reached("parked-anew")
    if await _move(checkout, wanted, tip, made):
        await branch_history.record_pushed(lock, wanted.branch, onto)
    return Pushed("parked", wanted.park_as, onto=onto)


async def _make_anew(
    checkout: Checkout, wanted: Push, onto: str, tip: str, taken: Collection[str] = ()
) -> str | tuple[str, ...]:
    """Make the commits that the remote's branch lacks anew on its tip `onto`; return the files where that conflicts."""
    clone = checkout.clone
    lacks = ("--first-parent", tip, f"^{onto}")
    own = [one for one in (await clone.run("rev-list", "--reverse", *lacks)).text.split() if one not in taken]
    kept = set[str]()
    if not wanted.is_linear:
        merges = (await clone.run("rev-list", "--min-parents=2", "--parents", *lacks)).text.splitlines()
        parents = {parent for line in merges for parent in line.split()[2:]}
        kept = {one for one in parents if not await clone.listed(one, f"^{onto}") & set(taken)}
    return await make_anew(checkout, onto, own, kept)


async def _move(checkout: Checkout, wanted: Push, tip: str, made: str) -> bool:
    """Put the worktree on commits that were made anew, and keep the former ones; False where a file is in the way."""
    if wanted.rescue is not None:
        await checkout.clone.run("update-ref", wanted.rescue, tip)
    return await check_out(checkout, wanted.branch, made)


async def push_beside(
    lock: CloneLock, branch: str, files: Mapping[str, bytes], identity: Identity, message: str, signing: Signing
) -> str | None:
    """Push a commit with these files alone to a branch of ours, after its others; return it. None where the branch is
    somebody else's, or the remote refused. Raises GitError, InvalidNameError, OSError.
    """
    clone, before = lock.clone, await lock.clone.commit_at(refs.remote(branch))
    # All its commits, down to the first: an agent chooses the subject of its last one.
    made = (await clone.run("log", "--format=%ae %s", before, "--")).text if before else ""
    if before and {*made.split("\n")} != {f"{identity.email} {message}"}:
        return None
    lines = list[str]()
    for name, content in files.items():
        blob = await clone.git.on_clone(clone.path, "hash-object", "-w", "--stdin", input=content)
        lines.append(f"100644 blob {blob.text}\t{name}\n")
    tree = await clone.git.on_clone(clone.path, "mktree", input="".join(lines).encode())
    parents = ("-p", before) if before else ()
    making = ("commit-tree", tree.text, *parents, "-m", message)
    commit = (await clone.git.on_clone(clone.path, *making, environment=identity.environment)).text
    commit = (await sign(lock, signing, identity, commit, [commit])).get(commit, commit)
    return commit if await _push_commit(lock, commit, branch) is None else None


async def _has_commits_to_push(clone: Clone, wanted: Push, theirs: str | None, tip: str, taken: frozenset[str]) -> bool:
    """Return whether there is anything of ours that the remote's branch lacks: made by the turn, or never published.

    A branch deleted there is not pushed again unchanged.
    """
    if theirs is None:
        return bool(await branch_history.never_published(clone, wanted.branch, tip))
    if not await clone.listed(tip, f"^{theirs}") - taken:
        return False
    return tip != wanted.began or bool(await branch_history.never_published(clone, wanted.branch, tip))


async def _push_commit(lock: CloneLock, commit: str, target: str, *theirs: str | None) -> str | None:
    """Push; return None where the remote took it, else its words. Raises GitError for anything but a refusal.

    With `theirs`, which `commit` descends from, the remote takes it only if its branch is there; None: if it has none.
    """
    clone, ref = lock.clone, refs.local(target)
    states = [f"--force-with-lease={ref}:{one or ''}" for one in theirs]
    how = ("--porcelain", "--no-verify", *states, PUSH_REMOTE, f"{commit}:{ref}")
    done = await clone.run("push", *how, check=False)
    if done.status == 0:
        reached("push-accepted")
        for _ in range(2):  # a git may be killed, and without this the answer cannot link what was pushed
            try:
                await publish(lock, [commit])
                await clone.run("update-ref", refs.remote(target), commit)
                break
            except (GitError, OSError) as error:  # the next fetch does the same
                _log.warning("push-not-noted", clone=str(clone.path), branch=target, error=str(error))
        return None
    refusals = [line.split("\t", 2)[-1] for line in done.text.splitlines() if line.startswith("!\t")]
    if not refusals:
        raise failure("push", done)
    said = [line for line in done.stderr.splitlines() if line.startswith("remote:")]
    return "\n".join([*refusals, *said])


def _is_race(refused: str) -> bool:
    """Return whether the remote refused because its branch moved, from https://git-scm.com/docs/git-push#_output."""
    races = ("fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref", "stale info")
    return any(race in refused.splitlines()[0] for race in races)


async def _join(checkout: Checkout, wanted: Push) -> bool:
    """Merge the remote's branch, or go on from there where that takes no merges; return False, with the worktree as it
    was, where that conflicts.
    """
    clone, branch = checkout.clone, wanted.branch
    theirs = await clone.commit_at(refs.remote(branch))
    if theirs is None:
        return True
    head = (await checkout.now()).commit or theirs
    if await clone.is_ancestor(theirs, head):
        return True
    if wanted.is_linear:
        made = await _make_anew(checkout, wanted, theirs, head)
        return isinstance(made, str) and await _move(checkout, wanted, head, made)
    merged = await merged_tree(clone, head, theirs)
    if not isinstance(merged, str):
        return False
    message = f"Merge branch '{branch}' of origin into {branch}\n"
    commit = await commit_tree(checkout, merged, (head, theirs), message, wanted.identity)
    await clone.run("update-ref", f"{refs.MERGED_PREFIX}{commit}", commit)
    # What is cut off there is known, and no ignored file is overwritten: `git merge` does neither.
    return await check_out(checkout, branch, commit)
