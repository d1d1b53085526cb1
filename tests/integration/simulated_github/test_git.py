"""The real git client clones and pushes."""

from pathlib import Path

import httpx

from bot.simulated.github import Repository, SimulatedGitHub
from tests.support.github import git, with_token


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
