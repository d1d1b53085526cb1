"""Web pages of the simulation: the repositories and their threads, for a browser, and boxes to write on them."""

import base64
import hashlib
import re
from datetime import datetime
from html import escape
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from bot.markdown import to_html
from bot.simulated.github.errors import not_found
from bot.simulated.github.git import GitFailedError
from bot.simulated.github.model import Comment, Issue, Pull, Repository, User
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.world import find_thread

# A thread follows the bot's work; what a person is writing stays.
_FOLLOW = """
setInterval(async () => {
  const answer = await fetch(location.href), shown = document.getElementById("posts");
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const now = page.getElementById("posts");
  if (now && now.innerHTML !== shown.dataset.seen) {
    const open = [...shown.querySelectorAll("details")].map((fold) => fold.open);
    shown.innerHTML = shown.dataset.seen = now.innerHTML;
    shown.querySelectorAll("details").forEach((fold, at) => { fold.open = open[at] ?? false; });
  }
}, 1000);
"""
# Texts come from any user, and Markdown may hold HTML: nothing else in these pages may run or load anything.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; connect-src 'self'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_FOLLOW.encode()).digest()).decode()}'"
}
# https://docs.github.com/get-started/writing-on-github/getting-started-with-writing-and-formatting-on-github/basic-writing-and-formatting-syntax#alerts
_ALERT = re.compile(r"<blockquote([^>]*)>\s*<p([^>]*)>\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\s*")
_LONGEST_DIFF = 50_000
_LARGEST_FORM = 200_000
_EMOJI = {
    "+1": "👍",
    "-1": "👎",
    "laugh": "😄",
    "confused": "😕",
    "heart": "❤️",
    "hooray": "🎉",
    "rocket": "🚀",
    "eyes": "👀",
}
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
article { border: 1px solid #d1d9e0; border-radius: 6px; margin: 1rem 0; overflow-wrap: anywhere }
article > header { background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: .5rem 1rem; color: #59636e }
article > div { padding: .25rem 1rem }
pre, code { font: 12px/1.45 ui-monospace, monospace; background: #f6f8fa; border-radius: 4px; padding: .1em .3em }
pre { padding: .75rem; overflow: auto } blockquote { border-left: 3px solid #0969da; margin: 0; padding: 0 1rem }
.alert > p:first-child::before { content: attr(data-alert); display: block; font-weight: 600; color: #0969da }
label { display: block } select { font: inherit } time { float: right } :root { color-scheme: light }
.state { border-radius: 1rem; background: #1a7f37; color: #fff; padding: .1rem .6rem } .closed { background: #8250df }
article p { white-space: pre-line } a { color: #0969da } sub { color: #59636e } form { margin: 1.5rem 0 }
input, textarea { font: inherit; display: block; width: 100%; box-sizing: border-box; margin: .25rem 0 .5rem }
input[type=checkbox] { display: inline; width: auto; margin: 0 .4rem 0 0 }
"""


class Pages:
    """The pages of one world."""

    def __init__(self, acts: Acts) -> None:
        self._acts, self._world = acts, acts.world

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        return [
            Route("/", self._home, methods=["GET"]),
            Route("/{owner}/{repo}/issues/new", self._open_issue, methods=["POST"]),
            *(
                Route(f"/{{owner}}/{{repo}}/{folder}/{{number:int}}", endpoint, methods=[method])
                for folder in ("issues", "pull")
                for method, endpoint in (("GET", self._thread), ("POST", self._comment))
            ),
            Route("/{owner}/{repo}/compare/{range:path}", self._compare, methods=["GET"]),
            Route("/{owner}/{repo}/tree/{branch:path}", self._tree, methods=["GET"]),
        ]

    async def _home(self, _: Request) -> Response:
        items = [
            f'<li><a href="/{escape(repository.full_name)}/{_folder(thread)}/{thread.number}">'
            f"{escape(repository.full_name)}#{thread.number}</a> {escape(thread.title)} ({thread.state})</li>"
            for repository in self._world.repositories.values()
            for thread in repository.threads.values()
        ]
        boxes = [
            f"<h2>New issue in {escape(repository.full_name)}</h2>"
            + _box(f"/{repository.full_name}/issues/new", people, "Open the issue", with_title=True)
            for repository in self._world.repositories.values()
            if (people := self._people(repository))
        ]
        return _page("Threads", f"<h1>Threads</h1><ul>{''.join(items)}</ul>{''.join(boxes)}")

    async def _open_issue(self, request: Request) -> Response:
        repository, form = self._repository(request), await _form(request)
        opener = self._writer(repository, form)
        issue = self._acts.open_issue(opener, repository, form.get("title") or "No title", form.get("body"))
        return RedirectResponse(f"/{repository.full_name}/issues/{issue.number}", 303)

    async def _comment(self, request: Request) -> Response:
        """Write a comment, close the thread or open it again, or both."""
        repository, form = self._repository(request), await _form(request)
        thread, writer = find_thread(repository, request.path_params["number"]), self._writer(repository, form)
        if form.get("body", "").strip():
            self._acts.comment(writer, thread, form["body"])
        match form.get("state"):
            case "open" | "closed" as state if not (isinstance(thread, Pull) and thread.merged):
                self._acts.set_state(writer, thread, state)
        return RedirectResponse(request.scope["path"], 303)

    def _people(self, repository: Repository) -> list[User]:
        """Return who can write on these pages: who has a right in the repository, then everybody else."""
        owners = {one.owner.id for one in self._world.repositories.values()}
        programs = {token.user.id for token in self._world.tokens.values()}
        people = [user for user in self._world.users.values() if user.id not in owners | programs]
        return sorted(people, key=lambda user: (user.id not in repository.permissions, user.id))

    def _writer(self, repository: Repository, form: dict[str, str]) -> User:
        """Return the person who was chosen, or the first."""
        people = self._people(repository)
        chosen = next((user for user in people if user.login == form.get("as")), None)
        if not people:
            raise not_found()
        return chosen or people[0]

    async def _compare(self, request: Request) -> Response:
        """Show what one commit or branch changed since another, and the pull request that the address fills in."""
        repository = self._repository(request)
        base, dots, head = request.path_params["range"].partition("...")
        if not dots:
            raise not_found()
        since, until = await _commit(repository, base), await _commit(repository, head)
        diff = await repository.git.run("diff", f"{since}...{until}", "--")
        query = request.query_params
        form = _post("Open a pull request", f"### {query.get('title', '')}\n\n{query.get('body', '')}", "")
        shown = form if "quick_pull" in query else ""
        return _page(
            f"{base}...{head} · {repository.full_name}",
            f"<h1>{escape(base)} … {escape(head)}</h1>{shown}<pre>{escape(diff[:_LONGEST_DIFF])}</pre>",
        )

    async def _tree(self, request: Request) -> Response:
        """List the files of a branch."""
        repository, branch = self._repository(request), request.path_params["branch"]
        listed = await repository.git.run("ls-tree", "-r", "--name-only", await _commit(repository, branch))
        items = "".join(f"<li>{escape(name)}</li>" for name in listed.splitlines())
        return _page(f"{branch} · {repository.full_name}", f"<h1>{escape(branch)}</h1><ul>{items}</ul>")

    def _repository(self, request: Request) -> Repository:
        repository = self._world.repository(f"{request.path_params['owner']}/{request.path_params['repo']}")
        if repository is None:
            raise not_found()
        return repository

    async def _thread(self, request: Request) -> Response:
        repository = self._repository(request)
        thread = find_thread(repository, request.path_params["number"])
        return _page(f"{thread.title} · {repository.full_name}#{thread.number}", self._told(repository, thread))

    def _told(self, repository: Repository, thread: Issue) -> str:
        merged = isinstance(thread, Pull) and thread.merged
        state = "merged" if merged else thread.state
        head = (
            f'<p><a href="/">Threads</a> · {escape(repository.full_name)}</p><h1>{escape(thread.title)} '
            f'#{thread.number}</h1><p><span class="state {"" if state == "open" else "closed"}">{state}</span></p>'
        )
        comments = sorted([*thread.comments, *_inline(thread)], key=lambda comment: (comment.created_at, comment.id))
        written: list[Issue | Comment] = [thread, *comments]
        posts = [
            _post(
                post.author.login,
                post.body or "",
                " ".join(_EMOJI[reaction.content] for reaction in post.reactions),
                post.created_at,
                edited=isinstance(post, Comment) and bool(post.edits),
            )
            for post in written
        ]
        return f'{head}<div id="posts">{"".join(posts)}</div>{self._comment_box(repository, thread)}'

    def _comment_box(self, repository: Repository, thread: Issue) -> str:
        people = self._people(repository)
        if not people:
            return ""
        address = f"/{repository.full_name}/{_folder(thread)}/{thread.number}"
        words, state = ("Close", "closed") if thread.state == "open" else ("Open again", "open")
        box = _box(address, people, "Comment", f'<button name="state" value="{state}">{words}</button>')
        return f"{box}<script>{_FOLLOW}</script>"


def _post(login: str, text: str, reactions: str, at: datetime | None = None, *, edited: bool = False) -> str:
    time = f'<time datetime="{at.isoformat()}">{at:%H:%M:%S} UTC</time>' if at else ""
    return (
        f"<article><header>{time}<b>{escape(login)}</b>{' · edited' if edited else ''}</header>"
        f"<div>{_with_alerts(to_html(text))}<p>{reactions}</p></div></article>"
    )


def _with_alerts(html: str) -> str:
    return _ALERT.sub(lambda found: f'<blockquote class="alert"><p data-alert="{found[3].title()}">', html)


def _box(address: str, people: list[User], words: str, more: str = "", *, with_title: bool = False) -> str:
    names = "".join(f"<option>{escape(person.login)}</option>" for person in people)
    title = '<label>Title <input name="title"></label>' if with_title else ""
    return (
        f'<form method="post" action="{escape(address)}"><label>Write as <select name="as">{names}</select></label>'
        f'{title}<label>Text <textarea name="body" rows="4"></textarea></label><button>{words}</button> {more}</form>'
    )


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form of these pages: another site's page may not write here."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise not_found()
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM:
            raise not_found()
    return dict(parse_qsl(body.decode(errors="replace")))


async def _commit(repository: Repository, name: str) -> str:
    """Return the commit of a branch, or of an object name."""
    for revision in (f"refs/heads/{name}", name):
        try:
            return await repository.git.run(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
            )
        except GitFailedError:
            continue
    raise not_found()


def _inline(thread: Issue) -> list[Comment]:
    return list(thread.review_comments) if isinstance(thread, Pull) else []


def _folder(thread: Issue) -> str:
    return "pull" if isinstance(thread, Pull) else "issues"


def _page(title: str, content: str) -> Response:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{content}</html>",
        headers=_HEADERS,
    )
