"""Claude Code through `claude-agent-sdk`: https://docs.claude.com/en/api/agent-sdk/python

This module and `claude_progress` need the extra `claude`. `driver_for` imports them when a session is opened.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import claude_agent_sdk as sdk

from bot.agents.claude_progress import ASKS_PERSON, COST_TOLD, PROPOSES_PLAN, ClaudeProgress, Interim, Item
from bot.agents.driver import Block, CannotOpenError, Failed, Launch, SessionOpened
from bot.agents.process import AgentProcess
from bot.agents.prompt_loop import Driver, Inbox, Link
from bot.tasks import unless
from bot.thread import reasons

START_SECONDS = 60.0
# What Claude Code writes to stderr when it cannot continue a session.
_LOST_SESSION_ERRORS = ("no conversation found", "not a uuid", "requires a valid session id")
# Why a result came after a question to a person, which interrupts.
_ASKED = "aborted_tools"
# https://docs.claude.com/en/docs/claude-code/cli-reference
_OPTIONS = (
    *("--output-format", "stream-json", "--input-format", "stream-json", "--verbose"),
    # Nothing of a repository is loaded: hooks, MCP servers, environment, permissions, plugins.
    *("--setting-sources=", "--strict-mcp-config"),
    # Claude asks for no permission, but its questions to a person come as such.
    *("--permission-prompt-tool", "stdio"),
    # A long answer counts as work while it is written.
    "--include-partial-messages",
)


_ASK_COST = (
    json.dumps(
        {"type": "control_request", "request_id": "cost", "request": {"subtype": "get_usage", "skip_behaviors": True}}
    )
    + "\n"
)


class _ClaudeTransport(sdk.Transport):
    """The connection of the SDK to a running Claude Code.

    The SDK's own transport is not used: it passes the bot's whole environment on and ends one process, not its group.
    """

    def __init__(self, process: AgentProcess) -> None:
        self._process = process
        self.ended = asyncio.Event()
        self._asks_cost = False

    async def connect(self) -> None:
        """Do nothing: the process is running."""

    async def write(self, data: str) -> None:
        await self._process.write(data)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._process.read_object()) is not None:
            match message:
                case {"type": "control_response", "response": {"request_id": "cost", **answer}}:
                    self._asks_cost = False
                    yield {"type": "system", "subtype": COST_TOLD, "usage": answer.get("response")}
                    continue
                case {"type": "user"} if not self._asks_cost:
                    # A tool was called: the model's answer is counted. Until the end of a prompt Claude tells nothing.
                    self._asks_cost = True
                    with suppress(ConnectionError):
                        await self.write(_ASK_COST)
                case _:
                    pass
            if isinstance(message.get("type"), str):
                yield message
        # The SDK does not tell a caller that waits for an answer that there will be none.
        self.ended.set()

    async def close(self) -> None:
        await self._process.end()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self._process.close_stdin()


class _ClaudeLink(Link[Item]):
    """A started Claude Code."""

    def __init__(self, process: AgentProcess, session: str, *, plans: bool) -> None:
        super().__init__(process)
        self.session, self._plans = session, plans
        self._transport = _ClaudeTransport(process)
        # Prompts quote what other people wrote: `@/path` in them names no file to read, `/word` no command to run.
        options = sdk.ClaudeAgentOptions(verbatim_prompts=True, can_use_tool=self._permission)
        self._client = sdk.ClaudeSDKClient(options, transport=self._transport)
        self._progress = ClaudeProgress(session)
        self._receiving: asyncio.Task[None] | None = None
        self._inbox: Inbox[Item] | None = None
        self._late: Callable[[Item], None] | None = None
        self.takes_messages = True
        self._works = False
        self._unread: set[str] = set()
        """The texts that the prompt was given while it ran, and that no result names yet."""
        self._broken: Failed | None = None
        self._ended = asyncio.Event()
        """The prompt has ended."""

    async def connect(self, seconds: float) -> str | None:
        """Start the protocol; return the reason if that failed."""

        async def ended() -> NoReturn:
            await self._transport.ended.wait()
            raise ConnectionError

        try:
            async with asyncio.timeout(seconds):
                await unless(ended(), self._client.connect())
        except TimeoutError:
            return reasons.silent_for(seconds)
        except ConnectionError:
            return await self.process.why_output_ended()
        except Exception as error:  # noqa: BLE001 - the SDK raises plain Exception for what the program answered
            return f"answered with an error: {error}"
        self._receiving = asyncio.create_task(self._receive())
        return None

    def progress(self) -> ClaudeProgress:
        self._progress = ClaudeProgress(self.session)
        return self._progress

    async def _permission(
        self, tool: str, arguments: dict[str, Any], _: sdk.ToolPermissionContext
    ) -> sdk.PermissionResultDeny:
        """Deny what needs a person. A question or a plan ends Claude's work: the person answers in the next prompt."""
        is_plan = self._plans and tool == PROPOSES_PLAN
        if is_plan:
            self._progress.propose(arguments.get("plan"))
        return sdk.PermissionResultDeny(
            message="Nobody answers while you work.", interrupt=is_plan or tool == ASKS_PERSON
        )

    async def ask(self, blocks: Sequence[Block], inbox: Inbox[Item]) -> None:
        content = await asyncio.to_thread(lambda: [_content(block) for block in blocks])
        self._ended.clear()
        self._inbox = inbox
        if self._broken is not None:
            await inbox.put(self._broken)
            return
        try:
            self._works, self._unread = True, set()
            self.asked.set()
            await self._send(content)
        except ConnectionError:
            await inbox.put(Failed(reasons.agent_gone(await self.process.why_output_ended())))
            return
        await self._ended.wait()

    async def tell(self, text: str) -> bool:
        if not self._works:
            return False
        # Claude Code reads it between two steps, or after its answer. The prompt ends with the result that names it.
        name = str(uuid.uuid4())
        self._unread.add(name)
        try:
            await self._send([_content(text)], uuid=name)
        except ConnectionError:
            return False
        return True

    async def _send(self, content: list[dict[str, Any]], **rest: str) -> None:
        async def message() -> AsyncIterator[dict[str, Any]]:
            yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None, **rest}

        await self._client.query(message(), self.session)

    async def cancel(self) -> None:
        await self._client.interrupt()

    def unlisten(self, late: Callable[[Item], None]) -> None:
        self._inbox, self._late, self._works, self._unread = None, late, False, set()

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        try:
            await self._client.disconnect()
        finally:
            await self.process.end()

    async def _receive(self) -> None:
        try:
            async for message in self._client.receive_messages():
                await self._tell(message)
        except Exception as error:  # noqa: BLE001 - the SDK raises plain Exception for a message that it cannot read
            self._broken = Failed(reasons.agent_unreadable(str(error)))
        else:
            self._broken = Failed(reasons.agent_gone(await self.process.why_output_ended()))
        await self._tell(self._broken)

    async def _tell(self, item: sdk.Message | Failed) -> None:
        told: Item | Failed = item
        if isinstance(item, sdk.ResultMessage):
            self._unread.difference_update(item.user_message_uuids or ())
            goes_on = not item.is_error or item.terminal_reason == _ASKED
            told = Interim(item) if self._unread and goes_on else item
        is_end = isinstance(told, sdk.ResultMessage | Failed)
        self._works &= not is_end
        if self._inbox is not None:
            await self._inbox.put(told)
        elif self._late is not None and not isinstance(told, Failed):
            self._late(told)
        if is_end:
            self._ended.set()


def _content(block: Block) -> dict[str, Any]:
    """Return a block as the Messages API takes it: https://docs.claude.com/en/api/messages. Raises OSError."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    return {"type": "image", "source": {"type": "base64", "media_type": block.media_type, "data": block.base64()}}


class ClaudeDriver(Driver[Item]):
    """See `AgentDriver`."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self._launch = launch

    async def _open(self, resume: str | None) -> SessionOpened:
        lost = None
        if resume is not None:
            lost = await self._continue(resume)
            if lost is None:
                return SessionOpened(resume, resumed=True, lost=None)
        session = str(uuid.uuid4())
        await self._start(session, f"--session-id={session}")
        return SessionOpened(session, resumed=False, lost=lost)

    async def _continue(self, session: str) -> str | None:
        """Continue the session; return the reason why not. What can have nothing to do with it is tried again."""
        why = ""
        for _ in range(2):
            try:
                await self._start(session, f"--resume={session}")
            except CannotOpenError as error:
                said = error.stderr_tail
                why = f"Claude could not continue it: {said or error.reason}"
                if any(words in said.lower() for words in _LOST_SESSION_ERRORS):
                    break
            else:
                return None
        return why

    async def _start(self, session: str, choice: str) -> None:
        """Start Claude Code; one that runs is ended before. Raises CannotOpenError."""
        await self.aclose()
        mcp = self._launch.mcp_file
        servers = (f"--mcp-config={mcp}",) if mcp else ()
        mode = "plan" if self._launch.plans else "bypassPermissions"
        skills = (f"--plugin-dir={self._launch.skills}",) if self._launch.skills else ()
        argv = (*self._launch.argv, *_OPTIONS, *servers, *skills, "--permission-mode", mode, choice)
        try:
            process = await AgentProcess.start(replace(self._launch, argv=argv))
        except OSError as error:
            raise CannotOpenError(*reasons.not_startable("Claude Code", error.strerror)) from error
        link = _ClaudeLink(process, session, plans=self._launch.plans)
        self._link = link
        why = await link.connect(START_SECONDS)
        if why is not None:
            await self.aclose()
            raise CannotOpenError(*reasons.claude_not_ready(why), process.stderr_tail)
