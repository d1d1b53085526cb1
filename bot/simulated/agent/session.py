"""The agent's record of a session, on its disk."""

import json
from collections.abc import Iterable
from pathlib import Path

from bot.simulated.agent.wire import RequestError


class Session:
    """A session; `history` is pairs of request and answer."""

    def __init__(
        self,
        name: str,
        history: Iterable[tuple[str, str]] = (),
        remembered: Iterable[str] = (),
        mends: Iterable[str] = (),
    ) -> None:
        self.id = name
        self.history = list(history)
        self.remembered = list(remembered)
        self.mends = list(mends)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{self.id}.new"
        kept = {name: value for name, value in vars(self).items() if name != "id"}
        new.write_text(json.dumps(kept))
        new.rename(folder / f"{self.id}.json")

    @classmethod
    def load(cls, folder: Path, session_id: str) -> "Session":
        """Load a session. Raises the protocol's resource-not-found error."""
        path = folder / f"{session_id}.json"
        if Path(session_id).name != session_id or not path.is_file():
            raise not_found(session_id)
        stored = json.loads(path.read_text())
        history = [(request, answer) for request, answer in stored["history"]]
        return cls(session_id, history, stored["remembered"], stored.get("mends", ()))


def not_found(session_id: str) -> RequestError:
    """Return the protocol's error for a missing session."""
    return RequestError(-32002, "Resource not found", {"uri": session_id})
