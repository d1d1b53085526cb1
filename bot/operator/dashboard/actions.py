"""What an operator can do on the pages: the API's changes, each with a page that asks first, or has its fields."""

from typing import Any, Final, get_args

from starlette.responses import Response

from bot.care.asked import Asked
from bot.operator.api import lists
from bot.operator.api.calls import ByGuid, ById, CallError, Endpoint, ListQuery
from bot.operator.api.changes import CHANGES
from bot.operator.api.rows import (
    AskedDelivery,
    AskedOfNodes,
    AskedOperation,
    AskedTurn,
    Delivery,
    Rescue,
    StoppedTurn,
    Turn,
    Worktree,
)
from bot.operator.dashboard.visits import PageView, Visit


def _views(change: Endpoint[Any, Any]) -> tuple[PageView, PageView]:
    """Return the page that says what will happen, and what asks for it, at the path of the change."""
    words = change.words
    path = f"{change.path.removesuffix(f'/{words.verb}')}/{words.verb}"

    async def confirm(visit: Visit) -> Response:
        if "{" not in change.path:
            return visit.page("form.html", words=words, fields=_fields(change.asks), given=visit.request.query_params)
        asked = visit.asked(change)
        back, row = await _subject(visit, path.split("/")[1], asked)
        title = words.title.format(**asked.model_dump())
        return visit.page("confirm.html", words=words, title=title, back=back, about=row.about)

    async def carry_out(visit: Visit) -> Response:
        given = {name: value for name, value in (await visit.form()).items() if value and name != "form_token"}
        asked = change.parse(visit.request.path_params, given)
        answer = await visit.ask(change, asked)
        return visit.redirect(_page_of(answer), words.asked.format(**asked.model_dump(), answer=answer))

    return PageView("GET", path, confirm, for_operators=True), PageView("POST", path, carry_out, for_operators=True)


def _fields(asks: type[Asked]) -> list[dict[str, Any]]:
    """Return what a form asks, field by field; only those of a few words have `choices`."""
    return [
        {
            "name": name,
            "label": field.title,
            "hint": field.description,
            "required": field.is_required(),
            "is_flag": field.annotation is bool,
            "choices": [
                word for part in get_args(field.annotation) for word in get_args(part) if isinstance(word, str)
            ],
        }
        for name, field in asks.model_fields.items()
    ]


def _page_of(answer: object) -> str:
    """Return the page on which the end of a change will be seen."""
    match answer:
        case AskedTurn(turn=int(turn)):
            return f"/turns/{turn}"
        case (
            AskedOperation(operation=operation)
            | AskedTurn(operation=operation)
            | AskedOfNodes(operations=[operation, *_])
        ):
            return f"/operations/{operation}"
        case AskedDelivery(delivery=guid):
            return f"/deliveries/{guid}"
        case StoppedTurn(turn=turn):
            return f"/turns/{turn}"
        case _:
            return "/worktrees"


async def _subject(visit: Visit, kind: str, asked: Asked) -> tuple[str, Turn | Delivery | Rescue | Worktree]:
    """Return what is to be changed, and its page. Raises CallError if it is not there."""
    match kind, asked:
        case "deliveries", ByGuid():
            return f"/deliveries/{asked.guid}", await visit.ask(lists.delivery, asked)
        case "turns", ById():
            return f"/turns/{asked.id}", await visit.ask(lists.turn, asked)
        case _, ById():
            page = await visit.ask(lists.LISTS[kind], ListQuery(after=asked.id + 1, limit=1))
            if page.items and page.items[0].id == asked.id:
                return f"/{kind}", page.items[0]
        case _:
            pass
    raise CallError(404, f"There is no such {kind.removesuffix('s')}.")


ACTION_VIEWS: Final = tuple(view for change in CHANGES for view in _views(change))
