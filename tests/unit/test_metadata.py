"""The file beside a worktree: what was written is read again, anything else is called corrupt."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.tree import Metadata

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
METADATA = Metadata(
    id="w1",
    platform="github.com",
    repository_id=42,
    full_name="octo/hello",
    conversations=(1, 7),
    branch="threadtree/issue-1",
    base="main",
    node="here",
    created_at=NOW,
    updated_at=NOW + timedelta(hours=1),
    execution_count=3,
    last_error="it → broke",
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    worktree = tmp_path / "octo" / "issue-1.2"
    METADATA.write(worktree)
    METADATA.write(worktree)
    assert Metadata.read(worktree) == METADATA
    assert [file.name for file in worktree.parent.iterdir()] == ["issue-1.2.json"]
    Metadata.delete(worktree)
    Metadata.delete(worktree)
    assert Metadata.read(worktree) == "missing"


def test_people_can_read_the_file(tmp_path: Path) -> None:
    METADATA.write(tmp_path / "w")
    values = orjson.loads((tmp_path / "w.json").read_bytes())
    assert values["created_at"] == "2025-01-02T03:04:05Z"
    assert values["conversations"] == [1, 7]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    METADATA.write(tmp_path / "w")
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        METADATA.write(tmp_path / "w")
    assert [file.name for file in tmp_path.iterdir()] == ["w.json"]


def test_an_unreadable_file_is_corrupt(tmp_path: Path) -> None:
    Metadata.file(tmp_path / "w").mkdir()
    assert Metadata.read(tmp_path / "w") == "corrupt"


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: repr(v).encode()))
def test_anything_else_is_corrupt(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        assert read_back(Path(folder), content) == "corrupt"


def read_back(folder: Path, content: bytes) -> object:
    Metadata.file(folder / "w").write_bytes(content)
    return Metadata.read(folder / "w")


_NEVER: tuple[object, ...] = (None, {}, "", True, -1, ["x"])
_TEXTS = ("id", "platform", "full_name", "node")
_OTHERS = ("repository_id", "conversations", "created_at", "updated_at", "execution_count")


def test_a_field_of_the_wrong_kind_is_corrupt(tmp_path: Path) -> None:
    for name, value in [
        *((name, value) for name in (*_TEXTS, *_OTHERS) for value in _NEVER),
        *((name, "2025-01-01T00:00:00") for name in _OTHERS),
    ]:
        METADATA.write(tmp_path / "w")
        written = orjson.loads((tmp_path / "w.json").read_bytes())
        assert read_back(tmp_path, orjson.dumps(written | {name: value})) == "corrupt"
