"""The id of a node, in its DATA_DIR."""

from pathlib import Path

import orjson


def record(data_dir: Path, node: str) -> None:
    """Make `data_dir` that of the node with this id."""
    (data_dir / "node.json").write_bytes(orjson.dumps({"id": node}))
