"""Addresses of pages on GitHub. Pure; `web` is the address of the repository's own page."""

from urllib.parse import quote, urlencode

LONGEST_URL = 8_000
"""Servers and browsers refuse addresses of more than about 8 KB."""


def branch_page(web: str, branch: str) -> str:
    return f"{web}/tree/{quote(branch)}"


def diff_page(web: str, before: str, after: str) -> str:
    return f"{web}/compare/{before}...{after}"


def commit_page(web: str, commit: str) -> str:
    return f"{web}/commit/{commit}"


def raw_file(web: str, commit: str, name: str) -> str:
    return f"{web}/raw/{commit}/{quote(name)}"


def new_pull_request_page(web: str, base: str, branch: str, title: str, body: str) -> str:
    """Return the page that opens a pull request, filled in; a body that is too long for an address is cut.

    https://docs.github.com/pull-requests/collaborating-with-pull-requests/proposing-changes-to-your-work-with-pull-requests/using-query-parameters-to-create-a-pull-request
    """
    page = f"{web}/compare/{quote(base)}...{quote(branch)}?"
    room = len(body)
    while True:
        shown = body if room == len(body) else f"{body[:room].rstrip()}…"
        url = page + urlencode({"quick_pull": "1", "title": title, "body": shown}, quote_via=quote, errors="replace")
        if len(url) <= LONGEST_URL or not room:
            return url
        room = room * 3 // 4
