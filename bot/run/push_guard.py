"""What is never pushed, whatever the agent was talked into: looked for in every commit that GitHub does not have."""

from collections.abc import Iterable
from dataclasses import dataclass

from bot.clones.clone import Clone
from bot.git import refs
from bot.messages.notices import PushRule
from bot.messages.redact import holds_secret

# What runs with the repository's secrets: https://docs.github.com/actions/reference/workflows-and-actions
WORKFLOW_FOLDERS = (".github/workflows/", ".github/actions/")


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of this bot. `protected` are the branches it never pushes to, `secrets` those it knows."""

    protected: frozenset[str]
    secrets: tuple[str, ...]
    allow_workflow_changes: bool

    async def forbids(self, clone: Clone, branch: str) -> PushRule | None:
        """The rule that keeps the local `branch` from being pushed, or None. The push is withheld whole."""
        if branch in self.protected:
            return "protected-branch"
        tip = await clone.commit_at(refs.local(branch))
        if tip is None:
            return None
        unpublished = (tip, "--not", "--remotes=origin")
        if not self.allow_workflow_changes and await _touches_workflows(clone, unpublished):
            return "workflow-files"
        return "secret" if await self._holds_secret(clone, unpublished) else None

    async def _holds_secret(self, clone: Clone, unpublished: Iterable[str]) -> bool:
        # Messages, names and every changed line, of binary files too; `--cc`: also what only a merge itself added.
        told = ("--format=%an%n%ae%n%cn%n%ce%n%B", "--patch", "--cc", "--text", "--no-ext-diff", "--no-textconv")
        written = await clone.run("log", *told, "--no-renames", *unpublished, "--")
        return holds_secret(written.stdout.decode("utf-8", "replace"), self.secrets)


async def _touches_workflows(clone: Clone, unpublished: Iterable[str]) -> bool:
    # `-c`: of a merge only what is in neither parent; what it brings from the base branch is on GitHub already.
    names = await clone.run("log", "--format=", "--name-only", "-z", "--no-renames", "-c", *unpublished, "--")
    # Some file systems know no case, and GitHub reads only the lower one: the folder is guarded in any spelling.
    return any(name.strip("\n").casefold().startswith(WORKFLOW_FOLDERS) for name in names.fields)
