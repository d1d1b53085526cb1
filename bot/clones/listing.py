"""What branches and tags the remote of a clone has, asked before a fetch.

A fetch compares the remote's branches with the clone's: thousands of them take git a while, also where nothing changed.
Two lists are compared in a few milliseconds, and a fetch of what changed is as short as one in a small repository.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bot.clones import holding
from bot.git import refs
from bot.git.errors import GitError
from bot.git.runner import Git

_ORIGIN, _TAGS = "refs/remotes/origin/", "refs/tags/"
# With fewer branches a fetch takes less than asking twice where something changed.
MANY_BRANCHES = 1000
# Where more changed, all is fetched.
_MOST_CHANGED = 50
# While a turn waited longer than this for the clone, the list grew old.
_FRESH_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
# git makes it by itself since 2.48: https://git-scm.com/docs/git-remote#Documentation/git-remote.txt-set-head
_HEAD = f"{_ORIGIN}HEAD"


@dataclass(frozen=True, slots=True)
class Listing:
    """The remote's refs as a clone names them, with their objects; a tag's is what it points to. `at`: the loop's time
    of the answer.
    """

    refs: Mapping[str, str]
    at: float


@dataclass(frozen=True, slots=True)
class Changes:
    """The branches that are not in the clone as on the remote, and what tags point to that the clone does not have."""

    branches: tuple[str, ...]
    tagged: tuple[str, ...]


async def list_remote(git: Git, clone: Path, remote_url: str) -> Listing | None:
    """Ask what the remote has, if the clone has many branches; needs no lock. None leaves all to the fetch, also what
    went wrong. Raises OSError.
    """
    if len(await asyncio.to_thread(holding.tips, clone, _ORIGIN)) < MANY_BRANCHES:
        return None
    command = ("ls-remote", "--heads", "--tags", "--", remote_url)
    try:
        answer = await git.on_clone(clone, *command, timeout_seconds=_ANSWER_SECONDS)
    except GitError:
        return None
    at = asyncio.get_running_loop().time()
    return Listing(await asyncio.to_thread(_as_in_the_clone, os.fsdecode(answer.stdout)), at)


def _as_in_the_clone(listed: str) -> dict[str, str]:
    """Return the refs of a list by the names that a clone has for them."""
    found = dict[str, str]()
    for line in listed.split("\n")[:-1]:
        sha, _, name = line.partition("\t")
        branch = name.removeprefix("refs/heads/")
        # What a tag with a message points to is listed after it: https://git-scm.com/docs/git-ls-remote
        found[name.removesuffix("^{}") if branch == name else f"{_ORIGIN}{branch}"] = sha
    return found


async def changes_since(clone: Path, listing: Listing) -> Changes | None:
    """Compare a clone with what its remote had; None where the whole is to be fetched. Needs the clone's lock."""
    if asyncio.get_running_loop().time() - listing.at > _FRESH_SECONDS:
        return None
    return await asyncio.to_thread(_compare, clone, listing)


def _compare(clone: Path, listing: Listing) -> Changes | None:
    here = holding.tips(clone, _ORIGIN) | holding.tips(clone, _TAGS)
    here.pop(_HEAD, None)
    differing = {name for name, _ in here.items() ^ listing.refs.items()}
    branches = tuple(sorted(name.removeprefix(_ORIGIN) for name in differing if name.startswith(_ORIGIN)))
    tagged = {sha for name, sha in listing.refs.items() if name not in here and name.startswith(_TAGS)}
    if len(branches) + len(tagged) > _MOST_CHANGED or not all(map(refs.is_branch, branches)):
        return None
    return Changes(branches, tuple(tagged))
