"""What the page of a request shows of its repository, within its limits."""

from pathlib import Path

import pytest

from bot.operator.dashboard import diff
from tests.support.git_repositories import GitRepositories


async def test_commits_and_diff_come_from_the_clone_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GitRepositories.make(tmp_path)
    await world.update()
    before = world.someone_pushes("main", {"a.txt": "a\n"})
    world.push_commit("main", {"b.txt": "<b>\n"})
    after = world.push_commit("main", {"big.txt": "x" * (2 << 20)})
    await world.update()
    data_dir, folder = world.clone.path.parents[2], f"{world.clone.path.parent.name}/{world.clone.path.stem}"

    found = await diff.changed(data_dir, folder, before, after)
    assert found is not None
    assert [subject for _, subject in found.commits] == ["change big.txt", "change b.txt"]
    assert ("added", "+<b>") in found.lines
    assert any(line.startswith("Binary files") for _, line in found.lines), "a large file is not read"
    assert not found.is_cut

    monkeypatch.setattr(diff, "MOST_BYTES", 100)
    cut = await diff.changed(data_dir, folder, before, after)
    assert cut is not None
    assert cut.is_cut
    assert sum(len(line) + 1 for _, line in cut.lines) <= 101
    for gone in ("0" * 40, "main", "--output=x"):
        assert await diff.changed(data_dir, folder, before, gone) is None
    assert await diff.changed(data_dir, "octo/elsewhere", before, after) is None
