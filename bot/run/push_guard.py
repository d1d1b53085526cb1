"""What is never pushed: every commit that GitHub lacks is checked, since an agent can be talked into anything."""

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
    """The rules of this bot: the `protected` branches that it never pushes to, and the `secrets` that it knows."""

    protected: frozenset[str]
    secrets: tuple[str, ...]
    allow_workflow_changes: bool

    async def forbids(self, clone: Clone, branch: str, park_as: str) -> PushRule | None:
        """Return the rule that forbids to push the local `branch`, or None. A forbidden push is withheld whole.

        `park_as` is the branch that takes the commits if they do not merge.
        """
        if not self.protected.isdisjoint((branch, park_as)):
            return "protected-branch"
        tip = await clone.commit_at(refs.local(branch))
        if tip is None:
            return None
        unpublished = (tip, "--not", "--remotes=origin")
        if not self.allow_workflow_changes and await _touches_workflows(clone, unpublished):
            return "workflow-files"
        return "secret" if await self._holds_secret(clone, unpublished) else None

    async def _holds_secret(self, clone: Clone, unpublished: Iterable[str]) -> bool:
        # Messages, names and every changed line, of binary files too. `--cc`: also lines that only a merge added.
        told = ("--format=%an%n%ae%n%cn%n%ce%n%B", "--patch", "--cc", "--text", "--no-ext-diff", "--no-textconv")
        written = await clone.run("log", *told, "--no-renames", *unpublished, "--")
        return holds_secret(written.stdout.decode("utf-8", "replace"), self.secrets)


async def _touches_workflows(clone: Clone, unpublished: Iterable[str]) -> bool:
    # `-c`: of a merge only what neither parent has. What it brings from the base branch is on GitHub already.
    names = await clone.run("log", "--format=", "--name-only", "-z", "--no-renames", "-c", *unpublished, "--")
    # Some file systems ignore case, and GitHub reads only lower case: the folder is guarded in any spelling.
    return any(name.strip("\n").casefold().startswith(WORKFLOW_FOLDERS) for name in names.fields)
