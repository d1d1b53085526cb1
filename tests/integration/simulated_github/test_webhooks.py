"""Webhooks are sent, logged and redelivered as by GitHub."""

import hashlib
import hmac

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub
from bot.simulated.github.serving import listen
from tests.support.github import SECRET, Receiver, events, payload


async def test_a_webhook_is_signed_and_says_what_happened(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "It breaks", "Here")
    comment = await maria.comment(issue, "@threadtree-bot please fix")
    await github.settled()

    assert events(github) == ["push.None", "issues.opened", "issue_comment.created"]
    headers, body = receiver.got[-1]
    assert headers["x-hub-signature-256"] == "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-hub-signature"] == "sha1=" + hmac.new(SECRET.encode(), body, hashlib.sha1).hexdigest()
    assert headers["x-github-event"] == "issue_comment"
    assert headers["x-github-delivery"] == github.deliveries[-1].guid
    assert headers["user-agent"].startswith("GitHub-Hookshot/")
    sent = payload(github, "issue_comment", "created")
    assert sent["comment"]["id"] == comment.id > 2**31
    assert sent["comment"]["node_id"] == comment.node_id
    assert sent["comment"]["author_association"] == "COLLABORATOR"
    assert sent["issue"]["number"] == 1
    assert "pull_request" not in sent["issue"]
    assert sent["repository"]["full_name"] == "acme/shop"
    assert sent["repository"]["clone_url"] == github.clone_url(shop)
    assert sent["sender"]["login"] == "maria"
    assert "installation" not in sent


async def test_the_bots_own_comment_comes_back_as_a_webhook_from_the_bot(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    await maria.open_issue(shop, "It breaks")
    answer = await api.post("/repos/acme/shop/issues/1/comments", json={"body": "On it"})

    assert answer.status_code == 201
    await github.settled()
    sent = payload(github, "issue_comment", "created")
    assert sent["sender"]["id"] == github.bot.id
    assert sent["comment"]["html_url"] == answer.json()["html_url"]


async def test_a_slow_receiver_delays_no_answer_and_gets_no_retry(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    await github.settled()
    receiver.open.clear()
    github.webhook_timeout_seconds = 0.2
    await maria.open_issue(shop, "It breaks")
    assert (await api.post("/repos/acme/shop/issues/1/comments", json={"body": "On it"})).status_code == 201

    await github.settled()
    late = github.deliveries[-2:]
    assert [(d.event, d.status, d.status_code) for d in late] == [
        ("issues", "timed out", 0),
        ("issue_comment", "timed out", 0),
    ]
    assert len(receiver.got) == len(github.deliveries)
    receiver.open.set()


async def test_a_failed_delivery_is_logged_and_redelivered_with_its_guid(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    shop.allow(github.bot, "admin")
    receiver.status = 503
    await maria.open_issue(shop, "It breaks")
    await github.settled()
    receiver.status = 202

    hook = (await api.get("/repos/acme/shop/hooks")).json()[0]["id"]
    log = f"/repos/acme/shop/hooks/{hook}/deliveries"
    [newest] = (first := await api.get(log, params={"per_page": 1})).json()
    assert (newest["event"], newest["action"], newest["status_code"]) == ("issues", "opened", 503)
    [older] = (await api.get(first.links["next"]["url"])).json()
    assert older["event"] == "push"
    github.set_webhook(f"{receiver.url}?edited", SECRET)
    full = (await api.get(f"{log}/{newest['id']}")).json()
    assert full["request"]["payload"]["issue"]["number"] == 1
    assert full["response"]["payload"] == "heard"

    assert (await api.post(f"{log}/{newest['id']}/attempts")).status_code == 202
    await github.settled()
    again = github.deliveries[-1]
    assert (again.guid, again.redelivery, again.status_code) == (newest["guid"], True, 202)
    assert receiver.got[-1][1] == receiver.got[-2][1]
    await github.redeliver(newest["guid"])
    assert [d.guid for d in github.deliveries].count(newest["guid"]) == 3


async def test_hooks_are_hidden_from_those_who_do_not_administer_the_repository(
    receiver: Receiver, shop: Repository, api: httpx.AsyncClient
) -> None:
    assert (await api.get("/repos/acme/shop/hooks")).status_code == 404


async def test_the_order_of_webhooks_is_the_order_of_the_acts(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    for number in range(30):
        await maria.comment(issue, str(number))
    await github.settled()
    comments = [delivery.payload["comment"] for delivery in github.deliveries if delivery.event == "issue_comment"]
    assert [comment["body"] for comment in comments] == [str(number) for number in range(30)]


async def test_an_unreachable_receiver_is_logged(github: SimulatedGitHub, shop: Repository, maria: Person) -> None:
    with listen(0) as nobody:
        port = nobody.getsockname()[1]
    github.set_webhook(f"http://127.0.0.1:{port}/", SECRET)
    await maria.open_issue(shop, "It breaks")
    await github.settled()
    [delivery] = github.deliveries
    assert (delivery.status, delivery.status_code, delivery.succeeded) == ("failed to connect to host", 0, False)


async def test_a_doubled_webhook_has_two_guids_and_a_held_one_is_overtaken(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    await github.settled()
    github.faults.double_webhooks("issues", "opened")
    github.faults.hold_webhooks("issue_comment")
    issue = await maria.open_issue(shop, "It breaks")
    await maria.close(issue, comment="never mind")
    await github.settled()
    one, two, closed = github.deliveries[-3:]
    assert one.guid != two.guid
    assert one.request_body == two.request_body
    assert closed.action == "closed"

    github.faults.release()
    await github.settled()
    assert github.deliveries[-1].event == "issue_comment"


async def test_form_encoded_webhooks_are_signed_over_the_form(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    github.set_webhook(receiver.url, SECRET, content_type="form")
    await maria.open_issue(shop, "Ümlaut & co")
    await github.settled()
    headers, body = receiver.got[-1]
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert body.startswith(b"payload=")
    assert headers["x-hub-signature-256"] == "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert payload(github, "issues", "opened")["issue"]["title"] == "Ümlaut & co"


async def test_every_act_sends_the_events_that_github_sends(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    await github.settled()
    github.deliveries.clear()
    issue = await maria.open_issue(shop, "It breaks", "Old", labels=["bug"])
    comment = await maria.comment(issue, "first")
    await maria.edit(comment, "second")
    await maria.edit(issue, "New")
    await maria.label(issue, "threadtree")
    await maria.unlabel(issue, "bug")
    await maria.assign(issue, github.bot)
    await maria.delete(comment)
    await maria.close(issue)
    await maria.reopen(issue)
    await github.settled()

    assert events(github) == [
        "issues.opened",
        "issues.labeled",
        "issue_comment.created",
        "issue_comment.edited",
        "issues.edited",
        "issues.labeled",
        "issues.unlabeled",
        "issues.assigned",
        "issue_comment.deleted",
        "issues.closed",
        "issues.reopened",
    ]
    assert payload(github, "issue_comment", "edited")["changes"] == {"body": {"from": "first"}}
    assert payload(github, "issues", "edited")["changes"] == {"body": {"from": "Old"}}
    assert payload(github, "issues", "assigned")["assignee"]["id"] == github.bot.id
    assert payload(github, "issues", "closed")["issue"]["closed_at"] == "2026-03-01T12:00:00Z"
    assert (comment.original, comment.edits) == ("first", ["second"])
