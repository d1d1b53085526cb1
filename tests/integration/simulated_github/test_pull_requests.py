"""Pull requests: merges in real git, forks, reviews, and the events of each."""

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub


async def test_a_review_is_on_lines_of_the_diff_of_its_commit_and_its_threads_become_outdated(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    await maria.push(shop, "main", {"src/cart.py": "a\nb\nc\n"}, "Count")
    await maria.push(shop, "fix", {"src/cart.py": "a\nB\nc\n"}, "Count", "main")
    pull = await maria.open_pull(shop, head="fix", title="Count")
    head, path = pull.head_sha, "/repos/acme/shop/pulls/1/reviews"

    async def review(*remarks: dict[str, object], **more: object) -> httpx.Response:
        asked = {"event": "COMMENT", "body": "Two things.", "commit_id": head, "comments": remarks}
        return await api.post(path, json=asked | more)

    on = {"path": "src/cart.py", "side": "RIGHT", "body": "Why?"}
    for refused in (
        await review(on | {"line": 4}),
        await review(on | {"line": 2, "path": "README.md"}),
        await review(on | {"line": 2, "start_line": 3}),
        await review(on | {"line": 2}, commit_id=pull.base_sha),
        await review(on | {"line": 2}, body=""),
    ):
        assert refused.status_code == 422
    created = await review(on | {"line": 2}, on | {"line": 3, "start_line": 2}, on | {"line": 2, "side": "LEFT"})
    assert (created.status_code, created.json()["state"], created.json()["commit_id"]) == (200, "COMMENTED", head)

    query = """query { repository(owner: "acme", name: "shop") { pullRequest(number: 1) {
      reviewThreads(last: 10) { nodes { id isResolved isOutdated line } } } } }"""

    async def threads() -> list[dict[str, object]]:
        found = (await api.post("/graphql", json={"query": query})).json()
        nodes: list[dict[str, object]] = found["data"]["repository"]["pullRequest"]["reviewThreads"]["nodes"]
        return nodes

    assert [one["isOutdated"] for one in await threads()] == [False] * 3
    await maria.push(shop, "fix", {"src/cart.py": "new\na\nBB\nc\n"}, "Count")
    assert [(one["isOutdated"], one["line"]) for one in await threads()] == [(True, None), (False, 4), (False, 2)]
    resolve = "mutation($id: ID!) { resolveReviewThread(input: { threadId: $id }) { clientMutationId } }"
    await api.post("/graphql", json={"query": resolve, "variables": {"id": (await threads())[0]["id"]}})
    assert [one["isResolved"] for one in await threads()] == [True, False, False]
