"""After a turn that is done: its branch is pushed, and no other ref."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bot.failpoints import reached
from bot.tree.clone import branch_history
from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.fetch import PUSH_REMOTE, fetch
from bot.tree.clone.importing import LIMITED, import_commits, lend
from bot.tree.clone.published import publish
from bot.tree.clone.start import in_its_way
from bot.tree.git import refs
from bot.tree.git.errors import GitError
from bot.tree.git.runner import Completed, Identity, Options, failure


@dataclass(frozen=True, slots=True)
class Pushed:
    """The remote took the branch. `merged`: after newer commits of the remote were merged."""

    merged: bool = False


@dataclass(frozen=True, slots=True)
class Parked:
    """Other commits on the remote do not merge with ours, which were pushed to `branch` instead. `name_taken`: the
    remote has a branch whose name excludes that of ours.
    """

    branch: str
    name_taken: bool = False


@dataclass(frozen=True, slots=True)
class NothingToPush:
    """The remote has every commit."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The remote refused for a reason that a merge does not remove (a hook, a rule); `detail` is in its words."""

    detail: str


PushResult = Pushed | Parked | NothingToPush | Rejected


@dataclass(frozen=True, slots=True)
class DiffStat:
    """Changes between two commits; binary files have no lines."""

    files: int
    insertions: int
    deletions: int


_log = structlog.get_logger()
AS_IT_IS = ("--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none")
_COUNTS = tuple(re.compile(rf"(\d+) {what}") for what in ("file", "insertion", "deletion"))

BeforePush = Callable[[str, str], Awaitable[None]]
"""Gets a commit and the branch on GitHub that it goes to, right before each push; raises to prevent it."""


async def push(
    checkout: Checkout, branch: str, park_as: str, identity: Identity, check: BeforePush, *, is_new: bool = False
) -> PushResult:
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
            return NothingToPush()
        await check(tip, branch)
        refused = await _push_commit(lock, tip, branch)
        if refused is None:
            reached("branch-pushed")
            await branch_history.record_pushed(lock, branch, tip)
            return Pushed(merged)
        await fetch(lock)
        if await in_its_way(clone, "refs/remotes/origin/", branch) is not None:
            other = branch.replace("/", "-")
            await check(tip, other)
            refused = await _push_commit(lock, tip, other)
            return Parked(other, name_taken=True) if refused is None else Rejected(refused)
        if not _is_race(refused):
            return Rejected(refused)
        if not (merged or await branch_history.is_rewritten(clone, branch)) and await _merge(
            checkout, branch, identity
        ):
            continue
        await check(tip, park_as)
        refused = await _push_commit(lock, tip, park_as)
        return Parked(park_as) if refused is None else Rejected(refused)
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


async def changes(clone: Clone, before: str, after: str) -> DiffStat:
    """Count what `after` changed since it left `before`; both are object names or full refs. Raises GitError."""
    shown = (await _diff(clone, before, after, "--shortstat")).text
    return DiffStat(*(int(found[1]) if (found := count.search(shown)) else 0 for count in _COUNTS))


async def changed_files(clone: Clone, before: str, after: str) -> int:
    """Count the files alone, as above: git reads none of them. Raises GitError."""
    return len((await _diff(clone, before, after, "--name-only", "-z")).fields)


async def _diff(clone: Clone, before: str, after: str, *how: str) -> Completed:
    shown = await clone.run("diff", *how, *AS_IT_IS, f"{before}...{after}", "--", check=False)
    if shown.status == 0:
        return shown
    # An amended first commit has no ancestor in common with what it was.
    return await clone.run("diff", *how, *AS_IT_IS, before, after, "--")


async def as_patch(checkout: Checkout, base: str) -> bytes:
    """Return the committed work of a detached worktree since `base`, as a patch for `git apply`. Raises GitError."""
    head = (await checkout.read_head()).commit
    if head is None:
        return b""
    diff = ("diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", f"{base}...{head}")
    return (await checkout.clone.run(*diff)).stdout


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


async def merged_tree(clone: Clone, ours: str, theirs: str) -> str | tuple[str, ...]:
    """Return the tree of a merge of two commits, or the names of the files that conflict. Raises GitError.

    In the clone: git checks no object that it reads, so a cage could show another content under the name of a commit.
    """
    how = ("--write-tree", "--name-only", "--no-messages", "-z")
    more: Options = {"environment": {"GIT_ATTR_SOURCE": ours}, "program": LIMITED, "check": False}
    merged = await clone.git.on_clone(clone.path, "merge-tree", *how, ours, theirs, **more)
    if merged.status not in (0, 1):
        raise failure("merge-tree", merged)
    tree, *conflicts = merged.fields
    return tuple(sorted(set(conflicts))) if merged.status else tree


async def commit_tree(checkout: Checkout, tree: str, parents: Sequence[str], message: str, identity: Identity) -> str:
    """Make a commit in the clone, which the worktree's cage gets too; return it. Raises GitError, OSError."""
    clone, named = checkout.clone, [word for one in parents for word in ("-p", one)]
    more: Options = {"input": message.encode(), "environment": identity.environment}
    made = (await clone.git.on_clone(clone.path, "commit-tree", tree, *named, **more)).text
    await lend(clone, checkout.view, made)
    return made


async def _merge(checkout: Checkout, branch: str, identity: Identity) -> bool:
    """Merge the remote's branch; return False, with the worktree as it was, where that conflicts."""
    theirs = await checkout.clone.commit_at(refs.remote(branch))
    if theirs is None:
        return True
    head = (await checkout.read_head()).commit or theirs
    merged = await merged_tree(checkout.clone, head, theirs)
    if not isinstance(merged, str):
        return False
    message = f"Merge branch '{branch}' of origin into {branch}\n"
    commit = await commit_tree(checkout, merged, (head, theirs), message, identity)
    await checkout.clone.run("update-ref", f"{refs.MERGED_PREFIX}{commit}", commit)
    # What is cut off there is known, and no ignored file is overwritten: `git merge` does neither.
    return await check_out(checkout, branch, commit)
