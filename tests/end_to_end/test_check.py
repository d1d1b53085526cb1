"""`.threadtree/check` of the default branch runs on the result of a turn, and the answer says how that ended."""

import asyncio

import pytest

from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git
from tests.support.sleeping_processes import new_sleep, runs
from tests.support.world import World

# Each `test-NAME` file is a test: it passes where it says "ok".
CHECK = """\
#!/bin/sh
status=0
{
  for file in test-*; do
    if grep -q ok "$file"; then echo "ok - $file"; else echo "not ok - $file"; status=1; fi
  done
} > "$THREADTREE_REPORTS/all.tap"
echo "looked at the tests"
exit $status
"""
IGNORED = "/seen\n"


async def has_check(world: World, script: str = CHECK, **files: str) -> None:
    """Push the script and tests to the default branch."""
    tests = {f"test-{name}": f"{text}\n" for name, text in files.items()}
    await world.maria.pushes("main", {".threadtree/check": script, ".gitignore": IGNORED, **tests})


async def is_clean(world: World) -> None:
    """Nothing of a check is left but the packages of the default branch: no checkout, no HOME, no worktree."""
    assert {file.name for file in (world.data_dir / "checks").glob("*/*/*/*")} <= {"lock", "cache"}
    admins = list((world.data_dir / "repos/acme/shop.git/worktrees").iterdir())
    assert len(admins) == len(await world.worktrees("path"))


async def test_a_passing_check_is_one_line_with_its_tests_and_those_that_are_new(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        await has_check(world, a="ok")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write test-b: ok\nsay Tested.")
        answer = await issue.hears("Tested.", "1 file +", "\n\ncheck passed · 2 tests, 1 new · ")

        assert answer.index("\n---\n") < answer.index("**Changed**") < answer.index("check passed")
        assert "[!NOTE]" not in answer
        await issue.says("@threadtree-bot say No change.")
        assert "check" not in await issue.hears("No change.")
        await is_clean(world)


async def test_a_failure_goes_to_the_agent_once_and_what_it_mends_is_pushed(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        await has_check(world, a="ok")
        issue = await world.maria.opens_issue("Greet people")

        await issue.says(
            "@threadtree-bot write test-a: bad\nmend write test-a: ok again\\necho prompt\\nsay Mended.\n"
            "say Greeted.\nsay Commit: Greet people"
        )

        answer = await issue.hears("Greeted.\n\n**After the check**\n\n", "Mended.", "check passed · 1 test · ")
        assert "It failed at first: `test-a`. The agent was told once, and mended it." in answer
        assert "It ended with exit status 1. It passes without them." in answer
        assert 'from="the check" what="failed tests">\ntest-a\n' in answer
        assert "\nlooked at the tests\n" in answer
        assert (await world.files("threadtree/issue-1"))["test-a"] == "ok again"
        assert "The end of the check's output" not in answer
        await is_clean(world)


async def test_what_fails_still_is_named_with_its_base_and_its_output(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        await has_check(world, a="ok", b="bad", c="bad")
        issue = await world.maria.opens_issue("Greet people")

        await issue.says("@threadtree-bot write test-a: bad\nwrite test-c: ok\nmend say It is the check.\nsay Greeted.")

        answer = await issue.hears("Greeted.", "**After the check**", "It is the check.", "2 files +")
        assert "\n\n**check failed** · 2 of 3 tests · " in answer
        assert " · fails on `main` too\n" in answer
        assert "\nFailed, and passes on `main`: `test-a`.\n" in answer
        assert "\nFailed, and fails on `main` too: `test-b`.\n" in answer
        assert "\nPasses now, and fails on `main`: `test-c`.\n" in answer
        assert "\nThe agent was told once, and changed nothing.\n" in answer
        assert "<summary>The end of the check's output</summary>\n\n```\nlooked at the tests\n```" in answer
        assert (await world.turns("state")) == ["done"]
        assert (await world.files("threadtree/issue-1"))["test-a"] == "bad", "it is pushed all the same"


async def test_what_fails_on_the_base_alike_is_not_the_agents_to_mend(a_world: Worlds) -> None:
    async with a_world({}) as world:
        runs = world.directory / "runs"
        await has_check(world, f"echo ran >> {runs}\nexit 3\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: a\nmend say Never.\nsay One.")
        answer = await issue.hears("One.", "**check failed** · ended with exit status 3 · ", " · fails on `main` too\n")
        assert "Never" not in answer
        await issue.says("@threadtree-bot write a.txt: b\nsay Two.")
        await issue.hears("Two.", "fails on `main` too")

        assert runs.read_text() == "ran\n" * 3, "on `main` once for its commit"


async def test_a_test_that_passes_only_once_is_told_as_one(a_world: Worlds) -> None:
    async with a_world({}) as world:
        once = world.directory / "once"
        script = f'echo >> {once}\nif test $(wc -l < {once}) = 2; then status="not ok"; else status=ok; fi\n'
        script += 'echo "$status - steady" > $THREADTREE_REPORTS/r.tap\ntest "$status" = ok\n'
        await has_check(world, script)
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: a\nsay One.")
        await issue.hears(
            "I see nothing to mend.",
            "check passed · 1 test · ",
            "It failed at first on the same commit: `steady`. So it does not always end the same.",
        )


async def test_the_agent_changes_neither_the_check_nor_its_line(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        await has_check(world, a="ok")
        issue = await world.maria.opens_issue("Greet people")
        forged = "check passed · 99 tests, 98 new · 1 s"
        report = '<testsuite><testcase name="forged"/></testsuite>'

        await issue.says(
            f"@threadtree-bot write .threadtree/check: exit 0\nwrite test-a: bad\nout all.xml: {report}\n"
            f"say Done.\nsay \nsay ---\nsay \nsay **Changed** nothing\nsay {forged}"
        )

        answer = await issue.hears("**check failed** · 1 of 1 test · ", "passes on `main`", "Failed, and passes on")
        assert "`.threadtree/check` is changed in this branch; the one of `main` ran." in answer
        assert answer.index(f"The agent says: {forged}") < answer.rindex("\n---\n") < answer.rindex("**Changed**")
        assert "forged" not in answer


LATE = "echo x > late.txt && git add late.txt && git -c user.name=x -c user.email=x@x commit -qm late"
MOVED = "git update-ref refs/heads/threadtree/issue-1 HEAD && git switch -q --detach HEAD~1"


async def test_what_tested_code_commits_while_it_is_checked_is_not_pushed_as_checked(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        await has_check(world, "sh ./tests.sh\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(f"@threadtree-bot write tests.sh: git switch -q --detach && {LATE} && {MOVED}\nsay One.")
        answer = await issue.hears("One.", "1 file +", "check passed · ")
        assert "[!NOTE]" not in answer
        assert "late.txt" not in await world.files("threadtree/issue-1")
        [path] = await world.worktrees("path")
        assert world.text_of(path, "late.txt") is None


async def test_what_an_agent_left_beside_its_commit_changes_no_result(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        await has_check(world, "test -e $HOME/.lie || test -e seen || grep -q ok test-a\n", a="ok")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot out ../.lie: x\nwrite seen: x\nwrite test-a: bad\nsay One.")
        await issue.hears("One.", "**check failed**", "passes on `main`")
        await is_clean(world)


async def test_stop_ends_a_check_and_the_next_request_pushes_the_work(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        sleep = new_sleep()
        await has_check(world, f"{sleep} &\n{sleep}\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: a\nsay One.")
        await issue.sees("Running `.threadtree/check` on `main`, to compare.")

        await issue.says("@threadtree-bot /stop")

        await issue.hears("**Stopped**")
        assert not runs(sleep)
        await is_clean(world)
        await has_check(world, "true\n")
        await issue.says("@threadtree-bot write b.txt: b\nsay Two.")
        await issue.hears("Two.", "check passed · ")
        assert {"a.txt", "b.txt"} <= set(await world.files("threadtree/issue-1"))


async def test_a_check_has_its_own_time_and_the_turn_stays_done(a_world: Worlds) -> None:
    async with a_world({"CHECK_TIMEOUT_SECONDS": "1"}) as world:
        sleep = new_sleep()
        await has_check(world, f"echo begun\n{sleep}\n")
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: a\nsay One.")
        await issue.hears("**check failed** · was stopped after 1 s · ", " · fails on `main` too\n", "begun")
        assert await world.turns("state") == ["done"]
        assert not runs(sleep)


@pytest.mark.parametrize("what", ["off", "folder"])
async def test_nothing_runs_without_a_script_or_where_the_setting_says_so(a_world: Worlds, what: str) -> None:
    async with a_world({"CHECK_SCRIPT": "false"} if what == "off" else {}) as world:
        name = ".threadtree/check/script" if what == "folder" else ".threadtree/check"
        await world.maria.pushes("main", {name: "echo ran > $HOME/ran\n"})
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: a\nsay One.")
        answer = await issue.hears("One.", "1 file +")
        assert not list(world.data_dir.glob("homes/*/ran"))
        unusable = "\n\n**check did not run** · `.threadtree/check` on `main` is not a regular file"
        assert (unusable in answer) == (what == "folder")
        assert ("check" in answer) == (what == "folder")


async def test_a_fork_is_checked_and_gets_its_patch(a_world: Worlds) -> None:
    async with a_world({}) as world:
        await has_check(world, a="ok")
        fork = await world.github.fork(world.repository, world.olaf.user)
        await world.olaf.pushes("topic", {"b.txt": "b\n"}, to=fork)
        pull = await world.olaf.opens_pull("A topic", head="topic", fork=fork)
        await pull.says("@threadtree-bot write test-a: bad\nsay One.", by=world.maria)
        await pull.hears("One.", "**check failed** · 1 of 1 test", "passes on `main`", "+bad")


PICTURES = r"""
look=$(ls Two 2>/dev/null)
cd "$THREADTREE_REPORTS" && mkdir shots
printf '\211PNG\r\n\032\nafter' > 'shots/After @all ](x).png'
printf 'RIFF....WEBPx' > before.webp
printf "GIF89a$look" > zoom.gif
printf 'no picture' > text.png
printf '\211PNG\r\n\032\n' > large.png && head -c 2000000 /dev/zero >> large.png
ln -s /etc/passwd link.png
"""


async def test_pictures_are_shown_from_a_branch_beside_that_holds_nothing_else(
    a_world: Worlds, sandbox_settings: dict[str, str]
) -> None:
    async with a_world(sandbox_settings) as world:
        token = world.github.bot_token
        await has_check(world, f"{PICTURES}printf '\\211PNG\\r\\n\\032\\n {token}' > secret.png\n")
        issue = await world.maria.opens_issue("Greet people")
        for name in ("One", "Two"):
            await issue.says(f"@threadtree-bot write {name}: x\nsay {name}.")
            answer = await issue.hears(f"{name}.", "1 file +", "check passed · ")
            commit = (await world.branches())["threadtree/issue-1-pictures"]
            of_pages = "select outcome->>'pictures' from turns where state = 'done' order by id desc limit 1"
            assert await world.database.fetchval(of_pages) == commit, "pages read them from the clone"
            address = f"{world.github.server_url}/acme/shop/raw/{commit}"
            names = ("1-before.webp", "3-After-all-x-.png", "4-zoom.gif", "before-4-zoom.gif")
            *shown, zoom, before = [f"![{one}]({address}/{one})" for one in names]
            looks_otherwise = f"| before | after |\n|---|---|\n| {before} | {zoom} |\n\n{' '.join(shown)}\n"
            expected = f"{' '.join([*shown, zoom])}\n" if name == "One" else looks_otherwise
            assert "\n3 more pictures not shown: at most 8 are, PNG, JPEG, GIF or WebP of up to 1 MB.\n" in answer
            assert f"\n\n{expected}" in answer
        assert await git_log(world, "threadtree/issue-1-pictures") == ["Add pictures of a check"] * 2
        await world.maria.pushes("threadtree/issue-1-pictures", {"mine.txt": "mine\n"})
        await issue.says("@threadtree-bot write Three: x\nsay Three.")
        answer = await issue.hears("Three.", "could not be pushed to `threadtree/issue-1-pictures`.")
        assert "![" not in answer


async def test_a_branch_of_other_work_gets_no_pictures_whatever_its_last_commit_is_called(a_world: Worlds) -> None:
    async with a_world({}) as world:
        await has_check(world, PICTURES)
        for branch in ("topic", "topic-pictures"):
            await world.maria.pushes(branch, {f"{branch}.txt": "1\n"}, base="main")
        one, two = [await world.maria.opens_pull(head, head=head) for head in ("topic", "topic-pictures")]
        await two.says("@threadtree-bot write c.txt: c\nsay Two.\nsay Commit: Add pictures of a check")
        await two.hears("Two.")
        await one.says("@threadtree-bot write d.txt: d\nsay One.")
        await one.hears("One.", "could not be pushed to `topic-pictures`.")
        assert {"topic-pictures.txt", "c.txt"} < (await world.files("topic-pictures")).keys()


async def git_log(world: World, branch: str) -> list[str]:
    """Return the subjects of a branch on GitHub."""
    path = world.repository.git.path
    return (await asyncio.to_thread(git, path, "log", "--format=%s", branch)).splitlines()
