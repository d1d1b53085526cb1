"""A repository that takes only signed commits with a sign-off: from the mention to the merged pull request."""

import re
from pathlib import Path

from bot.simulated.github.rest_git import commit_as_told
from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.ssh import new_key
from tests.support.world import World

BRANCH = "threadtree/issue-1"
AGENT = "Scripted Agent <scripted-agent@example.invalid>"


def demand(world: World) -> None:
    world.repository.rule("required_signatures")
    world.repository.rule("commit_message_pattern", pattern="^Signed-off-by: ")


async def all_verified(world: World, *revisions: str) -> list[str]:
    """Check that GitHub shows these commits as verified, each signed off; return their subjects, oldest first."""
    found = await world.repository.git.log(*revisions)
    for sha, message, _ in found:
        told = await commit_as_told(world.repository, sha)
        assert told["verification"]["verified"], told
        assert len(re.findall(r"(?m)^Signed-off-by: threadtree-bot", message)) == 1
    assert await world.repository.git.run("for-each-ref", "refs/threadtree") == ""
    return [message.partition("\n")[0] for _, message, _ in found]


async def test_a_repository_that_demands_signatures_and_sign_offs_gets_them(a_world: Worlds, tmp_path: Path) -> None:
    key, public = new_key(tmp_path / "key")
    signed = {"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": str(key), "SIGN_OFF": "true"}
    async with a_world(signed) as world:
        demand(world)
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: one\ncommit Add a\nwrite b.txt: two")
        await issue.hears(
            "- Commits must have verified signatures.", "Once GitHub knows the signatures", "`threadtree doctor`"
        )
        world.github.person(world.github.bot.login).add_signing_key(public)

        await issue.says("@threadtree-bot append a.txt: three")
        await issue.hears("**Changed**", "1 file +1 −0")
        assert await all_verified(world, BRANCH, "^main") == ["Add a", "Greet people", "Greet people"]
        authors = await world.repository.git.run("log", "--reverse", "--format=%an <%ae>|%cn", BRANCH, "^main")
        bot = world.github.bot
        own = f"threadtree-bot <{bot.id}+threadtree-bot@users.noreply.127.0.0.1>"
        assert authors.splitlines() == [f"{one}|threadtree-bot" for one in (AGENT, own, own)]

        # What a request left, and what a later one pushes with it: /undo and the link know the commits by their names.
        await issue.says("@threadtree-bot write c.txt: half\ncommit Half\nfail too hard")
        await issue.hears("**Failed:**")
        await issue.says("@threadtree-bot write d.txt: four\ncommit Add d")
        heard = await issue.hears("**Changed**", "1 file +1 −0")
        compared = re.search(r"/compare/(\w+)\.\.\.?(\w+)", heard)
        assert compared is not None
        listed = (await world.repository.git.run("log", "--format=%H %s", BRANCH)).splitlines()
        assert f"{compared[1]} Half" in listed
        await issue.says("/undo")
        heard = await issue.hears("Took back by one commit what turn 4", "`Add d`")
        assert "`Half`" not in heard

        await world.maria.pushes("main", {"base.txt": "base\n"})  # an act on the web page, which no hook sees
        await issue.says("/update")
        await issue.hears("Merged 1 commit of `main`")
        subjects = await all_verified(world, BRANCH, "^main")
        assert subjects[3:] == ["Half", "Add d", "Take back turn 4", f"Merge branch 'main' into {BRANCH}"]
        await issue.says("/pr ready")
        await issue.hears("#2")
        await world.maria.person.merge(world.repository.pulls[0])
        assert {"a.txt", "b.txt", "c.txt", "base.txt"} <= (await world.files("main")).keys()
        assert "d.txt" not in await world.files("main")


def as_app(github: SimulatedGitHub) -> dict[str, str]:
    app = {"GITHUB_APP_ID": str(github.app_id), "GITHUB_PRIVATE_KEY": github.app_private_key_pem}
    return {**app, "SIGN_COMMITS": "github", "SIGN_OFF": "true"}


async def test_github_signs_the_commits_of_an_app(a_world: Worlds) -> None:
    async with a_world(as_app, installation_id=77) as world:
        demand(world)
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: one\ncommit Add a\nwrite b.txt: two")
        assert "mention somebody" not in await issue.hears("**Changed**", "2 files +2 −0")
        assert await all_verified(world, BRANCH, "^main") == ["Add a", "Greet people"]
        people = await world.repository.git.run("log", "--format=%an|%cn|%ce", BRANCH, "^main")
        assert {*people.splitlines()} == {"threadtree-bot[bot]|GitHub|noreply@github.com"}
        message = await world.repository.git.run("log", "-1", "--format=%B", f"{BRANCH}~1")
        assert f"Co-authored-by: {AGENT}\nSigned-off-by: threadtree-bot[bot] <" in message

        await issue.says("/undo")
        await issue.hears("Took back by one commit what turn 1", "`Add a`")
        assert (await all_verified(world, BRANCH, "^main"))[2:] == ["Take back turn 1"]
        await issue.says("@threadtree-bot write a.txt: again")
        await issue.hears("**Changed**")
        assert len(await all_verified(world, BRANCH, "^main")) == 4
        posts = [one for one in world.github.requests if one.path.endswith("/git/commits")]
        assert len(posts) == 4, "what was published is not made anew"
