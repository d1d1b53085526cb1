"""`/reset-context`: the next request starts a new session in the same worktree."""

from tests.support.world import World

CONTEXT_RESET = (
    "AI context reset. Your next message will start a fresh conversation while keeping your current working directory."
)


async def test_reset_context_starts_a_fresh_session_in_the_same_worktree(world: World) -> None:
    issue = await world.maria.opens_issue("Colours")
    await issue.says("@threadtree-bot remember blue\nwrite a.txt: one")
    await issue.hears("I will remember blue.")

    said = await issue.says("/reset-context")
    assert (await issue.hears()).partition("\n\n<!--")[0] == CONTEXT_RESET
    assert said.reactions == ["👀"]
    await issue.says("@threadtree-bot recall\nappend a.txt: two")

    await issue.hears("I remember: nothing.")
    assert await world.sessions("active", "end_reason") == [(False, "reset-requested"), (True, None)]
    assert len(await world.worktrees()) == 1
    assert (await world.files("threadtree/issue-1"))["a.txt"] == "one\ntwo"
