"""A mention becomes an answer: reaction, one tracking comment, worktree, commit, push; then the same session again."""

from tests.end_to_end.world import World


async def test_a_mention_becomes_an_answer_with_pushed_work(world: World) -> None:
    issue = await world.maria.opens_issue("Greet people", "Say hello in a file")
    said = await issue.says("@threadtree-bot write hello.txt: hello\nsay Here it is.")

    answer = await issue.hears("Here it is.", "**Changed** on", "1 commit, 1 file, +1 −0")

    assert said.reactions == ["👀"]
    assert len(issue.from_bot) == 1
    tracking = issue.from_bot[0]
    assert tracking.edits, "the answer is an edit of the tracking comment"
    tip = (await world.branches())["threadtree/issue-1"]
    assert f"{world.github.server_url}/acme/shop/compare/main...{tip}" in answer
    assert await world.files(tip) == {"README.md": "# shop", "hello.txt": "hello"}
    [(commit, message, author)] = await world.repository.git.log(f"main..{tip}")
    assert (commit, author) == (tip, "threadtree-bot")
    assert f"Co-authored-by: maria <{world.maria.user.id}+maria@users.noreply." in message
    assert await world.worktrees("branch", "state", "conversations") == [("threadtree/issue-1", "ready", [1])]
