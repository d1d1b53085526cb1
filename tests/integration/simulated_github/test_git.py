"""The real git client clones and pushes."""

import re
from pathlib import Path

import httpx

from bot.simulated.github import Person, Repository, SimulatedGitHub
from bot.simulated.github.signatures import address_of
from tests.support.github import git, with_token
from tests.support.ssh import new_key


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


async def test_a_signature_counts_by_a_key_of_the_account_whose_address_committed(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    shop.rule("required_signatures")
    (key, public), (unknown, _) = new_key(tmp_path / "key"), new_key(tmp_path / "unknown")
    maria.add_signing_key(public)
    assert (await api.get("/users/maria/ssh_signing_keys")).json()[0]["key"] == public
    await git(tmp_path, "clone", "--quiet", with_token(github, shop, maria.new_token()), "clone")
    clone = tmp_path / "clone"

    async def commit(signing_key: Path | None, email: str) -> str:
        signed = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={signing_key}") if signing_key else ()
        by = ("-c", f"author.email={email}", "-c", f"committer.email={email}")
        await git(clone, "reset", "--quiet", "--hard", "origin/main")
        sign = ("--gpg-sign",) if signing_key else ()
        await git(clone, *signed, *by, "commit", "--quiet", "--allow-empty", "--message", "Do it", *sign)
        return (await git(clone, "rev-parse", "HEAD")).strip()

    own = address_of(maria.user)
    for signing_key, email in ((None, own), (unknown, own), (key, "zoe@example.com")):
        await commit(signing_key, email)
        said = await git(clone, "push", "origin", "HEAD:main", fails=True)
        assert "- Commits must have verified signatures." in said
    forged = await git(clone, "cat-file", "commit", await commit(key, own))
    for change in (("Do it", "Do what"), ("gpgsig ", "other ")):
        (tmp_path / "forged").write_text(forged.replace(*change))
        made = (await git(clone, "hash-object", "-t", "commit", "-w", str(tmp_path / "forged"))).strip()
        await git(clone, "push", "origin", f"{made}:main", fails=True)

    right = await commit(key, own)
    await git(clone, "push", "--quiet", "origin", "HEAD:main")
    told = (await api.get(f"/repos/acme/shop/commits/{right}")).json()["commit"]["verification"]
    assert (told["verified"], told["reason"]) == (True, "valid")
    raw = await git(clone, "cat-file", "commit", "HEAD")
    assert told["payload"].strip() == re.sub(r"(?m)^gpgsig (.*\n)( .*\n)+", "", raw).strip()

    # With a person's token GitHub makes a commit too, and does not sign it.
    body = {"message": "By hand", "tree": f"{right}^{{tree}}", "parents": [right]}
    made_there = await api.post("/repos/acme/shop/git/commits", json=body)
    assert (made_there.status_code, made_there.json()["verification"]["reason"]) == (201, "unsigned")
    refused = await api.post("/repos/acme/shop/git/commits", json={**body, "tree": "1" * 40})
    assert (refused.status_code, refused.json()["message"]) == (422, "Tree SHA does not exist")
