"""A scripted agent: speaks the Agent Client Protocol on stdio and does what the lines of a request say.

`python -m bot.simulated.agent [--resume] [--no-load]` stands in for an AI agent in the demo and the tests. The
request is the last block of the prompt; a leading `@name` is not part of it. Each line can be a command:

    write PATH: TEXT     append PATH: TEXT     commit MESSAGE     switch BRANCH
    say TEXT             long BYTES            plan A | B | C     cost AMOUNT (in USD)
    remember WORD        recall                env (names only)   echo prompt
    permission           wait FILE             hang               hang deaf
    fail TEXT            crash STATUS          stop REASON        empty
    junk                 stderr TEXT

`wait` goes on when the file exists; `hang` ends when cancelled, `hang deaf` only when killed; `junk` goes to stdout.
Other lines are left alone, and a request that was answered by nothing is acknowledged with its first line. Sessions
are kept in `$HOME/.scripted-agent/<session id>.json`. It runs git, and nothing of the directory it works in.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from acp import PROTOCOL_VERSION, Agent, Client, RequestError, helpers, stdio_streams
from acp.agent.connection import AgentSideConnection
from acp.schema import (
    AgentCapabilities,
    Cost,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PlanEntryStatus,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionResumeCapabilities,
    ToolCallUpdate,
    ToolKind,
    UsageUpdate,
)

_LINE_LIMIT_BYTES = 64 * 1024 * 1024
_WAIT_SECONDS = 0.02
_JUNK = b'not json\n42\n"text"\n[1]\n{"id": [], "result": 1}\n{"jsonrpc": "2.0"}\n\xff\xfe\n\n'
_GIT = (
    *("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "user.name=Scripted Agent", "-c", "user.email=scripted-agent@example.invalid"),
)


@dataclass(slots=True)
class Session:
    """What the agent knows of one session; `history` is pairs of request and answer."""

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
        """Raises the protocol's resource-not-found error."""
        path = folder / f"{session_id}.json"
        if Path(session_id).name != session_id or not path.is_file():
            raise RequestError.resource_not_found(session_id)
        stored = json.loads(path.read_text())
        return cls(session_id, [(request, answer) for request, answer in stored["history"]], stored["remembered"])


class _CancelledError(Exception):
    """The client cancelled the prompt."""


class ScriptedAgent:
    """The agent's side of the protocol: https://agentclientprotocol.com/protocol/overview"""

    def __init__(self, folder: Path, *, can_load: bool, can_resume: bool) -> None:
        self._folder = folder
        self._can_load, self._can_resume = can_load, can_resume
        self._sessions: dict[str, tuple[Session, Path]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}
        self._client: Client
        self.stdout: asyncio.StreamWriter

    def on_connect(self, client: Client) -> None:
        self._client = client

    async def initialize(self, **_: Any) -> InitializeResponse:
        resume = SessionResumeCapabilities() if self._can_resume else None
        capabilities = AgentCapabilities(
            load_session=self._can_load, session_capabilities=SessionCapabilities(resume=resume)
        )
        return InitializeResponse(protocol_version=PROTOCOL_VERSION, agent_capabilities=capabilities)

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        session = Session(str(uuid.uuid4()))
        session.save(self._folder)
        self._sessions[session.id] = session, Path(cwd)
        return NewSessionResponse(session_id=session.id)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        session = Session.load(self._folder, session_id)
        self._sessions[session_id] = session, Path(cwd)
        for request, answer in session.history:
            await self._client.session_update(session_id, helpers.update_user_message_text(request))
            await self._client.session_update(session_id, helpers.update_agent_message_text(answer))
        return LoadSessionResponse()

    async def resume_session(self, cwd: str, session_id: str, **_: Any) -> ResumeSessionResponse:
        self._sessions[session_id] = Session.load(self._folder, session_id), Path(cwd)
        return ResumeSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self._cancelled:
            self._cancelled[session_id].set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        if session_id not in self._sessions:
            raise RequestError.resource_not_found(session_id)
        session, cwd = self._sessions[session_id]
        blocks = [str(block.text) for block in prompt]
        cancelled = self._cancelled[session_id] = asyncio.Event()
        work = _Work(self._client, self.stdout, session, cwd, blocks, cancelled)
        try:
            await work.obey(blocks[-1])
        except _CancelledError:
            work.stop_reason = "cancelled"
        finally:
            session.history.append((blocks[-1], "\n".join(work.said)))
            session.save(self._folder)
        # Not validated: `stop` can name a reason that the protocol does not have.
        return cast(PromptResponse, {"stopReason": work.stop_reason})


@dataclass(slots=True)
class _Work:
    """One prompt and what it has led to."""

    client: Client
    stdout: asyncio.StreamWriter
    session: Session
    cwd: Path
    blocks: list[str]
    cancelled: asyncio.Event
    stop_reason: str = "end_turn"
    may_be_silent: bool = False
    said: list[str] = field(default_factory=list)
    tool_calls: int = 0

    async def obey(self, request: str) -> None:
        text = re.sub(r"\A\s*@[\w-]+(\[bot\])?[\s,:]*", "", request)
        for line in text.splitlines():
            word, _, rest = line.strip().partition(" ")
            if not (await self._files(word, rest) or await self._words(word, rest)):
                await self._troubles(word, rest)
            if self.cancelled.is_set():
                raise _CancelledError
        if not self.said and not self.may_be_silent:
            await self._say(f"I have read your request: “{text.strip().partition(chr(10))[0]}”.")

    async def _files(self, word: str, rest: str) -> bool:
        match word:
            case "write" | "append" if edit := re.fullmatch(r"([^:]+): ?(.*)", rest):
                await self._edit(self.cwd / edit[1], edit[2] + "\n", mode="a" if word == "append" else "w")
            case "commit" if rest:
                await self._git(f"Commit “{rest}”", ("add", "-A"), ("commit", "-m", rest))
            case "switch" if rest:
                known, _ = await _git(self.cwd, "show-ref", "--verify", "--quiet", f"refs/heads/{rest}")
                await self._git(f"Switch to {rest}", ("switch", rest) if known == 0 else ("switch", "-c", rest))
            case "wait" if rest:
                call = await self._start_tool(f"Wait for {rest}", "other")
                await self._wait_for(self.cwd / rest, call)
            case _:
                return False
        return True

    async def _words(self, word: str, rest: str) -> bool:
        match word, rest:
            case "say", _:
                await self._say(rest)
            case "long", _ if rest.isdecimal():
                await self._say("x" * int(rest))
            case "plan", _ if rest:
                await self._walk_through([entry.strip() for entry in rest.split("|")])
            case "cost", _ if rest:
                cost = Cost(amount=float(rest), currency="USD")
                await self._tell(UsageUpdate(session_update="usage_update", used=1000, size=200_000, cost=cost))
            case "remember", _ if rest:
                self.session.remembered.append(rest)
                await self._say(f"I will remember {rest}.")
            case "recall", "":
                await self._say(f"I remember: {', '.join(self.session.remembered) or 'nothing'}.")
            case "env", "":
                await self._say(", ".join(sorted(os.environ)))
            case "echo", "prompt":
                await self._say("\n".join(f"[block {n}]\n{block}" for n, block in enumerate(self.blocks, 1)))
            case "permission", "":
                await self._ask_permission()
            case _:
                return False
        return True

    async def _troubles(self, word: str, rest: str) -> None:
        match word, rest:
            case "fail", _:
                raise RequestError(-32603, rest)
            case "crash", _ if rest.isdecimal():
                sys.stderr.flush()
                os._exit(int(rest))
            case "hang", "":
                await self.cancelled.wait()
            case "hang", "deaf":
                _play_dead()
            case "stop", _ if rest:
                self.stop_reason, self.may_be_silent = rest, True
            case "empty", "":
                self.may_be_silent = True
            case "junk", "":
                self.stdout.write(_JUNK)
            case "stderr", _:
                sys.stderr.write(rest + "\n")
                sys.stderr.flush()
            case _:
                pass

    async def _tell(self, update: Any) -> None:
        await self.client.session_update(self.session.id, update)

    async def _say(self, text: str) -> None:
        await self._tell(helpers.update_agent_message_text("\n" + text if self.said else text))
        self.said.append(text)

    async def _walk_through(self, entries: list[str]) -> None:
        for current in range(-1, len(entries) + 1):
            states: list[PlanEntryStatus] = [
                "completed" if n < current else "in_progress" if n == current else "pending"
                for n in range(len(entries))
            ]
            plan = [helpers.plan_entry(text, status=state) for text, state in zip(entries, states, strict=True)]
            await self._tell(helpers.update_plan(plan))

    async def _start_tool(self, title: str, kind: ToolKind) -> str:
        self.tool_calls += 1
        call = f"call-{len(self.session.history)}-{self.tool_calls}"
        await self._tell(helpers.start_tool_call(call, title, kind=kind, status="in_progress"))
        return call

    async def _end_tool(self, call: str, problem: str | None) -> None:
        await self._tell(helpers.update_tool_call(call, status="failed" if problem else "completed"))
        if problem:
            await self._say(problem)

    async def _edit(self, path: Path, text: str, mode: str) -> None:
        call = await self._start_tool(f"Edit {path.name}", "edit")
        try:
            _put(path, text, mode)
        except OSError as error:
            await self._end_tool(call, f"Could not edit {path}: {error.strerror}.")
        else:
            await self._end_tool(call, None)

    async def _git(self, title: str, *commands: tuple[str, ...]) -> None:
        call = await self._start_tool(title, "execute")
        for command in commands:
            status, output = await _git(self.cwd, *command)
            if status != 0:
                return await self._end_tool(call, f"git {command[0]} failed: {output}")
        return await self._end_tool(call, None)

    async def _wait_for(self, path: Path, call: str) -> None:
        while not await asyncio.to_thread(path.exists):
            if self.cancelled.is_set():
                return await self._end_tool(call, f"Stopped waiting for {path.name}.")
            await asyncio.sleep(_WAIT_SECONDS)
        return await self._end_tool(call, None)

    async def _ask_permission(self) -> None:
        call = await self._start_tool("Something that needs a permission", "execute")
        options = [
            PermissionOption(option_id="no", name="No", kind="reject_once"),
            PermissionOption(option_id="always", name="Always", kind="allow_always"),
            PermissionOption(option_id="once", name="Yes", kind="allow_once"),
        ]
        answer = await self.client.request_permission(self.session.id, ToolCallUpdate(tool_call_id=call), options)
        await self._end_tool(call, None)
        await self._say(f"Permission: {getattr(answer.outcome, 'option_id', answer.outcome.outcome)}.")


def _put(path: Path, text: str, mode: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(text)


async def _git(cwd: Path, *arguments: str) -> tuple[int | None, str]:
    """The exit status of a git command and what it said."""
    pipe = asyncio.subprocess.PIPE
    git = await asyncio.create_subprocess_exec(
        *_GIT, *arguments, cwd=cwd, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await git.communicate()
    return git.returncode, output.decode(errors="replace").strip()


def _play_dead() -> NoReturn:
    """Block the whole process: neither a message nor the end of stdin nor SIGTERM is noticed any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


async def serve(agent: ScriptedAgent) -> None:
    """Speak the protocol on stdin and stdout until stdin ends."""
    reader, agent.stdout = await stdio_streams(limit=_LINE_LIMIT_BYTES)
    # `session/resume` counts as unstable in the package, though not in the protocol.
    connection = AgentSideConnection(
        cast(Agent, agent), agent.stdout, reader, listening=False, use_unstable_protocol=True
    )
    try:
        await connection.listen()
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", action="store_true", help="announce session/resume")
    parser.add_argument("--no-load", action="store_true", help="do not announce session/load")
    options = parser.parse_args()
    agent = ScriptedAgent(Path.home() / ".scripted-agent", can_load=not options.no_load, can_resume=options.resume)
    asyncio.run(serve(agent))


if __name__ == "__main__":
    main()
