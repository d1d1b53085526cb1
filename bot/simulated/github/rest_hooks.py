"""REST: the webhook, the log of its deliveries, and redelivery."""

from dataclasses import replace

from starlette.responses import Response

from bot.simulated.github.errors import invalid, not_found
from bot.simulated.github.payloads import Json, timestamp
from bot.simulated.github.rest_accounts import as_app
from bot.simulated.github.rest_call import Call, answer, empty
from bot.simulated.github.webhooks import Delivery, Hook

DEFAULT_PER_PAGE, MAX_PER_PAGE = 30, 100


async def list_hooks(call: Call) -> Response:
    _demand_admin(call)
    hook = call.acts.webhooks.hook
    return answer([] if hook is None else [_hook(call, hook)])


async def create_hook(call: Call) -> Response:
    """https://docs.github.com/rest/repos/webhooks#create-a-repository-webhook"""
    return answer(await _set(call, anew=True), 201)


async def update_hook(call: Call) -> Response:
    _of_hook(call)
    return answer(await _set(call, anew=False))


async def ping_hook(call: Call) -> Response:
    _of_hook(call)
    if call.acts.webhooks.hook is not None:
        call.acts.webhooks.ping(call.acts.webhooks.hook, _demand_admin(call))
    return empty()


async def update_app_hook(call: Call) -> Response:
    as_app(call)
    hook = call.acts.webhooks.hook
    if hook is None:
        raise not_found()
    changed = {name: text for name, text in (await call.json()).items() if name in ("url", "secret")}
    call.acts.webhooks.hook = replace(hook, **changed)
    return await get_app_hook(call)


async def _set(call: Call, *, anew: bool) -> Json:
    """Make or change the repository's webhook as the request asks; a new one sends a ping."""
    repository, asked = _demand_admin(call), await call.json()
    config = asked.get("config", {})
    if not str(config.get("url", "")).startswith(("http://", "https://")):
        raise invalid("Hook", "url", "url is missing")
    hook = call.acts.webhooks.set_hook(
        config["url"], config.get("secret", ""), config["content_type"], None, tuple(asked["events"]), anew=anew
    )
    if anew:
        call.acts.webhooks.ping(hook, repository)
    return _hook(call, hook)


async def list_hook_deliveries(call: Call) -> Response:
    return _page(call, _of_hook(call))


async def get_hook_delivery(call: Call) -> Response:
    return answer(_full(call, _one(call, _of_hook(call))))


async def redeliver_hook_delivery(call: Call) -> Response:
    return _redeliver(call, _of_hook(call))


async def get_app_hook(call: Call) -> Response:
    as_app(call)
    hook = call.acts.webhooks.hook
    return answer({} if hook is None else {"content_type": hook.content_type, "insecure_ssl": "0", "url": hook.url})


async def list_app_deliveries(call: Call) -> Response:
    return _page(call, _of_app(call))


async def get_app_delivery(call: Call) -> Response:
    return answer(_full(call, _one(call, _of_app(call))))


async def redeliver_app_delivery(call: Call) -> Response:
    return _redeliver(call, _of_app(call))


def _of_hook(call: Call) -> list[Delivery]:
    repository = _demand_admin(call)
    hook = call.acts.webhooks.hook
    if hook is None or hook.id != call.number("hook_id"):
        raise not_found()
    return [one for one in call.acts.webhooks.log if (one.hook_id, one.repository_id) == (hook.id, repository)]


def _of_app(call: Call) -> list[Delivery]:
    as_app(call)
    return call.acts.webhooks.log


def _demand_admin(call: Call) -> int:
    """Return the repository's id; webhooks are visible to its administrators only."""
    repository = call.repository()
    if not repository.may(call.user, "admin"):
        raise not_found()
    return repository.id


def _page(call: Call, deliveries: list[Delivery]) -> Response:
    """Return a page of deliveries, newest first; `cursor` is the id to continue from, as in the Link header."""
    query = call.request.query_params
    per_page, cursor = query.get("per_page", ""), query.get("cursor", "")
    size = min(int(per_page), MAX_PER_PAGE) if per_page.isdecimal() else DEFAULT_PER_PAGE
    newest_first = [d for d in reversed(deliveries) if not cursor.isdecimal() or d.id <= int(cursor)]
    page, rest = newest_first[:size], newest_first[size:]
    headers = {"Link": f'<{call.url_with(cursor=rest[0].id)}>; rel="next"'} if rest else None
    return answer([_short(call, delivery) for delivery in page], headers=headers)


def _redeliver(call: Call, deliveries: list[Delivery]) -> Response:
    call.acts.webhooks.redeliver(_one(call, deliveries).guid)
    return answer({}, 202)


def _one(call: Call, deliveries: list[Delivery]) -> Delivery:
    wanted = call.number("delivery_id")
    found = next((delivery for delivery in deliveries if delivery.id == wanted), None)
    if found is None:
        raise not_found()
    return found


def _hook(call: Call, hook: Hook) -> Json:
    return {
        "id": hook.id,
        "type": "Repository",
        "name": "web",
        "active": True,
        "events": list(hook.events),
        "config": {"url": hook.url, "content_type": hook.content_type, "secret": "********", "insecure_ssl": "0"},
        "created_at": timestamp(hook.created_at),
        "updated_at": timestamp(hook.created_at),
        "url": f"{call.payloads.api_url}{call.request.url.path}/{hook.id}",
    }


def _short(call: Call, delivery: Delivery) -> Json:
    installation = call.payloads.installation()
    return {
        "id": delivery.id,
        "guid": delivery.guid,
        "delivered_at": timestamp(delivery.delivered_at),
        "redelivery": delivery.redelivery,
        "duration": round(delivery.duration_seconds, 2),
        "status": delivery.status,
        "status_code": delivery.status_code,
        "event": delivery.event,
        "action": delivery.action,
        "installation_id": None if installation is None else installation["id"],
        "repository_id": delivery.repository_id,
        "throttled_at": None,
    }


def _full(call: Call, delivery: Delivery) -> Json:
    return _short(call, delivery) | {
        "request": {"headers": dict(delivery.request_headers), "payload": delivery.payload},
        "response": {"headers": dict(delivery.response_headers), "payload": delivery.response_body},
    }
