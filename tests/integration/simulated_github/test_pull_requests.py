"""Pull requests: merges in real git, forks, reviews, and the events of each."""

import httpx
import pytest

from bot.simulated.github import Person, Repository, SimulatedGitHub
from bot.simulated.github.errors import RefusedError
from tests.support.github import Receiver, events, payload, pull_fixing


async def test_merging_a_pull_request_merges_in_git_and_closes_what_it_fixes(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    pull = await pull_fixing(maria, shop, "Fixes #1")
    await github.settled()
    github.deliveries.clear()

    commit = await maria.merge(pull)
    await github.settled()

    assert events(github) == ["push.None", "pull_request.closed", "issues.closed"]
    closed = payload(github, "pull_request", "closed")["pull_request"]
    assert (closed["merged"], closed["merge_commit_sha"], closed["state"]) == (True, commit, "closed")
    assert closed["head"]["repo"]["id"] == closed["base"]["repo"]["id"] == shop.id
    assert (issue.state, issue.closed_by, pull.merged) == ("closed", maria.user, True)
    assert (await shop.git.branches())["main"] == commit
    assert (await shop.git.files("main"))["src/cart.py"] == "total = 1"
    assert await shop.git.is_ancestor(pull.head_sha, "main")


async def test_a_squash_leaves_the_heads_commits_out(shop: Repository, maria: Person) -> None:
    pull = await pull_fixing(maria, shop, "")
    commit = await maria.merge(pull, "squash")
    assert (await shop.git.files("main"))["src/cart.py"] == "total = 1"
    assert not await shop.git.is_ancestor(pull.head_sha, "main")
    assert [message for _, message, _ in await shop.git.log(commit)] == ["Initial commit", "Count (#1)"]


async def test_a_merge_into_another_branch_closes_nothing(shop: Repository, maria: Person) -> None:
    issue = await maria.open_issue(shop, "It breaks")
    await maria.push(shop, "release", {"NEWS": "soon"}, "Prepare")
    await maria.merge(await pull_fixing(maria, shop, "Fixes #1", base="release"))
    assert issue.state == "open"


async def test_a_conflict_is_not_merged(shop: Repository, maria: Person) -> None:
    pull = await pull_fixing(maria, shop, "")
    await maria.push(shop, "main", {"src/cart.py": "total = 2\n"}, "Count otherwise")
    with pytest.raises(RefusedError, match="Merge conflict"):
        await maria.merge(pull)
    assert pull.state == "open"


async def test_a_pull_request_from_a_fork_names_the_fork_and_its_head_is_fetchable_at_the_base(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person
) -> None:
    otto = github.person("otto")
    fork = await github.fork(shop, otto)
    await otto.push(fork, "idea", {"idea.txt": "yes\n"}, "An idea")
    pull = await otto.open_pull(shop, head="idea", title="An idea", head_repo=fork)
    moved = await otto.push(fork, "idea", {"idea.txt": "no\n"}, "Another")
    await github.settled()

    opened = payload(github, "pull_request", "opened")["pull_request"]
    assert opened["head"]["repo"]["fork"] is True
    assert opened["head"]["repo"]["full_name"] == "otto/shop"
    assert opened["base"]["repo"]["full_name"] == "acme/shop"
    assert opened["author_association"] == "NONE"
    assert payload(github, "pull_request", "synchronize")["after"] == moved == pull.head_sha
    assert await shop.git.run("rev-parse", f"refs/pull/{pull.number}/head") == moved


async def test_a_review_with_inline_comments_and_a_reply_in_its_thread(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    pull = await pull_fixing(maria, shop, "")
    await github.settled()
    github.deliveries.clear()
    await maria.review(pull, "Two things", comments=[("src/cart.py", 1, "why?"), ("README.md", 1, "and here")])
    first = pull.review_comments[0]
    answer = await api.post(f"/repos/acme/shop/pulls/1/comments/{first.id}/replies", json={"body": "because"})
    await github.settled()

    assert answer.status_code == 201
    assert answer.json()["in_reply_to_id"] == first.id
    created = "pull_request_review_comment.created"
    submitted = "pull_request_review.submitted"
    assert events(github) == [submitted, created, created, submitted, created]
    sent = payload(github, "pull_request_review_comment", "created")
    assert sent["comment"]["in_reply_to_id"] == first.id
    assert sent["pull_request"]["number"] == 1
    listed = (await api.get("/repos/acme/shop/pulls/1/comments")).json()
    assert [comment["body"] for comment in listed] == ["why?", "and here", "because"]
    review = (await api.get("/repos/acme/shop/pulls/1/reviews")).json()[0]
    assert (review["state"], review["body"]) == ("COMMENTED", "Two things")


async def test_the_bot_opens_a_draft_pull_request_once(shop: Repository, maria: Person, api: httpx.AsyncClient) -> None:
    await maria.push(shop, "threadtree/issue-1", {"a": "b"}, "Work")
    asked = {"title": "Work", "head": "threadtree/issue-1", "base": "main", "body": "Fixes #1", "draft": True}
    created = await api.post("/repos/acme/shop/pulls", json=asked)
    again = await api.post("/repos/acme/shop/pulls", json=asked)
    missing = await api.post("/repos/acme/shop/pulls", json=asked | {"head": "nowhere"})

    assert (created.status_code, created.json()["draft"]) == (201, True)
    assert again.status_code == 422
    assert "A pull request already exists" in again.json()["errors"][0]["message"]
    assert missing.status_code == 422
    listed = await api.get("/repos/acme/shop/pulls", params={"head": "acme:threadtree/issue-1"})
    assert [pull["number"] for pull in listed.json()] == [1]


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
