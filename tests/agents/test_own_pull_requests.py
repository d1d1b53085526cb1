"""Real agents look after a pull request of the bot: check, failing CI, a remark, a conflict with the base, undo."""

from pathlib import Path

import pytest

from tests.agents.test_whole_way import patience, settings_of
from tests.support.models.server import SimulatedModels
from tests.support.world import World, open_world

__all__ = ["patience"]

CHECK = "test ! -e notes.txt || grep -q mended notes.txt || { echo canary-check; exit 1; }\n"
MEND = r"mend append notes.txt: mended\nrun git commit --quiet --all --message Mend\nsay Mended."
MERGE = (
    r"mend run git merge origin/main\nwrite notes.txt: hello, mended, theirs"
    r"\nrun git add notes.txt && git commit --quiet --no-edit\nsay Both are kept."
)


@pytest.mark.timeout(1200)  # nine starts of an agent, which are long on a busy machine
@pytest.mark.parametrize("agent", ["claude", "claude-acp", "codex"])
async def test_the_story_of_a_pull_request_of_the_bot(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap", "AUTOFIX": "true", "AUTO_PULL_REQUEST": "ready"}
    async with open_world(database_url, tmp_path, more) as world:
        await world.maria.pushes("main", {".threadtree/check": CHECK})
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(f"@threadtree-bot\nwrite notes.txt: hello\n{MEND}\nsay I wrote it.")
        await issue.hears("I wrote it.\n\n**After the check**\n\nMended.", "check passed · ", "[Pull request #2](")
        await world.quiet()
        before = len(models.requests)

        head = ci(world, "failure")
        await issue.hears("Mended.", "check passed · ", f"`tests` fails on [`{head[:7]}`](", "Attempt 1 of 3")
        told = told_since(before, models, "The check that is told above has failed on the commit")
        assert "canary-log" in told
        assert "say I wrote it." in told, "it is the same session"
        await world.quiet()
        assert ci(world, "success") != head
        await issue.hears("**Checks pass now.**")

        pull = world.listen(world.repository.pulls[0], world.maria)
        await pull.hears(f"`tests` fails on [`{head[:7]}`](", "answers in [#1](")
        text = f"write more.txt: more\nsay Done, but for one.\n{MERGE}"
        await pull.reviews(text, ("notes.txt", 1, "answer The name is taken."))
        await pull.hears("Done, but for one.", "1 file +1 −0", "check passed · ")
        await pull.hears("The name is taken.")
        remark, answer = pull.pull.review_comments
        assert answer.in_reply_to is remark

        await pull.says("/undo")
        await pull.hears("Took back by one commit what turn 3 ", "1 file +0 −1")
        theirs = await world.maria.pushes("main", {"notes.txt": "theirs\n"})
        before = len(models.requests)
        await pull.says("/update")
        await pull.hears("Both are kept.", "**Changed**", "check passed · ")
        told = told_since(before, models, "Merge origin/main into the branch that is checked out")
        assert "Took back by one commit what turn 3 " in told
        assert "say Done, but for one." in told, "it is the same session"
        branch = (await world.branches())["threadtree/issue-1"]
        assert await world.files(branch) == {
            ".threadtree/check": CHECK.strip(),
            "README.md": "# shop",
            "notes.txt": "hello, mended, theirs",
        }
        assert await world.repository.git.is_ancestor(theirs, branch)
        log = [(text.partition("\n")[0], by) for _, text, by in await world.repository.git.log(f"{theirs}..{branch}")]
        bot = world.github.bot.login
        merge = "Merge remote-tracking branch 'origin/main' into threadtree/issue-1"
        assert [one for one in log if one[0] != "Greet people"] == [
            *[("Mend", bot)] * 2,
            ("Take back turn 3", bot),
            (merge, bot),
        ]
        assert await world.sessions("number", "end_reason") == [(1, None), (2, None)]


def ci(world: World, conclusion: str) -> str:
    """Let the check of the pull request's head end so; return the head."""
    head = world.repository.pulls[0].head_sha
    world.github.end_checks(world.repository, head, {"tests": conclusion}, "canary-log")
    return head


def told_since(before: int, models: SimulatedModels, words: str) -> str:
    """Return the longest request to the model since then that has these words."""
    return max((one.body.decode() for one in models.requests[before:] if words.encode() in one.body), key=len)
