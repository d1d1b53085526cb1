"""`threadtree worktrees …` and `sessions prune` for an operator, with and without a running bot."""

import json
import os
from pathlib import Path
from typing import Any

from tests.support.processes import BotProcess, Deployment, deployment


async def command(here: Deployment, *arguments: str, status: int = 0, **settings: str) -> BotProcess:
    """Run a command to its end and check its status."""
    process = await here.run(*arguments, **settings)
    assert await process.ended() == status, (process.stdout.decode(), process.stderr)
    return process


async def listed(here: Deployment) -> list[dict[str, Any]]:
    """Return the output of `worktrees list --all --json`."""
    rows = json.loads((await command(here, "worktrees", "list", "--all", "--json")).stdout)
    assert isinstance(rows, list)
    return rows


def complaint(process: BotProcess) -> str:
    """Return the output for the operator, without the log."""
    return "\n".join(line for line in process.lines if not line.startswith("{"))


async def test_a_worktree_is_removed_and_restored_while_nothing_else_runs(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        bot = await here.start_listening()
        issue = await here.ask("write hello.txt: hello\nsay Here it is.")
        await here.answered(issue, "Here it is.")
        await here.until("select count(*) = 0 from turns where state in ('queued', 'running')")
        assert await bot.terminate() == 0
        [row] = await listed(here)
        path = Path(row["path"])
        assert (row["state"], row["branch"], row["changed_files"], row["ahead"], row["behind"]) == (
            "ready",
            "threadtree/issue-1",
            *(0, 0, 0),
        )
        assert (await command(here, "worktrees", "path", "acme/shop#1")).stdout.decode() == f"{path}\n"
        assert "no worktree" in complaint(await command(here, "worktrees", "path", "acme/shop#2", status=1))
        (path / "notes.txt").write_text("not committed\n")

        removed = await command(here, "worktrees", "remove", str(row["id"]))
        assert b"removed" in removed.stdout
        assert not os.path.lexists(path)  # noqa: ASYNC240
        [row] = await listed(here)
        assert row["state"] == "removed"
        assert [(one["files"], one["restored_at"]) for one in row["rescues"]] == [(1, None)]
        assert "Rescued work" in (await command(here, "worktrees", "list")).stdout.decode()

        [rescue] = json.loads((await command(here, "rescues", "list", "--json")).stdout)
        assert (rescue["worktree"], rescue["conversations"], rescue["files"]) == (row["id"], ["acme/shop#1"], 1)
        assert rescue["expires_at"] > rescue["created_at"]
        await command(here, "rescues", "restore", str(rescue["id"]))
        assert (path / "notes.txt").read_text() == "not committed\n"
        [row] = await listed(here)
        assert (row["state"], row["conversations"], row["changed_files"]) == ("ready", ["acme/shop#1"], 1)

        reset = await command(here, "worktrees", "reset", str(path))
        assert reset.stdout
        assert not (path / "notes.txt").exists()

        name = f"shop.git.20260101T000000.000000Z.{'0' * 16}"
        (here.data_dir / "kept" / name).mkdir(parents=True)
        newest, older, without = json.loads((await command(here, "rescues", "list", "--json")).stdout)
        assert older["id"] == rescue["id"]
        assert (without["id"], without["name"]) == (None, name)
        assert name in (await command(here, "rescues", "list")).stdout.decode()
        assert "is newer" in complaint(await command(here, "rescues", "restore", str(older["id"]), status=1))
        for gone in (str(newest["id"]), str(older["id"]), name):
            await command(here, "rescues", "drop", gone)
        for wrong in ("999", "../repos", name):
            await command(here, "rescues", "drop", wrong, status=2)
        assert json.loads((await command(here, "rescues", "list", "--json")).stdout) == []
        assert not (here.data_dir / "kept" / name).exists()
        rows = json.loads((await command(here, "disk", "--json")).stdout)
        assert {("clones", "acme/shop"), ("worktrees", "acme/shop"), ("trash", None)} <= {
            (row["what"], row["codebase"]) for row in rows
        }
        assert "clone" in (await command(here, "disk")).stdout.decode()


async def test_prune_lists_old_worktrees_first_and_then_removes_them(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        await command(here, "worktrees", "create", f"{here.repository.full_name}#{(await opened(here))}")
        [row] = await listed(here)
        path = Path(row["path"])
        nothing = json.loads((await command(here, "worktrees", "prune", "--json")).stdout)
        assert (nothing["deleted"], nothing["errors"], nothing["bytes_reclaimed"]) == ([], [], 0)

        told = await command(here, "worktrees", "prune", "--older-than", "0s", "--dry-run")
        assert "WOULD REMOVE" in told.stdout.decode()
        assert {"worktree-considered", "prune-ended"} <= {json.loads(line)["event"] for line in told.lines}
        quiet = ("worktrees", "prune", "--older-than", "0s", "--dry-run")
        assert (await command(here, *quiet, LOG_LEVEL="warning")).lines == []
        assert os.path.lexists(path)  # noqa: ASYNC240
        filtered = ("worktrees", "prune", "--older-than", "0s", "--json")
        for other in (("--repo", "acme/other"), ("--kind", "orphan")):
            assert json.loads((await command(here, *filtered, *other)).stdout)["deleted"] == []
        gone = json.loads((await command(here, "worktrees", "prune", "--older-than", "0s", "--json")).stdout)
        assert [one["path"] for one in gone["deleted"]] == [str(path)]
        assert gone["bytes_reclaimed"] > 0
        assert not os.path.lexists(path)  # noqa: ASYNC240
        assert "Nothing to repair." in (await command(here, "worktrees", "repair")).stdout.decode()
        assert json.loads((await command(here, "sessions", "prune", "--json")).stdout)["deleted"] == 0


async def opened(here: Deployment) -> int:
    return (await here.maria.open_issue(here.repository, "Something to do")).number


async def test_an_unknown_name_is_one_line_with_the_next_step(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        name = here.repository.full_name
        for arguments, status, words in (
            (("remove", "7"), 2, "There is no worktree 7"),
            (("restore", "/no/such/path"), 2, "There is no worktree /no/such/path"),
            (("touch", "no-number"), 2, "There is no worktree no-number"),
            (("create", "acme"), 2, "write it like octo/hello#42"),
            (("create", f"{name}#99"), 2, f"GitHub shows the bot no {name}#99"),
            (("create", "acme/nothing#1"), 2, "GitHub shows the bot no acme/nothing#1"),
            (
                ("prune", "--older-than", "soon"),
                2,
                "older_than cannot be 'soon'; give 24h or 7d, say: a number and s, m, h, d or w.",
            ),
        ):
            told = complaint(await command(here, "worktrees", *arguments, status=status))
            assert words in told, told
            assert len(told.splitlines()) == 1, told


async def test_a_worktree_of_another_node_is_not_touched(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        await command(here, "worktrees", "create", f"{here.repository.full_name}#{await opened(here)}")
        [row] = await listed(here)
        elsewhere = await command(
            here, "worktrees", "reset", str(row["id"]), status=2, NODE_NAME="elsewhere", DATA_DIR=f"{tmp_path}/other"
        )
        assert f"is on the node {row['node']}" in complaint(elsewhere)
        # Another host name is not another node.
        await command(here, "worktrees", "reset", str(row["id"]), NODE_NAME="renamed")


async def test_damage_is_reported_and_repaired(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        await command(here, "worktrees", "create", f"{here.repository.full_name}#{await opened(here)}")
        [row] = await listed(here)
        path = Path(row["path"])
        path.with_name(f"{path.name}.json").unlink()
        stranger = path.with_name("stranger")
        stranger.mkdir()
        done = json.loads((await command(here, "worktrees", "repair", "--json")).stdout)
        assert {one["path"] for one in done} == {str(path), str(stranger)}
        assert path.with_name(f"{path.name}.json").is_file()
        assert stranger.is_dir()
        touched = await command(here, "worktrees", "touch", str(path))
        assert b"counts as used now" in touched.stdout
        told = await command(here, "worktrees", "restore", str(stranger), status=1)
        assert "Nothing tells whose" in complaint(told)
        await command(here, "worktrees", "remove", str(stranger))
        assert not stranger.exists()
        [kept] = json.loads((await command(here, "rescues", "list", "--json")).stdout)
        assert kept["name"].startswith("stranger.")
        await command(here, "rescues", "drop", kept["name"])
        assert json.loads((await command(here, "worktrees", "list", "--state", "orphan", "--json")).stdout) == []
