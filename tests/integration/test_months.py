"""A node over 281 days by the clock: what its own upkeep keeps, and for how long (`pytest -s` prints the table)."""

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

from bot.care import upkeep_rows as upkeep
from bot.care.clones import care_for_clones
from bot.care.prune import prune
from bot.care.repair import repair
from bot.handlers.choose_worktree import PullRequestHead
from bot.store.retention import delete_old_sessions
from bot.tree.clone import trash
from bot.tree.git import refs
from bot.verbs import stop as closing
from tests.support.git_repositories import git
from tests.support.histories.database import history_database
from tests.support.histories.inventory import refs_of
from tests.support.histories.node import REPOSITORY, HistoryNode, close
from tests.support.retention import policy_for
from tests.support.worktree_jobs import remove_all

TABLES = ("worktrees", "rescues", "sessions", "conversations", "turns")
FORK = "refs/pull/5/head"


async def test_a_node_keeps_for_281_days_what_the_rules_say_and_no_longer(tmp_path: Path, database_url: str) -> None:
    async with history_database(database_url) as pool:
        node = await HistoryNode.make(tmp_path / "node", pool, "off")
        try:
            await _months(Months(node))
        finally:
            await close(node)


async def _months(months: "Months") -> None:
    node = months.node
    node.push(FORK, {"fork": node.content("fork")})
    await months.turn(1)
    await months.turn(2, "untracked", outcome="failed")
    await months.turn(5, "edited", fork=refs_of(node.remote)[FORK])
    await months.turn(6)
    await months.turn(7)
    await months.close(7)
    await months.row(0)
    assert (await months.live(), await months.rows("sessions")) == ([1, 2, 5, 6], 5)
    assert FORK.removeprefix("refs/") in " ".join(refs_of(node.clone.path))
    first = months.bytes

    # An hour after a close its session goes, and then the agent's HOME.
    await months.sweep(1 / 12)
    assert (await months.rows("sessions"), await months.homes()) == (4, [1, 2, 5, 6])

    # A month: without a branch.
    await months.sweep(31)
    assert (await months.live(), await months.rescued()) == ([1, 2, 6], [5])
    assert not [ref for ref in refs_of(node.clone.path) if ref.startswith(refs.FETCHED_PREFIX)]

    # A quarter: on a branch. Conversation 6 is used now and then.
    await months.use(6)
    await months.sweep(60)
    assert (await months.live(), await months.rescued()) == ([6], [2, 5])
    await months.sweep(1 / 12)
    assert (await months.rows("sessions"), await months.homes()) == (1, [6])

    # 180 days after its rescue the work is deleted, and the row of the worktree.
    await months.use(6)
    await months.sweep(85)
    assert await months.rescued() == [2, 5]
    await months.use(6)
    await months.sweep(85)
    assert await months.rescued() == [2]
    await months.use(6)
    await months.sweep(20)
    assert (await months.live(), await months.rescued()) == ([6], [])
    assert (await months.rows("worktrees"), await months.rows("turns")) == (1, 5)
    assert months.objects == Counter(packs=2)  # of what GitHub has, and of what it had since the worktree was made
    assert not list((node.ctx.data_dir / "trash").iterdir())
    assert months.bytes["repos"] <= 2 * first["repos"]
    assert months.bytes["worktrees"] < first["worktrees"]
    git(node.clone.path, "fsck", "--connectivity-only")


class Months:
    """A node, and the days that have passed."""

    def __init__(self, node: HistoryNode) -> None:
        self.node = node
        self.day = 0.0

    async def turn(self, number: int, name: str = "done", *, outcome: str = "done", fork: str | None = None) -> None:
        """Ask on a thread; the agent writes a file of 100 kB, and the same into its HOME."""
        node = self.node
        pull = PullRequestHead("patch", fork, False, head_is_protected=False) if fork else None
        await node.ask(number, pull)
        run = await node.claim()
        assert run is not None
        assert await node.at_work(run)
        worktree = node.ctx.directory(run.turn.worktree.path)
        (worktree / f"{name}-{number}").write_bytes(os.urandom(100_000))
        home = node.ctx.data_dir / "homes" / str(run.turn.conversation.id)
        home.mkdir(parents=True, exist_ok=True)
        (home / "history").write_bytes(os.urandom(100_000))
        state = await node.finish(run, "done" if outcome == "done" else "failed")
        assert state.startswith(outcome)

    async def close(self, number: int) -> None:
        at = self.node.later()
        async with self.node.pool.acquire() as connection, connection.transaction():
            await closing.close(connection, "https://github.example", REPOSITORY, number, at, at)
        await remove_all(self.node.ctx)

    async def use(self, number: int) -> None:
        """Note a use of the thread's worktree now."""
        await self.node.pool.execute(
            "update worktrees set updated_at = clock.now() where start_number = $1 and state = 'ready'", number
        )

    async def sweep(self, days: float) -> None:
        """Let days pass, for the bot, its database and its files; then do what a worker does every hour."""
        node = self.node
        self.day += days
        await node.put_forward(days)
        for top in ("worktrees", "repos", "homes"):
            for file in (one for one in (node.ctx.data_dir / top).rglob("*") if not one.is_symlink()):
                at = file.stat().st_mtime - days * 86400
                os.utime(file, (at, at))
        async with node.pool.acquire() as connection:
            await delete_old_sessions(connection, 3600, node.ctx.clock())
            await upkeep.delete_old(connection, timedelta(days=30), timedelta(days=365))
        await repair(node.ctx)
        now = node.ctx.clock()
        policy = policy_for(now, detached_days=30, branch_days=90, orphan_days=90, rescue_days=180)
        report = await prune(node.ctx, lambda *_: policy)
        assert not report.errors
        await care_for_clones(node.ctx, timedelta(days=90))
        await self.row(self.day)

    @property
    def bytes(self) -> dict[str, int]:
        tops = ("repos", "worktrees", "homes", "kept", "trash")
        return {top: trash.size_of(self.node.ctx.data_dir / top) for top in tops}

    @property
    def objects(self) -> Counter[str]:
        stores = [self.node.clone.path / name for name in ("objects", "published")]
        loose, packs = [[one for store in stores for one in store.glob(name)] for name in ("??/*", "pack/*.pack")]
        return Counter({"packs": len(packs)} | ({"loose": len(loose)} if loose else {}))

    async def homes(self) -> list[int]:
        names = [int(one.name) for one in (self.node.ctx.data_dir / "homes").iterdir()]
        query = "select number from conversations where id = any ($1::bigint[]) order by 1"
        return [row["number"] for row in await self.node.rows(query, names)]

    async def rows(self, table: str) -> int:
        return int(await self.node.pool.fetchval(f"select count(*) from {table}"))  # noqa: S608 -- names above

    async def live(self) -> list[int]:
        found = await self.node.rows("select start_number from worktrees where state = 'ready' order by 1")
        return [row["start_number"] for row in found]

    async def rescued(self) -> list[int]:
        query = "select w.start_number from rescues r join worktrees w on w.id = r.worktree_id order by 1"
        return [row["start_number"] for row in await self.node.rows(query)]

    async def row(self, day: float) -> None:
        counts = [f"{await self.rows(table)} {table}" for table in TABLES]
        disk = [f"{top} {size // 1000} kB" for top, size in self.bytes.items()]
        objects = [f"{count} {kind}" for kind, count in self.objects.items()]
        print(f"| day {day:.0f} |", ", ".join([*disk, *objects, *counts]), "|")  # noqa: T201 - the test's table
