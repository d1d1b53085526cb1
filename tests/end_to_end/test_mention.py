"""A mention gets an answer: reaction, one tracking comment, worktree, commit, push; and which texts are mentions."""

import base64
import json
import re

import pytest

from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.world import World, unseen


async def test_a_mention_becomes_an_answer_with_pushed_work(world: World) -> None:
    gate = world.gate()
    issue = await world.maria.opens_issue("Greet people", "Say hello in a file")
    said = await issue.says(
        f"@threadtree-bot wait {gate}\nwrite hello.txt: hello\nsay Here it is.\nsay Commit: Greet @olaf."
    )
    await issue.sees_working()
    gate.open()

    answer = await issue.hears("Here it is.", "**Changed** [", "[diff](", "1 file +1 −0")
    assert "Commit:" not in answer

    assert said.reactions == ["👀"]
    assert len(issue.from_bot) == 1
    assert issue.from_bot[0].edits, "the answer is an edit of the tracking comment"
    branches = await world.branches()
    tip = branches["threadtree/issue-1"]
    assert f"{world.github.server_url}/acme/shop/compare/{branches['main']}...{tip})" in answer
    assert await world.files(tip) == {"README.md": "# shop", "hello.txt": "hello"}
    [(commit, message, author)] = await world.repository.git.log(f"main..{tip}")
    assert (commit, author) == (tip, "threadtree-bot")
    asked_at = f"{world.github.server_url}/acme/shop/issues/1#issuecomment-{said.comment.id}"
    subject, _, body, _, trailer = message.splitlines()
    assert (subject, body) == ("Greet olaf", f"Requested by maria: {asked_at}"), "what was done, without a mention"
    assert trailer.startswith(f"Co-authored-by: maria <{world.maria.user.id}+maria@users.noreply.")

    await issue.says("@threadtree-bot write hello.txt: again")
    answer = await issue.hears("1 file +1 −1")
    second = (await world.branches())["threadtree/issue-1"]
    assert f"/compare/{tip}...{second}" in answer, "the link shows what this turn changed"
    assert await world.worktrees("branch", "state", "conversations") == [("threadtree/issue-1", "ready", [1])]
    assert len(await world.sessions()) == 1


async def test_the_tracking_comment_shows_the_agent_at_work(world: World) -> None:
    gate = world.gate()
    told: list[str] = []
    await world.database.add_listener("threadtree_events", lambda *news: told.append(json.loads(news[3])["event"]))
    issue = await world.maria.opens_issue("Slow work")
    await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.")

    await issue.sees_working()
    gate.open()

    await issue.hears("Finished.", " · 1 step · read the title · ")
    assert len(issue.from_bot) == 1
    [step] = await world.database.fetch("select turn_id, place, words from steps")
    assert (step["turn_id"], step["place"], "wait" in step["words"].lower()) == (1, 1, True), step["words"]
    assert await world.turns("agent") == ["custom"]
    # How often it tells its progress and a step depends on the time that passes.
    told = [event for event in dict.fromkeys(told) if event != "turn-progress"]
    assert told == ["turn-queued", "turn-started", "worktree-ready", "turn-step", "turn-ended"]


async def test_an_issue_opened_with_a_mention_and_labelled_and_assigned_is_one_turn(world: World) -> None:
    body = "@threadtree-bot say good morning\n<!-- a template's advice -->"
    issue = await world.maria.opens_issue("Hello", body, labels=["threadtree"])
    await world.maria.person.assign(issue.thread, world.github.bot)

    await issue.hears("good morning")

    await world.quiet()
    assert await world.turns("number", "state") == [(1, "done")]


async def test_assigning_the_bot_requests_the_text_of_the_issue(world: World) -> None:
    issue = await world.maria.opens_issue("Hello", "say good night")
    await world.maria.person.assign(issue.thread, world.olaf.user)
    await world.maria.person.assign(issue.thread, world.github.bot)

    await issue.hears("good night")
    assert len(await world.turns()) == 1


@pytest.mark.parametrize("late", ["pull_request_review", "pull_request_review_comment"])
async def test_a_review_is_one_turn_with_all_its_texts_in_whatever_order_they_arrive(world: World, late: str) -> None:
    await world.maria.pushes("feature", {"a.py": "x = 1\ny = 2\n"})
    pull = await world.maria.opens_pull("A feature", head="feature")
    world.faults.hold_webhooks(late, times=None)

    await pull.reviews(
        "@threadtree-bot echo prompt\nplease look at these",
        ("a.py", 1, "@threadtree-bot rename x"),
        ("a.py", 2, "and drop y"),
    )

    answer = await pull.hears("please look at these", "rename x", "and drop y", "a.py:1", "a.py:2")
    assert answer.count("rename x") == 1
    world.faults.release()
    await world.quiet()
    assert await world.turns("state") == ["done"]
    assert len(pull.thread.comments) == 1, "the answer to the whole review is in the conversation"

    world.faults.hold_webhooks("pull_request_review_comment")
    review = await pull.reviews(None, ("a.py", 1, "shorter"), ("a.py", 2, "@threadtree-bot\nsay Both are shorter."))
    world.faults.release()
    await pull.hears("Both are shorter.")
    asked = [one for one in pull.pull.review_comments if one.review is review][1]
    answers = [one for one in pull.pull.review_comments if one.author.id == world.github.bot.id]
    assert [one.in_reply_to for one in answers] == [asked], "the only one that addresses the bot"


async def test_a_single_inline_comment_is_answered_in_its_own_thread(world: World) -> None:
    await world.maria.pushes("feature", {"a.py": "x = 1\n"})
    pull = await world.maria.opens_pull("A feature", head="feature")

    comment = await world.maria.person.review_comment(pull.pull, "a.py", 1, "@threadtree-bot echo prompt")

    await pull.hears("a.py:1")
    assert [answer.in_reply_to for answer in pull.pull.review_comments[1:]] == [comment]
    assert [one.content for one in comment.reactions] == ["eyes"]


async def test_a_doubled_webhook_is_one_turn(world: World) -> None:
    issue = await world.maria.opens_issue("Twice")
    world.faults.double_webhooks("issue_comment", "created")
    await issue.says("@threadtree-bot append log.txt: once")

    await issue.hears("1 file +1 −0")

    await world.quiet()
    assert len({delivery.guid for delivery in world.github.deliveries if delivery.event == "issue_comment"}) >= 2
    assert len(await world.turns()) == 1


async def test_an_edit_runs_only_new_requests(world: World) -> None:
    issue = await world.maria.opens_issue("Edits")
    said = await issue.says("hello there")

    await world.maria.person.edit(said.comment, "hello there, @threadtree-bot\nsay edited")
    await issue.hears("edited")
    await world.maria.person.edit(said.comment, "hello there, @threadtree-bot\nsay edited again")
    await world.quiet()
    assert len(await world.turns()) == 1

    await world.maria.person.edit(said.comment, "hello there, @threadtree-bot\nsay edited again\n/status")
    await issue.hears("Idle.")
    await world.quiet()
    assert len(await world.turns()) == 1


async def test_a_github_app_answers_under_its_own_name(a_world: Worlds) -> None:
    def app(github: SimulatedGitHub) -> dict[str, str]:
        return {"GITHUB_APP_ID": str(github.app_id), "GITHUB_PRIVATE_KEY": github.app_private_key_pem}

    async with a_world(app, installation_id=77) as world:
        issue = await world.maria.opens_issue("For the app")
        said = await issue.says("@threadtree-bot write hello.txt: hello")

        await issue.hears("1 file +")

        assert issue.from_bot[0].author.login == "threadtree-bot[bot]"
        assert said.reactions == ["👀"]
        assert "threadtree/issue-1" in await world.branches()

        minted = [token for token in world.github.world.tokens if token.startswith("ghs_")]
        assert minted
        await issue.says("@threadtree-bot" + unseen("say It is " + base64.b64encode(minted[-1].encode()).decode()))
        await issue.hears("It is [redacted]")


async def test_a_question_of_the_agent_ends_its_turn_and_the_next_mention_answers_it(world: World) -> None:
    issue = await world.maria.opens_issue("Store the orders")
    await issue.says("@threadtree-bot remember plum\nask Which *database*? | Postgres | SQLite, @olaf")
    answer = await issue.hears("To answer, mention the bot in a comment.", "The agent wrote before it asked:")
    assert answer.startswith("**Which *database*?**\n\n- Postgres\n- SQLite, @\u2060olaf\n")
    assert await world.turns("state", "reason") == [("done", None)]
    await issue.says("@threadtree-bot recall")
    await issue.hears("I remember: plum.")
    assert len(await world.sessions()) == 1


async def test_an_answer_that_claims_a_change_says_that_no_file_was_changed(world: World) -> None:
    issue = await world.maria.opens_issue("Cookie")
    await issue.says("@threadtree-bot say The cookie is lax now.\nsay Commit: Make the cookie lax")
    answer = await issue.hears("The cookie is lax now.", "> [!NOTE]\n> No file was changed.")
    assert "Commit:" not in answer

    await issue.says("@threadtree-bot say It is a cookie.")
    assert "No file was changed" not in await issue.hears("It is a cookie.")
    claims = "say Mended.\nsay Commit: Mend it"
    await issue.says(f"@threadtree-bot write lib/__pycache__/a.pyc: 1\n{claims}")
    await issue.hears("No file was changed.", "build products", "`lib/__pycache__/`")
    # What stays so is said once, and again when it changes.
    await issue.says(f"@threadtree-bot write lib/__pycache__/b.pyc: 1\n{claims}")
    assert "build products" not in await issue.hears("No file was changed.")
    await issue.says("@threadtree-bot write dist/a.js: 1")
    await issue.hears("build products", "`dist/`")
    assert await world.database.fetch("select outcome ->> 'came' from turns order by id") == [
        (came,) for came in ("nothing-changed", "answered", "nothing-changed", "nothing-changed", "answered")
    ]


async def test_a_review_gets_eyes_one_summary_and_answers_in_its_threads(world: World) -> None:
    await world.maria.pushes("feature", {"a.py": "x = 1\ny = 2\n"})
    pull = await world.maria.opens_pull("A feature", head="feature")
    earlier = await world.maria.person.review_comment(pull.pull, "a.py", 2, "Why not z?")
    await world.maria.pushes("other", {"b.py": "x = 1\n"})
    others = await world.maria.opens_pull("Another", head="other")
    elsewhere = await world.maria.person.review_comment(others.pull, "b.py", 1, "Elsewhere.")
    await world.quiet()
    asked_id = world.github.world.next_id() + 2  # after the review's
    left = [
        {"comment_id": asked_id, "body": "I kept `x`: @olaf uses it. Fixes #1"},
        {"comment_id": earlier.id, "body": "Is z free?"},
        {"comment_id": elsewhere.id, "body": "Of another pull request."},
        {"comment_id": 999, "body": "Of nothing."},
    ]
    words = f"@threadtree-bot please look\nout threads.json: {json.dumps(left)}\nsay Done but for one."
    review = await pull.reviews(words, ("a.py", 1, "rename x"))
    (asked,) = (one for one in pull.pull.review_comments if one.review is review)
    assert asked.id == asked_id

    summary = await pull.hears("Done but for one.", "Left out: 2 answers of the agent to inline comments. ")
    await pull.hears("I kept")
    await pull.hears("Is z free?")
    await world.quiet()

    assert len(pull.pull.comments_by(world.github.bot)) == 1
    answers = {one.in_reply_to: one.body for one in pull.pull.review_comments if one.author.id == world.github.bot.id}
    assert set(answers) == {asked, earlier}
    assert answers[asked].startswith("I kept `x`: @\u2060olaf uses it.")
    assert re.fullmatch(r"Is z free\?\n\n<!-- threadtree:reply=\d+ -->", answers[earlier])
    assert [one.content for one in review.reactions] == ["eyes"]
    assert pull.pull.reactions == []
    assert others.pull.review_comments == [elsewhere]
    assert await world.turns("state") == ["done"], "the bot's own answers ask for nothing"
    assert summary.count("Done but for one.") == 1


async def test_no_answer_of_an_earlier_request_is_posted_in_a_thread_again(world: World) -> None:
    await world.maria.pushes("feature", {"a.py": "x = 1\n"})
    pull = await world.maria.opens_pull("A feature", head="feature")
    remark = await world.maria.person.review_comment(pull.pull, "a.py", 1, "Why x?")
    left = json.dumps([{"comment_id": remark.id, "body": "For short."}])
    await pull.says(f"@threadtree-bot out threads.json: {left}\nsay One.")
    await pull.hears("One.")
    await pull.hears("For short.")
    await pull.says("@threadtree-bot say Two.")
    await pull.hears("Two.")
    await world.quiet()
    assert [one.body.partition("\n")[0] for one in pull.pull.review_comments] == ["Why x?", "For short."]
