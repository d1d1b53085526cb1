"""After a turn that is done: its branch is pushed, and no other ref."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
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
from bot.tree.merge import commit_tree, merged_tree


@dataclass(frozen=True, slots=True)
class Pushed:
    """How a push ended.

    `merged`: the remote took the branch after newer commits of the remote were merged. `parked`: other commits on the
    remote do not merge with ours, which were pushed to the `branch` instead; `name-taken`: so they were, because the
    remote has a branch whose name excludes that of ours. `nothing`: the remote has every commit. `rejected`: the remote
    refused for a reason that a merge does not remove (a hook, a rule); `detail` is in its words. `withheld`: a rule of
    the guard forbids it, because of what is in `names`.
    """

    how: Literal["pushed", "merged", "parked", "name-taken", "nothing", "rejected", "withheld"]
    branch: str = ""
    detail: str = ""
    rule: PushRule | None = None
    names: tuple[str, ...] = ()


_log = structlog.get_logger()

BeforePush = Callable[[str, str], Awaitable[None]]
"""Gets a commit and the branch on GitHub that it goes to, right before each push; raises to prevent it."""


async def push(
    checkout: Checkout, branch: str, park_as: str, identity: Identity, check: BeforePush, *, is_new: bool = False
) -> Pushed:
    """Push `branch` only, without force. Where the remote has newer commits, merge once, else push to `park_as`;
    to `park_as` too where commits were removed from the remote's branch, which a merge would bring back.

    `identity` makes the merge commit. `is_new`: the branch's last commit was made after the last fetch. Raises GitError
    (network, credentials), InvalidNameError, what `check` raises.
    """
    clone, lock = checkout.clone, checkout.lock
    await import_commits(checkout, branch)
    for merged in (False, True):
        before, tip = await clone.commit_at(refs.remote(branch)), await clone.commit_at(refs.local(branch))
        if tip is None or not (is_new or await _has_commits_to_push(clone, branch, before, tip)):
            return Pushed("nothing")
        await check(tip, branch)
        refused = await _push_commit(lock, tip, branch)
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
        if not (merged or await branch_history.is_rewritten(clone, branch)) and await _merge(
            checkout, branch, identity
        ):
            continue
        await check(tip, park_as)
        refused = await _push_commit(lock, tip, park_as)
        return Pushed("parked", park_as) if refused is None else Pushed("rejected", detail=refused)
    raise AssertionError("the second round ends in every case")


async def push_beside(
    lock: CloneLock, branch: str, files: Mapping[str, bytes], identity: Identity, message: str
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
    return commit if await _push_commit(lock, commit, branch) is None else None


async def _has_commits_to_push(clone: Clone, branch: str, before: str | None, after: str) -> bool:
    """Return whether the remote lacks commits of `after`. A branch deleted there is not pushed again unchanged."""
    if before is not None:
        return not await clone.is_ancestor(after, before)
    return await clone.unpublished(after) > 0 and after != await branch_history.last_pushed(clone, branch)


async def _push_commit(lock: CloneLock, commit: str, target: str) -> str | None:
    """Push; return None where the remote took it, else its words. Raises GitError for anything but a refusal."""
    clone, refspec = lock.clone, f"{commit}:{refs.local(target)}"
    done = await clone.run("push", "--porcelain", "--no-verify", PUSH_REMOTE, refspec, check=False)
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


async def _merge(checkout: Checkout, branch: str, identity: Identity) -> bool:
    """Merge the remote's branch; return False, with the worktree as it was, where that conflicts."""
    theirs = await checkout.clone.commit_at(refs.remote(branch))
    if theirs is None:
        return True
    head = (await checkout.now()).commit or theirs
    merged = await merged_tree(checkout.clone, head, theirs)
    if not isinstance(merged, str):
        return False
    message = f"Merge branch '{branch}' of origin into {branch}\n"
    commit = await commit_tree(checkout, merged, (head, theirs), message, identity)
    await checkout.clone.run("update-ref", f"{refs.MERGED_PREFIX}{commit}", commit)
    # What is cut off there is known, and no ignored file is overwritten: `git merge` does neither.
    return await check_out(checkout, branch, commit)
