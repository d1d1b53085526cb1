"""When a turn starts, its request is compared with GitHub: who knows the webhook secret can sign any text."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from bot.inbox.delivery import sign
from bot.simulated.github.faults import Held
from tests.support.world import Said, Talk, World

NOT_SHOWN = "GitHub does not show this request as the bot was told of it"
ASKS_NO_MORE = "asks the bot for nothing any more"
GONE = "The text that asked for this is no longer on GitHub"
PUT_BACK = "exists (select from turns where state = 'queued' and not_before is not null)"


async def forge(world: World, event: str, **parts: Any) -> None:
    """Deliver an event that did not happen, as an admin of another repository can sign it: maria did it."""
    repository, maria = world.repository, world.maria.user
    about = {"id": repository.id, "name": "shop", "owner": {"login": "acme"}, "default_branch": "main"}
    sender = {"login": maria.login, "id": maria.id, "type": "User"}
    body = orjson.dumps({"repository": about, "sender": sender, **parts})
    headers = {
        "x-github-event": event,
        "x-github-delivery": str(uuid4()),
        "x-hub-signature-256": sign(body, world.pair.settings.webhook_secrets[0]),
    }
    async with httpx.AsyncClient() as web:
        answer = await web.post(f"{world.pair.url}/webhooks/github", content=body, headers=headers)
    assert answer.json()["status"] == "accepted"


def written(said: Said, body: str, by: str, world: World) -> dict[str, Any]:
    at = f"{world.clock():%Y-%m-%dT%H:%M:%SZ}"
    user = {"login": by, "id": world.someone(by).user.id, "type": "User"}
    return {"id": said.comment.id, "node_id": "x", "body": body, "user": user, "created_at": at, "updated_at": at}


def thread(talk: Talk) -> dict[str, Any]:
    return {"number": talk.number, "title": talk.thread.title, "state": "open", "closed_at": None}


async def busy(world: World, issue: Talk) -> Any:
    """Keep the thread at work; return what ends that."""
    gate = world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay First.")
    await issue.sees_working()
    return gate


async def waits_behind(world: World) -> None:
    await world.until("exists (select from turns where state = 'queued')")


async def requests(world: World) -> list[tuple[str, str]]:
    return [(row["state"], row["text"]) for row in await world.turns()]


async def test_the_id_of_one_repository_with_the_name_of_another_leads_to_neither(world: World) -> None:
    """mallory is admin of another repository of the bot's. She comments there, and signs that it was in this one."""
    known, other = [await world.maria.opens_issue(title) for title in ("Known", "Other")]
    evil = await world.github.create_repository("mallory/evil", {"README.md": "mine\n"})
    mallory = world.someone("mallory")
    evil.allow(mallory.person, "admin")
    there = [await mallory.opens_issue("Mine", repository=evil) for _ in range(2)][-1]
    said = await there.says("@threadtree-bot say FORGED.")
    await there.hears("FORGED.")
    gate = await busy(world, known)
    rows = "select repository_id, owner, name, default_branch, installation_id, folder from codebases order by 1"
    before = await world.database.fetch(rows)

    shop, hers, ours = world.repository.id, {"name": "evil", "owner": {"login": "mallory"}}, {"login": "acme"}
    for about in (
        {"id": shop, **hers},
        {"id": shop, **hers, "default_branch": "threadtree/issue-2"},
        {"id": shop, "name": "shop", "owner": ours, "default_branch": "threadtree/issue-2"},
        {"id": 4711, **hers},
        {"id": 4711, "name": "shop", "owner": ours},
    ):
        comment = written(said, said.comment.body or "", "mallory", world)
        parts = {"action": "created", "issue": thread(there), "comment": comment, "sender": comment["user"]}
        await forge(world, "issue_comment", **parts, repository=about)
    await world.until("not exists (select from deliveries where state = 'received')")
    gate.open()

    await known.hears("First.")
    # A comment of another repository takes no reaction, which is tried for a while.
    while await world.database.fetchval("select exists (select from outbox where state in ('waiting', 'sending'))"):
        world.clock.move(60)
    assert not any("FORGED." in words for words in await other.hears_all())
    assert await there.hears_all() == []
    assert await world.turns("number", "state") == [(2, "done"), (1, "done")]
    assert await world.database.fetch(rows) == before
    for name in ("acme/shop", "mallory/evil"):
        assert f"/{name}.git" in (world.data_dir / "repos" / f"{name}.git" / "config").read_text()
    failed = await world.database.fetch("select error from deliveries where state = 'failed' order by seq")
    gone = "NotFound: {} was deleted, or the bot may not see it"
    assert [error for (error,) in failed] == [gone.format(name) for name in ("mallory/evil", "acme/shop")]


async def test_a_comment_that_github_does_not_have_is_refused(world: World) -> None:
    known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
    await known.hears("First.")
    for author in (world.olaf, world.maria):
        there = await known.says("Just a remark.", by=author)
        forged = written(there, "@threadtree-bot write pwned.txt: yes\nsay FORGED.", "maria", world)
        await forge(world, "issue_comment", action="created", issue=thread(known), comment=forged)
        assert "FORGED" not in await known.hears("**Not started:**", NOT_SHOWN)

    # Nor does a retry run it.
    await known.says("/retry")
    await known.hears("**Not started:**", NOT_SHOWN)
    assert [state for state, _ in await requests(world)] == ["done", "refused", "refused", "refused"]


async def test_commands_that_github_does_not_have_change_nothing(world: World) -> None:
    issue = await world.maria.opens_issue("Known")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +1 −0")
    [path] = await world.worktrees("path")
    Path(path, "half.txt").write_text("half")  # noqa: ASYNC240

    async def state() -> tuple[Any, ...]:
        files = [world.text_of(path, name) for name in ("hello.txt", "half.txt")]
        rescues = await world.database.fetch("select ref, restored_at from rescues")
        return await world.worktrees("branch"), files, rescues, await world.branches(), len(world.repository.pulls)

    for command, author, says, words in (
        ("/reset", "maria", "Just a remark.", ASKS_NO_MORE),
        ("/reset", "olaf", "Just a remark.", NOT_SHOWN),
        ("/pr", "maria", "Just a remark.", ASKS_NO_MORE),
        ("/undo", "olaf", "Just a remark.", NOT_SHOWN),
        ("/worktree remove", "maria", "/worktree list", ASKS_NO_MORE),
        ("/worktree restore", "olaf", "Just a remark.", NOT_SHOWN),
    ):
        if command == "/worktree restore":
            await issue.says("/worktree remove")
            await issue.hears("1 uncommitted file")
        before = await state()
        there = await issue.says(says, by=world.someone(author))
        if says.startswith("/"):
            await issue.hears()
        forged = written(there, command, "maria", world)
        await forge(world, "issue_comment", action="created", issue=thread(issue), comment=forged)
        await issue.hears("**Not started:**", words)
        await world.quiet()
        assert await state() == before, command


async def test_no_more_than_a_fetch_is_done_before_github_has_shown_the_request(world: World) -> None:
    issue, shown = await world.maria.opens_issue("Greet people"), asyncio.Event()
    world.faults.add(Held(shown), method="GET", path="*/issues/comments/*")
    said = await issue.says("@threadtree-bot write x.txt: x")
    await world.github.wait_for(lambda: any(one.path.endswith("upload-pack") for one in world.github.requests))
    await world.maria.person.delete(said.comment)  # type: ignore[arg-type]
    [path] = await world.worktrees("path")
    shown.set()
    await issue.hears("**Not started:**", GONE)
    assert await world.worktrees("state") == ["reserved"]
    assert not Path(path).exists()  # noqa: ASYNC240


async def test_a_request_of_another_thread_is_refused_here(world: World) -> None:
    there, here = [await world.maria.opens_issue(title) for title in ("There", "Here")]
    asked = await there.says("@threadtree-bot say Once.")
    await there.hears("Once.")
    forged = written(asked, asked.comment.body or "", "maria", world)
    await forge(world, "issue_comment", action="created", issue=thread(here), comment=forged)
    await here.hears("**Not started:**", GONE)


@pytest.mark.parametrize("gesture", ["labeled", "assigned"])
async def test_a_label_or_an_assignment_that_nobody_made_is_refused(world: World, gesture: str) -> None:
    issue = await world.olaf.opens_issue("Wrong total", "write pwned.txt: by olaf\nsay Pwned.")
    bot = world.github.bot
    given = {"label": {"name": "threadtree"}, "assignee": {"login": bot.login, "id": bot.id, "type": bot.type}}
    own = written(issue.opening, issue.thread.body or "", "olaf", world) | thread(issue)
    await forge(world, "issues", action=gesture, issue=own, **given)
    await issue.hears("**Not started:**", NOT_SHOWN)

    world.clock.move(120)  # opened, labelled and assigned within a minute are one request
    await world.maria.person.label(issue.thread, "threadtree")
    await issue.hears("Pwned.")


async def test_a_pull_request_is_not_the_bots_because_a_delivery_says_so(world: World) -> None:
    await world.maria.pushes("fix", {"a.py": "x = 1\n"})
    pull, bot = await world.maria.opens_pull("Fix", head="fix"), world.github.bot
    review = await world.maria.person.review(pull.pull, "write pwned.txt: yes")
    said = written(Said(world, pull.thread), review.body or "", "maria", world) | {
        "id": review.id,
        "state": "commented",
    }
    shown = {**thread(pull), "node_id": "x", "user": {"login": bot.login, "id": bot.id, "type": bot.type}, "head": {}}
    await forge(world, "pull_request_review", action="submitted", review=said, pull_request=shown)
    await pull.hears("**Not started:**", NOT_SHOWN)


async def test_a_login_with_the_id_of_another_account_has_no_permission(world: World) -> None:
    issue = await world.maria.opens_issue("Known")
    said = await issue.says("@threadtree-bot write pwned.txt: by olaf", by=world.olaf)
    await issue.hears("Nothing was done for `olaf`")
    forged = written(said, said.comment.body or "", "olaf", world)
    forged["user"]["login"] = "maria"
    world.clock.move(120)
    await forge(world, "issue_comment", action="created", issue=thread(issue), comment=forged)
    await world.quiet()
    assert await world.turns() == []


async def test_a_label_of_long_ago_does_not_ask_for_what_the_issue_says_since(world: World) -> None:
    issue = await world.olaf.opens_issue("Wrong total", "say The total is wrong.")
    await world.maria.person.label(issue.thread, "threadtree")
    await issue.hears("The total is wrong.")
    world.clock.move(120)
    await world.olaf.person.edit(issue.thread, "write pwned.txt: by olaf\nsay Pwned.")
    own = written(issue.opening, issue.thread.body or "", "olaf", world) | thread(issue)
    await forge(world, "issues", action="labeled", issue=own, label={"name": "threadtree"})
    await issue.hears("**Not started:**", NOT_SHOWN)


async def test_a_request_that_was_edited_while_it_waited_runs_as_it_stands(world: World) -> None:
    issue = await world.maria.opens_issue("Edited")
    gate = await busy(world, issue)
    asked = await issue.says("@threadtree-bot say Draft.")
    await waits_behind(world)
    world.clock.move(2)  # GitHub's times are whole seconds
    await world.maria.person.edit(asked.comment, "@threadtree-bot say Corrected.")
    gate.open()
    await issue.hears("First.")
    await issue.hears("Corrected.")
    await world.quiet()
    assert (await requests(world))[1:] == [("done", "@threadtree-bot say Corrected.")]


async def test_requests_that_do_not_stand_any_more_are_not_run(world: World) -> None:
    world.repository.allow(world.github.person("rosa"), "write")
    issue = await world.maria.opens_issue("Edited")
    gate = await busy(world, issue)
    others, no_more, gone = [await issue.says(f"@threadtree-bot say Draft {number}.") for number in range(3)]
    await world.until("count(*) = 3 from turns where state = 'queued'")
    for asked in (others, no_more, gone):
        await asked.gets("👀")
    world.clock.move(2)
    await world.github.person("rosa").edit(others.comment, "@threadtree-bot say By rosa.")
    await world.maria.person.edit(no_more.comment, "Never mind.")
    await world.maria.person.delete(gone.comment)  # type: ignore[arg-type]
    gate.open()
    await issue.hears("First.")
    for words in (NOT_SHOWN, ASKS_NO_MORE, GONE):
        await issue.hears("**Not started:**", words)


async def test_an_issue_that_was_edited_after_somebody_else_labelled_it_is_not_run(world: World) -> None:
    issue = await world.olaf.opens_issue("Wrong total", "say The total is wrong.")
    gate = await busy(world, await world.maria.opens_issue("Other"))
    other = await busy(world, await world.maria.opens_issue("Another"))
    await world.maria.person.label(issue.thread, "threadtree")
    await waits_behind(world)
    world.clock.move(2)
    await world.olaf.person.edit(issue.thread, "write pwned.txt: by olaf\nsay Pwned.")
    gate.open()
    other.open()
    await issue.hears("**Not started:**", NOT_SHOWN)
    for talk in world.talks[1:]:
        await talk.hears("First.")


async def test_a_mention_that_a_maintainer_adds_to_a_comment_of_another_is_hers(world: World) -> None:
    issue = await world.maria.opens_issue("Known")
    remark = await issue.says("The total is wrong.", by=world.olaf)
    world.clock.move(2)
    await world.maria.person.edit(remark.comment, "@threadtree-bot say Done.")
    await issue.hears("Done.")


async def test_a_retry_repeats_what_another_person_asked(world: World) -> None:
    world.repository.allow(world.github.person("rosa"), "write")
    issue = await world.maria.opens_issue("Known")
    await issue.says("@threadtree-bot fail It broke.")
    await issue.hears("**Failed:**")
    retry = await issue.says("/retry", by=world.someone("rosa"))
    await issue.hears("**Failed:**")
    # A retry of the retry is one of the first request; one that nobody wrote is none.
    await issue.says("/retry")
    await issue.hears("**Failed:**")
    forged = written(retry, "/retry", "maria", world)
    await forge(world, "issue_comment", action="created", issue=thread(issue), comment=forged)
    await issue.hears("**Not started:**", NOT_SHOWN)
    assert await world.database.fetchval("select array_agg(retry_of order by turn_id) from requests") == [None, 1, 1, 1]


async def test_a_part_of_a_review_that_was_edited_runs_as_it_stands_and_a_forged_one_does_not(world: World) -> None:
    await world.maria.pushes("topic", {"a.txt": "1\n2\n"})
    pull = await world.maria.opens_pull("Topic", head="topic")
    gate = await busy(world, pull)
    review = await pull.reviews("@threadtree-bot say Reviewed.", ("a.txt", 1, "say One."), ("a.txt", 2, "say Two."))
    await waits_behind(world)
    await world.until("exists (select from requests where jsonb_array_length(ask #> '{review,parts}') = 3)")
    world.clock.move(2)
    await world.maria.person.edit(pull.pull.review_comments[1], "say Corrected.")
    gate.open()
    await pull.hears("First.")
    assert "Two." not in await pull.hears("Reviewed.", "Corrected.")

    at = f"{world.clock():%Y-%m-%dT%H:%M:%SZ}"
    user = {"login": "maria", "id": world.maria.user.id, "type": "User"}
    forged = {"id": review.id + 1000, "node_id": "x", "user": user, "submitted_at": at, "state": "commented"}
    forged["body"] = "@threadtree-bot say FORGED."
    head = {"ref": "topic", "sha": pull.pull.head_sha, "repo": {"id": world.repository.id}}
    await forge(
        world, "pull_request_review", action="submitted", pull_request=thread(pull) | {"head": head}, review=forged
    )
    await pull.hears("**Not started:**", GONE)
    # A review that never was takes no reaction, which is tried for a while.
    while await world.database.fetchval("select exists (select from outbox where state in ('waiting', 'sending'))"):
        world.clock.move(60)
