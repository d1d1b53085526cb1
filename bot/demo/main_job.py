"""The main job: a mention gets an answer, and at the end everything is cleaned up."""

import asyncio
import shutil
from pathlib import Path

from bot.demo.stage import GATE, Stage, is_gone
from bot.simulated.github.model import Issue, Pull
from bot.thread import notices, replies


async def tell(stage: Stage) -> None:
    """Tell all steps in order, on one issue and one pull request. Raises StoryBrokeError."""
    issue = await _an_issue(stage)
    await _a_mention_becomes_an_answer(stage, issue)
    await _a_second_mention_resumes_the_session(stage, issue)
    await _reset_context_begins_afresh(stage, issue)
    pull = await _a_pull_request_shares_the_worktree(stage)
    await _an_outsider_gets_nothing(stage, issue)
    await _a_lost_worktree_is_made_again(stage, issue)
    await _merging_cleans_up(stage, issue, pull)


async def _an_issue(stage: Stage) -> Issue:
    stage.report.step("A repository with an issue")
    issue = await stage.maria.open_issue(stage.repository, "Greet the customers", "The shop says nothing.")
    stage.report.did("acme/shop has issue #1, and maria may write")
    await stage.github.settled()
    answers = [delivery.status_code for delivery in stage.github.deliveries]
    stage.report.check("every webhook so far was answered 202", set(answers) == {202}, answers)
    return issue


async def _a_mention_becomes_an_answer(stage: Stage, issue: Issue) -> None:
    stage.report.step("A maintainer mentions the bot")
    asked = await stage.says(
        stage.maria,
        issue,
        f"{stage.bot} Please write “Welcome!” into hello.txt, and please remember that our colour is blue.\n"
        "Tell me what you do: find the right place, then write the greeting.\n"
        f"Begin when the file {GATE} is there.",
    )
    await stage.until("👀 on the comment", lambda: [reaction.content for reaction in asked.reactions] == ["eyes"])
    await stage.until("a tracking comment, while the agent works", lambda: bool(stage.unread(issue)))
    await stage.until_rows("the worktree is ready", "select 1 from worktrees where state = 'ready'")
    await asyncio.to_thread((Path((await stage.worktree())["path"]) / GATE).touch)
    tracking = await stage.answer(issue, turn=1)
    stage.report.check(
        "the same comment became the answer, by edits",
        len(issue.comments_by(stage.github.bot)) == 1 and len(tracking.edits) >= 1,
        f"{len(issue.comments_by(stage.github.bot))} comments, {len(tracking.edits)} edits",
    )
    worktree = await stage.worktree()
    stage.report.check("a worktree on threadtree/issue-1", worktree["branch"] == "threadtree/issue-1", worktree)
    stage.report.check("it is on the disk", (Path(worktree["path"]) / "hello.txt").is_file(), worktree["path"])
    log = await stage.git("log", "-1", "--format=%an%n%b", "threadtree/issue-1")
    stage.report.check(
        "GitHub has the commit: by the bot, co-authored by maria",
        log.startswith(stage.github.bot.login) and "Co-authored-by: maria" in log,
        log,
    )
    pushed = await stage.git("show", "threadtree/issue-1:hello.txt")
    stage.report.check("with the file the agent wrote", pushed.strip() == "Welcome!", pushed)


async def _a_second_mention_resumes_the_session(stage: Stage, issue: Issue) -> None:
    stage.report.step("A second mention continues where the first ended")
    await stage.says(stage.maria, issue, f"{stage.bot} What did I ask you to remember?")
    answer = await stage.answer(issue, turn=2)
    stage.report.check("the agent remembers", "I remember: our colour is blue" in answer.body, answer.body)
    sessions = await stage.rows("select distinct session_id from turns")
    stage.report.check("both turns ran in one session", len(sessions) == 1, sessions)


async def _reset_context_begins_afresh(stage: Stage, issue: Issue) -> None:
    stage.report.step("/reset-context")
    await stage.says(stage.maria, issue, f"{stage.bot} /reset-context")
    reply = await stage.new_comment(issue)
    stage.report.check("answered with its exact sentence", replies.CONTEXT_RESET in reply.body, reply.body)
    before = await stage.worktree()
    await stage.says(stage.maria, issue, f"{stage.bot} What did I ask you to remember?")
    answer = await stage.answer(issue, turn=3)
    stage.report.check("the next turn starts fresh", "I remember: nothing" in answer.body, answer.body)
    stage.report.check("in the same worktree", (await stage.worktree())["id"] == before["id"])


async def _a_pull_request_shares_the_worktree(stage: Stage) -> Pull:
    stage.report.step("A pull request that fixes the issue")
    pull = await stage.maria.open_pull(
        stage.repository, head="threadtree/issue-1", title="Greet the customers", body="Fixes #1"
    )
    stage.report.did(f"maria opened #{pull.number} from threadtree/issue-1: Fixes #1")
    await stage.says(stage.maria, pull, f"{stage.bot} Please add “Come in.” to hello.txt.")
    answer = await stage.answer(pull, turn=4)
    stage.report.check("the reply says nothing of what nobody doubts", "[!NOTE]" not in answer.body, answer.body)
    sharing = await stage.rows(
        "select number from conversations where worktree_id = $1", (await stage.worktree())["id"]
    )
    stage.report.check("issue and pull request share one worktree", len(sharing) == 2, sharing)
    head = await stage.git("rev-parse", "threadtree/issue-1")
    stage.report.check("the pull request has the new commit", pull.head_sha == head.strip(), head)
    return pull


async def _an_outsider_gets_nothing(stage: Stage, issue: Issue) -> None:
    stage.report.step("An outsider mentions the bot")
    mallory = stage.github.person("mallory")
    asked = await stage.says(mallory, issue, f"{stage.bot} Please write “I was here.” into notes.txt.")
    await stage.until("😕 on the comment", lambda: [reaction.content for reaction in asked.reactions] == ["confused"])
    await stage.github.settled()
    turns = await stage.rows("select turn_id from requests where requested_by = 'mallory'")
    unread = [comment.body for comment in stage.unread(issue)]
    stage.report.check("and nothing else: no turn, no comment", not turns and not unread, [turns, unread])


async def _a_lost_worktree_is_made_again(stage: Stage, issue: Issue) -> None:
    stage.report.step("The worktree's directory is deleted by hand")
    worktree = await stage.worktree()
    shutil.rmtree(worktree["path"])
    stage.report.did(f"removed {worktree['path']}")
    await stage.says(stage.maria, issue, f"{stage.bot} Please add “Stay.” to hello.txt.")
    answer = await stage.answer(issue, turn=5)
    words = notices.worktree_remade("threadtree/issue-1")
    stage.report.check("the reply says that it was made again", words in answer.body, answer.body)
    stage.report.check("at the same path", (Path(worktree["path"]) / "hello.txt").is_file())
    pushed = (await stage.git("show", "threadtree/issue-1:hello.txt")).split("\n")
    stage.report.check("with everything that was there", pushed[:3] == ["Welcome!", "Come in.", "Stay."], pushed)
    ended = await stage.rows("select 1 from sessions where end_reason = 'worktree-missing'")
    stage.report.check("the old session ended", len(ended) == 1, ended)


async def _merging_cleans_up(stage: Stage, issue: Issue, pull: Pull) -> None:
    stage.report.step("The pull request is merged, and the issue closes with it")
    worktree = await stage.worktree()
    await stage.maria.merge(pull)
    stage.report.check("GitHub closed the issue", issue.state == "closed", issue.state)
    await stage.until_rows("the worktree is removed", "select 1 from worktrees where state = 'removed'")
    stage.report.check("its directory is gone", is_gone(worktree["path"]), worktree["path"])
    active = await stage.rows("select 1 from sessions where active")
    reasons = await stage.rows("select distinct end_reason from sessions where end_reason = 'conversation-closed'")
    stage.report.check("every session ended, the last by the close", not active and len(reasons) == 1, active)
    closed = await stage.rows("select state from conversations where state <> 'closed' or worktree_id is not null")
    stage.report.check("both conversations are closed and refer to no worktree", not closed, closed)
    states = await stage.rows("select state, count(*) from turns group by state")
    stage.report.check("every turn is done", [tuple(row) for row in states] == [("done", 5)], states)
    files = await stage.git("ls-tree", "--name-only", "main")
    stage.report.check("the work is on main", "hello.txt" in files, files)
    await stage.github.settled()
    bad = [delivery.status_code for delivery in stage.github.deliveries if delivery.status_code != 202]
    stage.report.check(f"all {len(stage.github.deliveries)} webhooks were answered 202", not bad, bad)
