"""What a release must be: one version everywhere, migrations that stay as they were, workflows with pinned parts."""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
MIGRATIONS = CHECKOUT / "migrations"
WORKFLOWS = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
RIGHTS = {
    "test.yml": {"test": {"contents": "read"}},
    "release.yml": {
        "make": {"contents": "read"},
        "publish": {"contents": "write", "id-token": "write", "attestations": "write"},
    },
}
"""What the token of each job may do, and nothing else: https://docs.github.com/en/actions/reference/security/secure-use"""


def test_a_migration_that_was_released_stays_as_it_was() -> None:
    lines = (line.split("  ") for line in (MIGRATIONS / "RELEASED").read_text().splitlines())
    released = {name: sha256 for sha256, name in lines}
    changed = [name for name, sha256 in released.items() if sha256_of(MIGRATIONS / name) != sha256]
    assert released
    assert changed == [], "Add a file in place of this change (CONTRIBUTING.md). Before the tag: `make released`"
    later = sorted({file.name for file in MIGRATIONS.glob("*.sql")} - released.keys())
    assert sorted(released) == sorted((*released, *later))[: len(released)], "new migrations come after released ones"


def sha256_of(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def test_one_version_is_named_everywhere() -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    pages = (CHECKOUT / "compose.yaml", CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md"))
    named = {page.name: set(re.findall(r"threadtree[-:](\d+\.\d+\.\d+)", page.read_text())) for page in pages}
    assert {page: versions for page, versions in named.items() if versions - {version}} == {}
    assert named["compose.yaml"] == {version}
    headings = re.findall(r"^## (.+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", headings[0])
    assert f"\n### {version}\n" in (CHECKOUT / "docs/upgrade.md").read_text()


def test_actions_are_pinned_by_commit() -> None:
    used = [line for page in WORKFLOWS for line in re.findall(r"uses: (.+)", page.read_text())]
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("page", WORKFLOWS, ids=lambda page: page.name)
def test_a_workflow_may_do_no_more_than_it_needs(page: Path) -> None:
    workflow: Mapping[str, Any] = yaml.safe_load(page.read_text())
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == RIGHTS[page.name]
    assert [step for step in steps(workflow) if "${{" in step.get("run", "")] == [], "what people write is no code"
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert {step["with"]["persist-credentials"] for step in checkouts} == {False}


def steps(workflow: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]
