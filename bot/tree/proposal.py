"""What a pull request of a branch would hold, as it is on GitHub: its commits, and the repository's template."""

import re
from dataclasses import dataclass

from bot import refs
from bot.tree.clone.clone import REGULAR_FILES, Clone

MOST_COMMITS = 200
_REVERTS = re.compile(r"^This reverts commit ([0-9a-f]{40,64})", re.MULTILINE)
"""What `git revert`, and `/undo`, write into the message."""
TEMPLATE_BYTES = 20_000
# https://docs.github.com/communities/using-templates-to-encourage-useful-issues-and-pull-requests/creating-a-pull-request-template-for-your-repository
_FOLDERS = (".github/", "", "docs/")
_FILES = ("pull_request_template.md", "pull_request_template.txt")
_DEFAULTS = ("default.md", "pull_request_template.md")
_PLACES = {".github", "docs", "pull_request_template", *_FILES}


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would be merged into `base`: the branch's newest commit `tip`, and the subjects of its commits in order.

    Not `is_new`: `base` has every commit of the branch.
    """

    base: str
    tip: str
    subjects: tuple[str, ...] = ()
    template: str | None = None
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Template:
    """The repository's template for pull requests: a file of the default branch, which no agent can write."""

    path: str
    blob: str


async def proposal_of(clone: Clone, branch: str, base: str | None, default_branch: str | None) -> Proposal | None:
    """Return what would be merged into `base`, or into the default branch where GitHub lacks that.

    None where GitHub lacks the branch. Raises GitError, InvalidNameError.
    """
    tip = await clone.commit_at(refs.remote(branch))
    into = await _first_on_github(clone, base, default_branch)
    if tip is None or into is None:
        return None
    onto = await clone.commit_at(refs.remote(into))
    if onto is None or not (await clone.ahead_behind(tip, onto))[0]:
        return Proposal(into, tip, is_new=False)
    found = await template_on(clone, default_branch or into)
    text = (await clone.run("cat-file", "blob", found.blob)).stdout.decode("utf-8", "replace") if found else None
    return Proposal(into, tip, await _subjects(clone, tip, onto), text)


async def template_on(clone: Clone, default_branch: str) -> Template | None:
    """Return the first template; the default of a folder of templates, or the only one in it. No links.

    Raises GitError, InvalidNameError.
    """
    tip = await clone.commit_at(refs.remote(default_branch))
    if tip is None:
        return None
    top = (await clone.constant("ls-tree", "--name-only", "-z", "--full-tree", tip)).fields
    if not (places := [name for name in top if name.casefold() in _PLACES]):
        return None
    files = dict[str, Template]()
    for entry in (await clone.constant("ls-tree", "-r", "--long", "-z", "--full-tree", tip, "--", *places)).fields:
        facts, _, path = entry.partition("\t")
        mode, _, blob, size = facts.split()
        if mode in REGULAR_FILES and int(size) <= TEMPLATE_BYTES:
            files[path.casefold()] = Template(path, blob)
    found = [files[folder + name] for folder in _FOLDERS for name in _FILES if folder + name in files]
    for place in (f"{folder}pull_request_template" for folder in _FOLDERS):
        inside = [path for path in files if path.rpartition("/")[0] == place]
        defaults = [path for path in (f"{place}/{name}" for name in _DEFAULTS) if path in files]
        found += [files[path] for path in defaults or (inside if len(inside) == 1 else ())]
    return found[0] if found else None


async def _subjects(clone: Clone, tip: str, onto: str) -> tuple[str, ...]:
    """Return the subjects of the commits that `onto` lacks, oldest first, without those that a later one took back."""
    shown = (f"--max-count={MOST_COMMITS}", "--topo-order", "--format=%H\t%P\t%s%n%b", "-z")
    listed = await clone.run("log", *shown, tip, f"^{onto}", "--")
    commits = [entry.split("\t", 2) for entry in listed.fields]
    there, gone, kept = {commit for commit, _, _ in commits}, set[str](), list[str]()
    for commit, parents, words in commits:
        taken_back = {*_REVERTS.findall(words)}
        if commit in gone:
            continue
        if taken_back and taken_back <= there:
            gone |= taken_back
        elif " " not in parents:
            kept.append(words.partition("\n")[0].encode("utf-8", "replace").decode())
    return tuple(reversed(kept))


async def _first_on_github(clone: Clone, *branches: str | None) -> str | None:
    for branch in branches:
        if branch is not None and await clone.commit_at(refs.remote(branch)) is not None:
            return branch
    return None
