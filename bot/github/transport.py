"""One request to GitHub: gidgethub's sans-I/O client on our httpx client. Errors are classified, reads retried."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import httpx
import orjson
import structlog
from gidgethub.abc import GitHubAPI
from gidgethub.sansio import create_headers, decipher_response, format_url

from bot import counters
from bot.github.auth import APP_TOKEN_BACKDATED, APP_TOKEN_REUSED, AppCredentials, InstallationToken
from bot.github.errors import NotFound, Refused, Transient, Unauthenticated, classify
from bot.github.graphql import Answer, Path, read_answer
from bot.json_values import without_halves
from bot.sandbox.outbound import why_unreachable

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")

USER_AGENT = "threadtree"
# https://docs.github.com/rest/about-the-rest-api/api-versions
API_VERSION = "2022-11-28"
# GitHub ends a request after 10 s (https://docs.github.com/rest/using-the-rest-api/troubleshooting-the-rest-api#timeouts)
TIMEOUT_SECONDS = 15.0
LARGEST_SKEW = timedelta(minutes=1)
LONGEST_ANSWER_SECONDS = 60.0
# GitHub answers for renamed and transferred repositories with redirects that keep the method
# (https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects).
_REDIRECTS = frozenset({301, 302, 307, 308})
_MOST_REDIRECTS = 3
_MOST_TEXT_BYTES = 20_000_000
BLOCKED_BY = "/dependencies/blocked_by"
"""A list that is never asked for conditionally: it tells the state of other issues, of which its tag need not."""
_READ_BACKOFF_SECONDS = (0.5, 2.0, 5.0)
_LONGEST_WAIT_SECONDS = 10.0
_MOST_KNOWN = 250
_LARGEST_KNOWN_BYTES = 32 * 1024
_RATE_HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `following` is the address of the next one, empty where there is none.

    `is_unchanged`: GitHub said that it is as this process saw it last, which costs nothing of the hour's requests.
    `left`: the part of these that is left, None where GitHub tells of no limit.
    """

    items: list[Any]
    following: str
    is_unchanged: bool
    left: float | None


class Transport(GitHubAPI):
    """gidgethub's URLs, headers, JSON and paging; an answer outside 2xx raises a GitHubError."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        api_url: str,
        graphql_url: str,
        app: AppCredentials | None,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        super().__init__(USER_AGENT, base_url=api_url)
        self._http = http
        self._graphql_url = graphql_url
        self._app = app
        self._clock = clock
        self._sleep = sleep
        self._known: dict[tuple[str, str], tuple[Mapping[str, str], bytes]] = {}
        """The last small answers, by URL and credentials."""
        self._app_token: tuple[datetime, str] | None = None
        self.clock_skew: timedelta | None = None
        """How far GitHub's clock was ahead of ours in its latest answer; None before the first."""
        self.token_scopes: str | None = None
        self.token_expires_at: datetime | None = None
        """What GitHub's latest answer said of a personal token; None where it said nothing."""

    async def sleep(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def installation_token(self, installation_id: int, repository_id: int | None) -> InstallationToken:
        """Issue a token: https://docs.github.com/rest/apps/apps#create-an-installation-access-token-for-an-app

        Raises Unauthenticated where the App was uninstalled or suspended, NotFound where it may not see the repository.
        """
        path, variables = "/app/installations/{id}/access_tokens", {"id": installation_id}
        data = {} if repository_id is None else {"repository_ids": [repository_id]}
        try:
            answer = await self.as_app(lambda jwt: self.post(path, variables, data=data, jwt=jwt))
        except NotFound as problem:
            raise Unauthenticated("the GitHub App is no longer installed there") from problem
        except Refused as problem:
            if problem.status == 422:
                raise NotFound(problem.message) from problem
            raise Unauthenticated(problem.message) from problem
        return InstallationToken(answer["token"], datetime.fromisoformat(answer["expires_at"]), self._clock())

    async def as_app(self, request: Callable[[str], Awaitable[T]]) -> T:
        """Make a request of the App itself; it is made again by GitHub's clock where ours is too far from it."""
        if self._app is None:
            raise TypeError("the bot is no GitHub App")
        try:
            return await request(self._token_of_app(self._app, self._clock()))
        except Unauthenticated:
            if self.clock_skew is None or abs(self.clock_skew) < APP_TOKEN_BACKDATED:
                raise
            return await request(self._token_of_app(self._app, self._clock() + self.clock_skew))

    def _token_of_app(self, app: AppCredentials, now: datetime) -> str:
        """Return a JWT, the one before where it is good for long: GitHub's entity tags are of one token."""
        if self._app_token is None or not timedelta(0) <= now - self._app_token[0] < APP_TOKEN_REUSED:
            self._app_token = now, app.app_token(now)
        return self._app_token[1]

    async def page(
        self, path: str, variables: Mapping[str, Any], *, jwt: str | None = None, oauth_token: str | None = None
    ) -> Page:
        """Return one page of a list."""
        headers = create_headers(USER_AGENT, jwt=jwt, oauth_token=oauth_token)
        url = format_url(path, dict(variables), base_url=self.base_url)
        is_unchanged, answer_headers, body = await self._get(url, {**headers, "x-github-api-version": API_VERSION})
        items, _, following = decipher_response(200, answer_headers, body)
        left = None
        with suppress(KeyError, ValueError, ZeroDivisionError):
            left = int(answer_headers["x-ratelimit-remaining"]) / int(answer_headers["x-ratelimit-limit"])
        return Page(items, following or "", is_unchanged, left)

    async def items(
        self,
        path: str,
        variables: dict[str, Any],
        *,
        oauth_token: str,
        until: Callable[[Any], bool] | None = None,
    ) -> list[Any]:
        """Return the items of every page of a list, or those before the first that is `until`."""
        found = list[Any]()
        async for item in self.getiter(path, variables, oauth_token=oauth_token):
            if until is not None and until(item):
                break
            found.append(item)
        return found

    async def query(self, document: str, variables: Mapping[str, Any], need: Path | None, *, token: str) -> Answer:
        """Make a GraphQL query that needs this part of its answer, None for all. It is retried like a read."""
        headers = create_headers(USER_AGENT, accept="application/json", oauth_token=token)
        headers["content-type"] = "application/json"
        body = orjson.dumps({"query": document, "variables": dict(variables)})

        async def once() -> Answer:
            _, answer_headers, answer = await self._once("POST", self._graphql_url, headers, body)
            return read_answer(orjson.loads(answer or b"null"), answer_headers, need)

        return await self._retried(once)

    async def person_of_code(self, address: str, form: Mapping[str, str]) -> Any:
        """Return the account of the person for whom GitHub gave a code. Their token is used once and kept nowhere.

        https://docs.github.com/apps/oauth-apps/building-oauth-apps/authorizing-oauth-apps#2-users-are-redirected-back-to-your-site-by-github
        """
        headers = create_headers(USER_AGENT, accept="application/json")
        headers["content-type"] = "application/x-www-form-urlencoded"
        _, _, body = await self._once("POST", address, headers, urlencode(form).encode())
        answer = orjson.loads(body)
        if "access_token" not in answer:  # GitHub says so with the status 200
            raise Refused(400, str(answer.get("error", "no token"))[:100])
        headers = create_headers(USER_AGENT, oauth_token=answer["access_token"])
        _, _, body = await self._retried(lambda: self._once("GET", f"{self.base_url}/user", headers, b""))
        return orjson.loads(body)

    async def end_of_text(self, path: str, variables: Mapping[str, Any], most_bytes: int, *, oauth_token: str) -> str:
        """Return the last `most_bytes` of a text that GitHub redirects to. The other host gets no credential."""
        url, kept, read = format_url(path, dict(variables), base_url=self.base_url), b"", 0
        same_kind = urlsplit(url).scheme
        # A host that does not know ranges answers with the whole text, of which no more than this is read.
        span = f"bytes=-{most_bytes}"
        async with self._file(url, oauth_token, lambda to: urlsplit(to).scheme == same_kind, range=span) as chunks:
            async for chunk in chunks:
                kept, read = (kept + chunk)[-most_bytes:], read + len(chunk)
                if read > _MOST_TEXT_BYTES:
                    raise Refused(413, "the text is too long")
        return kept.decode(errors="replace")

    async def download(
        self, url: str, most_bytes: int, *, token: str | None, may_lead_to: Callable[[str], bool]
    ) -> bytes:
        """Return a file of at most `most_bytes`."""
        data = bytearray()
        async with self._file(url, token, may_lead_to) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > most_bytes:
                    raise Refused(413, "the file is too large")
        return bytes(data)

    @asynccontextmanager
    async def _file(
        self, url: str, token: str | None, may_lead_to: Callable[[str], bool], **more: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a file, also one that GitHub redirects to: there no credential goes. Not retried."""
        # Compressed answers could grow beyond a limit while they are unpacked.
        plain = {"user-agent": USER_AGENT, "accept-encoding": "identity", **more}
        headers = {**plain, "authorization": f"bearer {token}"} if token else plain
        how: dict[str, Any] = {"timeout": TIMEOUT_SECONDS, "follow_redirects": False}
        try:
            for _ in range(1 + _MOST_REDIRECTS):
                async with self._http.stream("GET", url, headers=headers, **how) as answer:
                    if answer.is_success:
                        yield answer.aiter_raw()
                        return
                    if answer.status_code not in _REDIRECTS:
                        raise classify(answer.status_code, answer.headers, b"")
                    url, headers = urljoin(url, answer.headers.get("location", "")), plain
                if not may_lead_to(url):
                    raise Refused(answer.status_code, "GitHub redirected to another host")
        except httpx.TransportError as error:
            raise Transient("request", None, f"the file cannot be read ({type(error).__name__})") from error
        raise Refused(508, "GitHub redirected too often")

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**headers, "x-github-api-version": API_VERSION}
        if method == "GET":
            _, answer_headers, answer = await self._get(url, headers)
            return 200, answer_headers, answer
        # A second installation token does no harm; another write that is retried could happen twice.
        if url.endswith("/access_tokens"):
            return await self._retried(lambda: self._once(method, url, headers, body))
        return await self._once(method, url, headers, body)

    async def _get(self, url: str, headers: Mapping[str, str]) -> tuple[bool, Mapping[str, str], bytes]:
        """GET; an answer that GitHub says is unchanged comes from memory and costs nothing of the rate limit.

        The first value says whether it did.
        https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#use-conditional-requests-if-appropriate
        """
        key = (url, headers.get("authorization", ""))
        may_know = not url.partition("?")[0].endswith(BLOCKED_BY)
        known = self._known.pop(key, None) if may_know else None
        if known is not None:
            headers = {**headers, "if-none-match": known[0]["etag"]}
        status, answer_headers, body = await self._retried(lambda: self._once("GET", url, headers, b""))
        is_unchanged = status == 304 and known is not None
        if is_unchanged and known is not None:
            limit = {name: answer_headers[name] for name in _RATE_HEADERS if name in answer_headers}
            answer_headers, body = {**known[0], **limit}, known[1]
        if may_know and "etag" in answer_headers and len(body) <= _LARGEST_KNOWN_BYTES:
            self._known[key] = answer_headers, body
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return is_unchanged, answer_headers, body

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        for backoff in _READ_BACKOFF_SECONDS:
            try:
                return await attempt()
            except Transient as error:
                wait = max(backoff, error.retry_after_seconds or 0)
                if wait > _LONGEST_WAIT_SECONDS:
                    raise
            await self._sleep(wait)
        return await attempt()

    async def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        answer = await self._exchange(method, url, headers, body)
        for _ in range(_MOST_REDIRECTS):
            if answer.status_code not in _REDIRECTS:
                break
            target = urljoin(url, answer.headers.get("location", ""))
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                raise Refused(answer.status_code, "GitHub redirected to another host; the credentials stay here")
            url = target
            answer = await self._exchange(method, url, headers, body)
        if not answer.is_success and answer.status_code != 304:
            raise classify(answer.status_code, answer.headers, answer.content)
        content = answer.content
        try:
            orjson.loads(content or b"null")
        except orjson.JSONDecodeError:
            content = without_halves(content)  # of what people wrote, or of a delivery in GitHub's log
            try:
                orjson.loads(content)
            except orjson.JSONDecodeError as error:  # it comes from a proxy on the way to GitHub
                raise Transient("request", None, "GitHub's answer cannot be read") from error
        return answer.status_code, answer.headers, content

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        started = perf_counter()
        request = _log.bind(method=method, path=urlsplit(url).path)
        try:
            # httpx limits each wait; an answer that trickles must end too.
            async with asyncio.timeout(LONGEST_ANSWER_SECONDS):
                answer = await self._http.request(
                    method, url, headers=dict(headers), content=body, timeout=TIMEOUT_SECONDS, follow_redirects=False
                )
        except (httpx.TransportError, TimeoutError) as error:
            counters.GITHUB_REQUESTS.labels("unreachable").inc()
            request.warning("github-unreachable", error=type(error).__name__, detail=str(error))
            never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
            why, step = why_unreachable(error, url)
            detail = f"GitHub cannot be reached ({why if step else type(error).__name__})"
            raise Transient("request", None, detail, may_have_happened=not never_sent) from error
        with suppress(KeyError, ValueError):
            skew = parsedate_to_datetime(answer.headers["date"]) - self._clock()
            was_wrong = self.clock_skew is not None and abs(self.clock_skew) > LARGEST_SKEW
            if abs(skew) > LARGEST_SKEW and not was_wrong:
                _log.warning("clock-is-wrong", github_is_ahead_seconds=round(skew.total_seconds()))
            self.clock_skew = skew
        self.token_scopes = answer.headers.get("x-oauth-scopes")
        self.token_expires_at = _expiry(answer.headers.get("github-authentication-token-expiration"))
        if self._app is None and answer.is_success:
            expires = self.token_expires_at
            counters.GITHUB_TOKEN_EXPIRES.set(expires.timestamp() if expires else math.inf)
        counters.GITHUB_REQUESTS.labels(answer.status_code).inc()
        with suppress(KeyError, ValueError):
            left = float(answer.headers["x-ratelimit-remaining"])
            counters.GITHUB_RATE_REMAINING.labels(answer.headers.get("x-ratelimit-resource", "core")[:32]).set(left)
        request.debug(
            "github-request",
            status=answer.status_code,
            milliseconds=round((perf_counter() - started) * 1000),
            remaining=answer.headers.get("x-ratelimit-remaining"),
            github_request_id=answer.headers.get("x-github-request-id"),
        )
        return answer


def _expiry(text: str | None) -> datetime | None:
    """Read a time such as `2026-12-31 09:00:00 UTC`, or with an offset such as `+0200`, of a token that expires."""
    with suppress(ValueError):
        return datetime.strptime((text or "").replace("UTC", "+0000"), "%Y-%m-%d %H:%M:%S %z")
    return None
