"""Variables of a repository: given to its set-up script and agent, and to no code or words of strangers."""

import asyncio
import json
import stat
from pathlib import Path

from bot.model import Repository
from bot.node.variables import set_variable, unset_variable
from bot.thread.notices import VARIABLES_WITHHELD
from bot.thread.reasons import KEEPS_VARIABLES
from tests.end_to_end.conftest import Worlds
from tests.support.fork_server import fork
from tests.support.processes import Deployment, deployment
from tests.support.world import Talk, World, unseen

VALUE = "postgres-password-91"
SETUP = """#!/bin/sh
echo "set up with ${DATABASE_PASSWORD:-nothing}" | tr a-z n-za-m > setup.txt
echo "$DATABASE_PASSWORD"; exit 1
"""


def shop(world: World) -> Repository:
    return Repository(world.pair.settings.platform, world.repository.id, "acme", "shop")


def knows_a_secret(world: World) -> None:
    """Set a variable of the repository, as `threadtree env set` does."""
    set_variable(world.data_dir, shop(world), "DATABASE_PASSWORD", VALUE)


async def given_in(talk: Talk, more: str = "") -> tuple[bool, str]:
    """Return whether the agent that answers next has the variable, and the answer."""
    answer = await talk.hears(more)
    return "DATABASE_PASSWORD" in answer.partition("---")[0], answer


async def test_set_up_script_and_agent_have_the_variables_and_nobody_reads_their_values(
    a_world: Worlds, sandboxed_settings: dict[str, str]
) -> None:
    async with a_world({"SETUP_SCRIPT": "true", **sandboxed_settings}) as world:
        knows_a_secret(world)
        await world.maria.pushes("main", {".threadtree/setup": SETUP})
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(f"@threadtree-bot env\nsay It is {VALUE}.")
        is_given, answer = await given_in(issue, "It is [redacted].")
        [text] = await world.turns("answer")
        setup = (await world.files((await world.branches())["threadtree/issue-1"]))["setup.txt"]
    assert is_given
    assert VALUE not in answer + str(text)
    assert "[redacted]" in answer.partition("exit status")[2]
    assert setup == "frg hc jvgu cbfgterf-cnffjbeq-91"


async def test_what_holds_a_value_is_not_pushed(a_world: Worlds) -> None:
    async with a_world() as world:
        knows_a_secret(world)
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot write a.txt: one" + unseen(f"write leaked.txt: {VALUE}"))
        await issue.hears("secret")
        assert "threadtree/issue-1" not in await world.branches()


async def test_another_repository_has_none_of_them_and_cannot_guess_them(a_world: Worlds) -> None:
    async with a_world() as world:
        knows_a_secret(world)
        ours = await world.maria.opens_issue("Greet people", f"@threadtree-bot say It is {VALUE}.")
        await ours.hears("It is [redacted].")
        other = await world.github.create_repository("acme/other", {"README.md": "# other\n"})
        other.allow(world.github.person("maria"), "write")
        words = f"@threadtree-bot env\nwrite guess.txt: {VALUE}\nsay Is it {VALUE}?"
        issue = await world.maria.opens_issue("Greet people", words, repository=other)
        is_given, answer = await given_in(issue, f"Is it {VALUE}?")
        assert not is_given
        assert VARIABLES_WITHHELD not in answer
        assert "**Changed**" in answer


async def test_what_is_set_while_an_agent_works_is_known_at_once(a_world: Worlds) -> None:
    async with a_world() as world:
        gate = world.directory / "gate"
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(f"@threadtree-bot wait {gate}\nsay It is {VALUE}.")
        await issue.sees("Wait")
        knows_a_secret(world)
        gate.touch()
        await issue.hears("It is [redacted].")
        assert VALUE not in str(await world.turns("answer"))


async def test_a_forks_head_gets_none_and_the_answer_says_so(a_world: Worlds) -> None:
    async with a_world({"SETUP_SCRIPT": "true"}) as world:
        knows_a_secret(world)
        await world.maria.pushes("main", {".threadtree/setup": "#!/bin/sh\necho ${DATABASE_PASSWORD:-none}; exit 1\n"})
        fork = await world.github.fork(world.repository, world.olaf.user)
        await world.olaf.pushes("idea", {"idea.txt": "mine\n"}, to=fork)
        pull = await world.olaf.opens_pull("An idea", head="idea", fork=fork)
        await pull.says("@threadtree-bot env", by=world.maria)
        is_given, answer = await given_in(pull, VARIABLES_WITHHELD)
        assert not is_given
        assert "none" in {line.strip("> ") for line in answer.splitlines()}


async def test_words_of_an_outsider_get_none_whoever_labels_them(a_world: Worlds) -> None:
    async with a_world() as world:
        knows_a_secret(world)
        theirs = await world.olaf.opens_issue("Greet people", "env")
        await world.maria.person.label(theirs.thread, "threadtree")
        is_given, _ = await given_in(theirs, VARIABLES_WITHHELD)
        assert not is_given

        # The words of a colleague are as good as one's own.
        world.repository.allow(world.github.person("nora"), "write")
        hers = await world.someone("nora").opens_issue("Greet people", "env")
        await world.maria.person.label(hers.thread, "threadtree")
        is_given, _ = await given_in(hers)
        assert is_given


async def test_a_thread_that_had_them_is_closed_to_an_outsiders_words(a_world: Worlds) -> None:
    async with a_world({"SETUP_SCRIPT": "true"}) as world:
        knows_a_secret(world)
        setup = "#!/bin/sh\necho ran >> runs.txt; echo ${DATABASE_PASSWORD:-none} > .env\n"
        await world.maria.pushes("main", {".threadtree/setup": setup, ".gitignore": ".env\n"})
        # An outsider came first: nothing is kept, and the thread may be given them later.
        issue = await world.olaf.opens_issue("Greet people", "env")
        await world.maria.person.label(issue.thread, "threadtree")
        assert not (await given_in(issue, VARIABLES_WITHHELD))[0]
        await issue.says("@threadtree-bot env", by=world.maria)
        assert (await given_in(issue))[0]
        files = await world.files((await world.branches())["threadtree/issue-1"])
        assert files["runs.txt"] == "ran\nran", "a set-up without them is not one with them"

        said = await issue.says("write b.txt: two", by=world.olaf)
        await world.maria.person.edit(said.comment, f"@threadtree-bot {said.comment.body}")
        await issue.hears("**Not started:**", KEEPS_VARIABLES)

        # So is a thread that works on the same files. HOME stays at a reset, and what was once set lies there.
        pull = await world.olaf.opens_pull("Greet", head="threadtree/issue-1", body="Closes #1")
        await world.maria.person.label(pull.thread, "threadtree")
        await pull.hears("**Not started:**", KEEPS_VARIABLES)
        await issue.says("/reset", by=world.maria)
        await issue.hears("The worktree was reset")
        unset_variable(world.data_dir, shop(world), "DATABASE_PASSWORD")
        said = await issue.says("write c.txt: three", by=world.olaf)
        await world.maria.person.edit(said.comment, f"@threadtree-bot {said.comment.body}")
        await issue.hears("**Not started:**", KEEPS_VARIABLES)


async def test_an_attempt_to_mend_what_an_outsider_wanted_gets_none_either(a_world: Worlds) -> None:
    async with a_world({"AUTOFIX": "true", "AUTO_PULL_REQUEST": "ready"}) as world:
        knows_a_secret(world)
        theirs = await world.olaf.opens_issue("Greet people", "write a.txt: a\nmend env\\nappend a.txt: b")
        await world.maria.person.label(theirs.thread, "threadtree")
        await given_in(theirs, "**Changed**")
        await world.quiet()
        for _ in range(2):
            world.github.end_checks(world.repository, world.repository.pulls[0].head_sha, {"tests": "failure"})
            is_given, _ = await given_in(theirs, VARIABLES_WITHHELD)
            assert not is_given
            await world.quiet()


async def env(here: Deployment, *arguments: str, given: bytes = b"") -> tuple[int, str, str]:
    """Run `threadtree env …` with this on stdin; return its exit status and what it says."""
    process = await fork(("-m", "bot", "env", *arguments), here.environment, here.directory, given)
    out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
    return await process.wait(), out.decode(), err.decode()


async def test_variables_are_set_listed_without_values_and_unset(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        name = here.repository.full_name
        assert await env(here, "set", name, "DATABASE_PASSWORD", given=f"{VALUE}\n".encode()) == (0, "", "")
        status, _, said = await env(here, "set", name, "SHORT", given=b"abc")
        assert (status, "not removed" in said) == (0, True)

        [file] = here.data_dir.glob("variables/*/*/DATABASE_PASSWORD")
        assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (VALUE, 0o600)
        status, listed, _ = await env(here, "list", name, "--json")
        assert [one["name"] for one in json.loads(listed)] == ["DATABASE_PASSWORD", "SHORT"]
        status, table, _ = await env(here, "list", name)
        assert VALUE not in listed + table
        assert "DATABASE_PASSWORD" in table

        assert await env(here, "unset", name, "DATABASE_PASSWORD") == (0, "", "")
        status, _, said = await env(here, "unset", name, "DATABASE_PASSWORD")
        assert (status, f"{name} has no variable 'DATABASE_PASSWORD'" in said) == (2, True)
        recorded = await here.value("select array_agg(action || ' ' || codebase order by id) from audit")
        words = ("set DATABASE_PASSWORD", "set SHORT", "unset DATABASE_PASSWORD")
        assert recorded == [f"env {one} {name}" for one in words]

        for given in (b"", b" \n", b"a\0b", b"\xff", b"x" * 40_000):
            status, _, said = await env(here, "set", name, "EMPTY", given=given)
            assert (status, "The value on stdin" in said) == (2, True)
        status, _, said = await env(here, "set", "acme/none", "EMPTY", given=b"value")
        assert (status, "The bot sees no repository 'acme/none'" in said) == (2, True)
