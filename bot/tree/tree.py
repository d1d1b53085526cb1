"""A worktree of a clone, and the right to change it: whoever opens a tree asks nobody else for lock, path or checkout.

A `Tree` is where a worktree is. Opened, it has the clone's lock, and finds its checkout when that is first needed.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import structlog

from bot import refs
from bot.model import IssueBranch, Start
from bot.sandbox import trash
from bot.sandbox.view import View
from bot.sharing_rules import Misfit
from bot.tree.clone import admin, fetch, packing
from bot.tree.clone.admin import Missing
from bot.tree.clone.arriving import fetch_beside
from bot.tree.clone.check_out import check_out, marked
from bot.tree.clone.checkout import (
    Checkout,
    Entry,
    Seen,
    all_entries,
    inspect,
    look_at,
    on_record,
    open_checkout,
    require_checkout,
    view_of,
)
from bot.tree.clone.clone import CheckoutRefused, Clone, CloneLock, DefaultBranch, clone_lock
from bot.tree.clone.importing import import_commits
from bot.tree.clone.start import branch_of, taken_folder
from bot.tree.commit import (
    Committed,
    StrayWork,
    commit_all,
    has_conflict_marks,
    return_to_branch,
    stage,
)
from bot.tree.create import Created, create, recreate, reopen
from bot.tree.git.errors import GitError
from bot.tree.git.runner import Identity
from bot.tree.guard import Guard, PushWithheldError
from bot.tree.lfs import objects as lfs
from bot.tree.lfs.pointers import LFS, filter_lines
from bot.tree.merge import merge, merged_tree, revert
from bot.tree.proposal import Proposal, proposal_of, template_on
from bot.tree.push import Push, Pushed, push, push_beside, to_push
from bot.tree.remove import NotRemoved, Remote, Removed, Unlinked, git_folders, remove, rescue_first, unlink_worktree
from bot.tree.rescue.message import KnownRescue, RescueLabel, drop_rescue, list_rescues, rescue_bytes, rescued_tip
from bot.tree.rescue.restore import Restored, restore
from bot.tree.rescue.save import Secured, save_rescue
from bot.tree.reset import WasReset, reset
from bot.tree.signing import remade
from bot.tree.submodules import GITMODULES, Submodules
from bot.tree.summary import last_change
from bot.tree.sync import MOVED, OfIssue, Synced, detach, obstacle, switch, sync, sync_detached

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tree:
    """The worktree of a clone at a path, which may be gone."""

    clone: Clone
    path: Path

    @asynccontextmanager
    async def open(
        self, stop: asyncio.Event | None = None, *, early: bool = False, history: bool = False
    ) -> AsyncIterator["OpenTree"]:
        """Yield the tree once nobody else holds its clone: see `clone_lock`. With `history`, all of it is there."""
        async with clone_lock(self.clone, stop, early=early) as lock:
            tree = OpenTree(lock.clone, _held=lock._held, path=self.path)
            if history:
                await fetch.complete(tree)
            yield tree

    async def fetch_beside(self) -> None:
        """Bring all branches of the clone up to date without its lock: see `fetch_beside`."""
        await fetch_beside(replace(self.clone, objects=None))

    async def look(self) -> Seen | Missing:
        """Return the worktree, if it is finished. Raises GitError if that is unknown, OSError."""
        return await inspect(self.clone, self.path)

    async def fingerprint(self) -> tuple[object, ...]:
        """Return the commit and what differs from it, each file with its time and size. Raises GitError, OSError."""
        found = await look_at(self.clone, self.path)
        if isinstance(found, Missing):
            return ()
        files = list[tuple[object, ...]]()
        for change in await found.work():
            try:
                stat = (found.path / change.name).lstat()
                files.append((change, stat.st_mtime_ns, stat.st_size))
            except OSError:
                files.append((change,))
        return found.commit, *files

    async def view(self) -> View:
        """Return what a process in the worktree sees of git. Raises GitError, OSError."""
        return await view_of(self.clone, self.path)

    async def proposal(self, branch: str, base: str | None, default_branch: str | None) -> Proposal | None:
        """Return what a pull request of the branch would hold: see `proposal_of`. Raises GitError, InvalidNameError."""
        return await proposal_of(self.clone, branch, base, default_branch)

    async def template(self, default_branch: str) -> str | None:
        """Return the path of the template for pull requests: see `template_on`. Raises GitError, InvalidNameError."""
        found = await template_on(self.clone, default_branch)
        return found.path if found is not None else None

    def bytes(self) -> int:
        """Return the bytes on disk that a removal moves away."""
        return sum(map(trash.size_of, (self.path, *(folder for folder, _ in git_folders(self.clone, self.path)))))

    def last_change(self) -> datetime | None:
        """Return the newest time of the files, the index and HEAD; None if nothing is there. It writes nothing."""
        return last_change(self.clone, self.path)

    def foreign_lock(self) -> str | None:
        """Return the reason of a `git worktree lock` that is not the bot's; None without such a lock."""
        own = admin.admin_directory(self.clone.path, self.path)
        if isinstance(own, Missing) or not os.path.lexists(own / "locked"):
            return None
        reason = admin.recorded(own / "locked")
        return None if reason in (admin.LIVE, *admin.UNFINISHED) else reason


@dataclass(slots=True, eq=False)
class OpenClone(CloneLock):
    """A clone whose lock is held. What it does is described where it is done."""

    update = fetch.update
    replace_if_damaged = fetch.replace_if_damaged
    replace_after = fetch.replace_after
    fetch_ref = fetch.fetch_ref
    default_branch = fetch.remote_default_branch
    branch_of = branch_of
    rescued_tip = rescued_tip
    drop = drop_rescue
    push_beside = push_beside

    def at(self, path: Path) -> "OpenTree":
        """Return the worktree of this clone at a path, under the same lock."""
        return OpenTree(
            self.clone, self.default, self.lets_go, self.imported, self.packs, self.kept, self._held, path=path
        )

    async def fetch(self, *branches: str) -> None:
        """Bring the remote's branches, or these alone, up to date. Raises GitError, InvalidNameError, OSError."""
        await fetch.fetch(self, refspecs=tuple(map(refs.refspec, branches)))

    async def know_default_branch(self, name: str) -> None:
        """Take a branch for the remote's default one, if the clone has it: the remote is not asked then."""
        if (tip := await self.clone.tip(name)) is not None:
            self.default = DefaultBranch(name, tip)

    async def taken_folder(self, issue: IssueBranch) -> str:
        """Return the branch that has the name of a folder of the issue's branches. Raises GitError."""
        return await taken_folder(self.clone, issue) or refs.folders_of(issue)[0]

    async def rescues(self) -> list[KnownRescue]:
        """Return all rescues in the clone, by worktree and time. Raises GitError."""
        return await list_rescues(self.clone)

    async def rescue_bytes(self, ref: str) -> int:
        """Return the bytes on disk that only this rescue holds. Raises GitError, InvalidNameError."""
        return await rescue_bytes(self.clone, ref)

    async def entries(self, folder: Path) -> Mapping[str, Entry] | None:
        """Return git's entries for worktrees directly in a folder, by path; None without a clone that git can read."""
        if not await asyncio.to_thread(self.clone.path.is_dir):
            return None
        try:
            listed = await all_entries(self.clone)
        except GitError as problem:
            _log.warning("clone-unreadable", clone=str(self.clone.path), error=str(problem))
            return None
        parent = await asyncio.to_thread(folder.resolve)
        return {str(folder / entry.path.name): entry for entry in listed if entry.path.parent == parent}

    async def is_empty(self) -> bool:
        """Return whether there are no rescues, no worktrees and no unpublished commits. Raises GitError, OSError."""
        clone = self.clone
        rescued, registered = await list_rescues(clone), admin.admin_directories(clone.path)
        return not (rescued or registered or await clone.unpublished("--branches"))

    async def tidy(self, pull_request_heads: Collection[str] | None, branches: Collection[str]) -> None:
        """Pack what came since the last time. Drop the copies of pull requests' heads but for these, if known, the
        local branches but for these whose commits GitHub or a rescue has, and the marks of merges that no local branch
        has. Raises GitError, OSError.
        """
        if pull_request_heads is not None:
            await packing.forget_fetched(self, pull_request_heads)
        await fetch.complete(self)
        await self._delete_old_branches({refs.local(branch) for branch in branches})
        await self._delete_old_merges()
        await packing.pack(self)

    async def _delete_old_branches(self, used: Collection[str]) -> None:
        elsewhere = ("--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*", f"--glob={refs.RESCUE_PREFIX}*")
        for branch, tip in (await self.clone.refs("refs/heads")).items():
            is_held = await asyncio.to_thread(admin.holder, self.clone.path, branch.removeprefix("refs/heads/"))
            if branch not in used and not is_held and not await self.clone.count(tip, "--not", *elsewhere):
                await self.clone.run("update-ref", "-d", branch, tip)
                _log.info("branch-deleted", clone=str(self.clone.path), branch=branch, tip=tip)

    async def _delete_old_merges(self) -> None:
        if merges := await self.clone.refs(refs.MERGED_PREFIX):
            tips = {f"--merged={tip}" for tip in (await self.clone.refs("refs/heads")).values()}
            used = await self.clone.refs(*tips, refs.MERGED_PREFIX) if tips else {}
            for merge in merges.keys() - used.keys():
                await self.clone.run("update-ref", "-d", merge)

    async def pack_whole(self, default_branch: str | None, reserve_bytes: int, lfs_before: datetime) -> None:
        """Once a week, delete what nothing reaches and pack the files of the default branch anew. Delete the objects of
        Git LFS that came before a time. No turn of the repository may run. Raises GitError, OSError.
        """
        await packing.pack_whole(self, default_branch, reserve_bytes)
        if freed := await asyncio.to_thread(lfs.delete_old, self, lfs_before.timestamp()):
            _log.info("lfs-objects-deleted", clone=str(self.clone.path), bytes=freed)


@asynccontextmanager
async def open_clone(clone: Clone) -> AsyncIterator[OpenClone]:
    """Yield a clone once nobody else holds it: see `clone_lock`."""
    async with clone_lock(clone) as lock:
        yield OpenClone(lock.clone, _held=lock._held)


@dataclass(slots=True, eq=False)
class OpenTree(OpenClone):
    """A worktree that may be changed by whoever has its claim, while no agent runs: its clone's lock is held."""

    path: Path = field(kw_only=True)
    _checkout: Checkout | None = field(default=None, init=False)

    async def checkout(self) -> Checkout:
        """Return the worktree, found once while the lock is held. Raises GitError where there is none, OSError."""
        if self._checkout is None:
            self._checkout = await require_checkout(self, self.path)
        return self._checkout

    def _anew(self) -> Path:
        """Return the path before something else is there."""
        self._checkout = None
        return self.path

    async def _moving(self) -> Checkout:
        """Return the worktree as it is before something else may be checked out: then it is found anew."""
        checkout, self._checkout = await self.checkout(), None
        return checkout

    @asynccontextmanager
    async def let_go(self) -> AsyncIterator[None]:
        """Let others have the lock: see `CloneLock.released`. The checkout is found anew afterwards."""
        self._checkout = None
        async with self.released():
            yield

    async def changed_files(self) -> list[str]:
        """Return the names of uncommitted and untracked files, but for build products. What is in git's way is removed.
        Raises GitError, OSError.
        """
        checkout = await self.checkout()
        await checkout.unblock()
        return [change.name for change in await checkout.work()]

    async def make(self, start: Start, rescue: str) -> Created | CheckoutRefused:
        """Create the worktree, after a fetch: see `create`. Raises GitError, InvalidNameError, OSError."""
        return await create(self, self._anew(), start, rescue)

    async def make_again(
        self, branch: str | None, tip: str | None, rescue: str, start: Start | None = None
    ) -> Created | CheckoutRefused:
        """Create a lost worktree again: see `recreate`. Raises GitError, InvalidNameError, OSError."""
        return await recreate(self, self._anew(), branch, tip, rescue, start)

    async def look(self, branch: str | None) -> Checkout | Missing:
        """Return the finished worktree that was made on a branch: see `reopen`. Raises GitError, OSError."""
        found = await reopen(self, self.path, branch)
        self._checkout = None if isinstance(found, Missing) else found
        return found

    async def sync(
        self, branch: str | None, rescue: str, issue: IssueBranch | None = None, base: str | None = None
    ) -> Synced | None:
        """Follow the remote's branch, after a fetch: see `sync`. Raises GitError.

        A branch of `issue` that was merged into its base is left for the issue's next.
        """
        checkout = await self._moving()
        synced = await sync(checkout, branch, rescue, OfIssue(issue, base) if issue is not None else None)
        if checkout.commit is not None and (synced is None or synced.how not in MOVED):
            self._checkout = checkout
        return synced

    async def sync_detached(self, onto: str, rescue: str) -> Synced | None:
        """Move a clean detached worktree to a commit: see `sync_detached`. Raises GitError, OSError."""
        return await sync_detached(await self._moving(), onto, rescue)

    async def detach(self, branch: str, onto: str, rescue: str) -> Synced | None:
        """Take the worktree off a branch that GitHub has no more: see `detach`. Raises GitError, OSError."""
        return await detach(await self._moving(), branch, onto, rescue)

    async def obstacle(self, before: str, after: str) -> Misfit | None:
        """Return why the worktree of the branch `before` cannot be switched to `after`, None if it can. Raises
        GitError, OSError.
        """
        found = await open_checkout(self, self.path)
        return "missing" if isinstance(found, Missing) else await obstacle(found, before, after)

    async def switch(self, before: str, after: str) -> Misfit | None:
        """Check out the head branch of a pull request: see `switch`. Raises GitError, InvalidNameError, OSError."""
        return await switch(await self._moving(), before, after)

    async def adopt(self, branch: str | None) -> None:
        """Import the commits of the worktree: see `import_commits`. Raises GitError, OSError."""
        await import_commits(await self.checkout(), branch)

    async def return_to_branch(self, branch: str, label: RescueLabel) -> StrayWork | None:
        """Put the worktree back on its branch: see `return_to_branch`. Raises GitError, InvalidNameError, OSError."""
        on_branch = (await self.checkout()).branch == branch
        return await return_to_branch(await (self.checkout() if on_branch else self._moving()), branch, label)

    async def commit(self, message: str, author: Identity, co_author: Identity | None) -> Committed:
        """Commit what is uncommitted, where it may be: see `commit_all`. Raises GitError, OSError."""
        checkout = await self.checkout()
        made = await commit_all(checkout, message, author, co_author)
        self._checkout = replace(checkout, commit=made.sha or checkout.commit)
        return made

    async def to_push(self, wanted: Push) -> Push | None:
        """Return what to push, None if nothing, as of the last fetch: see `to_push`. Raises GitError, InvalidNameError,
        OSError.
        """
        return await to_push(await self.checkout(), wanted)

    async def push(self, wanted: Push, guard: Guard, may_go: Callable[[], Awaitable[None]]) -> Pushed:
        """Push the branch only, without force, if the guard lets it: see `push`. `may_go` is asked last, and raises to
        prevent it. Raises GitError, InvalidNameError, OSError.
        """
        checkout = await self._moving()

        async def check(commit: str, target: str) -> None:
            await guard.check(checkout, wanted.branch, commit, target)
            await may_go()

        try:
            return await push(checkout, replace(wanted, bases=guard.bases, is_linear=guard.is_linear), check)
        except PushWithheldError as withheld:
            return Pushed("withheld", rule=withheld.rule, names=withheld.names)

    async def merge(
        self, branch: str, theirs: str, message: str, author: Identity
    ) -> Literal["merged", "up-to-date", "not-clean", "in-the-way"] | tuple[str, ...]:
        """Merge a commit into the branch: see `merge`. Raises GitError, OSError."""
        return await merge(await self._moving(), branch, theirs, message, author)

    async def conflicts_left(self, ours: str, theirs: str) -> list[str]:
        """Return the files that conflict in a merge of two commits and still have marks of that. Raises GitError."""
        tried = await merged_tree(self.clone, ours, theirs)
        return [] if isinstance(tried, str) else [name for name in tried if has_conflict_marks(self.path, name)]

    async def revert(
        self, onto: str, before: str, last: str, message: str, author: Identity
    ) -> str | tuple[str, ...] | None:
        """Make a commit on `onto` without a change: see `revert`. Raises GitError, OSError."""
        return await revert(await self.checkout(), onto, before, last, message, author)

    async def last_of_its_own(self, pushed: str, *, is_merge: bool) -> str:
        """Return the last commit that a turn made of what it pushed: a push that met other commits ends with the host's
        merge of them. Raises GitError.
        """
        is_merge = is_merge or await self.clone.commit_at(f"{refs.MERGED_PREFIX}{pushed}") is not None
        return (is_merge and await self.clone.commit_at(f"{pushed}^1")) or pushed

    def remade(self, commit: str) -> str:
        """Return what a commit is now, if it was made anew before a push. Raises OSError."""
        return remade(self.clone, commit)

    async def save(self, label: RescueLabel) -> Secured:
        """Save what exists only in this worktree, which stays as it is: see `save_rescue`. Raises GitError, OSError."""
        return await save_rescue(self, self.path, label)

    async def drop_changes(self, rescue: str) -> None:
        """Give the worktree the files of its HEAD, once they are in this rescue's commit; ignored files stay. Raises
        GitError, OSError.
        """
        checkout = await self.checkout()
        await stage(checkout, [one.name for one in await checkout.work() if not one.name.endswith("/")])
        with marked(checkout, rescue, (await checkout.now()).commit or rescue):
            await checkout.git("reset", "--quiet", "--hard")

    async def check_out(self, branch: str, commit: str) -> bool:
        """Check out a commit on the branch, in a worktree without changes; False where an ignored file is in the way.
        Raises GitError, OSError.
        """
        return await check_out(await self._moving(), branch, commit)

    async def reset(
        self, start: Start, label: RescueLabel, merged_head: str | None = None
    ) -> WasReset | CheckoutRefused:
        """Rescue what is there, and make the worktree again at its base: see `reset`. Raises GitError, OSError,
        InvalidNameError.
        """
        return await reset(self, self._anew(), start, label, merged_head)

    async def restore(self, branch: str | None, sha: str | None, kept: Path | None, repeated_as: int) -> Restored:
        """Bring back a rescue's commit and the directory that was kept with it: see `restore`. Raises
        RestoreRefusedError, GitError, OSError, InvalidNameError.
        """
        return await restore(self, self._anew(), branch, sha, kept, repeated_as)

    async def patch(self, base: str) -> bytes:
        """Return the committed work of a detached worktree since `base`, for `git apply`. Raises GitError."""
        head = (await (await self.checkout()).now()).commit
        shown = ("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", f"{base}...{head}")
        return (await self.clone.run("diff", *shown)).stdout if head is not None else b""

    async def remove(
        self,
        label: RescueLabel,
        *,
        base_branch: str | None = None,
        merged_head: str | None = None,
        published: bool = True,
        only_clean: bool = False,
    ) -> Removed | NotRemoved:
        """Remove the worktree after a rescue: see `remove`. The base branch is what its branch is merged into,
        `merged_head` the last commit that GitHub merged from it. Without `published` no commit counts as published.
        """
        remote = Remote(base_branch, merged_head, published)
        return await remove(self, self._anew(), label, remote, only_clean=only_clean)

    async def fill(self, commit: str) -> lfs.Provided:
        """Give the files of HEAD, which is `commit`, that are under Git LFS their content. Raises GitError, OSError."""
        lines = await filter_lines(self.clone, commit)
        of_lfs = tuple(line for line in lines if self.clone.git.lfs and f"filter={LFS}" in line.split())
        done = await lfs.provide(await self.checkout(), commit) if of_lfs else lfs.Provided()
        return replace(done, lines=of_lfs, others=tuple(line for line in lines if line not in of_lfs))

    async def fill_submodules(
        self, commit: str, server_url: str, full_name: str, default_branch: str | None
    ) -> dict[str, str]:
        """Fill the submodules of HEAD, which is `commit`; return why others stay empty, by path: see `Submodules`. With
        the bot's credentials, if the default branch names them, where that is given. Raises GitError, OSError.
        """
        if await self.clone.object_at(f"{commit}:{GITMODULES}") is None:
            return {}
        return await Submodules(await self.checkout(), server_url, full_name, default_branch).fill(commit)

    async def rescue(self, label: RescueLabel) -> Secured:
        """Rescue the work in the worktree: see `rescue_first`. Raises GitError, OSError, InvalidNameError."""
        return await rescue_first(self, self.path, label)

    def unlink(self, at: datetime, *, whole: bool) -> Unlinked:
        """Move what is at the path away, after its rescue: see `unlink_worktree`. Raises OSError."""
        return unlink_worktree(self, self._anew(), at, whole=whole)

    async def commit_on_record(self) -> str | None:
        """Return the commit that git has on record of a worktree whose directory may be gone. Raises GitError."""
        known = await on_record(self, self.path)
        return known.commit if known is not None else None

    async def mark_live(self) -> None:
        """Lock a finished worktree, so that no plain `git worktree prune` removes it. Raises GitError."""
        await self.clone.run("worktree", "lock", "--reason", admin.LIVE, "--", str(self.path))
