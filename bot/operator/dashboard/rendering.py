"""Pages from templates. Every value is escaped: text of an agent or a stranger is never markup."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.filesize import decimal

from bot.operator.api.calls import THREAD
from bot.operator.api.events import NAMES
from bot.thread.formatting import format_count, format_dollars, format_duration
from bot.thread.links import diff_page

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
CHANGES: Final = ", ".join(
    [
        *(f"sse:{name} throttle:1s" for name in NAMES if name.startswith(("turn", "operation", "worktree-failed"))),
        "every 10s",
    ]
)
"""When a page that is shown loads its content again, as htmx reads it."""
_BRANCH: Final = re.compile(r"[^\x00-\x20\x7f]{1,255}")


@cache
def environment() -> Environment:
    """Return the templates with their filters. A name that a template misses is an error, not an empty text."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": _ago,
        "bytes": decimal,
        "count": format_count,
        "duration": format_duration,
        "seconds": lambda seconds: format_duration(timedelta(seconds=seconds)),
        "money": lambda dollars: "" if dollars is None else format_dollars(dollars),
        "moment": moment,
        "iso": lambda at: at.astimezone(UTC).isoformat(),
        "day": lambda at: at.astimezone(UTC).strftime("%Y-%m-%d"),
        "clock": lambda at: at.astimezone(UTC).strftime("%H:%M:%S"),
    }
    made.globals |= {
        "changes": CHANGES,
        "static": _static,
        "thread_url": _thread_url,
        "thread_page": lambda conversation: f"/conversations/{conversation.replace('#', '/')}",
        "branch_url": _branch_url,
        "compare_url": _compare_url,
        "is_ours": lambda server_url, url: url is not None and url.startswith(f"{server_url}/"),
        "query": _query,
    }
    return made


def _ago(at: datetime, now: datetime) -> str:
    """Return how long ago it was, in its largest unit: `3 h ago`."""
    seconds = max(0, int((now - at).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def moment(at: datetime) -> str:
    """Return a time to the second, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@cache
def _static(name: str) -> str:
    """Return the address of a file, with its digest so that a browser may keep it."""
    return f"/static/{name}?{hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def _thread_url(server_url: str, conversation: str) -> str | None:
    """Return the thread on GitHub, where the name is one. GitHub leads to the pull request where it is one."""
    if not (thread := THREAD.fullmatch(conversation)):
        return None
    return f"{server_url}/{thread['owner']}/{thread['name']}/issues/{thread['number']}"


def _branch_url(server_url: str, codebase: str, branch: str) -> str | None:
    """Return the branch on GitHub."""
    if not THREAD.fullmatch(f"{codebase}#1") or not _BRANCH.fullmatch(branch):
        return None
    return f"{server_url}/{codebase}/tree/{quote(branch)}"


def _compare_url(server_url: str, conversation: str, before: str, after: str) -> str | None:
    """Return GitHub's page of what lies between two commits."""
    thread = THREAD.fullmatch(conversation)
    return diff_page(f"{server_url}/{thread['owner']}/{thread['name']}", before, after) if thread else None


def _query(**items: object) -> str:
    """Return the query of an address, without empty items."""
    given = {name: value for name, value in items.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""
