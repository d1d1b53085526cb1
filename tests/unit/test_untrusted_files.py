"""Files of a folder that an agent may have filled: no link is followed, nothing blocks, nothing is read without end."""

import os
from pathlib import Path, PurePath

import pytest

from bot.agents.presets import PRESETS, plugin_of_repository
from bot.sandbox.untrusted_files import UntrustedFileError, list_untrusted, read_untrusted


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    (tmp_path / "worktree").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret plugin")
    return tmp_path / "worktree"


def test_an_ordinary_file_is_read(worktree: Path) -> None:
    (worktree / "a").mkdir()
    (worktree / "a" / "b").write_text("text")
    assert read_untrusted(worktree, PurePath("a/b"), 4) == b"text"
    assert list_untrusted(worktree, PurePath("a")) == ["b"]


def test_a_link_is_not_followed_in_any_part_of_the_path(worktree: Path) -> None:
    (worktree / "file").symlink_to(worktree.parent / "outside" / "file")
    (worktree / "folder").symlink_to(worktree.parent / "outside")
    for path in ("file", "folder/file"):
        with pytest.raises(OSError, match=path.split("/")[0]):
            read_untrusted(worktree, PurePath(path), 100)
    with pytest.raises(OSError, match="folder"):
        list_untrusted(worktree, PurePath("folder"))


def test_what_is_no_ordinary_file_does_not_block(worktree: Path) -> None:
    os.mkfifo(worktree / "fifo")
    (worktree / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(UntrustedFileError):
            read_untrusted(worktree, PurePath(name), 100)


def test_a_large_file_is_not_read(worktree: Path) -> None:
    (worktree / "large").write_text("12345")
    with pytest.raises(UntrustedFileError):
        read_untrusted(worktree, PurePath("large"), 4)


@pytest.mark.parametrize("path", ["", "..", "a/../../b", "/etc/passwd"])
def test_a_path_outside_the_folder_is_a_mistake_of_the_caller(worktree: Path, path: str) -> None:
    with pytest.raises(ValueError, match="below"):
        read_untrusted(worktree, PurePath(path), 4)


def test_a_repository_without_plugins_passes(worktree: Path) -> None:
    (worktree / ".opencode" / "plugin").mkdir(parents=True)
    (worktree / "opencode.json").write_text('{"theme": "dark"}')
    assert plugin_of_repository(PRESETS["opencode"], worktree) is None


@pytest.mark.parametrize("name", ["opencode.json", ".opencode/opencode.jsonc", ".opencode/plugin/evil.js"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "fifo", "large"])
def test_a_plugin_of_a_repository_is_found_also_behind_a_link(worktree: Path, name: str, kind: str) -> None:
    path = worktree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            path.write_text('{"plugin": ["./evil.js"]}')
        case "link":
            path.symlink_to("/proc/self/environ")
        case "dangling link":
            path.symlink_to("nowhere")
        case "fifo":
            os.mkfifo(path)
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)
    assert plugin_of_repository(PRESETS["opencode"], worktree) == name


def test_a_folder_of_plugins_that_is_a_link_is_found(worktree: Path) -> None:
    (worktree / ".opencode").symlink_to(worktree.parent / "outside")
    assert plugin_of_repository(PRESETS["opencode"], worktree) == ".opencode/plugin"
