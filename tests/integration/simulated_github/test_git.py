"""The real git client clones and pushes."""

import gc
import os
from pathlib import Path

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub
from tests.support.github import Receiver, bearer, events, git, payload, pull_fixing, with_token


async def test_a_clone_and_a_push_by_the_bot_move_the_pull_request(
    github: SimulatedGitHub, receiver: Receiver, shop: Repository, maria: Person, tmp_path: Path
) -> None:
    pull = await pull_fixing(maria, shop, "")
    await git(tmp_path, "clone", "--quiet", with_token(github, shop, github.bot_token), "clone")
    clone = tmp_path / "clone"
    await git(clone, "switch", "--quiet", "fix")
    (clone / "big.bin").write_bytes(os.urandom(3_000_000))
    await git(clone, "add", "-A")
    await git(clone, "commit", "--quiet", "-m", "Big")
    await git(clone, "push", "--quiet", "origin", "fix")
    tip = (await git(clone, "rev-parse", "HEAD")).strip()
    await github.settled()

    assert pull.head_sha == tip
    assert events(github)[-2:] == ["push.None", "pull_request.synchronize"]
    pushed = payload(github, "push", None)
    assert (pushed["ref"], pushed["after"], pushed["sender"]["id"]) == ("refs/heads/fix", tip, github.bot.id)
    assert [commit["message"] for commit in pushed["commits"]] == ["Big"]
    await git(tmp_path, "clone", "--quiet", "--branch=fix", with_token(github, shop, github.bot_token), "again")
    assert (tmp_path / "again" / "big.bin").read_bytes() == (clone / "big.bin").read_bytes()


async def test_git_asks_for_credentials_and_refuses_a_push_without_write(
    github: SimulatedGitHub, shop: Repository, tmp_path: Path
) -> None:
    reader = github.person("reader")
    shop.allow(reader, "read")
    async with httpx.AsyncClient() as client:
        asked = await client.get(f"{github.clone_url(shop)}/info/refs?service=git-upload-pack")
    assert (asked.status_code, asked.headers["www-authenticate"]) == (401, 'Basic realm="GitHub"')
    await git(tmp_path, "clone", "--quiet", with_token(github, shop, "ghp_wrong"), "no", fails=True)

    await git(tmp_path, "clone", "--quiet", with_token(github, shop, reader.new_token()), "clone")
    clone = tmp_path / "clone"
    await git(clone, "commit", "--quiet", "--allow-empty", "-m", "Sneak")
    before = await shop.git.branches()
    assert "403" in await git(clone, "push", "origin", "HEAD:main", fails=True)
    assert await shop.git.branches() == before


async def test_a_public_repository_is_cloned_without_credentials(github: SimulatedGitHub, tmp_path: Path) -> None:
    repository = await github.create_repository("acme/open", private=False)
    await git(tmp_path, "clone", "--quiet", github.clone_url(repository), "clone")
    await git(tmp_path / "clone", "commit", "--quiet", "--allow-empty", "-m", "Sneak")
    await git(tmp_path / "clone", "push", "--quiet", "origin", "HEAD:main", fails=True)


async def test_a_compressed_request_of_git_is_accepted(
    github: SimulatedGitHub, shop: Repository, tmp_path: Path
) -> None:
    commit = "commit refs/heads/branch-{0}\ncommitter Ada <ada@example.org> {0} +0000\ndata 0\n\n"
    branches = "".join(commit.format(number) for number in range(100))
    await shop.git.run("fast-import", "--quiet", stdin=branches.encode())
    await git(tmp_path, "clone", "--quiet", "--bare", with_token(github, shop, github.bot_token), "clone.git")
    assert (await git(tmp_path / "clone.git", "branch", "--list")).count("branch-") == 100


async def test_a_client_that_disconnects_during_a_fetch_leaves_nothing_open(
    github: SimulatedGitHub, maria: Person
) -> None:
    repository = await github.create_repository("acme/big", files={"big.bin": os.urandom(20_000_000)})
    tip = (await repository.git.branches())["main"]
    fetch = f"0011command=fetch0001000fno-progress0032want {tip}\n0009done\n0000"
    headers = bearer(github.bot_token) | {
        "Content-Type": "application/x-git-upload-pack-request",
        "Git-Protocol": "version=2",
    }
    url = f"{github.clone_url(repository)}/git-upload-pack"
    async with (
        httpx.AsyncClient(headers=headers) as client,
        client.stream("POST", url, content=fetch.encode()) as answer,
    ):
        assert await anext(answer.aiter_bytes())
    await github.wait_for(lambda: github.requests)
    # An open pipe or process would warn when it is collected, and a warning fails the test.
    gc.collect()
