"""What the receive step ignores for its text: never anything that decide would act on."""

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.github.events import Unreadable
from bot.github.payloads import read
from bot.inbox.actions import Ignore, action_of
from bot.inbox.delivery import delivery_of, may_address
from bot.thread.authority import Policy
from bot.turn.parsing import CommentParser
from bot.verbs import VERBS

# Letters that have further forms: a long s, a Kelvin sign, a dotless and a dotted i are the same letters in a mention.
NAME = "Kiss-bot_2"
NAMES = f"another,{NAME}"
PARSER = CommentParser(NAME, VERBS.commands.values())
MENTIONED_ONLY = CommentParser(NAME, VERBS.commands.values(), bare_commands=False)
POLICY = Policy(bot_id=99, bot_login="tree-bot[bot]", bot_name=NAME, label="threadtree")

PIECES = [
    *(f"@{NAME}", f"@{NAME.lower()}", "@KıſS-BOT_2", "@\u212aİss-bot_2", "@Ki", "ss-bot_2", "@", "K", "iss-bot_2"),
    *("@Ki*s*", "@Kis_", "@~~", "s-b**", "<div>", "&#64", "&#x40", "/plan a", "- /plan *a*", "/review", "字", "：a"),
    *("Kis", "&#64;", "&#0064;", "&#x40;", "&#X0040;", "&commat;", "&#75;", "&lowbar;", "&amp;", "&sol;", "\\"),
    *("\\@", "\\-", "<b>", "</b>", "<!-- a -->", "<!--", "-->", "<!-->", "<a></a>", "<pre>", "</pre>", "<", ">"),
    *("<?x?>", "<![CDATA[a]]>", "[](x)", "[](", "![](x)", "[][a]", "[a]: x", "[", "]", "(", ")", "`", "```", "**"),
    *("_", "~~", "|", "| a |\n|---|\n", "/help", "/status", "/stop all", "/reset", "/HELP", "/ help", "/lgtm", "/"),
    *("help", "stop", "//help", "/pr draft a", " ", "  ", "\t", "\n", "\n\n", "\r", "\r\n", "\0", "\v", "\f"),
    *("\u2028", "\u2029", "\x85", "\x1c", "\u00a0", "\ufeff", "> ", "- ", "1. ", "# ", "    "),
    *("https://example.org/", "www.", "a", "é", "🙏", ".", ",", ":", "!"),
]
TEXT = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
KINDS = (
    *(("issue_comment", "created", "comment"), ("issue_comment", "edited", "comment")),
    *(("pull_request_review_comment", "created", "comment"), ("pull_request_review_comment", "edited", "comment")),
    *(("pull_request_review", "submitted", "review"), ("pull_request_review", "edited", "review")),
    *(("issues", "opened", "issue"), ("issues", "edited", "issue")),
    *(("pull_request", "opened", "pull_request"), ("pull_request", "edited", "pull_request")),
)


def payload(event: str, action: str, where: str, text: str | None, before: str) -> dict[str, Any]:
    noon, ada = datetime(2026, 5, 1, 12, tzinfo=UTC).isoformat(), {"login": "ada", "id": 7}
    written = {"id": 5, "node_id": "N", "user": ada, "created_at": noon, "updated_at": noon, "submitted_at": noon}
    thread = {**written, "number": 3, "title": "T"}
    found: dict[str, Any] = {
        "action": action,
        "repository": {"id": 9, "name": "shop", "owner": {"login": "acme"}},
        "sender": ada,
        "changes": {"body": {"from": before}},
        "pull_request" if event.startswith("pull") else "issue": thread,
    }
    found[where] = {**found.get(where, written), "path": "a.py", "body": text}
    return found


def acts(event: str, content: dict[str, Any]) -> bool:
    """Return whether decide would do more than ignore it."""
    found = read(event, content, "github.com")
    assert not isinstance(found, Unreadable), found
    return found is not None and not isinstance(action_of(found, POLICY, PARSER), Ignore)


@example(text=f"@Ki<b></b>{NAME[2:]} go")
@example(text=f"@Ki**s**{NAME[3:]} go")
@example(text="@Kiss-_bot_2_ go")
@example(text=f"<div>&#64{NAME} go")
@example(text="- /plan it")
@example(text="</b>/review")
@example(text=f"&#64;{NAME} go")
@example(text=f"@{NAME[:4]}[](x){NAME[4:]} go")
@example(text="a\r\u2028\v/help")
@given(text=TEXT)
def test_a_text_in_which_the_parser_finds_something_may_address_the_bot(text: str) -> None:
    text = text.replace("\0", "")  # as payloads are read
    assert not PARSER.parse(text) or may_address(text, NAMES)
    assert not MENTIONED_ONLY.parse(text) or may_address(text, NAMES, bare_commands=False)


@given(
    kind=st.sampled_from(KINDS),
    text=TEXT | st.none() | st.builds("{}{}".format, TEXT, st.text(max_size=20)),
    before=TEXT,
    escaped=st.booleans(),
)
def test_a_delivery_that_decide_acts_on_is_never_ignored(
    kind: tuple[str, str, str], text: str | None, before: str, escaped: bool
) -> None:
    event, action, where = kind
    if text is not None:
        text = text.encode(errors="ignore").decode()  # a lone surrogate is no JSON that is read
    content = payload(event, action, where, text, before)
    body = json.dumps(content).encode() if escaped else orjson.dumps(content)
    state = delivery_of("g", event, body, "github.com", NAMES).state
    assert state == "received" or not acts(event, content)


def test_a_text_without_a_mention_or_a_command_is_ignored() -> None:
    for text in ["nice work", "", None, "see https://example.org/a and /usr/bin", "> /help", NAME]:
        for kind in KINDS:
            event, action, where = kind
            body = orjson.dumps(payload(event, action, where, text, f"@{NAME} before"))
            delivery = delivery_of("g", event, body, "github.com", NAMES)
            assert (delivery.state, delivery.body) == ("ignored", None)
            if text or action == "edited":
                assert delivery_of("g", event, body, "github.com").state == "received", "the names are not known"


def test_a_bare_command_is_ignored_where_every_command_needs_a_mention() -> None:
    for text, state in (("/status", "ignored"), (f"@{NAME} /status", "received")):
        body = orjson.dumps(payload("issue_comment", "created", "comment", text, ""))
        assert delivery_of("g", "issue_comment", body, "github.com", NAMES, bare_commands=False).state == state


def test_a_new_review_on_a_pull_request_of_a_name_of_the_bot_is_decided() -> None:
    for event, action, where in KINDS[2:6]:
        for opener, may_ask in [("another", True), ("Kiss-BOT_2[bot]", True), ("ada", False)]:
            content = payload(event, action, where, "nice work", "")
            content["pull_request"]["user"] = {"login": opener, "id": 9}
            state = "received" if may_ask and action != "edited" else "ignored"
            assert delivery_of("g", event, orjson.dumps(content), "github.com", NAMES).state == state


@pytest.mark.parametrize("action", ["closed", "reopened", "labeled", "assigned"])
def test_what_happens_to_a_thread_is_decided_whatever_its_text_is(action: str) -> None:
    for event, where in (("issues", "issue"), ("pull_request", "pull_request")):
        body = orjson.dumps(payload(event, action, where, "nice work", ""))
        assert delivery_of("g", event, body, "github.com", NAMES).state == "received"


def test_the_search_takes_time_in_proportion_to_the_text() -> None:
    for piece in ["/", "\n/", " /a", "@", "@K", "@Kiss-bot_", "&", "&#0", "\n \t", "@<"]:
        may_address(piece * (1_000_000 // len(piece)), NAMES)
