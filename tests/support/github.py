"""A clock, a receiver of webhooks, and shortcuts for the tests of the simulated GitHub."""

import asyncio
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bot.simulated.github import Repository, SimulatedGitHub

SECRET = "a webhook secret"


@dataclass
class Clock:
    now: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Receiver:
    """A webhook endpoint that keeps what it gets and answers as configured."""

    url: str = ""
    status: int = 202
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def endpoint(self, request: Request) -> Response:
        self.got.append((dict(request.headers), await request.body()))
        await self.open.wait()
        return Response("heard", self.status)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def events(github: SimulatedGitHub) -> list[str]:
    return [f"{delivery.event}.{delivery.action}" for delivery in github.deliveries]


def payload(github: SimulatedGitHub, event: str, action: str | None) -> Any:
    return next(d.payload for d in reversed(github.deliveries) if (d.event, d.action) == (event, action))


async def git(directory: Path, *argv: str, fails: bool = False) -> str:
    """Run the real git client, with its own configuration."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_TERMINAL_PROMPT": "0"}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    identity = ("-c", "user.name=Maria", "-c", "user.email=maria@example.org")
    process = await asyncio.create_subprocess_exec(
        "git",
        *identity,
        *argv,
        cwd=directory,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert (process.returncode != 0) is fails, output
    return output


def with_token(github: SimulatedGitHub, repository: Repository, token: str) -> str:
    return github.clone_url(repository).replace("http://", f"http://x-access-token:{token}@")
