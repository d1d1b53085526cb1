"""What the page of a request shows of its repository, within its limits."""

from pathlib import Path

import pytest

from bot.operator.dashboard import diff, pictures
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
    small, large = found.files
    assert [small.name, small.added, small.removed] == ["b.txt", 1, 0]
    assert small.rows[1] == (None, diff.Side(1, (("<b>", False),), True))
    assert any(fact.startswith("Binary files") for fact in large.facts), "a large file is not read"
    assert not found.is_cut

    monkeypatch.setattr(diff, "MOST_BYTES", 100)
    cut = await diff.changed(data_dir, folder, before, after)
    assert cut is not None
    assert cut.is_cut
    assert not any(file.rows for file in cut.files)
    for gone in ("0" * 40, "main", "--output=x"):
        assert await diff.changed(data_dir, folder, before, gone) is None
    assert await diff.changed(data_dir, "octo/elsewhere", before, after) is None


async def test_pictures_of_a_check_come_from_the_clone_each_beside_the_one_before(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    await world.update()
    data_dir, folder = world.clone.path.parents[2], f"{world.clone.path.parent.name}/{world.clone.path.stem}"
    png, page = b"\x89PNG\r\n\x1a\n1", b"<script>alert(1)</script>"
    files = {"1-new.png": png, "2-home.png": png, "before-2-home.png": b"GIF89a", "3-evil.png": page, "a b.png": png}
    listed, git, blob = "", world.clone.git, ""
    for name, data in {**files, "4-large.png": png + b"x" * (1 << 20)}.items():
        blob = (await git.on_clone(world.clone.path, "hash-object", "-w", "--stdin", input=data)).text
        listed += f"100644 blob {blob}\t{name}\n"
    listed += f"120000 blob {blob}\t5-link.png\n"
    tree = await git.on_clone(world.clone.path, "mktree", input=listed.encode())
    identity = {f"GIT_{who}_{what}": "a@b.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    commit = (await git.on_clone(world.clone.path, "commit-tree", tree.text, "-m", "x", environment=identity)).text

    found = await pictures.pictures_at(data_dir, folder, commit)
    assert [(one.name, one.before) for one in found] == [
        ("2-home.png", "before-2-home.png"),
        ("1-new.png", None),
        ("3-evil.png", None),
    ]
    assert await pictures.picture(data_dir, folder, commit, "1-new.png") == (png, "image/png")
    assert await pictures.picture(data_dir, folder, commit, "before-2-home.png") == (b"GIF89a", "image/gif")
    for name in ("3-evil.png", "4-large.png", "5-link.png", "../x", "none", ""):
        assert await pictures.picture(data_dir, folder, commit, name) is None, name
    for gone in ("0" * 40, "main", "--all"):
        assert await pictures.pictures_at(data_dir, folder, gone) == []
    assert await pictures.pictures_at(data_dir, "octo/elsewhere", commit) == []
