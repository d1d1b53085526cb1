"""The REST API answers like the real one."""

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub
from tests.support.github import Receiver, bearer


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
