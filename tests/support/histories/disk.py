"""Changes of a worktree by agents during a turn, and by people between two turns."""

import os
import shutil
import time
from pathlib import Path
from typing import Literal, get_args

from hypothesis import strategies as st

from tests.support.histories.node import HistoryNode

Deed = Literal[
    "write",
    "write deep",
    "stage",
    "stage and change",
    "delete",
    "remove",
    "chmod",
    "symlink",
    "commit",
    "amend",
    "drop commit",
    "switch",
    "detach",
    "merge",
    "rebase",
    "stash",
    "hide",
    "nest",
    "ignore",
    "submodule",
    "submodule work",
    "submodule commit",
]
Damage = Literal[
    "gone",
    "emptied",
    "a file",
    "a link",
    "no .git",
    "another .git",
    "no entry",
    "index lock",
    "ref locks",
    "clone gone",
    "clone empty",
]
FILES = ("a", "b", "README.md")
IGNORED = "*.ign"
SUBMODULE = "lib"

deeds = st.lists(st.tuples(st.sampled_from(get_args(Deed)), st.sampled_from(FILES)), min_size=1, max_size=4)
damages = st.sampled_from(get_args(Damage))


def do(ground: HistoryNode, path: Path, deed: Deed, name: str) -> None:
    """Do one thing that an agent does; a refusal by git is ignored."""
    file = path / name
    match deed:
        case "write":
            _write(file, ground.content(name))
        case "write deep":
            _write(path / "deep" / "er" / name, ground.content(f"deep {name}"))
        case "stage":
            _write(file, ground.content(name))
            ground.agent(path, "git", "add", "--", name)
        case "stage and change":
            _write(file, ground.content(name))
            ground.agent(path, "git", "add", "--", name)
            _write(file, ground.content(name))
        case "delete":
            _away(file)
        case "remove":
            ground.agent(path, "git", "rm", "-q", "-f", "--", name)
        case "chmod":
            if file.is_file() and not file.is_symlink():
                file.chmod(0o755)
        case "symlink":
            _away(file)
            file.symlink_to(ground.content(name).strip())
        case "commit":
            _write(file, ground.content(name))
            ground.agent(path, "sh", "-c", "git add -A && git commit -q -m work")
        case "amend":
            _write(file, ground.content(name))
            ground.agent(path, "sh", "-c", "git add -A && git commit -q --amend --no-edit")
        case "drop commit":
            ground.agent(path, "git", "reset", "-q", "--hard", "HEAD~1")
        case "switch":
            ground.agent(path, "git", "switch", "-q", "-c", f"side-{name}")
        case "detach":
            ground.agent(path, "git", "switch", "-q", "--detach")
        case "merge":
            ground.agent(path, "git", "merge", "-q", "--no-commit", "--no-ff", "origin/main")
        case "rebase":
            ground.agent(path, "git", "rebase", "-q", "--exec", "false", "HEAD~1")
        case "stash":
            ground.agent(path, "git", "stash", "push", "-q", "-u")
        case "hide":
            ground.agent(path, "git", "update-index", "--skip-worktree", "--", name)
            if file.is_file():
                _write(file, ground.content(name))
        case "nest":
            nested = path / "nested"
            nested.mkdir(exist_ok=True)
            _write(nested / name, ground.content(f"nested {name}"))
            ground.agent(path, "sh", "-c", "cd nested && git init -q && git add -A && git commit -q -m nested")
        case "ignore":
            _write(path / f"a{IGNORED[1:]}", ground.secret())
        case "submodule":
            add = "git -c protocol.file.allow=always submodule add -q"
            make = "git init -q lib; cd lib && git commit -q --allow-empty -m lib"
            ground.agent(path, "sh", "-c", f'(cd "$HOME" && {make}); {add} "$HOME/lib" {SUBMODULE}')
        case "submodule work":
            if (path / SUBMODULE).is_dir():
                _write(path / SUBMODULE / name, ground.content(f"submodule's {name}"))
        case "submodule commit":
            if (path / SUBMODULE / ".git").exists():
                _write(path / SUBMODULE / name, ground.content(f"submodule's {name}"))
                ground.agent(path, "sh", "-c", f"cd {SUBMODULE} && git add -A && git commit -q -m work")
                ground.agent(path, "git", "commit", "-q", "-m", "pointer", "--", SUBMODULE)


def damage(ground: HistoryNode, path: Path, kind: Damage) -> None:
    """Damage a worktree, or its clone, without the bot."""
    admin, clone = ground.admin(path), ground.clone.path
    match kind:
        case "gone":
            _away(path)
        case "emptied":
            _away(path)
            path.mkdir()
        case "a file":
            _away(path)
            path.write_text("not a directory\n")
        case "a link":
            _away(path)
            path.symlink_to(ground.root)
        case "no .git":
            if path.is_dir() and not path.is_symlink():
                (path / ".git").unlink(missing_ok=True)
        case "another .git":
            if path.is_dir() and not path.is_symlink():
                (path / ".git").write_text(f"gitdir: {ground.root / 'elsewhere'}\n")
        case "no entry":
            if admin is not None:
                _away(admin)
        case "index lock":
            state = ground.state(path)
            if state is not None and state.is_dir():
                for lock in ("index.lock", "HEAD.lock"):
                    _leave(state / lock)
        case "ref locks":
            for lock in ("packed-refs.lock", "config.lock", "refs/heads/threadtree/issue-1.lock", "shallow.lock"):
                if (clone / lock).parent.is_dir():
                    _leave(clone / lock)
        case "clone gone":
            _away(clone)
        case "clone empty":
            _away(clone / "objects")
            _away(clone / "HEAD")


def _leave(lock: Path) -> None:
    """Leave the lock file of a git that was killed an hour ago."""
    lock.touch()
    past = time.time() - 3600
    os.utime(lock, (past, past))


def _write(file: Path, text: str) -> None:
    if file.is_symlink() or file.is_dir():
        _away(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
