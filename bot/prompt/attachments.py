"""Images and files that people attached to a thread: found in its texts, fetched from GitHub, saved for the agent."""

import asyncio
import contextlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import structlog

from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused
from bot.github.thread_parts import read_rendered
from bot.github.uploads import Uploads, key_of
from bot.markdown import MarkdownError, attribute, walk_visible
from bot.model import Repository
from bot.prompt.builder import Attachment
from bot.redaction import Redactor

SECONDS = 20.0
MOST_FILES = 20
MOST_BYTES = 10_000_000
MOST_BYTES_IN_ALL = 30_000_000
AT_ONCE = 4
# What a model takes in one prompt: https://docs.claude.com/en/docs/build-with-claude/vision
MOST_IMAGES_SHOWN = 10
MOST_SHOWN_BYTES = 3_500_000
MOST_SHOWN_PIXELS = 8_000

_IMAGE_TYPES = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
_IMAGE_STARTS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF87a": "gif", b"GIF89a": "gif"}
_BINARY_STARTS = {b"%PDF-": "pdf", b"PK\x03\x04": "zip", b"\x1f\x8b\x08": "gz"}
_BINARY = frozenset((*_IMAGE_TYPES, *_BINARY_STARTS.values()))
_TEXT_SUFFIXES = frozenset(
    ("txt", "log", "md", "csv", "tsv", "json", "jsonl", "yaml", "yml", "toml", "xml", "html", "svg", "patch", "diff")
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Source:
    """A text that the agent may read. `name` says which, `node_id` is GitHub's id of it."""

    name: str
    body: str
    node_id: str | None


@dataclass(frozen=True, slots=True)
class FileLink:
    """An attachment's address, and the text that it was found in."""

    address: str
    source: Source


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was saved, in the order of the texts, and why the rest was not: one short clause each."""

    saved: tuple[Attachment, ...] = ()
    left_out: tuple[str, ...] = ()


def find_links(sources: Iterable[Source], uploads: Uploads) -> tuple[FileLink, ...]:
    """Return the attachments that a reader of the texts sees, each once. Addresses in code are no attachments."""
    found: dict[str, FileLink] = {}
    for source in sources:
        for address in _addresses(source.body):
            plain = address.split("#", 1)[0]
            if uploads.have(plain):
                found.setdefault(key_of(plain) or plain, FileLink(plain, source))
    return tuple(found.values())


def _addresses(text: str) -> list[str]:
    with contextlib.suppress(MarkdownError):
        nodes = (node for node, begins in walk_visible(text) if begins)
        return [attribute(node, "src" if node.tag == "img" else "href") for node in nodes if node.tag in ("a", "img")]
    return []


async def fetch(
    github: GitHub,
    repository: Repository,
    links: Sequence[FileLink],
    uploads: Uploads,
    folder: Path,
    redactor: Redactor,
) -> Fetched:
    """Save the attachments in the folder, under names of the bot's own; texts without secrets, as in the prompt.

    Raises nothing but cancellation.
    """
    wanted, limit, total = links[:MOST_FILES], asyncio.Semaphore(AT_ONCE), 0
    signing = asyncio.create_task(_signed(github, repository, wanted, uploads))

    async def get(link: FileLink) -> bytes | str:
        """Return the file, or why it is not taken."""
        nonlocal total
        signed = await asyncio.shield(signing)
        async with limit:
            try:
                address = signed.get(key_of(link.address) or "", link.address)
                data = await github.download(repository, address, MOST_BYTES, uploads)
            except GitHubError as problem:
                _log.info("attachment-not-fetched", problem=str(problem))
                return _why(problem)
        total += len(data)
        return data if total <= MOST_BYTES_IN_ALL else f"over {MOST_BYTES_IN_ALL // 1_000_000} MB in all"

    tasks = [asyncio.create_task(get(link)) for link in wanted]
    try:
        await asyncio.wait(tasks, timeout=SECONDS)
        found = [task.result() if task.done() else f"not there after {SECONDS:g} s" for task in tasks]
    finally:
        for task in (signing, *tasks):
            task.cancel()
        await asyncio.gather(signing, *tasks, return_exceptions=True)
    saved, left_out = list[Attachment](), list[str]()
    for link, content in zip(wanted, found, strict=True):
        if isinstance(content, str):
            left_out.append(content)
        elif attachment := await asyncio.to_thread(_save, content, link, len(saved) + 1, folder, redactor):
            saved.append(attachment)
        else:
            left_out.append("of a type that is not taken")
    return Fetched(tuple(saved), (*left_out, *[f"more than {MOST_FILES}"] * (len(links) - len(wanted))))


async def _signed(
    github: GitHub, repository: Repository, links: Sequence[FileLink], uploads: Uploads
) -> dict[str, str]:
    """Return addresses that need no session of a browser: for images in private repositories there are no others."""
    ids = {link.source.node_id for link in links if link.source.node_id and key_of(link.address)}
    if uploads.is_public or not ids:
        return {}
    try:
        rendered = await read_rendered(github, repository, sorted(ids))
    except GitHubError as problem:
        _log.info("attachments-not-signed", problem=str(problem))
        return {}
    return {key: address for text in rendered for key, address in uploads.signed_in(text).items()}


def _why(problem: GitHubError) -> str:
    match problem:
        case NotFound():
            return "not found, or not readable with the bot's token"
        case Refused(status=413):
            return f"over {MOST_BYTES // 1_000_000} MB"
        case Refused(message=message):
            return message
        case _:
            return "not reachable"


def _save(content: bytes, link: FileLink, number: int, folder: Path, redactor: Redactor) -> Attachment | None:
    """Write the file; None for a type that is not taken. Nothing of its name is anybody's but the bot's."""
    suffix = image_type(content) or _file_type(content, link.address)
    if suffix is None:
        return None
    is_image = suffix in _IMAGE_TYPES
    path = folder / f"{'image' if is_image else 'file'}-{number}.{suffix}"
    if suffix not in _BINARY:
        content = redactor.redact(content.decode()).encode()
    path.write_bytes(content)
    media_type = _IMAGE_TYPES[suffix] if is_image and can_be_shown(content) else None
    return Attachment(str(path), link.source.name, media_type)


def image_type(content: bytes) -> str | None:
    """Return the suffix for an image, by its first bytes."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((suffix for start, suffix in _IMAGE_STARTS.items() if content.startswith(start)), None)


def can_be_shown(content: bytes) -> bool:
    """Return whether a model takes this image as it is. One that it refuses would fail the whole turn."""
    if len(content) > MOST_SHOWN_BYTES:
        return False
    match image_type(content):
        case "png":
            return _is_whole_png(content)
        case "jpg":
            return content.rstrip(b"\0").endswith(b"\xff\xd9") and _fits(*_jpeg_size(content))
        case "gif":
            size = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
            return content.endswith(b";") and _fits(*size)
        case "webp":
            return int.from_bytes(content[4:8], "little") + 8 == len(content) and _fits(*_webp_size(content))
        case _:
            return False


def _fits(width: int, height: int) -> bool:
    return 0 < width <= MOST_SHOWN_PIXELS and 0 < height <= MOST_SHOWN_PIXELS


def _is_whole_png(content: bytes) -> bool:
    """https://www.w3.org/TR/png-3/#5Chunk-layout"""
    at, kinds = 8, []
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        body, crc = content[at + 4 : at + 8 + length], content[at + 8 + length : at + 12 + length]
        if zlib.crc32(body).to_bytes(4, "big") != crc:
            return False
        kinds.append(body[:4])
        at += 12 + length
    size = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return kinds[:1] == [b"IHDR"] and b"IDAT" in kinds and kinds[-1:] == [b"IEND"] and _fits(*size)


def _jpeg_size(content: bytes) -> tuple[int, int]:
    """https://www.w3.org/Graphics/JPEG/itu-t81.pdf, annex B: the first frame header tells the size."""
    at = 2
    while at + 9 < len(content) and content[at] == 0xFF:
        marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            return int.from_bytes(content[at + 7 : at + 9], "big"), int.from_bytes(content[at + 5 : at + 7], "big")
        at += 2 + length
    return 0, 0


def _webp_size(content: bytes) -> tuple[int, int]:
    """https://developers.google.com/speed/webp/docs/riff_container"""
    match content[12:16]:
        case b"VP8X":
            return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = content[26:28], content[28:30]
            return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
        case _:
            return 0, 0


def _file_type(content: bytes, address: str) -> str | None:
    """Return the suffix for a file that is no image: by its first bytes, or if it is text, by its name."""
    for start, suffix in _BINARY_STARTS.items():
        if content.startswith(start):
            return suffix
    try:
        is_text = "\0" not in content.decode()
    except UnicodeDecodeError:
        return None
    named = PurePosixPath(unquote(urlsplit(address).path)).suffix.removeprefix(".").lower()
    return (named if named in _TEXT_SUFFIXES else "txt") if is_text and content.strip() else None
