"""SIGTERM: nothing new starts, running turns get the grace period, the rest is handed back, and the status is 0."""

import os
import signal
from pathlib import Path

from tests.support.processes import BotProcess, children_of, deployment, processes_with_arguments


async def test_web_and_worker_end_with_status_0_and_later_deliveries_wait(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url, interpreters=True) as here:
        web = await here.start_listening("web")
        worker = await here.start("worker")
        await web.ready()
        assert await worker.terminate() == 0

        issue = await here.ask("say After the restart.")
        await here.until("select count(*) = 1 from deliveries where event = 'issue_comment' and state = 'received'")
        assert await web.terminate() == 0
        await here.start("worker")
        await here.answered(issue, "After the restart.")


async def test_a_turn_that_ends_within_the_grace_is_answered_and_no_other_starts(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        serve = await here.start_listening(SHUTDOWN_GRACE_SECONDS="120", MAX_CONCURRENT_TURNS="1")
        issue = await here.ask("append started: once\nwait go\nsay Just in time.")
        worktree = await here.at_work(issue)
        await here.ask("say Later.")
        await here.until("select count(*) = 2 from turns")
        await here.nothing_to_write()  # what is written at the end has a few seconds
        serve.send(signal.SIGTERM)
        await serve.said("waiting-for-turns")
        (worktree / "go").touch()
        assert await serve.ended() == 0
        assert "Just in time." in here.answers(issue)[0].body
        assert await here.value("select array_agg(state || cut_offs order by id) from turns") == [
            "done0",
            "queued0",
        ]


async def test_a_turn_that_exceeds_the_grace_is_requeued_and_resumed_after_the_restart(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        serve = await here.start_listening(SHUTDOWN_GRACE_SECONDS="0.5", MAX_CONCURRENT_TURNS="1")
        issue = await here.ask("append started: once\nwait go\necho prompt")
        worktree = await here.at_work(issue)
        waiting = await here.ask("say From the queue.")
        await here.until("select count(*) = 2 from turns")
        await here.nothing_to_write()  # what is written at the end has a few seconds
        assert await serve.terminate() == 0
        assert here.agents_in() == []
        assert await here.value("select array_agg(state || cut_offs order by id) from turns") == [
            "queued0",
            "queued0",
        ]
        [told] = here.answers(issue)
        assert told.body.startswith("Waiting. The bot is being restarted.")
        await here.value("update nodes set heartbeat_at = now() - interval '1 hour'")

        (worktree / "go").touch()
        await here.start_listening()
        answer = await here.answered(issue, "cut off before it ended")
        later = await here.answered(waiting, "From the queue.")
        for reply in (answer, later):
            assert "This request waited: no machine of the bot ran from" in reply.body
        assert here.answers(issue) == [answer]
        assert (worktree / "started").read_text() == "once\nonce\n"
        assert await here.value("select array_agg(state || cut_offs order by id) from turns") == [
            "done0",
            "done0",
        ]
        assert await here.value("select count(*) from sessions where conversation_id = 1") == 1


async def test_serve_listens_while_it_waits_for_github_and_ends_with_status_0(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        serve = await here.start_listening(GITHUB_API_URL="http://127.0.0.1:9")
        await serve.said("github-away")
        await here.ask("say Later.")
        await here.until("select count(*) = 1 from deliveries where event = 'issue_comment' and state = 'received'")
        assert await serve.terminate() == 0


async def test_the_two_processes_of_serve_end_together(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url, interpreters=True) as here:
        serve = await here.start_listening()
        await serve.ready()
        web, worker = child_of(serve, "web"), child_of(serve, "worker")
        assert _resident_mb(web) < 80
        priorities = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (web, worker)]
        assert priorities[0] < priorities[1], "the worker leaves the processor to acknowledgements"
        os.kill(web, signal.SIGKILL)
        assert await serve.ended() == 128 + signal.SIGKILL
        [killed] = serve.events("process-killed")
        assert (killed["name"], killed["signal"]) == ("web", "SIGKILL")
        assert all(line.startswith("{") for line in serve.lines), "every line of the log is JSON"

        again = await here.start_listening()
        children = [child_of(again, "web"), child_of(again, "worker")]
        os.kill(again.pid, signal.SIGKILL)
        assert await again.ended() == -signal.SIGKILL  # until its output is closed, which its children share
        assert not {*children} & {*processes_with_arguments("bot")}


def child_of(serve: BotProcess, command: str) -> int:
    """Return the process that `serve` has started for this command."""
    [found] = {*children_of(serve.pid)} & {*processes_with_arguments("bot", command)}
    return found


def _resident_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
