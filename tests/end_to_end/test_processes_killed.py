"""kill -9 at the worst moments: nothing accepted is lost, nothing runs to its end twice, nothing is posted twice."""

from pathlib import Path

from bot.simulated.github.faults import Latency
from tests.support.patience import eventually
from tests.support.processes import deployment

LONG = Latency(600)
"""Longer than any test: a process that sleeps this long is killed first."""


async def test_a_turn_interrupted_by_kill_9_is_resumed_once_in_the_same_session(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        serve = await here.start_listening()
        issue = await here.ask("remember blue")
        await here.answered(issue, "I will remember blue.")
        await here.ask("append started: once\nwait go\nrecall\necho prompt", issue)
        worktree = await here.at_work(issue)
        await serve.kill()
        await here.no_agents()

        (worktree / "go").touch()
        await here.start_listening()
        answer = await here.answered(issue, "I remember: blue.")

        _, request = answer.body.split("cut off before it ended")
        assert "still in the worktree" in request
        assert "append started: once\nwait go\nrecall\necho prompt" in request
        assert (worktree / "started").read_text() == "once\nonce\n"
        assert len(here.answers(issue)) == 2
        assert await here.value("select count(*) from sessions") == 1
        assert await here.value("select array_agg(state || cut_offs order by id) from turns") == [
            "done0",
            "done1",
        ]


async def test_a_turn_interrupted_twice_ends_as_interrupted_with_the_next_step(
    tmp_path: Path, database_url: str
) -> None:
    async with deployment(tmp_path, database_url) as here:
        serve = await here.start_listening()
        issue = await here.ask("append started: once\nwait go")
        worktree = await here.at_work(issue)
        await serve.kill()

        serve = await here.start_listening()
        await here.until("select cut_offs = 1 and state = 'running' from turns")
        await told_twice(worktree)
        await serve.kill()

        await here.start_listening()
        answer = await here.answered(issue, "Interrupted")
        assert "The bot went down twice while it worked on this" in answer.body
        assert "Write `/retry`" in answer.body
        assert here.answers(issue) == [answer]
        assert (worktree / "started").read_text() == "once\nonce\n"
        assert await here.value("select state from turns") == "interrupted"

        (worktree / "go").touch()
        await here.maria.comment(issue, "/retry")
        await here.until("select state = 'done' from turns where id = 2")


async def test_a_saved_answer_is_pushed_and_posted_without_another_prompt(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        here.github.faults.add(LONG, method="POST", path="*/git-receive-pack")
        serve = await here.start_listening()
        issue = await here.ask("append hello.txt: hello\nsay Here it is.")
        await here.github.wait_for(
            lambda: any("receive-pack" in r.query and r.status == 200 for r in here.github.requests)
        )
        await here.until("select answer is not null from turns")
        await serve.kill()
        assert "threadtree/issue-1" not in await here.repository.git.branches()

        await here.start_listening()
        answer = await here.answered(issue, "Here it is.")
        assert "**Changed** [" in answer.body
        assert here.answers(issue) == [answer]
        assert (await here.repository.git.files("threadtree/issue-1"))["hello.txt"] == "hello"
        assert await here.value("select state from turns") == "done"


async def test_a_posted_but_unrecorded_comment_is_found_and_not_posted_again(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        serve = await here.start_listening()
        async with here.stuck_before("outbox", "old.state = 'sending' and new.comment_id is not null"):
            issue = await here.maria.open_issue(here.repository, "Something to do")
            await here.maria.comment(issue, "/help")
            await here.github.wait_for(lambda: here.answers(issue))
            await here.until("select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted")
            await serve.kill()
        assert await here.value("select state from outbox where kind = 'comment'") == "sending"

        await here.start_listening()
        await here.until("select state = 'sent' from outbox where kind = 'comment'")
        [answer] = here.answers(issue)
        assert await here.value("select comment_id from outbox where kind = 'comment'") == answer.id


async def test_a_delivery_of_a_killed_worker_is_decided_once_within_a_minute(tmp_path: Path, database_url: str) -> None:
    async with deployment(tmp_path, database_url) as here:
        web = await here.start_listening("web")
        here.github.faults.add(LONG, path="*/collaborators/*/permission")
        worker = await here.start("worker")
        issue = await here.ask("say Decided.")
        await here.deciding(issue)
        await worker.kill()

        await here.start("worker")
        await here.until("select count(*) > 0 from turns")
        await here.answered(issue, "Decided.")
        assert len(here.answers(issue)) == 1
        assert await here.value("select count(*) from turns") == 1
        assert web.is_running


async def told_twice(worktree: Path) -> None:
    """Wait until the agent has started a second time."""

    async def twice() -> bool:
        return (worktree / "started").read_text() == "once\nonce\n"

    await eventually(twice)
