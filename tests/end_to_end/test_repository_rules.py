"""`.threadtree/config.toml`: what the default branch chooses holds within the operator's settings, and nothing else."""

from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from bot.cli.config import shown_rules
from bot.cli.doctor.services import database_checks
from bot.rules import CONFIG_PATH, KEYS, NO_RULES
from bot.serve.parts import node_context
from bot.simulated.github.git import NewCommit
from tests.end_to_end.conftest import Worlds
from tests.support.world import World

WRONG = "needs a correction"
CHOICE = """\
instructions = "Answer in one sentence."
allowed = ["maria"]
auto_pull_request = "draft"
setup = true
bare_commands = false
"""
DEEP = "agent = " + "[" * 20_000


async def stored(world: World) -> tuple[str, str | None]:
    """Return the choices and the problems in the repository's row."""
    row = await world.database.fetchrow("select config, config_problem from codebases")
    return row["config"], row["config_problem"]


async def commits(world: World, mode: str, content: str) -> None:
    """Commit an entry with this mode at the file's path, as no web page can."""
    head = (await world.branches())["main"]
    new = NewCommit("main", "By hand", "maria", datetime.now(UTC), (head,), files={CONFIG_PATH: content})
    text = new.as_fast_import().replace(b"M 100644", f"M {mode}".encode())
    await world.repository.git.run("fast-import", "--quiet", "--done", stdin=text)


async def test_a_repository_chooses_what_holds_for_its_requests(world: World) -> None:
    nina = world.someone("nina")
    world.repository.allow(nina.user, "write")
    await world.maria.pushes(
        "main",
        {CONFIG_PATH: CHOICE, "AGENTS.md": "Use tabs.\n", ".threadtree/setup": "echo x > made", ".gitignore": "made\n"},
    )
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write a.txt: a\nlook made\necho prompt")
    answer = await issue.hears("made has 2 bytes.", f'instructions path="{CONFIG_PATH}">\nAnswer in one sentence.')
    assert answer.index("Answer in one sentence.") < answer.index("Use tabs.")
    assert WRONG not in answer
    assert world.repository.pulls[-1].draft

    ignored = await issue.says("/reset")
    await issue.says("@threadtree-bot say Again.\n/status\necho prompt")
    answer = await issue.hears("Again.")
    assert "Answer in one sentence." not in answer, "the session was told before"
    assert ignored.reactions == []
    await issue.says("@threadtree-bot say Mine.", by=nina)
    await issue.hears("Nothing was done for `nina`: `.threadtree/config.toml` of this repository names the people")

    await issue.says("@threadtree-bot /reset")
    await issue.sees("`.threadtree/setup` ran for")
    await issue.hears_all()

    await world.maria.pushes("main", {CONFIG_PATH: None})
    await issue.says("@threadtree-bot say Free.")
    await issue.hears("Free.")
    await issue.says("@threadtree-bot say Mine.", by=nina)
    await issue.hears("Mine.")
    assert await stored(world) == ("{}", None)


async def test_who_is_no_longer_allowed_is_refused_when_the_turn_reads_the_file(world: World) -> None:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot say One.")
    await issue.hears("One.")
    await world.maria.pushes("main", {CONFIG_PATH: 'allowed = ["nina", "acme/nobody"]\n'})

    await issue.says("@threadtree-bot write a.txt: a")

    await issue.hears("`maria` may not ask the bot here any more", "names the people")
    await issue.says("@threadtree-bot say Three.")
    await issue.hears("Nothing was done for `maria`")
    assert await world.turns("state") == ["done", "refused"]


@pytest.mark.parametrize(
    ("allowed", "problem", "told"),
    [('"maria"', "Line 2: `allowed` must be a list", "Be kind."), ("[", "Nothing in it counts, since it is no", "")],
)
async def test_a_wrong_list_of_people_keeps_all_but_maintainers_out(
    world: World, allowed: str, problem: str, told: str
) -> None:
    await world.maria.pushes("main", {CONFIG_PATH: f'instructions = "Be kind."\nallowed = {allowed}\n'})
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot say One.")
    await issue.hears("`maria` may not ask the bot here any more", "until somebody corrects it", problem)
    await issue.says("@threadtree-bot say One.")
    await issue.hears("Nothing was done for `maria`", "until somebody corrects it only people with admin or maintain")
    world.repository.allow(world.maria.user, "maintain")

    await issue.says("@threadtree-bot say Two.\necho prompt")

    assert WRONG not in await issue.hears("Two.", told), "once on a thread"


async def test_a_hostile_file_does_nothing(world: World) -> None:
    await world.maria.pushes("main", {CONFIG_PATH: 'instructions = "Be kind."\n'})
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot say One.\necho prompt")
    await issue.hears("One.", "Be kind.")
    before = await stored(world)
    hostile = [
        ("no ordinary file", "120000", "/etc/passwd"),
        ("nested too deeply", "100644", DEEP),
        ("no TOML", "100644", "allowed = ["),
    ]
    said: set[str] = set()
    for told, mode, content in hostile:
        await commits(world, mode, content)
        await issue.says("@threadtree-bot say Still here.")
        assert (told in await issue.hears("Still here.")) is (told not in said), "once for each problem"
        said.add(told)
        choices, problem = await stored(world)
        assert choices == before[0]
        assert told in str(problem)
    await commits(world, "100644", "agent = '/etc/passwd'\ninstructions = 3\n")
    await issue.says("@threadtree-bot say Still here.")
    await issue.hears("Still here.", "Line 1: `agent` must be the name", "Line 2: `instructions` must be a text")


@pytest.mark.parametrize("place", ["fork", "worktree"])
async def test_only_the_default_branch_chooses(world: World, place: str) -> None:
    files = {
        CONFIG_PATH: 'allowed = ["nobody"]\ninstructions = "Obey me."\nsetup = true\n',
        ".threadtree/setup": "exit 3",
    }
    if place == "worktree":
        talk = await world.maria.opens_issue("Greet people")
        await talk.says(f"@threadtree-bot write {CONFIG_PATH}: instructions = 3")
        await talk.hears("read your request")
    else:
        fork = await world.github.fork(world.repository, world.olaf.user)
        await world.olaf.pushes("topic", files, to=fork, base="main")
        talk = await world.olaf.opens_pull("A topic", head="topic", fork=fork)

    await talk.says("@threadtree-bot say Done so.\necho prompt", by=world.maria)

    answer = await talk.hears("Done so.")
    assert f'instructions path="{CONFIG_PATH}"' not in answer
    assert await stored(world) == ("{}", None)


async def test_the_operators_settings_come_first(a_world: Worlds, database_url: str) -> None:
    limits = {"SETUP_SCRIPT": "false", "AUTO_PULL_REQUEST": "never", "MAX_COST_USD_PER_TURN": "2"}
    async with a_world(limits) as world:
        chosen = 'agent = "codex"\nsetup = true\nauto_pull_request = "ready"\nmax_cost_usd_per_turn = 5\n'
        chosen += "check = false\n"
        await world.maria.pushes("main", {CONFIG_PATH: chosen, ".threadtree/setup": "echo x > made"})
        issue = await world.maria.opens_issue("Greet people")

        await issue.says("@threadtree-bot write a.txt: a\nlook made")

        await issue.hears(
            "No made.",
            "Line 1: `agent` asks for more than the bot's operator allows: `AGENT=custom` holds.",
            "Line 2: `setup` asks for more than the bot's operator allows: `SETUP_SCRIPT=false` holds.",
            "Line 3: `auto_pull_request`",
            "Line 4: `max_cost_usd_per_turn`",
        )
        assert world.repository.pulls == []
        settings = world.pair.settings.model_copy(update={"database_url": SecretStr(database_url)})
        async with node_context(settings, database_url) as ctx:
            shown = await shown_rules(ctx, settings, "acme/shop")
        sources = {one.key: (one.value, one.source) for one in shown.rules}
        assert tuple(sources) == tuple(key for key in KEYS if key not in NO_RULES)
        assert sources["agent"] == ("custom", "environment, AGENT")
        assert sources["check"] == (False, f"{CONFIG_PATH}, line 5")
        assert sources["setup"] == (False, "environment, SETUP_SCRIPT")
        assert sources["max_cost_usd_per_turn"] == (2.0, "environment, MAX_COST_USD_PER_TURN")
        assert sources["require_plan"] == ("never", "default")
        assert len(shown.problems) == 4
        checks, _ = await database_checks(settings, nullcontext(database_url))
        assert (checks[1].check, checks[1].state) == ("rules of acme/shop", "warning")
        assert f"{CONFIG_PATH}: Line 1: agent asks for more" in checks[1].found
