"""One request to GitHub: gidgethub's sans-I/O client on our httpx client. Errors are classified, reads retried."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
import orjson
import structlog
from gidgethub.abc import GitHubAPI
from gidgethub.sansio import format_url

from bot.github.auth import AppCredentials, InstallationToken, TokenKey
from bot.github.errors import Refused, Transient, classify, classify_graphql

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")

USER_AGENT = "threadtree"
# https://docs.github.com/rest/about-the-rest-api/api-versions
API_VERSION = "2022-11-28"
# GitHub ends a request after 10 s (https://docs.github.com/rest/using-the-rest-api/troubleshooting-the-rest-api#timeouts)
TIMEOUT_SECONDS = 15.0
# GitHub answers for renamed and transferred repositories with redirects that keep the method
# (https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api#follow-redirects).
_REDIRECTS = frozenset({301, 302, 307, 308})
_MOST_REDIRECTS = 3
_MOST_TEXT_BYTES = 20_000_000
_READ_BACKOFF_SECONDS = (0.5, 2.0, 5.0)
_LONGEST_WAIT_SECONDS = 10.0

_log = structlog.get_logger()


class Transport(GitHubAPI):
    """gidgethub's URLs, headers, JSON and paging; an answer outside 2xx raises a GitHubError."""

    def __init__(self, http: httpx.AsyncClient, *, api_url: str, graphql_url: str, clock: Clock, sleep: Sleep) -> None:
        super().__init__(USER_AGENT, base_url=api_url)
        self._http = http
        self._graphql_url = graphql_url
        self._clock = clock
        self._sleep = sleep
        self.clock_skew: timedelta | None = None
        """How far GitHub's clock was ahead of ours in its latest answer; None before the first."""

    async def sleep(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def installation_token(self, app: AppCredentials, key: TokenKey) -> InstallationToken:
        """Issue a token: https://docs.github.com/rest/apps/apps#create-an-installation-access-token-for-an-app"""
        answer = await reading(
            self.post(
                "/app/installations/{id}/access_tokens",
                {"id": str(key.installation_id)},
                data={} if key.repository_id is None else {"repository_ids": [key.repository_id]},
                jwt=app.app_token(self._clock()),
            )
        )
        return InstallationToken(answer["token"], datetime.fromisoformat(answer["expires_at"]))

    async def query(self, document: str, variables: Mapping[str, Any], *, token: str) -> Any:
        """Return `data` of a GraphQL query. Not for mutations: it is retried like a read."""
        headers = {
            "user-agent": USER_AGENT,
            "authorization": f"bearer {token}",
            "accept": "application/json",
            "content-type": "application/json",
        }
        body = orjson.dumps({"query": document, "variables": dict(variables)})
        return await self._retried(lambda: self._query_once(headers, body))

    async def end_of_text(self, path: str, variables: Mapping[str, str], most_bytes: int, *, token: str) -> str:
        """Return the last `most_bytes` of a text that GitHub redirects to. The other host gets no credential."""
        url = format_url(path, dict(variables), base_url=self.base_url)
        answer = await self._exchange("GET", url, {"user-agent": USER_AGENT, "authorization": f"bearer {token}"}, b"")
        if answer.status_code not in _REDIRECTS:
            raise classify(answer.status_code, answer.headers, answer.content, self._clock())
        target = urljoin(url, answer.headers.get("location", ""))
        if urlsplit(target).scheme != urlsplit(url).scheme:
            raise Refused(answer.status_code, "GitHub redirected to another kind of address")
        # A host that does not know ranges answers with the whole text, of which no more than this is read.
        headers, kept, read = {"user-agent": USER_AGENT, "range": f"bytes=-{most_bytes}"}, b"", 0
        try:
            async with self._http.stream("GET", target, headers=headers, timeout=TIMEOUT_SECONDS) as text:
                if text.status_code not in {200, 206}:
                    raise Refused(text.status_code, "the text cannot be read")
                async for chunk in text.aiter_bytes():
                    kept, read = (kept + chunk)[-most_bytes:], read + len(chunk)
                    if read > _MOST_TEXT_BYTES:
                        raise Refused(413, "the text is too long")
        except httpx.TransportError as error:
            raise Transient("request", None, f"the text cannot be read ({type(error).__name__})") from error
        return kept.decode(errors="replace")

    async def download(
        self, url: str, most_bytes: int, *, token: str | None, may_lead_to: Callable[[str], bool]
    ) -> bytes:
        """Return a file of at most `most_bytes`. Where GitHub redirects to, no credential goes. Not retried."""
        # Compressed answers could grow beyond the limit while they are unpacked.
        plain = {"user-agent": USER_AGENT, "accept-encoding": "identity"}
        headers = {**plain, "authorization": f"bearer {token}"} if token else plain
        try:
            for _ in range(1 + _MOST_REDIRECTS):
                async with self._http.stream(
                    "GET", url, headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=False
                ) as answer:
                    if answer.status_code not in _REDIRECTS:
                        return await self._content(answer, most_bytes)
                    url, headers = urljoin(url, answer.headers.get("location", "")), plain
                if not may_lead_to(url):
                    raise Refused(answer.status_code, "GitHub redirected to another host")
        except httpx.TransportError as error:
            raise Transient("request", None, f"the file cannot be read ({type(error).__name__})") from error
        raise Refused(508, "GitHub redirected too often")

    async def _content(self, answer: httpx.Response, most_bytes: int) -> bytes:
        if answer.status_code != 200:
            raise classify(answer.status_code, answer.headers, b"", self._clock())
        data = bytearray()
        async for chunk in answer.aiter_raw():
            data += chunk
            if len(data) > most_bytes:
                raise Refused(413, "the file is too large")
        return bytes(data)

    async def _query_once(self, headers: Mapping[str, str], body: bytes) -> Any:
        _, answer_headers, answer = await self._once("POST", self._graphql_url, headers, body)
        try:
            parsed = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise Transient("request", None, "GitHub's GraphQL answer is not JSON") from error
        if parsed.get("errors"):
            raise classify_graphql(parsed["errors"], answer_headers, self._clock())
        return parsed.get("data")

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**headers, "x-github-api-version": API_VERSION}
        # A second installation token does no harm; a write that is retried could happen twice.
        if method == "GET" or url.endswith("/access_tokens"):
            return await self._retried(lambda: self._once(method, url, headers, body))
        return await self._once(method, url, headers, body)

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
        if 200 <= answer.status_code < 300:
            return answer.status_code, answer.headers, answer.content
        raise classify(answer.status_code, answer.headers, answer.content, self._clock())

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        started = perf_counter()
        request = _log.bind(method=method, path=urlsplit(url).path)
        try:
            answer = await self._http.request(
                method, url, headers=dict(headers), content=body, timeout=TIMEOUT_SECONDS, follow_redirects=False
            )
        except httpx.TransportError as error:
            request.warning("github-unreachable", error=type(error).__name__, detail=str(error))
            never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
            detail = f"GitHub cannot be reached ({type(error).__name__})"
            raise Transient("request", None, detail, may_have_happened=not never_sent) from error
        with suppress(KeyError, ValueError):
            self.clock_skew = parsedate_to_datetime(answer.headers["date"]) - self._clock()
        request.info(
            "github-request",
            status=answer.status_code,
            milliseconds=round((perf_counter() - started) * 1000),
            remaining=answer.headers.get("x-ratelimit-remaining"),
            github_request_id=answer.headers.get("x-github-request-id"),
        )
        return answer


async def reading(request: Awaitable[T]) -> T:
    """Await the request. An answer that is not JSON raises Transient: it comes from a proxy on the way to GitHub."""
    try:
        return await request
    except ValueError as error:
        raise Transient("request", None, "GitHub's answer cannot be read") from error
