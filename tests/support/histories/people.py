"""Rules: people push to the remote, and damage the bot's files on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar, get_args

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.git_repositories import git
from tests.support.histories.disk import FILES, Damage, damage, damages
from tests.support.histories.inventory import refs_of
from tests.support.histories.machine import Machine

Push = Literal["to main", "forward", "amend", "force", "delete", "merge into main", "squash into main"]

pushes = st.sampled_from(get_args(Push))
files = st.sampled_from((*FILES, "a.ign"))
names = st.sampled_from(
    (
        "threadtree",
        "threadtree/issue-1",
        "threadtree/issue-1-2",
        "threadtree/Issue-1",
        "Threadtree/issue-2",
        "threadtree/issue-2/deep",
        "threadtree/issue-2-turn-1",
    )
)
"""Branches in the way of the bot's own."""
whiches = st.integers(0, 5)
"""An index into the things that exist. The drawn value must not depend on them, since they depend on timing."""

T = TypeVar("T")


def one_of(there: Sequence[T], which: int) -> T | None:
    """Return one of the things, None if there are none."""
    return there[which % len(there)] if there else None


class PeopleRules(Machine):
    """Events without the bot."""

    @rule(which=whiches, push=pushes, name=files)
    def someone_pushes_to_a_branch(self, which: int, push: Push, name: str) -> None:
        refs, main = refs_of(self.ground.remote), "refs/heads/main"
        if push == "to main":
            with self.hands():
                self.ground.push(main, {name: self.ground.content(name)})
            return
        if (ref := one_of(sorted(refs.keys() - {main}), which)) is None:
            return
        if push == "delete" and ref.startswith("refs/pull/"):
            return  # only GitHub writes these refs
        fresh = {name: self.ground.content(name)}
        with self.hands():
            match push:
                case "forward":
                    self.ground.push(ref, fresh)
                case "amend":
                    parents = git(self.ground.remote, "rev-list", "--parents", "-n1", refs[ref]).split()[1:]
                    self.ground.push(ref, fresh, onto=parents[0] if parents else refs[main], force=True)
                case "force":
                    self.ground.push(ref, fresh, onto=refs[main], force=True)
                case "delete":
                    git(self.ground.remote, "update-ref", "-d", ref)
                case "merge into main":
                    if git(self.ground.remote, "merge-base", refs[main], refs[ref]) == refs[main]:
                        git(self.ground.remote, "update-ref", main, refs[ref])
                case "squash into main":
                    tree = git(self.ground.remote, "rev-parse", f"{refs[ref]}^{{tree}}")
                    self.ground.push(main, {}, tree=tree)

    @rule(branch=names, name=files)
    def someone_pushes_a_new_branch(self, branch: str, name: str) -> None:
        taken = refs_of(self.ground.remote)
        new = f"refs/heads/{branch}"
        if not any(f"{one}/".startswith(f"{new}/") or f"{new}/".startswith(f"{one}/") for one in taken):
            with self.hands():
                self.ground.push(new, {name: self.ground.content(name)})

    @rule(which=whiches, kind=damages)
    def hands_spoil_a_worktree(self, which: int, kind: Damage) -> None:
        path = one_of(self.idle_worktrees(), which)
        if path is None or (kind.startswith(("clone", "ref")) and self.ground.runs):
            return
        with self.hands():
            damage(self.ground, path, kind)
        affected = self.ground.directories() if kind.startswith("clone") else [path]
        self.damaged.update(affected)
        self.spoiled.update(affected)

    def idle_worktrees(self) -> list[Path]:
        """Return the worktrees without a running turn."""
        busy = {self.ground.ctx.directory(run.turn.worktree.path) for run in self.ground.runs}
        return [path for path in self.ground.directories() if path not in busy]
