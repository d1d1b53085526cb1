"""JSON-RPC 2.0 on stdin and stdout, one message a line: https://www.jsonrpc.org/specification"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from queue import SimpleQueue
from threading import Lock
from typing import Any

Message = dict[str, Any]


class RequestError(Exception):
    """An error as the answer to a request."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.answer = {"code": code, "message": message, "data": data}


class GoneError(Exception):
    """The client has closed its end; nothing more can be sent."""


class Wire:
    """The connection to the client. One thread reads `heard`; any may write."""

    def __init__(self) -> None:
        self._writing = Lock()
        self._numbers = count()
        self._asked: dict[int, SimpleQueue[Message | None]] = {}
        self._closed = False

    def heard(self) -> Iterator[Message]:
        """Yield requests and notifications until stdin ends; pass each answer to the thread that asked."""
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            match message:
                case {"method": str()}:
                    yield message
                case {"id": int(number)} if number in self._asked:
                    self._asked.pop(number).put(message)

    def write(self, data: bytes) -> None:
        """Write all bytes to stdout. Raises GoneError."""
        with self._writing:
            rest = memoryview(data)
            while rest:
                if self._closed:
                    raise GoneError
                try:
                    rest = rest[os.write(1, rest) :]
                except BrokenPipeError as error:
                    raise GoneError from error

    def send(self, message: Message) -> None:
        """Send a message. Raises GoneError."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def ask(self, method: str, params: Message) -> Any:
        """Return the client's answer to a request. Raises RequestError, GoneError."""
        number, answers = next(self._numbers), SimpleQueue[Message | None]()
        self._asked[number] = answers
        self.send({"id": number, "method": method, "params": params})
        match answers.get():
            case None:
                raise GoneError
            case {"error": {"code": int(code), "message": str(words), **more}}:
                raise RequestError(code, words, more.get("data"))
            case answer:
                return answer.get("result")

    def answer(self, number: object, handle: Callable[[], Message]) -> None:
        """Answer a request with the result of `handle`, or with its error."""
        try:
            answer = {"result": handle()}
        except GoneError:
            return
        except RequestError as error:
            answer = {"error": error.answer}
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must not wait for ever
            sys.excepthook(*sys.exc_info())
            answer = {"error": RequestError(-32603, "Internal error", {"details": str(error)}).answer}
        with contextlib.suppress(GoneError):
            self.send({"id": number, **answer})

    def close(self) -> None:
        """End every wait for the client."""
        self._closed = True
        for answers in list(self._asked.values()):
            answers.put(None)
