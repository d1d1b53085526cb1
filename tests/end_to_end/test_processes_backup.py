"""A backup while the bot works, its restore on an empty machine, and what refuses to be restored."""

import json
from pathlib import Path

from bot.node.variables import FOLDER
from bot.simulated.github.faults import FailBefore
from tests.end_to_end.test_processes_worktrees import command, complaint
from tests.support.postgres import execute
from tests.support.processes import deployment

SESSION = "select assistant_session_id from sessions where active and conversation_id = 1"


async def test_a_backup_of_a_busy_bot_goes_on_on_an_empty_machine(
    tmp_path: Path, database_url: str, empty_database_url: str, sandbox_settings: dict[str, str]
) -> None:
    saved, secret = tmp_path / "saved", "ghs_of_the_env_file"
    async with deployment(tmp_path, database_url) as here:
        here.environment |= sandbox_settings
        bot = await here.start_listening()
        here.github.faults.add(FailBefore(403, "Not now"), method="POST", path="*/git-receive-pack", times=None)
        issue = await here.ask("remember the milk\nwrite commit.txt: a commit that is not pushed\ncommit Not pushed")
        await here.answered(issue, "could not be pushed")
        here.github.faults.clear()
        second = await here.ask("say Second.")
        await here.answered(second, "Second.")
        await here.until("select count(*) = 0 from turns where state in ('queued', 'running')")
        worktree = here.data_dir / "worktrees" / "acme" / "shop" / f"issue-{issue.number}"
        (worktree / "notes.txt").write_text("not committed\n")
        (worktree.with_name(f"issue-{second.number}") / "rescued.txt").write_text("rescued\n")
        await command(here, "worktrees", "remove", str(worktree.with_name(f"issue-{second.number}")))
        session = await here.value(SESSION)
        working = await here.ask("append started: once\nwait gate\nsay Late.")
        place = (await here.at_work(working)).relative_to(here.data_dir)
        variables = here.data_dir / FOLDER
        variables.mkdir(exist_ok=True)
        (variables / "secret").write_text(secret)
        (here.directory / ".env").write_text(f"GITHUB_WEBHOOK_SECRET_OLD={secret}\n")

        done = await command(here, "backup", str(saved))

        assert "Not in it: .env, keys" in done.stdout.decode()
        assert not [file for file in saved.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
        assert bot.is_running
        assert "is not empty" in complaint(await command(here, "backup", str(saved), status=1))
        assert "is in DATA_DIR" in complaint(await command(here, "backup", str(here.data_dir / "x"), status=1))
        await command(here, "backup", str(tmp_path / "all"), "--with-secrets")
        assert (tmp_path / "all" / "secrets" / ".env").read_text() == f"GITHUB_WEBHOOK_SECRET_OLD={secret}\n"

        await bot.kill()
        here.end_agents()
        assert "DATA_DIR" in complaint(await command(here, "restore", str(saved), status=1))
        here.environment["DATA_DIR"] = str(tmp_path / "elsewhere")
        assert "database is not empty" in complaint(await command(here, "restore", str(saved), status=1))
        assert "no complete backup" in complaint(await command(here, "restore", str(tmp_path / "github"), status=1))
        here.environment["DATABASE_URL"] = empty_database_url
        await command(here, "restore", str(saved))
        assert not (here.data_dir / FOLDER).exists()

        (here.data_dir / place / "gate").touch()
        await here.start_listening()
        await here.answered(working, "Late.")
        await here.ask("recall\nsay Again.", issue)
        await here.answered(issue, "I remember: the milk.")
        assert await here.value(SESSION) == session
        files = await here.repository.git.files(f"threadtree/issue-{issue.number}")
        assert (files["commit.txt"], files["notes.txt"]) == ("a commit that is not pushed", "not committed")
        [rescue] = json.loads((await command(here, "rescues", "list", "--json")).stdout)
        await command(here, "rescues", "restore", str(rescue["id"]))
        rescued = tmp_path / "elsewhere" / "worktrees" / "acme" / "shop" / f"issue-{second.number}" / "rescued.txt"
        assert rescued.read_text() == "rescued\n"


async def test_the_backup_of_a_newer_version_is_not_restored(
    tmp_path: Path, database_url: str, empty_database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        await execute(here.dsn, "insert into schema_migrations (name, sha256) values ('999_next', '')")
        await command(here, "backup", str(tmp_path / "saved"))
        here.environment |= {"DATABASE_URL": empty_database_url, "DATA_DIR": str(tmp_path / "elsewhere")}
        told = complaint(await command(here, "restore", str(tmp_path / "saved"), status=1))
        assert told == "threadtree: The backup is of a newer version: it has 999_next. Install that version."
        assert not here.data_dir.exists()
