"""What an operator can do on the pages: a call of the API that changes something, with a page that asks first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich.filesize import decimal
from starlette.responses import Response

from bot.api.calls import CallError
from bot.api.endpoints import ENDPOINTS
from bot.dashboard.rendering import moment
from bot.dashboard.visits import View, Visit


@dataclass(frozen=True, slots=True)
class _Action:
    """One change. `GET path` says what will happen, `POST path` asks for it; `{id}` stands in the words too."""

    path: str
    call: str
    title: str
    button: str
    consequence: str
    asked: str
    is_dangerous: bool = False

    async def confirm(self, visit: Visit) -> Response:
        """Show what will happen."""
        names = visit.asked(ENDPOINTS[self.call]).path
        back, about = await _subject(visit, self.path.split("/")[1], names)
        return visit.page("confirm.html", action=self, title=self.title.format(**names), back=back, about=about)

    async def carry_out(self, visit: Visit) -> Response:
        """Ask for it, and show the page on which its end will be seen."""
        match await visit.ask_here(self.call):
            case {"operation": int(operation)}:
                address = f"/operations/{operation}"
            case {"delivery": str(guid)}:
                address = f"/deliveries/{guid}"
            case {"turn": int(turn)}:
                address = f"/turns/{turn}"
            case _:
                address = "/worktrees"
        return visit.redirect(address, self.asked.format(**visit.request.path_params))


async def _subject(visit: Visit, kind: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return the page of what is to be changed, and what it is in a few words. Raises CallError if it is not there."""
    match kind:
        case "turns":
            turn = await visit.ask("GET /turns/{id}", path=names)
            return f"/turns/{turn['id']}", f"{turn['conversation']}, asked by {turn['requested_by']}"
        case "deliveries":
            delivery = await visit.ask("GET /deliveries/{guid}", path=names)
            return f"/deliveries/{delivery['guid']}", f"{delivery['event']} {delivery['conversation'] or ''}"
        case "rescues":
            rescue = await _of_list(visit, kind, int(names["id"]))
            users = ", ".join(rescue["conversations"]) or rescue["codebase"]
            return "/rescues", f"{users}, rescued {moment(rescue['created_at'])}, {decimal(rescue['bytes'])}"
        case _:
            tree = await _of_list(visit, kind, int(names["id"]))
            users = ", ".join(tree["conversations"]) or tree["codebase"]
            return "/worktrees", f"{users}, branch {tree['branch'] or '(detached)'}, {tree['state']}"


async def _of_list(visit: Visit, kind: str, item: int) -> Any:
    """Return an item of a list by its id. Raises CallError."""
    page = await visit.ask(f"GET /{kind}", after=item + 1, limit=1)
    for found in page["items"]:
        if found["id"] == item:
            return found
    raise CallError(404, f"There is no {kind.removesuffix('s')} {item}.")


ACTIONS: Final = (
    _Action(
        "/turns/{id}/stop",
        "POST /turns/{id}/stop",
        "Stop turn {id}",
        "Stop it",
        "The agent is stopped within seconds. What it did so far stays in the worktree and is not pushed. "
        "The thread is told that the operator stopped it.",
        "Turn {id} is being stopped.",
        is_dangerous=True,
    ),
    _Action(
        "/turns/{id}/retry",
        "POST /turns/{id}/retry",
        "Ask turn {id} again",
        "Ask it again",
        "The same request is queued again, as /retry on the thread does.",
        "The request of turn {id} is asked again.",
    ),
    _Action(
        "/worktrees/{id}/reset",
        "POST /worktrees/{id}/reset",
        "Reset worktree {id}",
        "Reset it",
        "What GitHub does not have is rescued first. Then all files go back to the branch's base. "
        "Ignored files are deleted and are not rescued.",
        "Worktree {id} will be reset.",
        is_dangerous=True,
    ),
    _Action(
        "/worktrees/{id}/remove",
        "DELETE /worktrees/{id}",
        "Remove worktree {id}",
        "Remove it",
        "What GitHub does not have is rescued first. Then the directory is deleted, with its ignored files, which are "
        "not rescued. The next request on the thread makes it again.",
        "Worktree {id} will be removed.",
        is_dangerous=True,
    ),
    _Action(
        "/worktrees/{id}/restore",
        "POST /worktrees/{id}/restore",
        "Restore the latest rescue of worktree {id}",
        "Restore it",
        "The latest rescue comes back into the worktree, if nothing was changed there since.",
        "The latest rescue of worktree {id} will be restored.",
    ),
    _Action(
        "/rescues/{id}/restore",
        "POST /rescues/{id}/restore",
        "Restore rescue {id}",
        "Restore it",
        "It comes back into its worktree, which is made again where it was removed. Nothing is overwritten: a worktree "
        "with changes is left as it is.",
        "Rescue {id} will be restored.",
    ),
    _Action(
        "/rescues/{id}/drop",
        "DELETE /rescues/{id}",
        "Delete rescue {id}",
        "Delete it for good",
        "The rescued work is deleted. It cannot be brought back.",
        "Rescue {id} will be deleted.",
        is_dangerous=True,
    ),
    _Action(
        "/worktrees/{id}/touch",
        "POST /worktrees/{id}/touch",
        "Keep worktree {id}",
        "Count it as used now",
        "The worktree counts as used now, so that it is not pruned as unused.",
        "Worktree {id} counts as used now.",
    ),
    _Action(
        "/deliveries/{guid}/replay",
        "POST /deliveries/{guid}/replay",
        "Replay delivery {guid}",
        "Replay it",
        "The delivery is handled again. Nothing is done twice.",
        "Delivery {guid} is handled again.",
    ),
)

ACTION_VIEWS: Final = tuple(
    view
    for action in ACTIONS
    for view in (View("GET", action.path, action.confirm), View("POST", action.path, action.carry_out))
)
