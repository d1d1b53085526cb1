"""A ref is moved by its file as git does it, or not at all."""

from pathlib import Path

import pytest

from bot.git.loose_refs import point_at
from tests.support.git_repositories import git

REF = "refs/heads/folder/one"


@pytest.fixture
def commits(tmp_path: Path) -> tuple[str, str]:
    git(tmp_path, "init", "-q", "--bare")
    tree = git(tmp_path, "write-tree")
    first = git(tmp_path, "commit-tree", "-m", "first", tree)
    return first, git(tmp_path, "commit-tree", "-p", first, "-m", "second", tree)


@pytest.mark.parametrize("packed", [False, True])
def test_git_sees_a_ref_that_was_made_and_moved(tmp_path: Path, commits: tuple[str, str], packed: bool) -> None:
    first, second = commits
    assert point_at(tmp_path, REF, first, None)
    if packed:
        git(tmp_path, "pack-refs", "--all")
    assert point_at(tmp_path, REF, second, first, "moved")
    assert git(tmp_path, "for-each-ref", "--format=%(refname) %(objectname)") == f"{REF} {second}"
    assert git(tmp_path, "reflog", "show", "--format=%H %gs", REF) == f"{second} moved"
    git(tmp_path, "fsck", "--strict")


def test_a_ref_that_is_elsewhere_or_locked_stays(tmp_path: Path, commits: tuple[str, str]) -> None:
    first, second = commits
    assert point_at(tmp_path, REF, first, None)
    assert not point_at(tmp_path, REF, second, None)
    assert not point_at(tmp_path, REF, first, second)
    lock = tmp_path / f"{REF}.lock"
    lock.touch()
    assert not point_at(tmp_path, REF, second, first)
    lock.unlink()
    assert not point_at(tmp_path, f"{REF}/below", second, None)
    assert not point_at(tmp_path, "refs/heads/folder", second, None)
    assert git(tmp_path, "for-each-ref", "--format=%(refname) %(objectname)") == f"{REF} {first}"
    assert [file.name for file in (tmp_path / "refs" / "heads").rglob("*")] == ["folder", "one"]
