"""The messages to NOTIFY_URL: small JSON that stays as it is, with Slack's `text`."""

from typing import Any

import orjson

from bot.store.turns import EndedTurn
from bot.thread.formatting import one_line, truncate
from bot.thread.waits import NEEDS, WaitsFor


def body(turn_id: int, event: str, waits_for: WaitsFor | None, ended: EndedTurn, server_url: str) -> dict[str, Any]:
    """Return the message. Whoever gets it twice knows it by `turn`, `event` and `waits_for`."""
    repository, _, number = ended.conversation.partition("#")
    url = ended.comment_url or f"{server_url}/{repository}/issues/{number}"
    if waits_for == "review" and ended.pull_request is not None:
        url = f"{server_url}/{ended.pull_request.replace('#', '/pull/')}"
    reason = truncate(one_line(ended.reason)) if ended.reason else None
    what = {
        "answer": f"the answer to {ended.requested_by} is ready",
        "needs-person": NEEDS.get(waits_for or "", "{}'s request needs a person").format(ended.requested_by),
    }.get(event, f"{ended.requested_by}'s request did not work ({ended.state})")
    text = f"{ended.conversation}: {what}{f': {reason}' if reason else '.'}"
    return {
        "event": event,
        "waits_for": waits_for,
        "text": f"{_for_slack(text)} <{url}>",
        "conversation": ended.conversation,
        "url": url,
        "turn": turn_id,
        "state": ended.state,
        "outcome": ended.outcome,
        "check": ended.check and orjson.loads(ended.check),
        "reason": reason,
        "requested_by": ended.requested_by,
        "finished_at": ended.finished_at,
    }


def _for_slack(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping: no text mentions people or makes links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
