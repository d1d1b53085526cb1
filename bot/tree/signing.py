"""Before a push: what is not published yet is made anew, signed, or signed off. Files, messages, order and merges stay.

What GitHub has, or ever had, is never made anew.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import structlog

from bot import refs
from bot.failpoints import reached
from bot.tree.clone.admin import write
from bot.tree.clone.branch_history import NOT_ON_GITHUB, never_published
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.fetch import PUSH_REMOTE
from bot.tree.clone.importing import move_branch
from bot.tree.clone.published import lend
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Identity
from bot.tree.merge import OF_COMMIT, environment_of

# In the clone, where no agent can write.
_REMADE = "threadtree-remade"
_MOST_REMADE = 10_000
# Lines that begin with # are references to issues here, not comments.
_NO_COMMENTS = "--config-env=core.commentChar=COMMENT"
_BY_SSH = ("--config-env=gpg.format=FORMAT", "--config-env=user.signingKey=KEY")
_CANNOT_SIGN = "the key of SIGNING_KEY_PATH could not sign; `threadtree doctor` tells more"
_LONGEST_NAME = 200
AT_ONCE, PAUSE_SECONDS = 5, 1.0
"""So many commits GitHub makes at once, and then one in this time: it limits what creates content to 80 a minute."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Signing:
    """How commits are made anew. With `signs_off`, each gets the bot's `Signed-off-by`.

    `ssh`: the host signs them with the private key in the file `key`; the authors stay, the bot is the committer.
    `github`: GitHub makes them by `create`, which gets message, tree and parents, and signs them. The App is the author
    then, and `Co-authored-by` names who was.
    """

    how: Literal["off", "ssh", "github"] = "off"
    key: Path | None = None
    signs_off: bool = False
    create: Callable[[str, str, Sequence[str]], Awaitable[str]] | None = field(default=None, repr=False)

    @property
    def changes_nothing(self) -> bool:
        return self.how == "off" and not self.signs_off


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit that is to be made anew; `people` are name, address and raw date of its author and its committer."""

    name: str
    tree: str
    parents: tuple[str, ...]
    people: tuple[str, ...]
    message: str


async def sign_branch(checkout: Checkout, branch: str, signing: Signing, bot: Identity, tip: str) -> str:
    """Make anew what is not published of the commit `tip`; return what it is now. A branch at `tip` is moved there, in
    the sandbox too, where no file changes by that. Raises GitError, OSError, what `create` raises.
    """
    clone = checkout.clone
    if signing.changes_nothing:
        return tip
    made = await sign(checkout.lock, signing, bot, tip, await never_published(clone, branch, tip))
    if (after := made.get(tip, tip)) == tip:
        return tip
    await lend(clone, checkout.view, after)
    reached("commits-signed")
    if await clone.commit_at(refs.local(branch)) == tip:
        await move_branch(checkout, refs.local(branch), after, tip)
        reached("signed-branch-moved")
    return after


async def sign(
    lock: CloneLock, signing: Signing, bot: Identity, tip: str, unpublished: Collection[str]
) -> Mapping[str, str]:
    """Make these commits of `tip` anew; return what each of them that changed is now.

    Made by the host, the same commits give the same names again, unless the key signs otherwise each time. Raises
    GitError, OSError, what `create` raises.
    """
    if signing.changes_nothing or not unpublished:
        return {}
    clone, commits = lock.clone, list[_Commit]()
    told = await lock.clone.log(f"%H%n%T%n{OF_COMMIT}", "--date=raw", "--topo-order", "--reverse", tip, *NOT_ON_GITHUB)
    for one in told:
        name, tree, parents, *people, message = one.split("\n", 9)
        if name in unpublished:
            commit = _Commit(name, tree, tuple(parents.split()), tuple(people), message)
            commits.append(await _with_trailers(clone, commit, signing, bot))
    if signing.how == "github":
        made = await _made_by_github(clone, signing, tip, commits)
    else:
        made = {}
        for commit in commits:
            made[commit.name] = await _made_here(clone, signing, bot, commit, _parents(commit, made))
    changed = {before: after for before, after in made.items() if before != after}
    merges = await clone.refs(refs.MERGED_PREFIX) if changed else {}
    for merge in changed.keys() & merges.values():
        await clone.run("update-ref", f"{refs.MERGED_PREFIX}{changed[merge]}", changed[merge])
    if changed:
        lines = [f"{before} {after}" for before, after in (_remade(clone) | changed).items()]
        write(clone.path / _REMADE, "\n".join(lines[-_MOST_REMADE:]))
    return changed


def remade(clone: Clone, commit: str) -> str:
    """Return what a commit is now, if it was made anew: it has the same files, and what led to it. Raises OSError."""
    known = _remade(clone)
    while (after := known.pop(commit, None)) is not None:
        commit = after
    return commit


def _remade(clone: Clone) -> dict[str, str]:
    try:
        lines = (clone.path / _REMADE).read_text().splitlines()
    except FileNotFoundError:
        return {}
    return {before: after for before, _, after in (line.partition(" ") for line in lines)}


def _parents(commit: _Commit, made: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(made.get(parent, parent) for parent in commit.parents)


async def _with_trailers(clone: Clone, commit: _Commit, signing: Signing, bot: Identity) -> _Commit:
    """Return the commit with the trailers that its message lacks."""
    author = Identity(commit.people[0][:_LONGEST_NAME], commit.people[1][:_LONGEST_NAME])
    named = signing.how == "github" and author.email != bot.email
    trailers = [f"Co-authored-by: {author}"] if named else []
    trailers += [f"Signed-off-by: {bot}"] if signing.signs_off else []
    if not trailers:
        return commit
    words = ("--no-divider", "--if-exists=addIfDifferent", *(word for one in trailers for word in ("--trailer", one)))
    making = (_NO_COMMENTS, "interpret-trailers", *words)
    given = os.fsencode(commit.message)
    done = await clone.git.on_clone(clone.path, *making, input=given, environment={"COMMENT": "\x01"})
    return replace(commit, message=os.fsdecode(done.stdout))


async def _made_here(clone: Clone, signing: Signing, bot: Identity, commit: _Commit, parents: Sequence[str]) -> str:
    name, email, date, _, _, committed = commit.people
    people = environment_of((name or email or "unknown", email, date, bot.name or bot.email, bot.email, committed))
    making = ("commit-tree", commit.tree, *(word for one in parents for word in ("-p", one)))
    if signing.how == "ssh":
        people |= {"FORMAT": "ssh", "KEY": str(signing.key)}
        making = (*_BY_SSH, *making, "-S")
    try:
        done = await clone.git.on_clone(clone.path, *making, input=os.fsencode(commit.message), environment=people)
    except GitError as error:
        if signing.how != "ssh":
            raise
        _log.warning("not-signed", commit=commit.name, problem=str(error))
        raise GitError(GitProblem.OTHER, "commit-tree", _CANNOT_SIGN) from error  # git names the file of the key
    return done.text


async def _made_by_github(clone: Clone, signing: Signing, tip: str, commits: Sequence[_Commit]) -> dict[str, str]:
    """Let GitHub make the commits, the last of which is `tip`: their files are there meanwhile under a ref that is no
    branch.
    """
    if signing.create is None:
        raise ValueError("nothing asks GitHub for commits")
    made, ref = dict[str, str](), f"{refs.UPLOADED_PREFIX}{tip}"
    await clone.run("push", "--quiet", "--no-verify", PUSH_REMOTE, f"+{tip}:{ref}")
    try:
        for number, commit in enumerate(commits):
            if number >= AT_ONCE:
                await asyncio.sleep(PAUSE_SECONDS)
            parents = _parents(commit, made)
            message = os.fsencode(commit.message).decode(errors="replace")
            made[commit.name] = await signing.create(message, commit.tree, parents)
        fetching = ("fetch", "--quiet", "--no-write-fetch-head", "--no-tags", "--no-auto-maintenance", "origin")
        await clone.git.of_any_commit().on_clone(clone.path, *fetching, made[tip])
    finally:
        with suppress(GitError):  # the next push of the same commit deletes it too
            await clone.run("push", "--quiet", "--no-verify", PUSH_REMOTE, f":{ref}")
    wanted = {f"{made[one.name]} {one.tree} {' '.join(_parents(one, made))}".rstrip() for one in commits}
    told = await clone.log("%H %T %P", "--no-walk", *made.values())
    if {line.rstrip() for line in told} != wanted:
        raise GitError(GitProblem.OTHER, "fetch", "GitHub's commits are not those that were asked for")
    return made
