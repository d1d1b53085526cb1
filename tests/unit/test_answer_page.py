"""The agent's Markdown as HTML of a page: what is not named does not get through, whatever was written."""

import re

from hypothesis import given
from hypothesis import strategies as st

from bot.operator.dashboard.answer import LONGEST, html_of

SERVER = "https://github.com"
ALLOWED = re.compile(
    r"</?(?:blockquote|[bh]r|code|del|em|h[3-6]|li|ol|p|pre|strong|sup|table|tbody|t[dhr]|thead|ul|a|span)>"
    r'|<a href="https://github\.com/[^"<>]*" rel="noreferrer">|<span class="dim">'
)
PIECES = st.sampled_from(
    [
        *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<details open ontoggle=alert(1)>"),
        *("<a href='//x'>", "[a](javascript:alert(1))", "[b](https://evil.test)", "![c](https://evil.test/c.png)"),
        *("[d](/turns/1/stop)", "[e](https://github.com/acme/shop)", '[f](https://github.com/"onclick="alert(1))'),
        *("<https://github.com.evil.test>", "# G", "| a | b |\n|---|---|\n| <b> | `</td>` |", "- [x] h"),
        *("```html\n<i>\n```", "[^1]\n\n[^1]: j", "&lt;script&gt;", "\n", "\n\n", "> ", "    ", "**", "`", '"'),
        *("\0", "\ud800"),
    ]
)


@given(st.lists(PIECES, max_size=12).map(" ".join))
def test_no_tag_and_no_address_gets_through_but_those_of_githubs_own_text(markdown: str) -> None:
    shown = html_of(markdown, SERVER)
    assert [tag for tag in re.findall(r"<[^>]*>", shown) if not ALLOWED.fullmatch(tag)] == []
    assert shown.count("<a ") == shown.count("</a>")


def test_an_answer_reads_as_on_github() -> None:
    shown = html_of("# Done\n\n1. **Bold** `code`\n\n![a plan](https://x.test/a.png) [docs](https://x.test/d)", SERVER)
    assert shown.replace("\n", "") == (
        "<h3>Done</h3><ol><li><strong>Bold</strong> <code>code</code></li></ol>"
        '<p>[a plan] docs <span class="dim">(https://x.test/d)</span></p>'
    )
    assert len(html_of("word " * LONGEST, SERVER)) < 2 * LONGEST
