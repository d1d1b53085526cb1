"""What a pull request of a branch would hold, as it is on GitHub: its commits, and the repository's template."""

from dataclasses import dataclass

from bot.tree.clone.clone import REGULAR_FILES, Clone
from bot.tree.git import refs

MOST_COMMITS = 200
TEMPLATE_BYTES = 20_000
DIFF_CHARACTERS = 60_000
_MOST_FILES = 200
# https://docs.github.com/communities/using-templates-to-encourage-useful-issues-and-pull-requests/creating-a-pull-request-template-for-your-repository
_FOLDERS = (".github/", "", "docs/")
_FILES = ("pull_request_template.md", "pull_request_template.txt")
_DEFAULTS = ("default.md", "pull_request_template.md")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would be merged into `base`: the branch's newest commit `tip`, and the subjects of its commits in order."""

    base: str
    tip: str
    subjects: tuple[str, ...]
    template: str | None


@dataclass(frozen=True, slots=True)
class NotOnGitHub:
    """The branch is not on GitHub."""


@dataclass(frozen=True, slots=True)
class NothingNew:
    """`base` has every commit of the branch, whose newest is `tip`."""

    base: str
    tip: str


async def proposal_of(
    clone: Clone, branch: str, base: str | None, default_branch: str | None
) -> Proposal | NotOnGitHub | NothingNew:
    """Return what would be merged into `base`, or into the default branch where GitHub lacks that.

    The template is that of the default branch: no agent can write it. Raises GitError, InvalidNameError.
    """
    tip = await clone.commit_at(refs.remote(branch))
    into = await _first_on_github(clone, base, default_branch)
    if tip is None or into is None:
        return NotOnGitHub()
    onto = await clone.commit_at(refs.remote(into))
    if onto is None or await clone.is_ancestor(tip, onto):
        return NothingNew(into, tip)
    return Proposal(into, tip, await _subjects(clone, tip, onto), await _template(clone, default_branch or into))


async def net_diff(clone: Clone, found: Proposal) -> str:
    """Return what the branch changes since it left its base: how much in which files, then the lines; a long one is
    cut. Raises GitError where the two have no common commit.
    """
    shown = ("--no-color", "--no-ext-diff", "--no-textconv", f"{refs.remote(found.base)}...{found.tip}", "--")
    files = (await clone.run("diff", "--stat=100", f"--stat-count={_MOST_FILES}", *shown)).stdout
    lines = (await clone.run("diff", *shown)).stdout
    text = (files + b"\n" + lines).decode("utf-8", "replace")
    return text if len(text) <= DIFF_CHARACTERS else f"{text[:DIFF_CHARACTERS]}\n[The rest did not fit.]"


async def _subjects(clone: Clone, tip: str, onto: str) -> tuple[str, ...]:
    """Return the subjects of the commits that `onto` lacks, oldest first."""
    shown = (f"--max-count={MOST_COMMITS}", "--reverse", "--no-merges", "--format=%s", "-z")
    listed = await clone.run("log", *shown, tip, f"^{onto}", "--")
    return tuple(subject.encode("utf-8", "replace").decode() for subject in listed.fields)


async def _first_on_github(clone: Clone, *branches: str | None) -> str | None:
    for branch in branches:
        if branch is not None and await clone.commit_at(refs.remote(branch)) is not None:
            return branch
    return None


async def _template(clone: Clone, default_branch: str) -> str | None:
    """Return the first template; the default of a folder of templates, or the only one in it. No links."""
    files, tip = dict[str, str](), await clone.commit_at(refs.remote(default_branch))
    if tip is None:
        return None
    for entry in (await clone.run("ls-tree", "-r", "--long", "-z", "--full-tree", tip)).fields:
        facts, _, path = entry.partition("\t")
        mode, _, name, size = facts.split()
        if mode in REGULAR_FILES and int(size) <= TEMPLATE_BYTES:
            files[path.casefold()] = name
    found = [files[folder + name] for folder in _FOLDERS for name in _FILES if folder + name in files]
    for place in (f"{folder}pull_request_template" for folder in _FOLDERS):
        inside = [path for path in files if path.rpartition("/")[0] == place]
        defaults = [path for path in (f"{place}/{name}" for name in _DEFAULTS) if path in files]
        found += [files[path] for path in defaults or (inside if len(inside) == 1 else ())]
    return (await clone.run("cat-file", "blob", found[0])).stdout.decode("utf-8", "replace") if found else None
