"""What an operator asks and GitHub must be asked about, as a delivery: decided, tried again, replayed."""

from dataclasses import dataclass

import orjson

from bot.decide.actions import Ignore, Request
from bot.decide.parsing import ParsedComment
from bot.github.events import Thread
from bot.handlers.command import Command
from bot.handlers.simple import RETRY
from bot.model import Actor
from bot.store import requests, turns
from bot.store.database import Connection
from bot.store.deliveries import Delivery
from bot.store.operations import Channel


@dataclass(frozen=True, slots=True)
class CreateWorktree:
    """The worktree of the thread `owner/name#number` is to be made."""

    owner: str
    name: str
    number: int
    channel: Channel


async def read_operator(connection: Connection, guid: str, delivery: Delivery) -> Request | CreateWorktree | Ignore:
    """Return what the operator asks. A request is asked again on the authority of the person who wrote it."""
    asked = orjson.loads(delivery.body)
    if "turn" not in asked:
        full_name, _, number = asked["conversation"].rpartition("#")
        owner, _, name = full_name.partition("/")
        return CreateWorktree(owner, name, int(number), asked.get("channel", "API"))
    row = await requests.asked_in(connection, asked["turn"])
    if row is None:
        return Ignore("the turn is gone")
    place = await turns.thread_of(connection, asked["turn"])
    return Request(
        repository=place.thread_ref.repository,
        thread=Thread(place.number, row["kind"], row["title"], row["closed_at"]),
        author=Actor(place.requested_by, row["requested_by_id"]),
        target=place.target,
        parsed=ParsedComment((Command(RETRY.name),), None),
        asked_at=delivery.received_at,
        identity=guid.encode(),
    )
