"""What a delivery says is compared with GitHub before anything is written, and again when its turn starts.

Who knows the webhook secret can sign any payload.
"""

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


async def unmoved(world: World, known: int) -> None:
    """Check that nobody hears of what was forged, and that it became no turn beside those that are `known`."""
    await world.quiet()
    assert [one.body for talk in world.talks for one in talk.unread] == []
    assert len(await world.turns()) == known


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


COMMANDS = (
    *("/worktree remove", "/worktree reset", "/worktree restore", "/reset", "/reset-context", "/undo", "/update"),
    *("/agent custom", "/model big", "/autofix on", "/approve", "/retry", "/stop", "/status", "/help", "/pr"),
    "@threadtree-bot say FORGED.",
)
WRITTEN = """
select (select count(*) from effects), (select count(*) from outbox), (select count(*) from audit),
       (select array_agg(to_jsonb(c) - 'updated_at' order by id) from conversations c),
       (select array_agg(to_jsonb(s) order by id) from sessions s), (select array_agg(state order by id) from worktrees)
"""


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
    assert not any("FORGED." in words for words in await other.hears_all())
    assert await there.hears_all() == []
    assert await world.turns("number", "state") == [(2, "done"), (1, "done")]
    assert await world.database.fetch(rows) == before
    for name in ("acme/shop", "mallory/evil"):
        assert f"/{name}.git" in (world.data_dir / "repos" / f"{name}.git" / "config").read_text()
    failed = await world.database.fetch("select error from deliveries where state = 'failed' order by seq")
    gone = "NotFound: {} was deleted, or the bot may not see it"
    assert [error for (error,) in failed] == [gone.format(name) for name in ("mallory/evil", "acme/shop")]


async def test_what_github_does_not_have_writes_nothing(world: World) -> None:
    issue = await world.maria.opens_issue("Known")
    await issue.says("@threadtree-bot write hello.txt: hello")
    await issue.hears("1 file +1 −0")
    remark, of_olaf = await issue.says("Just a remark."), await issue.says("Just a remark.", by=world.olaf)
    await world.quiet()
    before = await world.database.fetchrow(WRITTEN)
    for command in COMMANDS:
        for there in (remark, of_olaf):
            forged = written(there, command, "maria", world)
            await forge(world, "issue_comment", action="created", issue=thread(issue), comment=forged)
            edit = {"changes": {"body": {"from": ""}}}
            await forge(world, "issue_comment", action="edited", issue=thread(issue), comment=forged, **edit)
    at = f"{world.clock():%Y-%m-%dT%H:%M:%SZ}"
    closed = written(issue.opening, "", "maria", world) | thread(issue) | {"state": "closed", "closed_at": at}
    for action in ("closed", "deleted", "transferred"):
        await forge(world, "issues", action=action, issue=closed)
    await unmoved(world, 1)
    assert await world.database.fetchrow(WRITTEN) == before


async def test_what_was_asked_once_is_not_asked_again_under_other_ids_and_times(world: World) -> None:
    issue = await world.olaf.opens_issue("Wrong total", "append a.txt: y\nsay From the label.")
    await world.maria.person.label(issue.thread, "threadtree")
    await issue.hears("From the label.")
    asked = await issue.says("@threadtree-bot append a.txt: x\nsay Deployed.", by=world.maria)
    await issue.hears("Deployed.")
    update = await issue.says("/update", by=world.maria)
    await issue.hears("The branch has everything")
    world.clock.move(2)
    await world.maria.person.edit(update.comment, "/update\n\nThank you")  # asks nothing new
    await world.quiet()
    known, branches = len(await world.turns()), await world.branches()

    world.clock.move(86_400)
    for said in (asked, update):
        again = written(said, said.comment.body or "", "maria", world)
        for number, action in enumerate(("created", "edited")):
            comment, changes = again | {"node_id": f"again{number}"}, {"body": {"from": ""}}
            await forge(world, "issue_comment", action=action, issue=thread(issue), comment=comment, changes=changes)
    own = written(issue.opening, issue.thread.body or "", "olaf", world) | thread(issue)
    await forge(world, "issues", action="labeled", issue=own, label={"name": "threadtree"})
    await unmoved(world, known)
    assert await world.branches() == branches

    # A label that is taken off and set again is another one.
    await world.maria.person.unlabel(issue.thread, "threadtree")
    await world.maria.person.label(issue.thread, "threadtree")
    await issue.hears("From the label.")


async def test_no_more_than_a_fetch_is_done_before_github_has_shown_the_request(world: World) -> None:
    issue, shown = await world.maria.opens_issue("Greet people"), asyncio.Event()
    at_once = asyncio.Event()
    at_once.set()
    for event in (at_once, shown):  # it is read when it is decided, and when its turn begins
        world.faults.add(Held(event), method="GET", path="*/issues/comments/*")
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
    await unmoved(world, 1)


@pytest.mark.parametrize("gesture", ["labeled", "assigned"])
async def test_a_label_or_an_assignment_that_nobody_made_is_refused(world: World, gesture: str) -> None:
    issue = await world.olaf.opens_issue("Wrong total", "write pwned.txt: by olaf\nsay Pwned.")
    bot = world.github.bot
    given = {"label": {"name": "threadtree"}, "assignee": {"login": bot.login, "id": bot.id, "type": bot.type}}
    own = written(issue.opening, issue.thread.body or "", "olaf", world) | thread(issue)
    await forge(world, "issues", action=gesture, issue=own, **given)
    await unmoved(world, 0)

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
    await unmoved(world, 0)


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
    await unmoved(world, 1)


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
    await issue.says("/retry", by=world.someone("rosa"))
    await issue.hears("**Failed:**")
    # A retry of the retry is one of the first request.
    await issue.says("/retry")
    await issue.hears("**Failed:**")
    assert await world.database.fetchval("select array_agg(retry_of order by turn_id) from requests") == [None, 1, 1]


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
    await unmoved(world, 2)
