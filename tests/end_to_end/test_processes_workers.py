"""Two workers of one node: each leaves the other's turns alone, until the other process is gone."""

import asyncio
import shutil
import signal
from pathlib import Path

from bot.node.identity import known_id
from bot.simulated.github.faults import Held
from tests.support.patience import until_exists
from tests.support.processes import deployment, parent_of


async def test_a_turn_of_a_killed_worker_is_taken_over_by_the_other(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        await here.listen_here()
        workers = [await here.start("worker", MAX_CONCURRENT_TURNS="1") for _ in range(2)]
        issues, trees = [], []
        for n in (1, 2):
            issues.append(await here.ask(f"append started: once\nwait go\nsay Answer {n}."))
            trees.append(await here.at_work(issues[-1]))
        first = {parent_of(agent) for agent in here.agents_in(trees[0])}
        [killed] = [worker for worker in workers if worker.pid in first]
        [other] = [worker for worker in workers if worker.pid not in first]
        assert {parent_of(agent) for agent in here.agents_in(trees[1])} == {other.pid}

        await killed.kill()
        for tree in trees:
            (tree / "go").touch()
        for n, issue in enumerate(issues, 1):
            answer = await here.answered(issue, f"Answer {n}.")
            assert here.answers(issue) == [answer]
        assert [(tree / "started").read_text() for tree in trees] == ["once\nonce\n", "once\n"]
        assert await here.value("select array_agg(state || cut_offs order by id) from turns") == [
            "done1",
            "done0",
        ]
        assert other.is_running


async def test_a_suspended_worker_keeps_its_turn_and_repeats_no_decided_delivery(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        await here.listen_here()
        suspended = await here.start("worker")
        first = await here.ask("append started: once\nwait go\nsay First.")
        tree = await here.at_work(first)
        claim = await here.value("select claim from turns")
        # Others wait for who fetches the history of a new clone, and packs it.
        await until_exists(here.data_dir / "repos" / "acme" / "shop.git" / "threadtree-packed")
        asked = asyncio.Event()
        here.github.faults.add(Held(asked), path="*/collaborators/*/permission")
        second = await here.ask("append started: once\nsay Second.")
        await here.deciding(second)
        suspended.send(signal.SIGSTOP)
        asked.set()

        # Its heartbeat is long ago.
        await here.value("update procrastinate_workers set last_heartbeat = now() - interval '1 minute'")
        await here.start("worker")
        # The answer may wait: the suspended process may be in the middle of a request to GitHub.
        await here.until("select count(*) = 1 from turns where state = 'done'")
        assert await here.value("select claim from turns where id = 1") == claim
        (tree / "go").touch()
        suspended.send(signal.SIGCONT)
        await here.answered(first, "First.")
        await here.answered(second, "Second.")
        # It works again like any other worker.
        third = await here.ask("say Third.")
        await here.answered(third, "Third.")
        await here.until("select count(*) = 0 from procrastinate_jobs where status in ('todo', 'doing')")
        assert suspended.is_running
        assert [len(here.answers(issue)) for issue in (first, second, third)] == [1, 1, 1]
        assert (tree / "started").read_text() == "once\n"
        states = await here.value("select array_agg(state || cut_offs order by id) from turns")
        assert states == ["done0", "done0", "done0"]


async def test_a_worker_whose_node_a_copy_took_while_it_was_suspended_ends_with_one_line(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        # The job engine's, when the copy has finished its job or forgotten its worker.
        here.tolerated = "procrastinate.exceptions.ConnectorException"
        await here.listen_here()
        original = await here.start("worker")
        issue = await here.ask("append started: once\nwait go\nsay Done.")
        tree = await here.at_work(issue)
        await here.nothing_to_write()
        original.send(signal.SIGSTOP)
        await here.value("update nodes set heartbeat_at = now() - interval '2 minutes'")
        copy = tmp_path / "copy"
        shutil.copytree(here.data_dir, copy, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        await here.start("worker", DATA_DIR=str(copy))
        await here.until("select count(*) = 1 from turns where cut_offs = 1 and state = 'running'")

        original.send(signal.SIGCONT)
        assert await original.ended() == 1
        assert [line for line in original.lines if line.startswith("threadtree: ")] == [
            f"threadtree: A process with a copy of this DATA_DIR runs (node {known_id(copy)}): stop it, or delete "
            "node.json in the copy, which makes it a node of its own."
        ]
        assert here.agents_in(tree) == []
        (copy / tree.relative_to(here.data_dir) / "go").touch()
        answer = await here.answered(issue, "Done.")
        assert here.answers(issue) == [answer]


async def test_requests_for_a_silent_node_continue_on_another_one_and_on_return_it_loses_rescues_and_lets_go(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        # The job engine's, when another worker has finished its job or forgotten its worker.
        here.tolerated = "procrastinate.exceptions.ConnectorException"
        names = {"RECOVER_INTERVAL_SECONDS": "3600"}
        on_first = {**names, "NODE_NAME": "first"}
        await here.listen_here()
        first = await here.start("worker", **on_first)
        issue = await here.ask("write pushed.txt: one\nsay One.")
        await here.answered(issue, "One.")
        # Its agent is at work when the machine goes, and has written what is nowhere else.
        await here.ask("write unpushed.txt: two\nappend started: once\nwait go\nsay Two.", issue)
        tree = await here.at_work(issue)

        await here.start("worker", **names, DATA_DIR=str(tmp_path / "other"), NODE_NAME="second")
        await here.until("select count(*) = 2 from nodes where place is not null")
        fresh = await here.ask("say Fresh.")
        await here.answered(fresh, "Fresh.")
        node = "select n.name from worktrees w join nodes n on n.id = w.node where start_number = $1 and w.state = $2"
        assert await here.value(node, fresh.number, "ready") == "second", "the least loaded node has a new thread"

        await here.nothing_to_write()
        first.send(signal.SIGSTOP)
        (tree / "go").touch()  # its agent ends meanwhile
        (tree / "more.txt").write_text("more\n")
        await here.value("update nodes set heartbeat_at = now() - interval '2 minutes' where name = 'first'")
        moved = await here.until(node.replace("n.name", "w.path"), issue.number, "ready")
        worktree = tmp_path / "other" / str(moved)
        await until_exists(worktree / "started")
        assert (worktree / "pushed.txt").read_text() == "one\n"
        (worktree / "go").touch()
        answer = await here.answered(issue, "Two.")
        assert "The machine `first` does not answer" in answer.body
        assert await here.value("select array_agg(state || cut_offs order by id) from turns") == [
            "done0",
            "done1",
            "done0",
        ]
        ended = "select array_agg(end_reason order by id) filter (where end_reason is not null) from sessions"
        assert await here.value(ended) == ["node-lost"]
        assert await here.value(node, issue.number, "lost") == "first"

        pushed = await here.repository.git.log("threadtree/issue-1")
        first.send(signal.SIGCONT)
        await first.said("claim-lost")
        assert here.agents_in(tree) == []
        await here.value("update worktrees set updated_at = now() - interval '2 minutes' where state = 'lost'")
        await here.until("select count(*) = 1 from worktrees where state = 'removed' and removal = 'lost'")
        assert not tree.exists()
        assert await here.value("select array_agg(files || ' ' || coalesce(removal, '')) from rescues") == ["4 lost"]
        assert await here.value(node, issue.number, "ready") == "second", "the thread stays where it is"
        assert [one.body for one in here.answers(issue) if "Two." in one.body] == [answer.body]
        assert await here.repository.git.log("threadtree/issue-1") == pushed

        # The thread is told where the rest of its work is.
        await here.maria.comment(issue, "/worktree restore")
        told = await here.answered(issue, "it is on the machine `first`")
        assert "`threadtree rescues restore 1` on that machine" in told.body
        assert not (worktree / "more.txt").exists()

        # The operator brings it back there.
        restored = await here.run("rescues", "restore", "1", **on_first)
        assert await restored.ended() == 0
        assert restored.stdout.decode().splitlines()[0] == f"Worktree 1: {tree}"
        assert (tree / "unpushed.txt").read_text() == "two\n"


async def test_a_rolling_restart_of_two_nodes_loses_and_doubles_nothing_and_moves_no_thread(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        nodes = [{"DATA_DIR": str(tmp_path / name), "NODE_NAME": name} for name in ("first", "second")]
        grace = {"SHUTDOWN_GRACE_SECONDS": "0"}
        await here.listen_here()
        workers = [await here.start("worker", **node, **grace) for node in nodes]
        await here.until("select count(*) = 2 from nodes where place is not null")
        issues = [await here.ask(f"append log: a{n}\nsay A{n}.") for n in range(2)]
        for n, issue in enumerate(issues):
            await here.answered(issue, f"A{n}.")
        homes = "select string_agg(n.name, ' ' order by w.id) from worktrees w join nodes n on n.id = w.node"
        where = await here.value(homes)
        assert where in ("first second", "second first")

        for restart, node in enumerate(nodes):
            for n, issue in enumerate(issues):  # a stream of comments before, during and after the restart
                await here.ask(f"append log: b{restart}{n}\nsay B{restart}{n}.", issue)
            assert await workers[restart].terminate() == 0
            for n, issue in enumerate(issues):
                await here.ask(f"append log: c{restart}{n}\nsay C{restart}{n}.", issue)
            workers[restart] = await here.start("worker", **node, **grace)
        for n, issue in enumerate(issues):
            await here.answered(issue, f"C1{n}.")
        await here.until("select count(*) = 0 from outbox where state in ('waiting', 'sending')")

        assert await here.value(homes) == where, "each thread keeps its worktree"
        for n, issue in enumerate(issues):
            said = [f"A{n}.", *(f"{letter}{restart}{n}." for restart in (0, 1) for letter in "BC")]
            assert [sum(one.body.startswith(words) for one in here.answers(issue)) for words in said] == [1] * 5
            files = await here.repository.git.files(f"threadtree/issue-{issue.number}")
            assert sorted(set(files["log"].split())) == sorted(words.rstrip(".").lower() for words in said)
        assert await here.value("select count(*) from turns where state = 'done' and cut_offs = 0") == 10
