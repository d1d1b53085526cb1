"""Submodules: the host fetches those that the bot may read, and the worktree's sandbox takes them from there.

Addresses, names, paths and commits are written by whoever can push or open a pull request. So the bot's credentials are
shown for a repository only where the *default branch* of the one that names it names it too: else a pull request could
name any repository that the bot can read. Nor where somebody else's repository does. Every other one is fetched as
nobody, as anybody can.
https://git-scm.com/docs/gitmodules https://git-scm.com/docs/gitsubmodules
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath

import structlog

from bot import refs
from bot.failpoints import reached
from bot.sandbox.bwrap import Bind
from bot.tree.clone.admin import write
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import REGULAR_FILES
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.progress import Reader
from bot.tree.git.runner import Completed, Git

FOLDER = "modules"
"""The folder in a clone with what was fetched: `anyone` can read the one part, the bot the other."""
MOST_SUBMODULES = 100
MOST_DEEP = 8
MOST_BYTES = 1 << 30
"""The limit of one fetch: whoever opens a pull request chooses the repository."""
_ANYONE, _BOT = "anyone", "bot"
GITMODULES = ".gitmodules"
_MOST_FILE_BYTES = 100_000
_DEFAULT = "refs/threadtree/default"
_LIMITED = ("prlimit", f"--fsize={MOST_BYTES}", "--", "git")
# The commits of the submodules as they were filled, by path, in the clone's folder of the worktree.
_RECORD = "threadtree-submodules"
_SHOWN = Path("/tmp/submodule")  # noqa: S108 - of the sandbox
_KEY = re.compile(r"submodule\.(?P<name>.+)\.(?P<key>path|url)", re.DOTALL)
_REPOSITORY = re.compile(r"(?P<owner>[^/]+)/(?P<name>[^/]+?)(?:\.git)?/?")
_PASSING = (GitProblem.NETWORK, GitProblem.DISK_FULL, GitProblem.KILLED)
# git asks for a name where the server wants to know who it is.
_ASKED = "could not read Username"
_log = structlog.get_logger()

NOT_HERE, UNREADABLE, NOT_NAMED, NO_COMMIT, MOVED, REFUSED, TOO_MANY = (
    "its address is not an https one of this GitHub server",
    "the bot cannot read its repository",
    "not everybody can read its repository, and the default branch does not name it",
    "its repository does not have the commit",
    "it was moved to another commit here",
    "git does not check it out here",
    "there are too many",
)


@dataclass(frozen=True, slots=True)
class Submodule:
    """What `.gitmodules` says of a submodule, and its `commit`. `repository` is None at an address of another server.

    Of `path` and `name`, no part leads out. `path` is that in the worktree, of a nested one too.
    """

    name: str
    path: str
    repository: str | None
    commit: str


@dataclass(frozen=True, slots=True)
class Submodules:
    """Fills the submodules of a worktree whose repository is `full_name` on `server_url`.

    The default branch tells which repositories may be fetched with the bot's credentials; None: none may.
    """

    checkout: Checkout
    server_url: str
    full_name: str
    default_branch: str | None
    empty: dict[str, str] = field(default_factory=dict, init=False)
    filled: dict[str, str] = field(default_factory=dict, init=False)

    async def fill(self, commit: str) -> dict[str, str]:
        """Fill the submodules of HEAD, which is `commit`; return why others stay empty, by path.

        One in which somebody has moved HEAD stays as it is. Raises GitError, OSError.
        """
        clone = self.checkout.clone
        if (await clone.run("config", "--get", "submodule.active", check=False)).text != ".":
            await clone.run("config", "submodule.active", ".")
        trusted = refs.remote(self.default_branch) if self.default_branch is not None else None
        await self._fill(clone.git, clone.path, commit, trusted, self.full_name, ())
        write(self.checkout.admin / _RECORD, json.dumps(self.filled))
        reached("submodules-filled")
        return self.empty

    async def _fill(
        self, git: Git, store: Path, commit: str, trusted: str | None, within: str, above: tuple[Submodule, ...]
    ) -> None:
        """Fill the submodules of a repository in `store` at a commit, and theirs."""
        place = above[-1].path if above else ""
        found = await listed(git, store, commit, self.server_url, within, place)
        if not found:
            return
        known = await _repositories(git, store, trusted, self.server_url, within) if trusted else frozenset[str]()
        if above:
            await self.checkout.git("-C", place, "config", "submodule.active", ".", check=False)
        for one in found:
            if one.repository is None:
                self.empty[one.path] = NOT_HERE
                continue
            if len(self.filled) + len(self.empty) >= MOST_SUBMODULES or len(above) >= MOST_DEEP:
                self.empty[one.path] = TOO_MANY
                continue
            fetched = await self._fetched(one.repository, one.commit, with_credentials=one.repository in known)
            if isinstance(fetched, str):
                self.empty[one.path] = fetched
            elif (why := await self._put(one, place, fetched)) is not None:
                self.empty[one.path] = why
            else:
                self.filled[one.path] = one.commit
                is_ours = one.repository.partition("/")[0] == self.full_name.partition("/")[0]
                inside = _DEFAULT if is_ours and one.repository in known else None
                await self._fill(git, fetched, one.commit, inside, one.repository, (*above, one))

    async def _fetched(self, repository: str, commit: str, *, with_credentials: bool) -> Path | str:
        """Return where a repository is that has this commit; or why there is none."""
        clone, why = self.checkout.clone, UNREADABLE if with_credentials else NOT_NAMED
        nobody = replace(clone.git, authorise=None, remote_config=(), wait_for_new=None)
        readers: dict[str, Git] = {_ANYONE: nobody} | ({_BOT: clone.git} if with_credentials else {})
        places = [(clone.path / FOLDER / who / f"{repository}.git", git) for who, git in readers.items()]
        for store, _ in places:
            if await _has(clone.git, store, commit):
                return store
        for store, git in places:
            try:
                await _fetch(git, store, f"{self.server_url}/{repository}.git", commit)
            except GitError as error:
                _log.info("submodule-not-fetched", repository=repository, store=str(store), error=str(error))
                if error.problem in _PASSING and not (git is nobody and _ASKED in error.stderr):
                    raise
                continue
            if await _has(clone.git, store, commit):
                return store
            why = NO_COMMIT
        return why

    async def _put(self, one: Submodule, place: str, store: Path) -> str | None:
        """Check out a submodule in the worktree from what was fetched; return why it is left as it is."""
        there = await self._git(place, "-C", _below(one.path, place), "rev-parse", "HEAD", ceiling=one.path)
        if there.status == 0:
            if there.text == one.commit:
                return None
            if there.text != _recorded(self.checkout.admin).get(one.path):
                return MOVED
        isolated = self.checkout.isolated
        shown = (Bind(store, at=_SHOWN),) if isolated else ()
        url = f"{self.server_url}/{one.repository}.git"
        settings = {
            "submodule.active": ".",
            f"submodule.{one.name}.url": url,
            f"url.{_SHOWN if isolated else store}.insteadOf": url,
            "protocol.file.allow": "always",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        done = await self._git(
            place,
            *(*options, "submodule", "--quiet", "update", "--checkout", "--", _below(one.path, place)),
            shown=shown,
        )
        if done.status:
            _log.warning("submodule-not-filled", path=str(self.checkout.path), submodule=one.path, said=done.stderr)
        return REFUSED if done.status else None

    async def _git(self, place: str, *args: str, ceiling: str = "", shown: tuple[Bind, ...] = ()) -> Completed:
        """Run git in the worktree, or in the submodule at `place`, in the sandbox."""
        environment = {"GIT_ALLOW_PROTOCOL": "file"}
        if ceiling:  # where nothing is checked out, git would take a repository above for the submodule's
            environment["GIT_CEILING_DIRECTORIES"] = str((self.checkout.path.resolve() / ceiling).parent)
        inside = ("-C", place) if place else ()
        return await self.checkout.git(*inside, *args, check=False, environment=environment, shown=shown)


def _below(path: str, place: str) -> str:
    return path.removeprefix(f"{place}/") if place else path


def _recorded(admin: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((admin / _RECORD).read_text())
    except FileNotFoundError:
        return {}
    return found


async def listed(git: Git, store: Path, commit: str, server_url: str, within: str, place: str = "") -> list[Submodule]:
    """Return the submodules of a repository `within` the server at a commit. Raises GitError."""
    said = await _of_gitmodules(git, store, commit)
    paths = {one["path"]: name for name, one in said.items() if "path" in one and _is_inside(one["path"])}
    if not paths:
        return []
    entries = (await git.on_clone(store, "ls-tree", "-z", "--full-tree", commit, "--", *paths)).fields
    found = list[Submodule]()
    for entry in entries:
        facts, _, path = entry.partition("\t")
        mode, _, sha = facts.split(" ")
        name = paths.get(path, "")
        if mode == "160000" and _is_inside(name) and "=" not in name:  # it becomes a part of an option
            repository = repository_at(said[name].get("url", ""), server_url, within)
            found.append(Submodule(name, f"{place}/{path}" if place else path, repository, sha))
    return found


async def _repositories(git: Git, store: Path, revision: str, server_url: str, within: str) -> frozenset[str]:
    """Return the repositories that `.gitmodules` names at a revision."""
    urls = [one.get("url", "") for one in (await _of_gitmodules(git, store, revision)).values()]
    return frozenset(filter(None, [repository_at(url, server_url, within) for url in urls]))


async def _of_gitmodules(git: Git, store: Path, revision: str) -> dict[str, dict[str, str]]:
    """Return paths and addresses by name; nothing where the file is no file that git reads."""
    shown = await git.on_clone(store, "ls-tree", "-z", "--long", "--full-tree", revision, "--", GITMODULES, check=False)
    facts = shown.fields[0].partition("\t")[0].split() if shown.fields else []
    if len(facts) != 4 or facts[0] not in REGULAR_FILES or int(facts[3]) > _MOST_FILE_BYTES:
        return {}
    read = await git.on_clone(store, "config", f"--blob={facts[2]}", "--list", "-z", check=False)
    found = dict[str, dict[str, str]]()
    for line in read.fields if read.status == 0 else ():
        key, _, value = line.partition("\n")
        if (known := _KEY.fullmatch(key)) is not None:
            found.setdefault(known["name"], {})[known["key"]] = value
    return found


def repository_at(url: str, server_url: str, within: str) -> str | None:
    """Return the repository `owner/name` at an address of this server, which may be relative to that of `within`."""
    if url.startswith(("./", "../")):
        parts = within.split("/")
        for part in filter(None, url.split("/")):
            if part == ".." and not parts:
                return None
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        url = f"{server_url}/{'/'.join(parts)}"
    server = server_url.rstrip("/") + "/"
    named = _REPOSITORY.fullmatch(url.removeprefix(server)) if url.startswith(server) else None
    if named is None:
        return None
    try:
        refs.repository_folder(named["owner"], named["name"])
    except refs.InvalidNameError:
        return None
    return f"{named['owner']}/{named['name']}"


def _is_inside(name: str) -> bool:
    """Return whether git takes this for the path or the name of a submodule: https://git-scm.com/docs/git-fsck."""
    parts = PurePosixPath(name).parts
    is_plain = bool(parts) and name.isprintable() and not name.startswith(("-", "/")) and "\\" not in name
    return is_plain and ".." not in parts and all(part.casefold() != ".git" for part in parts)


async def _has(git: Git, store: Path, commit: str) -> bool:
    if not (store / "HEAD").is_file():
        return False
    return (await git.on_clone(store, "cat-file", "-e", f"{commit}^{{commit}}", check=False)).status == 0


async def _fetch(git: Git, store: Path, url: str, commit: str) -> None:
    """Bring the branches of a repository, or else this one commit, under the clone's lock. Raises GitError."""
    for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*"):  # what a killed git left
        for left in store.glob(pattern):  # noqa: ASYNC240
            left.unlink()
    await git.run("init", "--quiet", "--bare", "--template=", "--", str(store), cwd=None)
    await git.on_clone(store, "config", "--replace-all", "remote.origin.url", url)
    how = ("fetch", "--progress", "--prune", "--no-write-fetch-head", "--no-auto-maintenance", "origin")
    wanted = ("+refs/heads/*:refs/heads/*", f"+HEAD:{_DEFAULT}")
    await git.on_clone(store, *how, *wanted, program=_LIMITED, on_stderr=Reader(None))
    if not await _has(git, store, commit):
        pinned = f"+{commit}:refs/threadtree/pinned/{commit}"
        await git.on_clone(store, *how, pinned, check=False, program=_LIMITED, on_stderr=Reader(None))


# What only a submodule's repository has


async def with_commits_of_its_own(checkout: Checkout) -> str | None:
    """Return a submodule whose repository, in git's own folder of the worktree, has a commit that was made here.

    An agent can write there what it likes: the answer protects it from a mistake, and nothing else. Raises GitError.
    """
    for place in _git_directories(checkout.state / "modules"):
        found = await checkout.git(
            f"--git-dir={checkout.admin / 'modules' / place}",
            *("rev-list", "--max-count=1", "--all", "HEAD", "--not", "--remotes", "--tags"),
            check=False,
        )
        if found.status or found.stdout:
            return str(place)
    return None


def _git_directories(folder: Path) -> Iterator[PurePath]:
    for above, names, files in os.walk(folder):
        if "HEAD" in files and "objects" in names:
            yield PurePath(above).relative_to(folder)
            names[:] = [name for name in names if name == "modules"]
