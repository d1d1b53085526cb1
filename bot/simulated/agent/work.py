"""The commands of a prompt."""

import codecs
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from bot.simulated.agent.plain import commands_in
from bot.simulated.agent.session import Session
from bot.simulated.agent.wire import RequestError, Wire

PLAY_DEAD = signal.SIGUSR1
_WAIT_SECONDS = 0.02
_MENTION = r"@[\w-]+(\[bot\])?[\s,:]*"
_MEND = ("# The repository's check fails", "The check that is told above", "The checks that are told above")
_JUNK = b'not json\n42\n"text"\n[1]\n{"id": [], "result": 1}\n{"jsonrpc": "2.0"}\n\xff\xfe\n\n'
_GIT = (
    *("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "user.name=Scripted Agent", "-c", "user.email=scripted-agent@example.invalid"),
)
_OPTIONS = [
    {"optionId": "no", "name": "No", "kind": "reject_once"},
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "once", "name": "Yes", "kind": "allow_once"},
]


class CancelledError(Exception):
    """The client cancelled the prompt."""


class Added:
    """What the agent is told while it works on a prompt."""

    def __init__(self) -> None:
        self._texts: list[str] | None = []
        self._lock = threading.Lock()

    def add(self, text: str) -> bool:
        """Add a text; False if the prompt is over."""
        with self._lock:
            if self._texts is not None:
                self._texts.append(text)
            return self._texts is not None

    def take(self, *, last: bool) -> list[str]:
        """Return the new texts. If there is none and it is the `last` time, the prompt is over."""
        with self._lock:
            texts = self._texts or []
            self._texts = None if last and not texts else []
            return texts


class Work:
    """One prompt; `stop` is set when it is cancelled or the client is gone."""

    def __init__(
        self, wire: Wire, session: Session, cwd: Path, blocks: list[str], stop: threading.Event, added: Added
    ) -> None:
        self.added = added
        self.wire, self.session, self.cwd, self.blocks, self.stop = wire, session, cwd, blocks, stop
        self.stop_reason = "end_turn"
        self.may_be_silent = False
        self.said: list[str] = []
        self.tool_calls = 0

    def obey(self, request: str) -> None:
        """Obey the lines of the request. Raises CancelledError, GoneError, RequestError (`fail`)."""
        if request.startswith(_MEND):
            request = next(iter(self.session.mends), "say I see nothing to mend.").replace("\\n", "\n")
        text = re.sub(rf"\A\s*{_MENTION}", "", request)
        self._obey_lines(text.removeprefix("/review "), last=True)
        if not self.said and not self.may_be_silent:
            self._say(f"I have read your request: “{text.strip().partition(chr(10))[0]}”.")

    def _obey_lines(self, text: str, *, last: bool = False) -> None:
        for command in (one for line in text.splitlines() for one in commands_in(line) or [line]):
            word, _, rest = command.strip().partition(" ")
            if word == "rot13":
                # What the bot would not let through to an agent, such as its own secrets.
                word, _, rest = codecs.decode(rest, "rot13").partition(" ")
            if not (self._files(word, rest) or self._words(word, rest)):
                self._troubles(word, rest)
            if self.stop.is_set():
                raise CancelledError
            self._obey_added(self.added.take(last=False))
        while last and (texts := self.added.take(last=True)):
            self._obey_added(texts)

    def _obey_added(self, texts: list[str]) -> None:
        for text in texts:
            self._obey_lines(re.sub(rf"(?m)^{_MENTION}", "", text))

    def _files(self, word: str, rest: str) -> bool:
        match word:
            case "write" | "append" if edit := re.fullmatch(r"([^:]+): ?(.*)", rest):
                self._edit(self.cwd / edit[1], edit[2] + "\n", mode="a" if word == "append" else "w")
            case "out" if edit := re.fullmatch(r"([^:]+): ?(.*)", rest):
                self._leave(edit[1], edit[2])
            case "describe" if rest:
                self._leave("pull_request.md", rest.replace("\\n", "\n"))
            case "commit" if rest:
                self._git(f"Commit “{rest}”", ("add", "-A"), ("commit", "-m", rest))
            case "switch" if rest:
                known, _ = _git(self.cwd, "show-ref", "--verify", "--quiet", f"refs/heads/{rest}")
                self._git(f"Switch to {rest}", ("switch", rest) if known == 0 else ("switch", "-c", rest))
            case "save" if rest.startswith("prompt "):
                self._edit(self.cwd / rest.removeprefix("prompt "), self._prompt() + "\n", mode="w")
            case "look" if rest:
                path = self.cwd / rest
                self._say(f"{path.name} has {path.stat().st_size} bytes." if path.is_file() else f"No {path.name}.")
            case "wait" if rest:
                self._wait_for(self.cwd / rest, self._start_tool(f"Wait for {rest}", "other"))
            case _:
                return False
        return True

    def _words(self, word: str, rest: str) -> bool:
        match word, rest:
            case "say", _:
                self._say(rest)
            case "long", _ if rest.isdecimal():
                self._say("x" * int(rest))
            case "plan", _ if rest:
                self._walk_through([entry.strip() for entry in rest.split("|")])
            case "cost", _ if rest:
                cost = {"amount": float(rest), "currency": "USD"}
                self._tell("usage_update", used=1000, size=200_000, cost=cost)
            case "remember", _ if rest:
                self.session.remembered.append(rest)
                self._say(f"I will remember {rest}.")
            case "mend", _ if rest:
                self.session.mends = [rest]
            case "recall", "":
                self._say(f"I remember: {', '.join(self.session.remembered) or 'nothing'}.")
            case "env", "":
                self._say(", ".join(sorted(os.environ)))  # noqa: TID251 - it tells what environment it was given
            case "echo", "prompt":
                self._say(self._prompt())
            case "permission", "":
                self._ask_permission()
            case "ask", _ if rest:
                self._ask_person(*(part.strip() for part in rest.split("|")))
            case _:
                return False
        return True

    def _prompt(self) -> str:
        return "\n".join(f"[block {n}]\n{block}" for n, block in enumerate(self.blocks, 1))

    def _troubles(self, word: str, rest: str) -> None:
        match word, rest:
            case "fail", _:
                raise RequestError(-32603, rest)
            case "busy", _ if rest.isdecimal():
                raise RequestError(-32603, "The model is busy.", {"status": int(rest)})
            case "crash", _ if rest.isdecimal():
                sys.stderr.flush()
                os._exit(int(rest))
            case "hang", "":
                self.stop.wait()
            case "hang", "deaf":
                # Python handles signals only in the main thread, which reads stdin.
                signal.pthread_kill(threading.main_thread().ident or 0, PLAY_DEAD)
                threading.Event().wait()
            case "stop", _ if rest:
                self.stop_reason, self.may_be_silent = rest, True
            case "empty", "":
                self.may_be_silent = True
            case "junk", "":
                self.wire.write(_JUNK)
            case "stderr", _:
                sys.stderr.write(rest + "\n")
                sys.stderr.flush()
            case _:
                pass

    def _tell(self, kind: str, /, **update: object) -> None:
        params = {"sessionId": self.session.id, "update": {**update, "sessionUpdate": kind}}
        self.wire.send({"method": "session/update", "params": params})

    def _say(self, text: str) -> None:
        self._tell("agent_message_chunk", content={"text": "\n" + text if self.said else text, "type": "text"})
        self.said.append(text)

    def _walk_through(self, entries: list[str]) -> None:
        for current in range(-1, len(entries) + 1):
            states = [
                "completed" if n < current else "in_progress" if n == current else "pending"
                for n in range(len(entries))
            ]
            plan = [
                {"content": text, "priority": "medium", "status": state}
                for text, state in zip(entries, states, strict=True)
            ]
            self._tell("plan", entries=plan)

    def _start_tool(self, title: str, kind: str) -> str:
        self.tool_calls += 1
        call = f"call-{len(self.session.history)}-{self.tool_calls}"
        self._tell("tool_call", toolCallId=call, title=title, kind=kind, status="in_progress")
        return call

    def _end_tool(self, call: str, problem: str | None, printed: str = "") -> None:
        content = [{"type": "content", "content": {"type": "text", "text": printed}}] if printed else []
        status = "failed" if problem else "completed"
        self._tell("tool_call_update", toolCallId=call, status=status, content=content)
        if problem:
            self._say(problem)

    def _edit(self, path: Path, text: str, mode: str) -> None:
        call = self._start_tool(f"Edit {path.name}", "edit")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode) as file:
                file.write(text)
        except OSError as error:
            self._end_tool(call, f"Could not edit {path}: {error.strerror}.")
        else:
            self._end_tool(call, None)

    def _leave(self, name: str, text: str) -> None:
        # It tells what environment it was given.
        self._edit(Path(os.environ["THREADTREE_OUT"]) / name, text + "\n", mode="w")  # noqa: TID251

    def _git(self, title: str, *commands: tuple[str, ...]) -> None:
        call, printed = self._start_tool(title, "execute"), ""
        for command in commands:
            status, output = _git(self.cwd, *command)
            printed += output
            if status != 0:
                return self._end_tool(call, f"git {command[0]} failed: {output}", printed)
        return self._end_tool(call, None, printed)

    def _wait_for(self, path: Path, call: str) -> None:
        while not path.exists():
            if self.stop.wait(_WAIT_SECONDS):
                return self._end_tool(call, f"Stopped waiting for {path.name}.")
        return self._end_tool(call, None)

    def _ask_permission(self) -> None:
        call = self._start_tool("Something that needs a permission", "execute")
        params = {"sessionId": self.session.id, "toolCall": {"toolCallId": call}, "options": _OPTIONS}
        answer = self.wire.ask("session/request_permission", params)
        self._end_tool(call, None)
        match answer:
            case {"outcome": {"outcome": "selected", "optionId": str(choice)} | {"outcome": "cancelled" as choice}}:
                self._say(f"Permission: {choice}.")
            case _:
                raise RequestError(-32602, "Invalid params", {"errors": [{"input": answer}]})

    def _ask_person(self, question: str, *options: str) -> None:
        call = self._start_tool("Ask", "other")
        field = {"type": "string", "oneOf": [{"const": option, "title": option} for option in options]}
        form = {"type": "object", "properties": {"question_0": field}}
        place = {"mode": "form", "sessionId": self.session.id, "toolCallId": call}
        answer = self.wire.ask("elicitation/create", {**place, "message": question, "requestedSchema": form})
        self._say(f"It said {answer['action']}.")


def _git(cwd: Path, *arguments: str) -> tuple[int, str]:
    """Run git; return its exit status and output."""
    import subprocess  # here, for most requests run no git

    git = subprocess.run(
        [*_GIT, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return git.returncode, git.stdout.decode(errors="replace").strip()


def play_dead(*_: object) -> NoReturn:
    """Block the main thread for good: it ignores messages, the end of stdin and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
