"""A second issue: its worktree is closed, reset and shared with a pull request, and unsaved work is rescued."""

import asyncio
import os
from pathlib import Path

from bot.demo.stage import Stage, is_gone
from bot.model import Saved
from bot.simulated.github.model import Issue, Pull
from bot.thread import notices, worktree_replies
from bot.verbs.reset import was_reset

ONE_FILE = Saved(files=1, commits=0)


async def tell(stage: Stage) -> None:
    """Tell all steps in order, after those of the main job. Raises StoryBrokeError."""
    issue = await _closing_rescues_what_was_not_committed(stage)
    await _a_reopened_issue_finds_it_again(stage, issue)
    await _reset_starts_the_files_over(stage, issue)
    pull = await _a_branch_of_her_own_takes_the_worktree_along(stage, issue)
    await _merging_leaves_the_rescues(stage, pull)


async def _closing_rescues_what_was_not_committed(stage: Stage) -> Issue:
    stage.report.step("A request fails, and its issue is closed")
    issue = await stage.maria.open_issue(stage.repository, "Take leave of the customers", "They just go.")
    stage.report.did(f"maria opened #{issue.number}")
    await stage.says(
        stage.maria, issue, f"{stage.bot} Write “Goodbye!” into bye.txt. Then fail: the credit is used up."
    )
    answer = await stage.answer(issue, turn=6)
    stage.report.check("the reply says that it failed, and why", "the credit is used up" in answer.body, answer.body)
    worktree = await stage.worktree()
    stage.report.check("its file is in the worktree", (Path(worktree["path"]) / "bye.txt").is_file())
    branches = await stage.git("branch", "--list", "threadtree/issue-3")
    stage.report.check("and not on GitHub", not branches, branches)
    await stage.maria.close(issue)
    stage.report.did(f"maria closed #{issue.number}")
    await _until_removed(stage, worktree)
    rescues = await stage.rows("select ref, removal, files from rescues")
    rescued = [tuple(row)[1:] for row in rescues]
    stage.report.check("one file was rescued before that", rescued == [("closed", 1)], rescued)
    kept = await stage.clone("show", f"{rescues[0]['ref']}:bye.txt") if rescues else ""
    stage.report.check("a commit in the bot's clone holds it", kept == "Goodbye!", kept)
    return issue


async def _a_reopened_issue_finds_it_again(stage: Stage, issue: Issue) -> None:
    stage.report.step("The issue is reopened, and the next request continues from there")
    await stage.maria.reopen(issue)
    await stage.says(stage.maria, issue, f"{stage.bot} Please add “Come again.” to bye.txt.")
    answer = await stage.answer(issue, turn=7)
    words = notices.restored_before_turn(ONE_FILE)
    stage.report.check("the reply says what was brought back", words in answer.body, answer.body)
    pushed = await stage.git("show", "threadtree/issue-3:bye.txt")
    stage.report.check("GitHub has the old line and the new one", pushed == "Goodbye!\nCome again.", pushed)


async def _reset_starts_the_files_over(stage: Stage, issue: Issue) -> None:
    stage.report.step("/reset")
    before, tip = await stage.worktree(), await stage.git("rev-parse", "threadtree/issue-3")
    (Path(before["path"]) / "draft.txt").write_text("Farewell!\n")
    stage.report.did("somebody left draft.txt in the worktree")
    await stage.says(stage.maria, issue, "/reset")
    reply = await stage.answer(issue, turn=8)
    words = was_reset("threadtree/issue-3", "threadtree/issue-3-2", "main", ONE_FILE, ())
    stage.report.check("the answer names the branch and the rescue", words in reply.body, reply.body)
    after = await stage.worktree()
    moved = (after["id"], after["path"], after["branch"]) == (before["id"], before["path"], "threadtree/issue-3-2")
    stage.report.check("the same directory is on the new branch", moved, after)
    files = sorted(await asyncio.to_thread(os.listdir, after["path"]))
    stage.report.check("with the files of main", files == [".git", ".gitignore", "README.md", "hello.txt"], files)
    stays = await stage.git("rev-parse", "threadtree/issue-3")
    stage.report.check("the old branch stays as it is on GitHub", stays == tip, stays)
    rescues = await stage.rows("select ref from rescues where removal is null")
    kept = [await stage.clone("show", f"{row['ref']}:draft.txt") for row in rescues]
    stage.report.check("a commit in the bot's clone holds the draft", kept == ["Farewell!"], kept)
    active = await stage.rows("select 1 from sessions where active")
    stage.report.check("the session ended", not active, active)


async def _a_branch_of_her_own_takes_the_worktree_along(stage: Stage, issue: Issue) -> Pull:
    stage.report.step("A pull request from maria's own branch that fixes the issue")
    await stage.maria.push(stage.repository, "farewell", {"wave.txt": "o/\n"}, "Wave", base="threadtree/issue-3")
    pull = await stage.maria.open_pull(
        stage.repository, head="farewell", title="Take leave of the customers", body=f"Fixes #{issue.number}"
    )
    stage.report.did(f"maria opened #{pull.number} from farewell, made from threadtree/issue-3: Fixes #{issue.number}")
    before = await stage.worktree()
    await stage.says(stage.maria, pull, f"{stage.bot} Please add “Safe travels.” to bye.txt.")
    answer = await stage.answer(pull, turn=9)
    words = notices.switched(issue.number, "threadtree/issue-3-2", "farewell")
    stage.report.check("the reply says which worktree went to her branch", words in answer.body, answer.body)
    told = await stage.new_comment(issue)
    words = worktree_replies.was_switched(pull.number, "threadtree/issue-3-2", "farewell")
    stage.report.check("the issue's thread is told", words in told.body, told.body)
    after = await stage.worktree()
    sharing = await stage.rows("select number from conversations where worktree_id = $1", before["id"])
    stage.report.check(
        "issue and pull request share that worktree, on her branch",
        (after["id"], after["branch"], len(sharing)) == (before["id"], "farewell", 2),
        [after, sharing],
    )
    listed = await stage.clone("worktree", "list", "--porcelain")
    stage.report.check("so does git say", "branch refs/heads/farewell" in listed, listed)
    wave = (Path(after["path"]) / "wave.txt").is_file()
    stage.report.check("her commit is in the directory", wave, after["path"])
    pushed = await stage.git("show", "farewell:bye.txt")
    stage.report.check("and the pull request has the agent's", pushed.endswith("Safe travels."), pushed)
    return pull


async def _merging_leaves_the_rescues(stage: Stage, pull: Pull) -> None:
    stage.report.step("That is merged as well")
    worktree = await stage.worktree()
    await stage.maria.merge(pull)
    await _until_removed(stage, worktree)
    active = await stage.rows("select 1 from sessions where active")
    stage.report.check("no session is active", not active, active)
    rescues = await stage.clone("for-each-ref", "--format=%(refname)", "refs/threadtree/rescue")
    stage.report.check("both rescues are kept", len(rescues.split()) == 2, rescues)


async def _until_removed(stage: Stage, worktree: dict[str, object]) -> None:
    gone = "select 1 from worktrees where id = $1 and state = 'removed'"
    await stage.until_rows("the worktree is removed", gone, worktree["id"])
    stage.report.check("its directory is gone", is_gone(str(worktree["path"])), worktree["path"])
