"""Each folder of docs/examples works as it is: its rules are right, its set-up and its check run in the sandbox.

Programs that need a network or that this machine may lack are played by short scripts; shell, git, make, python and
node are real.
"""

import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bot.check.running import Check, check_commit, place_for
from bot.rules import read_config
from tests.support.git_repositories import SEARCH_PATH
from tests.support.node import prepared_node

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*/.threadtree/*") if not path.suffix)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
REPORT = '<testsuite><testcase classname="shop" name="%s"/></testsuite>'
OK, TEST = "exit 0", "test('adds', () => {});\n"
NODE_TEST = {"cart.test.js": f"const test = require('node:test');\n{TEST}"}
# An environment of Python has the programs that are played in its place.
PYTHON = {
    "python3": '[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && cp bin/pip bin/pytest "$3/bin"',
    "pip": OK,
    "pytest": f"PATH=${{PATH#bin:}} python3 -m unittest -q && echo '{REPORT % 'adds'}' >\"${{2#*=}}\"",
}
NPM = 'case "$*" in *start) exec sleep 60 ;; esac'
NPX = f'case "$2" in screenshot) for last; do :; done; echo {PNG} | base64 -d >"$last" ;; esac'
CARGO = f"[ $1 = nextest ] || exit 0; mkdir -p target/nextest/ci; echo '{REPORT % 'adds'}' >target/nextest/ci/junit.xml"


@dataclass(frozen=True, slots=True)
class Example:
    """A tiny repository for an example, a change of it on a branch, and what the check reports then."""

    files: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    passes: frozenset[str] = frozenset({"adds"})
    pictures: tuple[str, ...] = ()


EXPECTED = {
    "python": Example(
        {"test_cart.py": "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_adds(self): pass\n"},
        PYTHON,
        passes=frozenset({"shop.adds"}),
    ),
    "node": Example(NODE_TEST, {"npm": NPM}),
    "go": Example(
        {},
        {"go": OK, "gofmt": OK, "gotestsum": f"echo '{REPORT % 'adds'}' >\"${{2}}\""},
        passes=frozenset({"shop.adds"}),
    ),
    "rust": Example({}, {"cargo": CARGO}, passes=frozenset({"shop.adds"})),
    "monorepo": Example(
        {f"packages/{name}/Makefile": "test:\n\t@echo tested\n" for name in ("api", "web")},
        passes=frozenset({"packages/web"}),
        changes={"packages/web/new.txt": "new\n"},
    ),
    "review-only": Example(),
    "plan-first": Example(),
    "dependency-updates": Example(NODE_TEST, {"npm": NPM}),
    "screenshots": Example({}, {"npm": NPM, "npx": NPX}, passes=frozenset(), pictures=("1-cart.png", "2-home.png")),
    "private-registry": Example(
        NODE_TEST, {"npm": f'grep -q npm.corp.example "$HOME/.npmrc" && {{ {NPM}; }}'}, {"NPM_TOKEN": "secret of npm"}
    ),
}


def test_all_examples_are_known_here_and_in_the_list() -> None:
    folders = {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()}
    assert folders == EXPECTED.keys()
    page = (EXAMPLES / "README.md").read_text()
    assert [name for name in folders if f"[{name}]({name}/README.md)" not in page] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_the_shell_can_read_each_script(script: Path) -> None:
    shell = script.read_text().split(maxsplit=1)[0].removeprefix("#!")
    subprocess.run((shell, "-n", script), check=True)


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_example_works_as_it_is(tmp_path: Path, database_url: str, name: str) -> None:
    expected, folder = EXPECTED[name], EXAMPLES / name / ".threadtree"
    found = read_config((folder / "config.toml").read_bytes())
    assert (found.problems, found.config is not None) == ((), True)
    files = {f".threadtree/{file.name}": file.read_text() for file in folder.iterdir()}
    if ".threadtree/check" not in files:
        return
    if "node " in files[".threadtree/check"] and shutil.which("node", path=SEARCH_PATH) is None:
        pytest.skip("This example is tested with its program: install node.")

    async with prepared_node(tmp_path, database_url, "bwrap") as node:
        programs = {f"bin/{program}": f"#!/bin/sh\n{text}\n" for program, text in expected.programs.items()}
        for path in programs:
            file = node.git.person / path
            file.parent.mkdir(exist_ok=True)
            file.touch(0o755)
        ignored = {".gitignore": ".venv/\nnode_modules/\ntarget/\n"}
        commit = node.git.someone_pushes("main", files | expected.files | programs | ignored)
        if expected.changes:
            commit = node.git.someone_pushes("topic", expected.changes, start="origin/main")
        await node.git.update()
        worktree = await node.row(await node.add(1))
        launcher = replace(node.ctx.launcher, search_path=f"bin:{SEARCH_PATH}")
        ctx = replace(node.ctx, launcher=launcher, rules=replace(node.ctx.rules, setup=True))
        with place_for(ctx, "octo/hello") as place:
            check = Check(ctx, place, files[".threadtree/check"].encode(), expected.variables)
            done = await check_commit(check, worktree, commit)
    assert done.failure is None, done.output
    assert done.report.passed == expected.passes
    assert tuple(sorted(done.pictures)) == expected.pictures
