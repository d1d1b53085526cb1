"""The GraphQL API lists the issues that a pull request closes."""

from typing import Any

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub
from tests.support.github import pull_fixing

CLOSING_QUERY = """
query($first: Int, $after: String) { repository(owner: "acme", name: "shop") { pullRequest(number: 3) {
  closingIssuesReferences(first: $first, after: $after) {
    nodes { number state repository { databaseId nameWithOwner } } pageInfo { hasNextPage endCursor } totalCount
} } } }
"""


async def closing(api: httpx.AsyncClient, **variables: object) -> Any:
    answer = (await api.post("/graphql", json={"query": CLOSING_QUERY, "variables": {"first": 10} | variables})).json()
    return answer["data"]["repository"]["pullRequest"]["closingIssuesReferences"]


async def test_closing_references_come_from_the_body_in_pages(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    other = await github.create_repository("acme/other")
    await maria.open_issue(other, "Elsewhere")
    await maria.open_issue(shop, "One")
    await maria.open_issue(shop, "Two")
    pull = await pull_fixing(
        maria, shop, "fixes #1, closes acme/other#1 and RESOLVED: #2. Prefixes #3, see #1, fixes #99"
    )
    found = await closing(api)
    assert [(node["repository"]["nameWithOwner"], node["number"], node["state"]) for node in found["nodes"]] == [
        ("acme/shop", 1, "OPEN"),
        ("acme/other", 1, "OPEN"),
        ("acme/shop", 2, "OPEN"),
    ]
    assert found["nodes"][0]["repository"]["databaseId"] == shop.id

    page = await closing(api, first=2)
    assert (page["totalCount"], page["pageInfo"]["hasNextPage"]) == (3, True)
    rest = await closing(api, first=2, after=page["pageInfo"]["endCursor"])
    assert ([node["number"] for node in rest["nodes"]], rest["pageInfo"]["hasNextPage"]) == ([2], False)

    pull.base_ref = "release"
    assert (await closing(api))["nodes"] == []


async def test_closing_references_may_appear_late(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    github.late_closing_references = True
    await maria.open_issue(shop, "One")
    await maria.open_issue(shop, "Two")
    pull = await pull_fixing(maria, shop, "fixes #1")
    assert (await closing(api))["nodes"] == []
    pull.closing_references_indexed = True
    assert [node["number"] for node in (await closing(api))["nodes"]] == [1]


async def test_graphql_errors_have_githubs_form(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    comment = await maria.comment(await maria.open_issue(shop, "Talk"), "hello")
    missing = await api.post("/graphql", json={"query": '{ repository(owner: "no", name: "where") { name } }'})
    assert missing.status_code == 200
    assert missing.json()["data"] == {"repository": None}
    assert missing.json()["errors"][0]["type"] == "NOT_FOUND"
    query = "query($id: ID!) { viewer { login databaseId } node(id: $id) { ... on IssueComment { body } } }"
    found = (await api.post("/graphql", json={"query": query, "variables": {"id": comment.node_id}})).json()["data"]
    assert found == {"viewer": {"login": "threadtree-bot", "databaseId": github.bot.id}, "node": {"body": "hello"}}
    assert (await api.post("/graphql", json={"query": "{ viewer"})).json()["errors"]
    async with httpx.AsyncClient() as anonymous:
        assert (await anonymous.post(github.graphql_url, json={"query": "{ viewer { login } }"})).status_code == 401
