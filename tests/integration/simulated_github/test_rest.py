"""The REST API answers like the real one."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from bot.simulated.github import Person, Repository, SimulatedGitHub
from tests.support.github import Clock, Receiver, bearer, payload, pull_fixing


async def test_a_bad_token_no_token_and_a_hidden_resource_have_different_errors(
    github: SimulatedGitHub, shop: Repository
) -> None:
    async with httpx.AsyncClient(base_url=github.api_url) as client:
        bad = await client.get("/user", headers=bearer("ghp_wrong"))
        none = await client.get("/user")
        hidden = await client.get("/repos/acme/shop")
        stranger = await client.get("/repos/acme/shop", headers=bearer(github.person("eve").new_token()))
        unknown = await client.get("/no/such/path")
    assert (bad.status_code, bad.json()["message"]) == (401, "Bad credentials")
    assert (none.status_code, none.json()["message"]) == (401, "Requires authentication")
    assert (hidden.status_code, stranger.status_code, unknown.status_code) == (404, 404, 404)
    assert unknown.json()["message"] == "Not Found"


@pytest.mark.parametrize(
    ("granted", "permission", "role"),
    [
        ("none", "none", "none"),
        ("read", "read", "read"),
        ("triage", "read", "triage"),
        ("write", "write", "write"),
        ("maintain", "write", "maintain"),
        ("admin", "admin", "admin"),
    ],
)
async def test_the_permission_of_a_collaborator_is_returned(
    github: SimulatedGitHub, shop: Repository, api: httpx.AsyncClient, granted: Any, permission: str, role: str
) -> None:
    shop.allow(github.person("ada"), granted)
    answer = (await api.get("/repos/acme/shop/collaborators/ada/permission")).json()
    assert (answer["permission"], answer["role_name"], answer["user"]["login"]) == (permission, role, "ada")
    assert (await api.get("/repos/acme/shop/collaborators/nobody/permission")).status_code == 404


async def test_every_account_reads_a_public_repository(github: SimulatedGitHub, api: httpx.AsyncClient) -> None:
    await github.create_repository("acme/open", private=False)
    github.person("eve")
    answer = (await api.get("/repos/acme/open/collaborators/eve/permission")).json()
    assert answer["permission"] == "read"


async def test_comments_come_in_pages_with_links(
    shop: Repository, maria: Person, api: httpx.AsyncClient, clock: Clock
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    for number in range(5):
        await maria.comment(issue, f"comment {number}")
    first = await api.get("/repos/acme/shop/issues/1/comments", params={"per_page": 2})
    assert [comment["body"] for comment in first.json()] == ["comment 0", "comment 1"]
    assert set(first.links) == {"next", "last"}
    second = await api.get(first.links["next"]["url"])
    assert [comment["body"] for comment in second.json()] == ["comment 2", "comment 3"]
    last = await api.get(first.links["last"]["url"])
    assert [comment["body"] for comment in last.json()] == ["comment 4"]
    assert set(last.links) == {"prev", "first"}

    clock.now += timedelta(minutes=1)
    await maria.edit(issue.comments[2], "changed")
    recent = await api.get("/repos/acme/shop/issues/1/comments", params={"since": "2026-03-01T12:00:30Z"})
    assert [comment["body"] for comment in recent.json()] == ["changed"]


async def test_a_comment_is_created_edited_and_deleted(shop: Repository, maria: Person, api: httpx.AsyncClient) -> None:
    issue = await maria.open_issue(shop, "Talk")
    made = (await api.post("/repos/acme/shop/issues/1/comments", json={"body": "one"})).json()
    path = f"/repos/acme/shop/issues/comments/{made['id']}"
    assert (await api.patch(path, json={"body": "two"})).json()["body"] == "two"
    assert (await api.get(path)).json()["body"] == "two"
    assert (await api.delete(path)).status_code == 204
    assert (await api.get(path)).status_code == 404
    assert issue.comments == []


async def test_a_comment_that_is_too_long_or_no_text_is_refused(
    shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    path = "/repos/acme/shop/issues/1/comments"
    assert (await api.post(path, json={"body": "x" * 65_536})).status_code == 201
    too_long = await api.post(path, json={"body": "x" * 65_537})
    assert (too_long.status_code, too_long.json()["message"]) == (422, "Validation Failed")
    assert (await api.post(path, json={"body": " "})).status_code == 422
    assert (await api.post(path, json={"body": None})).status_code == 422
    assert (await api.post(path, content=b"{")).status_code == 400
    assert (await api.post("/repos/acme/shop/issues/99/comments", json={"body": "x"})).status_code == 404
    assert len(issue.comments) == 1


async def test_the_same_reaction_twice_is_one(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    comment = await maria.comment(issue, "hello")
    pull = await pull_fixing(maria, shop, "")
    inline = await maria.review_comment(pull, "src/cart.py", 1, "hm")
    for target in (
        "issues/1",
        f"issues/comments/{comment.id}",
        f"pulls/comments/{inline.id}",
    ):
        path = f"/repos/acme/shop/{target}/reactions"
        first = await api.post(path, json={"content": "eyes"})
        second = await api.post(path, json={"content": "eyes"})
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["id"] == second.json()["id"]
        assert (await api.post(path, json={"content": "shrug"})).status_code == 422
        assert [reaction["content"] for reaction in (await api.get(path)).json()] == ["eyes"]
    assert issue.reactions_by(github.bot) == ["eyes"]
    removed = await api.delete(f"/repos/acme/shop/issues/1/reactions/{issue.reactions[0].id}")
    assert (removed.status_code, issue.reactions) == (204, [])


async def test_labels_are_set_by_those_who_may_triage(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    path = "/repos/acme/shop/issues/1/labels"
    assert [label["name"] for label in (await api.post(path, json={"labels": ["bug"]})).json()] == ["bug"]
    assert (await api.delete(f"{path}/bug")).json() == []
    assert (await api.delete(f"{path}/bug")).status_code == 404
    shop.allow(github.bot, "read")
    assert (await api.post(path, json={"labels": ["bug"]})).status_code == 403
    assert issue.labels == []


async def test_editing_the_comments_of_others_needs_write(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    shop.allow(github.bot, "read")
    comment = await maria.comment(await maria.open_issue(shop, "Talk"), "mine")
    path = f"/repos/acme/shop/issues/comments/{comment.id}"
    assert (await api.patch(path, json={"body": "yours"})).status_code == 403
    assert (await api.delete(path)).status_code == 403
    assert (await api.patch("/repos/acme/shop/issues/1", json={"state": "closed"})).status_code == 403
    assert (comment.body, comment.thread.state) == ("mine", "open")


async def test_branches_and_refs_are_returned(shop: Repository, api: httpx.AsyncClient) -> None:
    shop.protect("main")
    tip = (await shop.git.branches())["main"]
    branch = (await api.get("/repos/acme/shop/branches/main")).json()
    assert (branch["protected"], branch["commit"]["sha"]) == (True, tip)
    assert (await api.get("/repos/acme/shop/git/ref/heads/main")).json()["object"]["sha"] == tip
    assert (await api.get("/repos/acme/shop/branches/threadtree/issue-1")).status_code == 404
    assert (await api.get("/repos/acme/shop")).json()["default_branch"] == "main"


async def test_a_renamed_repository_is_found_by_its_id_and_by_a_redirect(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    await maria.open_issue(shop, "Talk")
    await github.rename_repository(shop, "store")
    await github.settled()
    assert payload(github, "repository", "renamed")["repository"]["full_name"] == "acme/store"
    assert (await api.get(f"/repositories/{shop.id}")).json()["full_name"] == "acme/store"
    moved = await api.get("/repos/acme/shop/issues/1")
    assert (moved.status_code, moved.headers["location"]) == (301, f"{github.api_url}/repositories/{shop.id}/issues/1")
    assert (await api.get(moved.headers["location"])).json()["number"] == 1


async def test_each_request_counts_against_the_rate_limit_and_is_logged(
    github: SimulatedGitHub, shop: Repository, api: httpx.AsyncClient
) -> None:
    first, second = await api.get("/user"), await api.get("/users/acme")
    assert int(first.headers["x-ratelimit-remaining"]) - int(second.headers["x-ratelimit-remaining"]) == 1
    assert (await api.get("/rate_limit")).json()["resources"]["core"]["used"] == 2
    logged = github.requests[0]
    assert (logged.method, logged.path, logged.status, logged.login) == ("GET", "/user", 200, github.bot.login)


async def test_people_write_on_the_pages_of_threads_and_another_site_does_not(
    github: SimulatedGitHub, shop: Repository, maria: Person, receiver: Receiver
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    async with httpx.AsyncClient(base_url=github.server_url) as browser:
        page = (await browser.get("/acme/shop/issues/1")).text
        assert 'method="post" action="/acme/shop/issues/1"' in page
        said = {"body": "Hello <b>there</b>", "state": "closed"}
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert (await browser.post("/acme/shop/issues/1", data=said, headers=foreign)).status_code == 404
        assert (await browser.post("/acme/shop/issues/1", data=said)).status_code == 303
        assert ([comment.body for comment in issue.comments_by(maria)], issue.state) == ([said["body"]], "closed")
        assert (await browser.post("/acme/shop/issues/1", data={"state": "open"})).status_code == 303
        opened = await browser.post("/acme/shop/issues/new", data={"title": "More", "body": "@bot do it"})
        assert opened.headers["location"] == "/acme/shop/issues/2"
        assert (issue.state, shop.threads[2].author.login, shop.threads[2].body) == ("open", "maria", "@bot do it")
        assert "New issue in acme/shop" in (await browser.get("/")).text
        github.person("olaf")
        assert "<option>maria</option><option>olaf</option>" in (await browser.get("/acme/shop/issues/1")).text
        assert (await browser.post("/acme/shop/issues/1", data={"as": "olaf", "body": "Me too"})).status_code == 303
        assert issue.comments[-1].author.login == "olaf"
