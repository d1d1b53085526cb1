"""A branch may be anywhere when a request meets it, and GitHub's rules may be any: what is pushed, and what is said.

What a push does in each state of the branch is told by tests/integration/test_git_removed_commits.py.
"""

from dataclasses import dataclass

import pytest

from tests.support.world import Talk, World

BRANCH = "threadtree/issue-1"


async def an_issue_with_secrets(world: World, *names: str) -> Talk:
    issue = await world.maria.opens_issue("Config")
    for name in names:
        await issue.says(f"@threadtree-bot write {name}: hunter2")
        await issue.hears("**Changed**")
    await world.quiet()
    return issue


async def shorten(world: World, branch: str = BRANCH) -> None:
    """Take the last commit off the branch by a force push."""
    await world.repository.git.run("update-ref", f"refs/heads/{branch}", f"refs/heads/{branch}^")


async def test_no_verb_brings_back_what_a_person_took_off_the_branch(world: World) -> None:
    issue = await an_issue_with_secrets(world, "kept.txt", "secret.txt")
    followed = f"`{BRANCH}` was rewritten on GitHub, and this request worked on what is there now."

    await shorten(world)
    before = await world.branches()
    await issue.says("@threadtree-bot say It reads a file.")
    assert "**Changed**" not in await issue.hears("It reads a file.", followed, "`refs/threadtree/rescue/1/")
    assert await world.branches() == before, "a question pushes nothing"

    await issue.says("@threadtree-bot write secret.txt: again\nwrite more.txt: more")
    await issue.hears("2 files +2")
    await world.maria.pushes("main", {"new.txt": "new"})
    await shorten(world)
    await issue.says("/update")
    await issue.hears("Merged 1 commit of `main`", followed)
    assert sorted(await world.files(BRANCH)) == ["README.md", "kept.txt", "new.txt"]

    await shorten(world)
    await issue.says("/undo")
    await issue.hears(f"The commits of turn 5 (maria's request) are not on `{BRANCH}` any more", followed)
    await issue.says("/pr")
    await issue.hears("Opened the pull request")
    assert sorted(await world.files(BRANCH)) == ["README.md", "kept.txt"]


async def test_a_force_push_while_the_agent_works_is_a_refusal(world: World) -> None:
    issue, gate = await an_issue_with_secrets(world, "secret.txt"), world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nwrite other.txt: fine")
    await issue.sees_working()
    await shorten(world)
    gate.open()

    words = f"Commits were taken off `{BRANCH}` on GitHub, and this work was made on top of them"
    await issue.hears(words, f"**Changed** [`{BRANCH}-turn-2`]", "1 file +1")
    assert sorted(await world.files(BRANCH)) == ["README.md"]
    assert sorted(await world.files(f"{BRANCH}-turn-2")) == ["README.md", "other.txt"]
    await issue.says("@threadtree-bot write more.txt: more")
    await issue.hears(f"**Changed** [`{BRANCH}`]")
    assert sorted(await world.files(BRANCH)) == ["README.md", "more.txt", "other.txt"]


async def test_the_branch_of_a_pull_request_is_gone_and_restored(world: World) -> None:
    await world.maria.pushes("feature", {"feature.txt": "1\n"}, base="main")
    pull = await world.maria.opens_pull("Feature", head="feature")
    head = (await world.branches())["feature"]
    await pull.merges()
    await world.maria.person.delete_branch(world.repository, "feature")
    await world.quiet()
    gone = "`feature` is no longer on GitHub, so this request worked on the last commit of the pull request."

    await pull.says("@threadtree-bot show feature.txt\nsay It is one.")  # its first request ever
    assert "as a patch for git apply" not in await pull.hears("It is one.", gone)
    await pull.says("@threadtree-bot append feature.txt: 2")
    await pull.hears(gone, "The edits as a patch for git apply", "+2")
    await pull.says("@threadtree-bot append feature.txt: 3")
    await pull.hears(gone, "+2\n+3")
    for command in ("/update", "/undo"):
        await pull.says(command)
        await pull.hears("Nothing is pushed from here")
    assert "feature" not in await world.branches()

    await world.repository.git.run("update-ref", "refs/heads/feature", head)
    await pull.says("@threadtree-bot write more.txt: more")
    await pull.hears("**Changed** [`feature`]")
    assert (await world.files("feature")).keys() == {"README.md", "feature.txt", "more.txt"}


async def test_a_live_worktree_of_a_deleted_branch_keeps_its_work(world: World) -> None:
    await world.maria.pushes("feature", {"feature.txt": "1\n"}, base="main")
    pull = await world.maria.opens_pull("Feature", head="feature")
    await pull.says("@threadtree-bot append feature.txt: 2")
    await pull.hears("**Changed** [`feature`]")
    head = (await world.branches())["feature"]
    other = await world.maria.opens_issue("Keeps the worktree")
    await world.database.execute("update conversations set worktree_id = 1 where number = $1", other.number)
    await world.maria.person.delete_branch(world.repository, "feature")
    await world.quiet()
    await pull.says("@threadtree-bot append feature.txt: 3")
    await pull.hears("`feature` is no longer on GitHub", "+3")

    await world.repository.git.run("update-ref", "refs/heads/feature", head)
    await pull.says("@threadtree-bot append feature.txt: 4")
    await pull.hears("**Changed** [`feature`]")
    assert (await world.files("feature"))["feature.txt"] == "1\n2\n3\n4"


async def test_a_branch_that_git_does_not_show_yet_is_waited_for(world: World) -> None:
    await world.maria.pushes("feature", {"feature.txt": "1\n"}, base="main")
    pull = await world.maria.opens_pull("Feature", head="feature")
    head = (await world.branches())["feature"]
    await world.repository.git.run("update-ref", "-d", "refs/heads/feature")

    await pull.says("@threadtree-bot append feature.txt: 2")
    await pull.sees("GitHub does not show the branch of this pull request yet.")
    await world.repository.git.run("update-ref", "refs/heads/feature", head)
    world.clock.move(20)

    await pull.hears("**Changed** [`feature`]")


async def test_a_renamed_head_and_a_renamed_base_are_followed(world: World) -> None:
    await world.maria.pushes("feature", {"feature.txt": "1\n"}, base="main")
    pull = await world.maria.opens_pull("Feature", head="feature")
    await pull.says("@threadtree-bot append feature.txt: 2")
    await pull.hears("**Changed** [`feature`]")
    await world.maria.person.rename_branch(world.repository, "feature", "better")
    await world.maria.person.rename_branch(world.repository, "main", "trunk")
    await world.maria.pushes("trunk", {"new.txt": "new"})

    await pull.says("/update")
    renamed = "`feature` is called `better` on GitHub now"
    await pull.hears("Merged 1 commit of `trunk`", renamed, "**Changed** [`better`]")
    assert sorted(await world.branches()) == ["better", "trunk"]


async def test_commands_make_a_worktree_again_that_is_gone(world: World) -> None:
    issue = await world.maria.opens_issue("Config", "@threadtree-bot write a.txt: one")
    await issue.hears("**Changed**")
    for command, answer in (
        ("/update", "Merged 1 commit of `main`"),
        ("/pr", "Opened the pull request"),
        ("/undo", "Took back by one commit what turn 2"),
    ):
        await issue.closes()
        await world.quiet()
        await world.maria.pushes("main", {"main.txt": command}) if command == "/update" else None
        await issue.reopens()
        await world.quiet()
        await issue.says(command)
        await issue.hears(answer if command != "/undo" else "Commits of `main` came with turn 2")
    assert "a.txt" in await world.files(BRANCH)


async def test_the_default_branch_is_asked_again_before_the_push(world: World) -> None:
    await world.maria.pushes("next", {"a.txt": "a"}, base="main")
    pull, gate = await world.maria.opens_pull("Next", head="next"), world.gate()
    await pull.says(f"@threadtree-bot wait {gate}\nwrite b.txt: b\nsay Done.")
    await pull.sees_working()
    world.repository.default_branch = "next"
    gate.open()

    await pull.hears("Done.", "Not pushed: `next` is protected or the default branch.", "git apply", "+b")
    assert "b.txt" not in await world.files("next")


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rule for a thread's branch, and what is said of a request under it; `again`: only of the second request."""

    type: str
    said: str
    parameters: tuple[tuple[str, str], ...] = ()
    again: bool = False


TAKEN, RULE = "**Changed**", "Not pushed: a rule of this repository (`{}`)"
RULES = (
    Ruled("deletion", TAKEN, again=True),
    Ruled("non_fast_forward", TAKEN, again=True),
    Ruled("commit_message_pattern", TAKEN, (("pattern", "Config"),), again=True),
    Ruled("required_linear_history", TAKEN, again=True),
    Ruled("creation", RULE),
    Ruled("update", RULE, again=True),
    Ruled("pull_request", RULE),
    Ruled("merge_queue", RULE),
    Ruled("required_signatures", RULE),
    Ruled("branch_name_pattern", "- Branch name must match a given regex pattern: ^feat/", (("pattern", "^feat/"),)),
    Ruled("commit_message_pattern", "- Commit message must match a given regex pattern: J-", (("pattern", "J-"),)),
)


async def test_a_rule_stops_only_what_it_forbids_and_leaves_a_way_on(world: World) -> None:
    """GitHub says of all these branches that they are protected."""
    talks = [await world.maria.opens_issue("Config") for _ in RULES]
    for talk, ruled in zip(talks, RULES, strict=True):
        world.repository.rule(ruled.type, f"threadtree/issue-{talk.number}*", **dict(ruled.parameters))
        await talk.says("@threadtree-bot write a.txt: one")
    for talk, ruled in zip(talks, RULES, strict=True):
        said = ruled.said.format(ruled.type)
        if ruled.again:
            await talk.hears(TAKEN)
            await talk.says("@threadtree-bot write b.txt: two")
        answer = await talk.hears(said)
        is_pushed = said == TAKEN
        assert ("Once `SIGN_COMMITS` is set" in answer) == (ruled.type == "required_signatures")
        assert ("git apply" in answer, "the next request pushes it" in answer) == (not is_pushed, not is_pushed)
        has = (await world.branches()).get(f"threadtree/issue-{talk.number}")
        assert (has is not None) == (is_pushed or ruled.again)

    world.repository.drop_rules()
    await talks[-1].says("@threadtree-bot say Once more.")
    await talks[-1].hears(
        "Once more.", "Work of an earlier request that was not on GitHub is on [`threadtree/issue-11`]"
    )
    await talks[-2].says("/undo")
    await talks[-2].hears("Took back what turn", "rescued first")


@pytest.mark.parametrize("type_", ["deletion", "pull_request"])
async def test_a_pull_request_under_a_rule_gets_a_branch_or_a_patch_with_the_reason(world: World, type_: str) -> None:
    await world.maria.pushes("feature", {"feature.txt": "1\n"}, base="main")
    world.repository.rule(type_)
    pull = await world.maria.opens_pull("Feature", head="feature")
    await pull.says("@threadtree-bot append feature.txt: 2")
    if type_ == "deletion":
        await pull.hears("**Changed** [`feature`]")
    else:
        await pull.hears("takes no pushes of the bot: it is the default branch, or a rule", "git apply", "+2")


async def test_a_branch_that_takes_no_merges_gets_the_work_on_top(world: World) -> None:
    issue, gate = await an_issue_with_secrets(world, "a.txt"), world.gate()
    world.repository.rule("required_linear_history")
    await issue.says(f"@threadtree-bot wait {gate}\nwrite b.txt: two")
    await issue.sees_working()
    await world.maria.pushes(BRANCH, {"theirs.txt": "theirs"})
    gate.open()
    await issue.hears("**Changed**")
    assert sorted(await world.files(BRANCH)) == ["README.md", "a.txt", "b.txt", "theirs.txt"]
