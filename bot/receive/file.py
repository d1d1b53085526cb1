"""A payload file as a delivery, for `threadtree receive`."""

from uuid import uuid4

from bot.receive.delivery import delivery_of
from bot.receive.inbox import Inbox, Outcome
from bot.store.deliveries import NewDelivery


async def receive_file(inbox: Inbox, event: str, content: bytes, platform: str) -> tuple[NewDelivery, Outcome]:
    """Stores the JSON in `content` as if GitHub had just sent it as `event`, under a new GUID."""
    delivery = delivery_of(str(uuid4()), event, content, platform)
    return delivery, await inbox.store(delivery)
