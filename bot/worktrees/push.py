"""After a turn that is done: its branch is pushed, and no other ref."""

from dataclasses import dataclass
from pathlib import Path

from bot.clones import branch_history, entries
from bot.clones.checkout import ignored_in_the_way
from bot.clones.clone import Clone, CloneLock, fetch
from bot.clones.importing import import_commits
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.git.runner import Identity, failure


@dataclass(frozen=True, slots=True)
class Pushed:
    """The remote took the branch."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Other commits on the remote do not merge with ours, which were pushed to `branch` instead."""

    branch: str


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


async def push(lock: CloneLock, path: Path, branch: str, park_as: str, identity: Identity) -> PushResult:
    """Push `branch` only, without force. Where the remote has newer commits, merge once, else push to `park_as`;
    to `park_as` too where commits were removed from the remote's branch, which a merge would bring back.

    `identity` makes the merge commit. Raises GitError (network, credentials), InvalidNameError.
    """
    clone = lock.clone
    await import_commits(lock, path, branch)
    for merged in (False, True):
        before, after = await clone.commit_at(refs.remote(branch)), await clone.commit_at(refs.local(branch))
        if after is None or not await _has_commits_to_push(clone, branch, before, after):
            return NothingToPush()
        refused = await _push_ref(clone, branch, branch)
        if refused is None:
            reached("branch-pushed")
            await branch_history.record_pushed(lock, branch, after)
            return Pushed()
        if not _is_race(refused):
            return Rejected(refused)
        if merged:
            break
        await fetch(lock)
        if await branch_history.is_rewritten(clone, branch) or not await _merge(lock, path, branch, identity):
            break
    return await _park(clone, branch, park_as)


async def changes(clone: Clone, before: str, after: str) -> DiffStat:
    """Count what `after` changed since it left `before`; both are object names or full refs. Raises GitError."""
    # An amended first commit has no ancestor in common with what it was.
    base = (await clone.run("merge-base", before, after, check=False)).text or before
    listed = await clone.run(
        "diff", "--numstat", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", base, after, "--"
    )
    counts = [line.split("\t", 2) for line in listed.fields]
    return DiffStat(len(counts), *(sum(int(row[i]) for row in counts if row[i] != "-") for i in (0, 1)))


async def as_patch(clone: Clone, path: Path, base: str) -> bytes:
    """Return the committed work of a detached worktree since `base`, as a patch for `git apply`. Raises GitError."""
    head = await entries.head_of(clone, path)
    if head is None:
        return b""
    diff = ("diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", f"{base}...{head}")
    return (await clone.run(*diff)).stdout


async def _has_commits_to_push(clone: Clone, branch: str, before: str | None, after: str) -> bool:
    """Return whether the remote lacks commits of `after`. A branch deleted there is not pushed again unchanged."""
    if before is not None:
        return await clone.count("--max-count=1", after, f"^{before}") > 0
    return await clone.unpublished(after) > 0 and after != await branch_history.last_pushed(clone, branch)


async def _push_ref(clone: Clone, branch: str, target: str) -> str | None:
    """Push; return None where the remote took it, else its words. Raises GitError for anything but a refusal."""
    refspec = f"{refs.local(branch)}:{refs.local(target)}"
    done = await clone.run("push", "--porcelain", "--no-verify", "origin", refspec, check=False)
    if done.status == 0:
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


async def _merge(lock: CloneLock, path: Path, branch: str, identity: Identity) -> bool:
    """Merge the remote's branch; return False, with the worktree as it was, where that conflicts."""
    clone = lock.clone
    theirs = await clone.commit_at(refs.remote(branch))
    if theirs is None:
        return True
    # A merge has no option that keeps git from overwriting ignored files.
    if await ignored_in_the_way(clone, path, await entries.head_of(clone, path), theirs):
        return False
    message = f"Merge branch '{branch}' of origin into {branch}"
    try:
        await clone.on_worktree(
            path,
            "merge",
            "--quiet",
            "--no-verify",
            "--no-edit",
            "-m",
            message,
            theirs,
            environment=identity.environment,
        )
    except GitError as error:
        if error.problem is GitProblem.TIMEOUT:
            raise
        if await entries.operation_in_progress(clone, path) == "merge":
            await clone.on_worktree(path, "merge", "--abort")
        return False
    await import_commits(lock, path, branch)
    return True


async def _park(clone: Clone, branch: str, park_as: str) -> Parked | Rejected:
    refused = await _push_ref(clone, branch, park_as)
    return Parked(park_as) if refused is None else Rejected(refused)
