"""A scratch git directory for a worktree: no setting, attribute or flag of the worktree hides a file from it."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot.clones.admin import real_path
from bot.clones.check_out import EMPTY_TREE
from bot.clones.checkout import Checkout
from bot.git.runner import Completed
from bot.sandbox.untrusted_files import remove_untrusted

# Reading every byte of a large worktree takes its time.
TIMEOUT_SECONDS = 3600.0
NO_OBJECT = "0" * 40
_PREFIX = "threadtree-git-"
# In the place that ranks above every .gitattributes: bytes become objects, and files again, as they are.
CONVERSIONS = ("text", "crlf", "eol", "ident", "filter", "working-tree-encoding")
_VERBATIM = f"* {' '.join(f'-{attribute}' for attribute in CONVERSIONS)}\n"


@dataclass(frozen=True, slots=True)
class ScratchGit:
    """A git that writes objects to the clone (in a cage: to the worktree's own); settings and indexes are in `folder`.

    `inside` is the same folder as the cage knows it. What attributes say of line ends counts until `verbatim`.
    """

    checkout: Checkout
    folder: Path
    inside: Path

    @property
    def path(self) -> Path:
        return self.checkout.path

    async def run(
        self,
        *args: str,
        input: bytes | None = None,  # noqa: A002
        index: Path | str = "index",
        environment: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Completed:
        """Run git on the worktree, with an index in `folder` or at a full path. Raises GitError, OSError."""
        clone = real_path(self.checkout.clone.path)
        # Other systems' rules for names would refuse what is on this disk.
        settings = {"core.excludesFile": clone / "info" / "exclude", "core.protectNTFS": "false"}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        places = {
            "GIT_DIR": str(self.inside),
            "GIT_WORK_TREE": str(real_path(self.path)),
            "GIT_OBJECT_DIRECTORY": str(clone / "objects"),
            "GIT_INDEX_FILE": str(self.inside / index),
        }
        return await self.checkout.git(
            *options,
            *args,
            input=input,
            environment=places | dict(environment or {}),
            check=check,
            timeout_seconds=TIMEOUT_SECONDS,
        )

    async def fill(self, index: str, entries: Iterable[tuple[str, str, str]]) -> None:
        """Put (mode, object, name) into a scratch index; mode "0" removes the name. Raises GitError, OSError."""
        await self.run("update-index", "--replace", "-z", "--index-info", index=index, input=index_lines(entries))

    async def tree(self, index: str) -> str:
        """Write the tree object of a scratch index. Raises GitError, OSError."""
        return (await self.run("write-tree", index=index)).text

    async def tree_of(self, revision: str | None) -> str:
        """Return the tree of a commit or tree; without one, the tree that has no file. Raises GitError, OSError."""
        return (await self.run("rev-parse", "--verify", f"{revision}^{{tree}}")).text if revision else EMPTY_TREE

    def verbatim(self) -> None:
        """Keep attributes from changing bytes between files and objects, from now on. Raises OSError."""
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(_VERBATIM)


def index_lines(entries: Iterable[tuple[str, str, str]]) -> bytes:
    """Return the input of `git update-index -z --index-info` for (mode, object, name); mode "0" removes the name."""
    return b"".join(os.fsencode(f"{mode} {sha}\t{name}") + b"\0" for mode, sha, name in entries)


@contextlib.contextmanager
def scratch_git_dir(checkout: Checkout, head: str | None) -> Iterator[ScratchGit]:
    """Make a scratch git directory with its HEAD at `head`, and delete it at the end. Raises OSError."""
    # Beside the worktree's own index: a place that a cage shows. An agent can write there, hence the name by chance.
    state = checkout.state
    for leftover in state.glob(f"{_PREFIX}*"):
        remove_untrusted(state, PurePath(leftover.name))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state))
    try:
        (folder / "refs").mkdir()
        (folder / "HEAD").write_text(f"{head}\n" if head else "ref: refs/heads/none\n")
        yield ScratchGit(checkout, folder, checkout.admin / folder.name)
    finally:
        remove_untrusted(state, PurePath(folder.name))
