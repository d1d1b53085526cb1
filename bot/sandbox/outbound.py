"""The way of this machine's requests to other hosts: HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE."""

import base64
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import proxy_bypass

import certifi
import httpx

from bot.files import replace_file

BUNDLE = "ca-bundle.pem"
"""The file in DATA_DIR with the public authorities and those of SSL_CERT_FILE, for programs that read only one file."""
# No, or no known, issuer: https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/#error-codes
_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
# Where common programs look for the authorities: OpenSSL and Go, node, requests and pip, curl, git, cargo.
_CA_VARIABLES = (
    *("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    "CARGO_HTTP_CAINFO",
)


@dataclass(frozen=True, slots=True)
class Outbound:
    """How requests leave this machine. `proxy` is an http address, perhaps with a user and a password.

    `no_proxy`: hosts, `.suffixes`, `host:port`, addresses and networks that are reached directly. `authorities`: a PEM
    file that is trusted besides the public authorities; `bundle`: the file that holds all of them, once it is written.
    """

    proxy: str | None = field(default=None, repr=False)
    no_proxy: str = ""
    authorities: Path | None = None
    bundle: Path | None = None

    def with_bundle(self, directory: Path) -> Self:
        """Write the bundle into the directory, where SSL_CERT_FILE is set. Raises OSError."""
        if self.authorities is None:
            return self
        bundle = directory.resolve() / BUNDLE
        replace_file(bundle, Path(certifi.where()).read_bytes() + b"\n" + self.authorities.read_bytes())
        return replace(self, bundle=bundle)

    def proxy_for(self, host: str, port: int) -> SplitResult | None:
        """Return the address of the proxy for https to this host; None where it is reached directly."""
        if self.proxy is None or host == "localhost" or host.endswith(".localhost"):
            return None
        entries = [entry.strip() for entry in self.no_proxy.split(",")]
        if "*" in entries or proxy_bypass(f"{host}:{port}", {"no": self.no_proxy}):
            return None
        try:
            address = ip_address(host)
        except ValueError:
            return urlsplit(self.proxy)
        is_direct = address.is_loopback or any(_holds(entry, address) for entry in entries)
        return None if is_direct else urlsplit(self.proxy)

    def client(self, timeout: float | httpx.Timeout) -> httpx.AsyncClient:
        """Return a client whose requests leave this way."""
        context = _context(self.authorities)
        if self.proxy is None:
            return httpx.AsyncClient(timeout=timeout, verify=context, trust_env=False)
        return httpx.AsyncClient(timeout=timeout, transport=_Ways(self, context), trust_env=False)

    def for_git(self) -> dict[str, str]:
        """Return the variables of the bot's own git and git-lfs. They hold the proxy's password."""
        return self._proxy_variables() | ({"GIT_SSL_CAINFO": str(self.bundle)} if self.bundle else {})

    def for_programs(self, *, direct: bool) -> dict[str, str]:
        """Return the variables of programs that an agent starts; with `direct` they use this machine's network.

        A proxy that wants a password is not among them.
        """
        has_password = self.proxy is not None and "@" in self.proxy
        found = self._proxy_variables() if direct and not has_password else {}
        return found | (dict.fromkeys(_CA_VARIABLES, str(self.bundle)) if self.bundle else {})

    def _proxy_variables(self) -> dict[str, str]:
        return {"HTTPS_PROXY": self.proxy, "NO_PROXY": self.no_proxy} if self.proxy else {}


class _Ways(httpx.AsyncBaseTransport):
    """Through the proxy or directly, as each request's host asks."""

    def __init__(self, outbound: Outbound, context: ssl.SSLContext) -> None:
        self._outbound = outbound
        self._direct = httpx.AsyncHTTPTransport(verify=context)
        self._proxied = httpx.AsyncHTTPTransport(verify=context, proxy=outbound.proxy)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        through = url.scheme == "https" and self._outbound.proxy_for(url.host, url.port or 443)
        return await (self._proxied if through else self._direct).handle_async_request(request)

    async def aclose(self) -> None:
        await self._proxied.aclose()
        await self._direct.aclose()


def proxy_headers(proxy: SplitResult) -> Mapping[str, str]:
    """Return the header with the user and password of a proxy's address."""
    if proxy.username is None:
        return {}
    named = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(named.encode()).decode()}"}


def why_unreachable(error: BaseException, url: str) -> tuple[str, str | None]:
    """Return why a request to this address failed, and the next step where that is known."""
    for one in _causes(error):
        match one:
            case ssl.SSLCertVerificationError() if one.verify_code in _UNKNOWN_AUTHORITY:
                step = "Set SSL_CERT_FILE to a PEM file with the certificate of that authority."
                return f"the certificate of {urlsplit(url).netloc} is signed by an unknown authority", step
            case ssl.SSLCertVerificationError():
                return f"the certificate of {urlsplit(url).netloc} is not accepted: {one.verify_message}", None
            case httpx.ProxyError():
                return f"the proxy of HTTPS_PROXY answers {one}", "Correct HTTPS_PROXY, or the rules of the proxy."
            case _:
                continue
    return str(error) or type(error).__name__, None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _holds(entry: str, address: IPv4Address | IPv6Address) -> bool:
    """Return whether an entry of NO_PROXY is this address, or a network that it is in."""
    try:
        return address in ip_network(entry, strict=False)
    except ValueError:
        return False


@cache
def _context(authorities: Path | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if authorities is not None:
        context.load_verify_locations(cafile=authorities)
    return context
