"""Reviews and remarks on lines of the bot's own pull requests: they are requests without a mention."""

import json

import pytest

from bot.simulated.github.model import Comment, Review, ReviewComment
from tests.support.world import EMOJI, Someone, Talk, World

PARTS = "(select coalesce(sum(jsonb_array_length(ask #> '{{review,parts}}')), 0) from requests) = {}"


async def opened_by_the_bot(world: World) -> Talk:
    """Return the pull request that `/pr` opened for an issue."""
    issue = await world.maria.opens_issue("Empty carts", "The total is None.")
    await issue.says("@threadtree-bot write cart.py: total = 0")
    await issue.hears("**Changed**")
    await issue.says("/pr")
    await issue.hears("Opened the pull request [#2](")
    await world.quiet()
    [pull] = world.repository.pulls
    assert pull.author.id == world.github.bot.id
    return world.listen(pull, world.maria)


@pytest.fixture
async def pull(world: World) -> Talk:
    return await opened_by_the_bot(world)


async def remarks(pull: Talk, text: str, by: Someone | None = None) -> ReviewComment:
    """Write a single comment on a line."""
    return await (by or pull.opener).person.review_comment(pull.pull, "cart.py", 1, text)


def eyes(pull: Talk, *of: Comment | Review) -> list[list[str]]:
    bot = pull.world.github.bot.id
    return [[EMOJI.get(r.content, r.content) for r in one.reactions if r.user.id == bot] for one in of]


def in_threads(pull: Talk) -> list[tuple[Comment | None, str]]:
    """Return what the bot wrote in threads of lines: below which remark, and the first line."""
    bot = pull.world.github.bot.id
    own = [one for one in pull.pull.review_comments if one.author.id == bot]
    return [(one.in_reply_to, one.body.partition("\n")[0]) for one in own]


async def asked(pull: Talk) -> list[tuple[str, str]]:
    found = await pull.world.turns("number", "requested_by", "text")
    return [(by, text) for number, by, text in found if number == pull.number]


async def test_a_review_without_a_mention_is_one_request_at_once(world: World, pull: Talk) -> None:
    review = await pull.reviews("write cart.py: total = 1", ("cart.py", 1, "Why not a set?"))
    [inline] = pull.pull.review_comments
    await pull.hears("**Changed** [`threadtree/issue-1`]", "maria's request", f"#pullrequestreview-{review.id})")
    await world.quiet()
    assert (await world.files("threadtree/issue-1"))["cart.py"] == "total = 1"
    assert await asked(pull) == [("maria", f"write cart.py: total = 1\n\nComment {inline.id}:\nWhy not a set?")]
    assert eyes(pull, review) == [["👀"]]
    await world.database.execute("delete from pull_requests")
    await pull.reviews("write cart.py: total = 2")
    await pull.hears("**Changed** [`threadtree/issue-1`]")  # it is the bot's own by GitHub


async def test_single_remarks_of_a_minute_are_one_request_with_answers_in_their_threads(
    world: World, pull: Talk
) -> None:
    first = await remarks(pull, "say Two of three are done.")
    await pull.sees("Waiting. This starts at")
    world.clock.move(20)
    second = await remarks(pull, "Name it sum.")
    left = json.dumps([{"comment_id": second.id, "body": "The name `sum` is taken."}])
    third = await world.maria.person.reply(second, f"out threads.json: {left}")
    await world.until(PARTS.format(3))
    world.clock.move(39)
    assert (await world.turns("state"))[-1] == "queued"
    world.clock.move(2)
    await pull.hears("Two of three are done.")
    await pull.hears("The name `sum` is taken.")
    await world.quiet()

    [(by, text)] = await asked(pull)
    together = [first, second, third]
    assert (by, [part.partition(":")[0] for part in text.split("\n\n")]) == (
        "maria",
        [f"Comment {one.id}" for one in together],
    )
    assert len(pull.thread.comments_by(world.github.bot)) == 1, "the summary"
    assert in_threads(pull) == [(second, "The name `sum` is taken.")]
    assert eyes(pull, *together) == [["👀"]] * 3


async def test_a_single_remark_is_answered_in_its_thread_and_one_on_a_closed_pull_request_starts_nothing(
    world: World, pull: Talk
) -> None:
    remark = await remarks(pull, "say Wrong.")
    await pull.sees("Waiting. This starts at")
    await world.maria.person.edit(remark, "say It is for later.\n\n```suggestion\ntotal = 1\n```")
    world.clock.move(61)
    await pull.hears("It is for later.")
    await world.quiet()
    assert in_threads(pull) == [(remark, "It is for later.")]
    assert not pull.thread.comments_by(world.github.bot)

    world.faults.hold_webhooks("pull_request_review")
    late = await pull.reviews("say Too late.")
    await pull.closes()
    await world.quiet()
    world.faults.release()
    await remarks(pull, "say Later still.")
    await world.quiet()
    assert len(await asked(pull)) == 1
    assert eyes(pull, late) == [[]]


async def test_each_person_has_a_request_of_their_own_and_a_review_ends_the_collecting(
    world: World, pull: Talk
) -> None:
    world.repository.allow(world.olaf.user, "write")
    await remarks(pull, "say One.")
    await pull.sees("Waiting. This starts at")
    await remarks(pull, "say Two.", by=world.olaf)
    await world.until(PARTS.format(2))
    assert (await world.turns("state"))[2:] == ["queued", "queued"]
    await pull.reviews("say Three.")
    for words in ("One.", "Two.", "Three."):
        await pull.hears(words)
    assert [by for by, _ in await asked(pull)] == ["maria", "olaf", "maria"]
    assert set(await world.turns("not_before")) == {None}, "no minute was waited for"


async def test_what_concerns_others_starts_nothing(world: World, pull: Talk) -> None:
    before = await world.turns()
    outside = await world.olaf.person.review(pull.pull, "This is wrong.", comments=[("cart.py", 1, "Why?")])
    robot = await world.someone("lint[bot]", "Bot").person.review(pull.pull, "Line too long.")
    await pull.says("I like it.")
    to_olaf = await remarks(pull, "@olaf what do you think?")
    await world.maria.person.reply(to_olaf, "> @threadtree-bot quoted\n\n👍")
    await remarks(pull, "`total`")
    await remarks(pull, "/lgtm")
    approval = await world.maria.person.review(pull.pull, "Looks good to me.", "approved")
    await world.maria.pushes("by-hand", {"a.py": "x = 1\n"})
    others = await world.maria.opens_pull("By hand", head="by-hand")
    await others.reviews("Please rename x.", ("a.py", 1, "To y."))
    await world.quiet()
    assert await world.turns() == before
    assert eyes(pull, outside, robot, approval, *pull.pull.review_comments) == [[]] * (
        3 + len(pull.pull.review_comments)
    )
    assert not pull.unread


async def test_a_command_beside_a_remark_is_one_and_a_running_request_goes_first(world: World, pull: Talk) -> None:
    gate = world.gate()
    await pull.reviews(f"wait {gate}\nsay One.")
    await pull.sees_working()
    await pull.reviews("/status")
    await pull.hears("Working on")
    await remarks(pull, "say Two.")
    await pull.sees("Queued. One request is ahead of this one.")
    world.clock.move(61)
    gate.open()
    await pull.hears("One.")
    await pull.hears("Two.")


async def test_a_remark_that_is_deleted_while_it_waits_asks_nothing(world: World, pull: Talk) -> None:
    first = await remarks(pull, "say Right.")
    gone = await remarks(pull, "say Never.")
    await world.until(PARTS.format(2))
    await world.maria.person.delete(gone)
    world.clock.move(61)
    await pull.hears("Right.")
    await world.maria.person.edit(first, "say Once more.")
    await world.quiet()  # an edit starts nothing
    assert [text for _, text in await asked(pull)] == ["say Right."]
