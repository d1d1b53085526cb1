"""Files that are replaced whole."""

import os
from pathlib import Path

import pytest

from bot.files import replace_file


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    foreign, file = tmp_path / "foreign", tmp_path / "file"
    foreign.write_text("theirs")
    file.symlink_to(foreign)

    replace_file(file, b"ours")

    assert (file.read_bytes(), file.is_symlink(), file.stat().st_mode & 0o777) == (b"ours", False, 0o600)
    assert foreign.read_text() == "theirs"


def test_a_failure_leaves_the_file_before_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"after")

    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_gives_the_file_to_the_owner_of_the_folder_or_of_the_file_before(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.touch()
    os.chown(old, 65534, 65534)
    os.chown(tmp_path, 1, 1)

    replace_file(new, b"")
    replace_file(old, b"")

    assert [path.stat().st_uid for path in (new, old)] == [1, 65534]
