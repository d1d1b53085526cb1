"""`threadtree uninstall`, `logs` and `config check` of an operator."""

from pathlib import Path

from tests.end_to_end.test_processes_worktrees import command, complaint
from tests.support.git_repositories import git
from tests.support.patience import eventually
from tests.support.processes import deployment


async def test_the_log_is_kept_and_what_a_node_has_goes_when_the_operator_says_so(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        assert "no log" in complaint(await command(here, "logs", status=1))
        bot = await here.start_listening()
        following = await here.start("logs", "--follow")
        issue = await here.ask("write hello.txt: hello\nsay Here it is.")
        await here.answered(issue, "Here it is.")
        await here.until("select count(*) = 0 from turns where state in ('queued', 'running')")

        async def followed() -> bool:
            return b"turn-ended" in following.stdout

        await eventually(followed)
        assert await following.terminate() == 0
        shown = (await command(here, "logs", "-n", "1000")).stdout.decode()
        assert [word for word in ("listening", "turn-started", "turn-ended") if word not in shown] == []
        assert len((await command(here, "logs", "-n", "2")).stdout.decode().splitlines()) == 2

        assert "stop it first" in complaint(await command(here, "uninstall", "--yes", status=1))
        assert await bot.terminate() == 0
        worktree = here.data_dir / "worktrees" / "acme" / "shop" / f"issue-{issue.number}"
        (worktree / "notes.txt").write_text("not committed\n")
        unanswered = await command(here, "uninstall", status=1)
        asked = unanswered.stdout.decode()
        assert "the input ended" in complaint(unanswered)
        assert [word for word in ("worktrees acme/shop", "clones acme/shop", "What stays:") if word not in asked] == []
        assert (worktree / "notes.txt").exists()

        await command(here, "uninstall", "--keep-rescues", "--yes")
        assert sorted(place.name for place in here.data_dir.iterdir()) == ["repos"]
        clone = here.data_dir / "repos" / "acme" / "shop.git"
        [rescue] = git(clone, "for-each-ref", "--format=%(objectname)", "refs/threadtree/rescue").split()
        assert git(clone, "show", f"{rescue}:notes.txt") == "not committed"

        await command(here, "uninstall", "--yes")
        assert not list(here.data_dir.iterdir())


async def test_settings_are_checked_as_at_the_start(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        right = await command(here, "config", "check", BOT_NAMES="tree")
        assert "The settings are right" in right.stdout.decode()
        assert "BOT_NAMES" in complaint(right)
        wrong = {"GITHUB_WEBHOOK_SECRET": "", "MAX_CONCURRENT_TURNS": "many"}
        checked = complaint(await command(here, "config", "check", status=2, **wrong))
        assert checked == complaint(await command(here, "serve", status=2, **wrong))
        assert "MAX_CONCURRENT_TURNS" in checked
        assert not here.data_dir.exists()
        rules = tmp_path / "config.toml"
        rules.write_text("allowed = [")
        told = complaint(await command(here, "config", "check", str(rules), status=1))
        assert "it is no TOML" in told
        assert "where it knows no file of before, only people with admin or maintain access" in told
