"""The agent's Markdown as HTML: GitHub's own parser reads it, and of that only what is named here is written.

So there is no script, no picture of another server, no form, and no link but to GitHub.
"""

import re

from markupsafe import Markup, escape

from bot.markdown import MarkdownError, Node, attribute, walk

LONGEST = 64 * 1024
"""In characters. The whole answer is on GitHub."""
_TAGS = re.compile("blockquote|[bh]r|code|del|em|h[1-6]|li|ol|p|pre|strong|sup|table|tbody|t[dhr]|thead|ul")
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6"}
"""A page has headings of its own above those of an answer."""


def html_of(markdown: str, server_url: str) -> Markup:
    """Return the text as HTML; links lead to `server_url` only. It takes long for a long text: call it in a thread."""
    try:
        pieces = [_html(node, begins, server_url) for node, begins in walk(markdown[:LONGEST], raw=False)]
    except MarkdownError:
        return Markup("<pre>{}</pre>").format(markdown)
    rest = Markup("<p>…</p>") if len(markdown) > LONGEST else Markup()
    return Markup().join([*pieces, rest])


def _html(node: Node, begins: bool, server_url: str) -> Markup:
    tag = node.tag or ""
    if node.is_text_node:
        return escape(node.text_content or "")
    if _TAGS.fullmatch(tag):
        tag = _HEADINGS.get(tag, tag)
        return Markup("<{}>").format(tag) if begins else Markup("</{}>").format(tag)
    if tag == "a":
        return _link(attribute(node, "href"), node.text(), begins, server_url)
    if tag == "img" and begins:
        return Markup("[{}]").format(attribute(node, "alt") or "picture")
    if tag == "input" and begins:
        return escape("☑ " if "checked" in node.attributes else "☐ ")
    return Markup()


def _link(address: str, words: str, begins: bool, server_url: str) -> Markup:
    """Return what begins or ends a link; of one to elsewhere the address is told, where the words do not tell it."""
    if address.startswith(f"{server_url}/"):
        return Markup('<a href="{}" rel="noreferrer">').format(address) if begins else Markup("</a>")
    is_told = not address.startswith(("http:", "https:")) or address.rstrip("/") in words
    return Markup() if begins or is_told else Markup(' <span class="dim">({})</span>').format(address)
