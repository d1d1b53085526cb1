"""The agent's record of a session, on its disk."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from bot.simulated.agent.wire import RequestError


@dataclass(slots=True)
class Session:
    """A session; `history` is pairs of request and answer."""

    id: str
    history: list[tuple[str, str]] = field(default_factory=list)
    remembered: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{self.id}.new"
        new.write_text(json.dumps({"history": self.history, "remembered": self.remembered}))
        new.rename(folder / f"{self.id}.json")

    @classmethod
    def load(cls, folder: Path, session_id: str) -> "Session":
        """Load a session. Raises the protocol's resource-not-found error."""
        path = folder / f"{session_id}.json"
        if Path(session_id).name != session_id or not path.is_file():
            raise not_found(session_id)
        stored = json.loads(path.read_text())
        return cls(session_id, [(request, answer) for request, answer in stored["history"]], stored["remembered"])


def not_found(session_id: str) -> RequestError:
    """Return the protocol's error for a missing session."""
    return RequestError(-32002, "Resource not found", {"uri": session_id})
