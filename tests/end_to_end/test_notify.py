"""`NOTIFY_URL`: a message when a request ended, from a receiver that answers, is away, is slow, or redirects."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bot.simulated.github import serving
from bot.thread.questions import TO_ANSWER
from bot.turn import notify
from tests.end_to_end.conftest import Worlds
from tests.support.patience import until_true


@dataclass
class Receiver:
    """A chat's incoming webhook: it answers with these statuses in turn, then with 200."""

    url: str
    statuses: list[int] = field(default_factory=list)
    got: list[dict[str, object]] = field(default_factory=list)
    silent: asyncio.Event | None = None
    asked: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.asked += 1
        body = json.loads(await request.body())
        if self.silent is not None:
            await self.silent.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
            self.got.append(body)
        await Response(status_code=status, headers={"location": self.url} if status == 307 else {})(
            scope, receive, send
        )


@asynccontextmanager
async def a_receiver() -> AsyncIterator[Receiver]:
    listener = serving.listen(0)
    receiver = Receiver(f"http://127.0.0.1:{listener.getsockname()[1]}/services/T0/secret-of-the-chat?thread=1")
    async with serving.serving(receiver, listener):
        yield receiver


async def test_people_are_told_of_answers_questions_and_failures(a_world: Worlds) -> None:
    async with (
        a_receiver() as receiver,
        a_world({"NOTIFY_URL": receiver.url, "MAX_TURNS_PER_PERSON_PER_DAY": "3"}) as world,
    ):
        issue = await world.maria.opens_issue("Talk")
        await issue.says("@threadtree-bot say Hello.")
        answer = await issue.hears("Hello.")
        await until_true(lambda: len(receiver.got) == 1)
        [first] = receiver.got
        assert first.keys() == {
            *("event", "text", "conversation", "url", "turn", "state", "outcome", "check", "reason", "requested_by"),
            *("waits_for", "finished_at"),
        }
        assert (first["event"], first["state"], first["reason"]) == ("answer", "done", None)
        assert (first["outcome"], first["check"]) == ("answered", None)
        assert (first["conversation"], first["requested_by"]) == ("acme/shop#1", "maria")
        assert str(first["url"]).startswith(f"{world.github.server_url}/acme/shop/issues/1")
        assert first["text"] == f"acme/shop#1: the answer to maria is ready. <{first['url']}>"
        assert datetime.fromisoformat(str(first["finished_at"])).tzinfo is not None
        assert receiver.url not in answer

        await issue.says(f"@threadtree-bot fail <!channel> & {receiver.url}")
        assert receiver.url not in await issue.hears("**Failed:**")
        await issue.says(f"@threadtree-bot say {TO_ANSWER}")
        await issue.hears("To answer, mention the bot")
        await until_true(lambda: len(receiver.got) == 3)
        _, failed, question = receiver.got
        assert (failed["event"], question["event"]) == ("failed", "needs-person")
        assert "&lt;!channel&gt; &amp;" in str(failed["text"])
        assert "secret-of-the-chat" not in str(receiver.got)


async def test_what_a_person_stopped_is_told_to_nobody(a_world: Worlds) -> None:
    async with a_receiver() as receiver, a_world({"NOTIFY_URL": receiver.url}) as world:
        issue = await world.maria.opens_issue("Talk")
        await issue.says("@threadtree-bot hang")
        await issue.sees_working()
        await issue.says("/stop")
        await issue.hears_all()
        assert receiver.asked == 0


async def test_a_receiver_that_is_away_is_asked_again_and_delays_no_answer(a_world: Worlds) -> None:
    async with a_receiver() as receiver, a_world({"NOTIFY_URL": receiver.url}) as world:
        receiver.statuses = [503, 429]
        issue = await world.maria.opens_issue("Talk")
        await issue.says("@threadtree-bot say Hello.")
        await issue.hears("Hello.")
        assert receiver.got == []
        await until_true(lambda: len(receiver.got) == 1)
        assert receiver.asked == 3


async def test_a_slow_receiver_delays_no_answer(a_world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "ANSWER_SECONDS", 0.2)
    async with a_receiver() as receiver, a_world({"NOTIFY_URL": receiver.url}) as world:
        receiver.silent = asyncio.Event()
        for title in ("One", "Two"):
            issue = await world.maria.opens_issue(title)
            await issue.says("@threadtree-bot say Hello.")
            await issue.hears("Hello.")
        await until_true(lambda: receiver.asked >= 3)
        assert receiver.got == []
        receiver.silent.set()
        await until_true(lambda: {one["conversation"] for one in receiver.got} >= {"acme/shop#1", "acme/shop#2"})


async def test_a_refusal_and_a_redirect_end_it(a_world: Worlds) -> None:
    async with a_receiver() as receiver, a_world({"NOTIFY_URL": receiver.url}) as world:
        receiver.statuses = [307, 404]
        issue = await world.maria.opens_issue("Talk")
        await issue.says("@threadtree-bot say Hello.")
        await issue.hears("Hello.")
        await until_true(lambda: receiver.asked == 1)
        await world.quiet()
        assert receiver.asked == 1
        await issue.says("@threadtree-bot say Hello.")
        await issue.hears("Hello.")
        await until_true(lambda: receiver.asked == 2)
        await world.quiet()
        assert (receiver.asked, receiver.got) == (2, [])


async def test_messages_are_left_out_while_many_wait(a_world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MOST_WAITING", 0)
    async with a_receiver() as receiver, a_world({"NOTIFY_URL": receiver.url}) as world:
        issue = await world.maria.opens_issue("Talk")
        await issue.says("@threadtree-bot say Hello.")
        await issue.hears("Hello.")
        await world.quiet()
        assert receiver.asked == 0
