"""Changes on GitHub between two requests: the worktree follows, stays, or changes its branch; the reply says which."""

from pathlib import Path

from tests.support.world import Talk, World

BRANCH = "threadtree/issue-1"


async def an_issue_with_work(world: World) -> Talk:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file +1 −0")
    return issue


async def with_a_pull(world: World, issue: Talk, body: str = "") -> Talk:
    """Open a pull request of the issue's branch. It closes no issue, so the issue stays open."""
    return await world.maria.opens_pull("Greeting", body, head=BRANCH)


async def test_amended_commits_are_not_pushed_back(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.says("@threadtree-bot write half.txt: half\nfail at first")
    await issue.hears("**Failed:**")
    amended = await world.maria.person.amend(world.repository, BRANCH, {"hello.txt": None, "hi.txt": "hi\n"})

    await issue.says("@threadtree-bot write more.txt: more")

    await issue.hears(
        "`threadtree/issue-1` was rewritten on GitHub. The agent worked on the commits from before that. Commits that "
        "were removed on GitHub are not pushed again.",
        "Commits were taken off `threadtree/issue-1` on GitHub, and this work was made on top of them, so the commits "
        "are on [`threadtree/issue-1-turn-3`]",
    )
    assert (await world.branches())[BRANCH] == amended, "no branch is force-moved"
    assert (await world.files(BRANCH)).keys() == {"README.md", "hi.txt"}
    assert (await world.files(f"{BRANCH}-turn-3")).keys() == {"README.md", "hi.txt", "half.txt", "more.txt"}


async def test_an_unmerged_deleted_branch_is_pushed_again_only_with_new_work(world: World) -> None:
    issue = await an_issue_with_work(world)
    await world.maria.person.delete_branch(world.repository, BRANCH)

    await issue.says("@threadtree-bot recall")
    words = (
        "`threadtree/issue-1` was deleted on GitHub. If this request made changes, the branch is there again with "
        "its earlier commits."
    )
    await issue.hears("I remember: blue.", words)
    assert BRANCH not in await world.branches(), "a question brings nothing back"

    await issue.says("@threadtree-bot write more.txt: more")
    await issue.hears(words, "**Changed** [`threadtree/issue-1`]")
    assert (await world.files(BRANCH)).keys() == {"README.md", "hello.txt", "more.txt"}


async def test_after_its_branch_was_merged_an_issue_continues_on_the_next_branch(world: World) -> None:
    issue = await an_issue_with_work(world)
    pull = await with_a_pull(world, issue)
    await world.maria.person.merge(pull.pull, "squash")
    await world.maria.person.delete_branch(world.repository, BRANCH)
    await issue.says("@threadtree-bot recall\nwrite more.txt: more")

    await issue.hears(
        "`threadtree/issue-1` was merged. Work continues on `threadtree/issue-1-2`, which starts from `main`.",
        "I remember: blue.",
        "**Changed** [`threadtree/issue-1-2`]",
        "1 file +",
    )
    assert BRANCH not in await world.branches(), "the merged branch stays as people left it"
    assert (await world.files(f"{BRANCH}-2")).keys() == {"README.md", "hello.txt", "more.txt"}
    assert await world.worktrees("branch") == [f"{BRANCH}-2"]


async def test_an_issue_without_commits_follows_the_default_branch(world: World) -> None:
    issue = await world.maria.opens_issue("What is this?")
    await issue.says("@threadtree-bot say A shop.")
    await issue.hears("A shop.")
    await world.maria.pushes("main", {"later.txt": "later\n"})

    await issue.says("@threadtree-bot echo prompt\nappend later.txt: mine")

    await issue.hears("brought up to date with 1 commit", "1 file +")
    assert (await world.files(BRANCH))["later.txt"] == "later\nmine"


async def test_newer_commits_are_not_merged_into_uncommitted_work(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.says("@threadtree-bot write half.txt: half\nfail at first")
    await issue.hears("**Failed:**")
    await world.maria.pushes(BRANCH, {"theirs.txt": "theirs\n"})

    await issue.says("@threadtree-bot write rest.txt: rest")

    await issue.hears(
        "An earlier request left 1 uncommitted file, and the agent continued from there. "
        "Because of that, 1 newer commit from GitHub could not be merged yet."
    )
    assert (await world.files(BRANCH)).keys() == {"README.md", "hello.txt", "half.txt", "theirs.txt", "rest.txt"}


async def test_a_pull_request_is_updated_retargeted_and_made_a_draft_between_its_requests(world: World) -> None:
    await world.maria.pushes("feature", {"feature.txt": "1\n"})
    pull = await world.maria.opens_pull("Feature", head="feature")
    await pull.says("@threadtree-bot append feature.txt: 2")
    await pull.hears("**Changed** [`feature`]")
    await world.maria.pushes("main", {"later.txt": "later\n"})
    await world.maria.pushes("stable", {"stable.txt": "stable\n"})

    await world.maria.person.update_from_base(pull.pull)
    await pull.says("@threadtree-bot echo prompt\nappend later.txt: mine")
    await pull.hears("brought up to date with 2 commit(s)", "1 file +")

    await world.maria.person.retarget(pull.pull, "stable")
    await pull.says("@threadtree-bot append feature.txt: 3")
    await pull.hears("1 file +")

    await world.maria.person.convert_to_draft(pull.pull)
    await pull.says("@threadtree-bot append feature.txt: 4")
    await pull.hears("1 file +")
    assert (await world.files("feature"))["feature.txt"] == "1\n2\n3\n4"


async def test_a_moved_repository_keeps_its_worktrees_and_its_old_name_is_a_new_repository(world: World) -> None:
    issue = await an_issue_with_work(world)
    [path] = await world.worktrees("path")
    await world.github.transfer_repository(world.repository, world.github.person("umbrella"))

    await issue.says("@threadtree-bot recall\nappend hello.txt: again")
    await issue.hears("I remember: blue.", "/umbrella/shop/compare/")
    assert (await world.files(BRANCH))["hello.txt"] == "hello\nagain"
    assert await world.worktrees("path", "state") == [(path, "ready")]
    clone = world.data_dir / "repos" / "acme" / "shop.git"
    assert "/umbrella/shop.git" in (clone / "config").read_text()

    reclaimed = await world.github.create_repository("acme/shop", {"other.txt": "other\n"})
    reclaimed.allow(world.maria.user, "write")
    stranger = await world.maria.opens_issue("Mine now", "@threadtree-bot append other.txt: mine", repository=reclaimed)
    await stranger.hears("1 file +")
    assert (await reclaimed.git.files(BRANCH)).keys() == {"other.txt"}
    assert (await world.files(BRANCH))["hello.txt"] == "hello\nagain"
    [_, second] = await world.worktrees("path")
    assert Path(second).parent.name == f"shop-{reclaimed.id}"
    assert (world.data_dir / "repos" / "acme" / f"shop-{reclaimed.id}.git").is_dir()


async def test_repositories_with_unusual_names_work(world: World) -> None:
    for name in (".github", "a.git.lock"):
        repository = await world.github.create_repository(f"acme/{name}", {"README.md": "odd\n"})
        repository.allow(world.maria.user, "write")
        issue = await world.maria.opens_issue("First", "@threadtree-bot write a.txt: a", repository=repository)
        await issue.hears("1 file +")
        assert (await repository.git.files(BRANCH))["a.txt"] == "a"


async def test_a_push_by_a_person_is_not_claimed_by_a_turn_that_changes_nothing(world: World) -> None:
    issue = await world.maria.opens_issue("One")
    await issue.says("@threadtree-bot write one.txt: one")
    await issue.hears("**Changed**")
    await world.quiet()
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay Nothing.")
    await issue.sees_working()
    pushed = await world.maria.pushes("threadtree/issue-1", {"mine.txt": "mine\n"})
    other = await world.maria.opens_issue("Two")
    await other.says("@threadtree-bot say Hi.")
    await other.hears("Hi.")
    gate.open()
    answer = await issue.hears("Nothing.")
    await world.quiet()
    heads = [row["pushed_head"] for row in await world.turns()]
    assert pushed not in heads
    assert "**Changed**" not in answer
    await issue.says("/undo")
    await issue.hears("Took back by one commit what turn 1")
    files = await world.files("threadtree/issue-1")
    assert ("one.txt" in files, files["mine.txt"]) == (False, "mine")
