"""Images and files that people attached to a thread: which addresses are GitHub's own, and where they lead. Pure.

https://docs.github.com/get-started/writing-on-github/working-with-advanced-formatting/attaching-files
"""

import html
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from bot.model import Repository

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_NAME = r"[\w.%()+,@~-]+"
_EVERYWHERE = re.compile(
    f"/user-attachments/(?:assets/{_UUID}|files/[0-9]+/{_NAME})|/storage/user/[0-9]+/files/{_NAME}"
)
_IN_REPOSITORY = re.compile(f"/(?P<repository>{_NAME}/{_NAME})/(?:assets/[0-9]+/{_UUID}|files/[0-9]+/{_NAME})")
_ON_MEDIA_HOST = re.compile(f"/user/[0-9]+/files/{_NAME}")
_ON_IMAGE_HOST = re.compile(f"/[0-9]+/{_NAME}")
_IMAGE_HOSTS = ("user-images.githubusercontent.com", "private-user-images.githubusercontent.com")
# Where github.com keeps the bytes. Its answers lead there with an address that holds for minutes.
_STORES = re.compile(
    r"[\w.-]+\.githubusercontent\.com|github-production-(?:user-asset|repository-file)-[0-9a-f]+\.s3\.amazonaws\.com"
)
_ADDRESS_IN_HTML = re.compile(r"(?:src|href)=\"([^\"]+)\"")


@dataclass(frozen=True, slots=True)
class Uploads:
    """The addresses of what was attached to threads of one repository; `server_url` is GitHub's web address."""

    server_url: str
    repository: Repository
    is_public: bool

    def have(self, address: str) -> bool:
        """Return whether GitHub keeps an attachment at this address, and no other page or file."""
        url = _parsed(address)
        if url is None or _leaves_its_folder(url.path):
            return False
        server = urlsplit(self.server_url)
        if self._is_at_server(address):
            found = _IN_REPOSITORY.fullmatch(url.path)
            ours = found is not None and found["repository"].lower() == self.repository.full_name.lower()
            return ours or _EVERYWHERE.fullmatch(url.path) is not None
        if url.scheme != "https":
            return False
        if server.hostname == "github.com" and url.netloc in _IMAGE_HOSTS:
            return _ON_IMAGE_HOST.fullmatch(url.path) is not None
        return url.netloc == f"media.{server.netloc}" and _ON_MEDIA_HOST.fullmatch(url.path) is not None

    def wants_token(self, address: str) -> bool:
        """Return whether the address is asked for with a token: no other host than GitHub's web server gets it."""
        return not self.is_public and self._is_at_server(address) and self.have(address)

    def _is_at_server(self, address: str) -> bool:
        url, server = _parsed(address), urlsplit(self.server_url)
        return url is not None and (url.scheme, url.netloc.lower()) == (server.scheme, server.netloc.lower())

    def may_lead_to(self, address: str) -> bool:
        """Return whether GitHub's answer for an attachment may send the bot to this address, without credentials."""
        url, server = _parsed(address), urlsplit(self.server_url)
        if url is None or self._is_at_server(address):
            return url is not None
        if url.scheme != "https":
            return False
        is_store = server.hostname == "github.com" and _STORES.fullmatch(url.netloc) is not None
        return is_store or url.netloc == f"media.{server.netloc}"

    def signed_in(self, rendered: str) -> dict[str, str]:
        """Return the addresses in GitHub's HTML of a text that hold for minutes without credentials, by their UUID."""
        found = {}
        for quoted in _ADDRESS_IN_HTML.findall(rendered):
            address = html.unescape(quoted)
            if (key := key_of(address)) and urlsplit(address).query and self.may_lead_to(address):
                found[key] = address
        return found


def key_of(address: str) -> str | None:
    """Return the UUID of an attachment's address."""
    found = re.findall(_UUID, urlsplit(address).path)
    return found[-1].lower() if found else None


def _parsed(address: str) -> SplitResult | None:
    """Return the parts of a plain web address; None where it names a user, or is none."""
    try:
        url = urlsplit(address)
        _ = url.port
    except ValueError:
        return None
    return url if url.scheme in {"http", "https"} and url.hostname and "@" not in url.netloc else None


def _leaves_its_folder(path: str) -> bool:
    """Return whether a client that tidies the path up would ask for another one."""
    plain = unquote(unquote(path))
    return "\\" in plain or any(part in {".", "..", ""} for part in plain.split("/")[1:])
