"""The bot as a GitHub App."""

from datetime import timedelta
from pathlib import Path

import httpx
import jwt

from bot.simulated.github import SimulatedGitHub
from tests.support.github import Clock, bearer


async def test_an_app_gets_a_token_for_its_installation_that_expires(tmp_path: Path, clock: Clock) -> None:
    async with SimulatedGitHub.running(tmp_path, clock, installation_id=77) as github:
        shop = await github.create_repository("acme/shop")
        now = int(clock.now.timestamp())
        claims = {"iat": now - 60, "exp": now + 540, "iss": str(github.app_id)}
        signed = jwt.encode(claims, github.app_private_key_pem, algorithm="RS256")
        async with httpx.AsyncClient(base_url=github.api_url) as client:
            assert (await client.get("/app", headers=bearer(signed))).json()["slug"] == "threadtree-bot"
            installation = (await client.get("/repos/acme/shop/installation", headers=bearer(signed))).json()["id"]
            created = await client.post(f"/app/installations/{installation}/access_tokens", headers=bearer(signed))
            assert (installation, created.status_code) == (77, 201)
            assert created.json()["expires_at"] == "2026-03-01T13:00:00Z"
            token = created.json()["token"]

            issue = await github.person("maria").open_issue(shop, "Talk")
            path = "/repos/acme/shop/issues/1/comments"
            comment = (await client.post(path, json={"body": "Hi"}, headers=bearer(token))).json()
            assert (comment["user"]["login"], comment["user"]["type"]) == ("threadtree-bot[bot]", "Bot")
            assert comment["performed_via_github_app"]["id"] == github.app_id
            assert issue.comments_by(github.bot)
            assert (await client.get("/user", headers=bearer(token))).status_code == 403

            clock.now += timedelta(hours=1)
            assert (await client.get("/repos/acme/shop", headers=bearer(token))).status_code == 401
            assert (await client.get("/app", headers=bearer(signed))).status_code == 401
