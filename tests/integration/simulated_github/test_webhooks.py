"""Webhooks are sent, logged and redelivered as by GitHub."""

import hashlib
import hmac

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub
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
        *("issues.opened", "issues.labeled", "issue_comment.created", "issue_comment.edited", "issues.edited"),
        *("issues.labeled", "issues.unlabeled", "issues.assigned", "issue_comment.deleted"),
        *("issues.closed", "issues.reopened"),
    ]
    assert payload(github, "issue_comment", "edited")["changes"] == {"body": {"from": "first"}}
    assert payload(github, "issues", "edited")["changes"] == {"body": {"from": "Old"}}
    assert payload(github, "issues", "assigned")["assignee"]["id"] == github.bot.id
    assert payload(github, "issues", "closed")["issue"]["closed_at"] == "2026-03-01T12:00:00Z"
    assert (comment.original, comment.edits) == ("first", ["second"])
