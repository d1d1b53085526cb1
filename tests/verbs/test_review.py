"""`/review`: one review with remarks on the lines of the diff, and a second round that says only what is new."""

import json

from bot.simulated.github.faults import GraphQLError
from bot.simulated.github.model import ReviewComment
from bot.verbs.review import left as found
from tests.end_to_end.test_confirmed_requests import forge, thread, unmoved, written
from tests.support.world import Talk, World

STATEMENTS = {"last review": (found.last_reviewed.sql, (5, 20_000))}
CART = "def total(items):\n    result = 0\n    for item in items:\n        result += item.price\n    return result\n"
FIX = CART.replace("    return result", "    return result or None").replace("result = 0", "result = None")


def left(summary: str, *comments: dict[str, object]) -> str:
    """Ask for a review; the scripted agent leaves this one."""
    return f"/review\nout review.json: {json.dumps({'summary': summary, 'comments': comments})}"


def on(line: int, body: str, **more: object) -> dict[str, object]:
    return {"path": "cart.py", "line": line, "side": "RIGHT", "body": body, **more}


async def pull_request(world: World, **files: str) -> Talk:
    await world.maria.pushes("main", {"cart.py": CART})
    await world.maria.pushes("fix", {"cart.py": FIX, **files}, base="main")
    return await world.maria.opens_pull("Empty carts", "Counts them.", head="fix")


def lines(remarks: list[ReviewComment]) -> list[tuple[str, int | None, int, str]]:
    return [(one.path, one.start_line, one.line, one.body.partition("\n\n<!-- ")[0]) for one in remarks]


async def test_a_review_has_remarks_on_lines_and_the_next_one_says_only_what_is_new(world: World) -> None:
    pull = await pull_request(world)
    head = pull.pull.head_sha
    suggestion = "None cannot be added to, @olaf.\n\n```suggestion\n    result = 0\n```"
    asked = await pull.says(
        left(
            "It breaks carts with items. Fixes #9.",
            on(2, suggestion),
            on(5, "An empty cart has no total.", start_line=4),
            on(99, "This is far away."),
            {"path": "../../etc/passwd", "line": 1, "body": "Not in the diff."},
        )
    )
    body, remarks = await pull.reviewed("It breaks carts with items. Fixes\u2060 #9.", "· 2 remarks")
    assert asked.reactions == ["👀"]
    assert body.index("`cart.py:99`") < body.index("This is far away.") < body.index("`../../etc/passwd:1`")
    assert lines(remarks) == [
        ("cart.py", None, 2, suggestion.replace("@olaf", "@\u2060olaf")),
        ("cart.py", 4, 5, "An empty cart has no total."),
    ]
    [review] = pull.reviews_of_bot
    assert (review.state, review.commit_id) == ("commented", head)
    assert pull.from_bot == remarks, "the review took the place of the tracking comment"
    assert (await world.branches())["fix"] == head, "no file was changed"

    mended, kept = remarks
    await world.maria.pushes("fix", {"cart.py": FIX.replace("result = None", "result = 0")})
    again = left("Better.", on(5, "An empty cart has no total.", start_line=4), on(3, "Why a loop?"))
    await pull.says(f"{again}\nsave prompt {world.directory / 'prompt.txt'}")
    body, fresh = await pull.reviewed("Better.", "· 1 remark · 1 earlier remark resolved · [what changed since")
    assert f"/compare/{head}...{pull.pull.head_sha})" in body
    assert "Left out: 1 remark that an earlier review made and whose lines did not change." in body
    assert lines(fresh) == [("cart.py", None, 3, "Why a loop?")]
    assert [one.resolved for one in (mended, kept, *fresh)] == [True, False, False]
    prompt = (world.directory / "prompt.txt").read_text()
    assert f"You reviewed commit {head} before." in prompt
    assert f'place="cart.py:5" comment="{kept.id}" state="open"' in prompt
    assert f'place="cart.py" comment="{mended.id}" state="its lines were changed since"' in prompt
    assert "-    result = None\n+    result = 0\n" in prompt, "what changed since"


async def test_the_next_review_says_only_what_is_new_also_without_graphql(world: World) -> None:
    pull = await pull_request(world)
    await pull.says(left("It breaks.", on(2, "None cannot be added to."), on(5, "No total.")))
    await pull.reviewed("It breaks.")
    await world.maria.pushes("fix", {"cart.py": FIX.replace("result = None", "result = 0")})
    world.faults.add(GraphQLError(), path="/graphql", times=None)
    await pull.says(left("Better.", on(5, "No total."), on(3, "Why a loop?")))
    body, fresh = await pull.reviewed("Better.", "· 1 remark", "Left out: 1 remark that an earlier review made")
    assert "resolved" not in body
    assert lines(fresh) == [("cart.py", None, 3, "Why a loop?")]


async def test_after_a_force_push_the_review_is_of_the_new_head_and_says_what_the_agent_saw(world: World) -> None:
    pull = await pull_request(world)
    await pull.says(left("It breaks.", on(2, "None cannot be added to.")))
    await pull.reviewed("It breaks.")
    head = await world.maria.person.amend(world.repository, "fix", {"cart.py": FIX.replace("or None", "or 0")}, "Fix")
    await pull.says(left("Still.", on(5, "Why or?")))
    body, [remark] = await pull.reviewed("Still.", "`fix` was rewritten on GitHub, and this request worked on what is")
    assert (pull.reviews_of_bot[-1].commit_id, remark.line) == (head, 5)
    assert "The bot's files are not at this commit" not in body

    await pull.says("@threadtree-bot write half.txt: half\nfail too hard")
    await pull.hears("**Failed:**")
    await world.maria.person.amend(world.repository, "fix", {"cart.py": CART}, "Fix")
    await pull.says(left("Not there."))
    await pull.reviewed("Not there.", "The bot's files are not at this commit")


async def test_the_label_and_a_request_for_a_review_ask_for_one(world: World) -> None:
    pull = await pull_request(world)
    await world.maria.person.label(pull.thread, "threadtree-review")
    await world.maria.person.request_review(pull.pull, world.maria.person)  # of somebody else
    await world.maria.person.request_review(pull.pull, world.github.bot)
    body, _ = await pull.reviewed("The agent left no `review.json`, so this is its answer as it stands")
    assert body.startswith("I have read your request: “/review”.")
    assert await world.turns("text", "verb", "requested_by") == [("/review", "review", "maria")], "both within a minute"
    assert pull.opening.reactions == ["👀"]

    world.clock.move(120)
    await world.olaf.person.request_review(pull.pull, world.github.bot)
    await pull.hears("Nothing was done for `olaf`")
    await world.maria.person.request_review(pull.pull, world.github.bot)
    await pull.reviewed()
    assert len(pull.reviews_of_bot) == 2

    issue = await world.maria.opens_issue("Empty carts", labels=["threadtree-review"])
    await issue.hears("`/review` is for pull requests")
    assert len(await world.turns()) == 2


async def test_a_review_is_of_the_head_at_its_time_and_leaves_what_people_answered_open(world: World) -> None:
    pull = await pull_request(world)
    head, gate = pull.pull.head_sha, world.gate()
    asked = left("It breaks.", on(2, "None cannot be added to."), on(5, "No total."))
    await pull.says(f"{asked}\nwait {gate}")
    await pull.sees_working()
    await world.maria.pushes("fix", {"cart.py": FIX.replace("or None", "or 0")})
    gate.open()
    _, remarks = await pull.reviewed("It breaks.", "· 2 remarks")
    assert pull.reviews_of_bot[0].commit_id == head != pull.pull.head_sha

    await world.maria.person.reply(remarks[0], "It can.")
    await world.maria.pushes("fix", {"cart.py": CART})
    await pull.says(left("", on(1, "Nothing changed here.")))
    _, fresh = await pull.reviewed("`cart.py:1`\n\nNothing changed here.", ") · 1 earlier remark resolved")
    assert not fresh
    assert [one.resolved for one in remarks] == [False, True], "the last word in the first is a person's"


async def test_a_request_for_a_review_that_github_does_not_show_is_refused(world: World) -> None:
    pull = await pull_request(world)
    there = await pull.says("Just a remark.")
    await forge(world, "issue_comment", action="created", comment=written(there, "/review", "maria", world), **at(pull))
    await unmoved(world, 0)

    world.clock.move(120)
    bot, payloads = world.github.world.user_of(world.github.bot), world.maria.person.acts.payloads
    shown = {"pull_request": payloads.pull(pull.pull), "requested_reviewer": payloads.user(bot)}
    await forge(world, "pull_request", action="review_requested", **shown)
    await unmoved(world, 0)
    assert not pull.reviews_of_bot


def at(pull: Talk) -> dict[str, dict[str, object]]:
    return {"issue": {**thread(pull), "pull_request": {}}}


async def test_files_that_an_agent_without_a_sandbox_changed_are_named_and_not_pushed(world: World) -> None:
    pull = await pull_request(world)
    head = pull.pull.head_sha
    await pull.says(left("It breaks.", on(2, "None cannot be added to.")) + "\nwrite pwned.txt: yes")
    await pull.reviewed("The agent changed files while it should only review: it runs without a sandbox.")
    assert (await world.branches())["fix"] == head
