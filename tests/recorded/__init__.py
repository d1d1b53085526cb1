"""GitHub's own recorded payloads, as the npm package `@octokit/webhooks-examples` publishes them."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.recorded.install import is_installed, target_of

INSTALL = "python tests/recorded/install.py"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One payload that a GitHub server once sent."""

    server: str
    event: str
    place: int
    payload: dict[str, object]

    def __str__(self) -> str:
        return f"{self.server}-{self.event}-{self.place}"


def recorded_payloads() -> list[Recorded]:
    """Return every recorded payload; none if they are not installed, which one test reports."""
    folder = Path(__file__).parent
    if not is_installed(folder):
        return []
    examples = target_of(folder) / "node_modules/@octokit/webhooks-examples"
    return [
        Recorded(index.parent.name, kind["name"], place, payload)
        for index in sorted(examples.glob("*/index.json"))
        for kind in json.loads(index.read_text())
        for place, payload in enumerate(kind["examples"])
    ]
