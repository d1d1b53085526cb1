"""Which attachments of a thread are fetched, and which are shown to a model."""

import struct
import zlib

import pytest

from bot.github.uploads import Uploads
from bot.model import Repository
from bot.prompt.attachments import MOST_SHOWN_BYTES, Source, can_be_shown, find_links, image_type

UUID = "0b5c1f6e-3a54-4d2b-9f0e-2f1f6d9a7c11"
ASSET = f"https://github.com/user-attachments/assets/{UUID}"
FILE = "https://github.com/user-attachments/files/123/build.log"
SHOP = Repository("github", 1, "acme", "shop", "main")
UPLOADS = Uploads("https://github.com", SHOP, is_public=False)
ENTERPRISE = Uploads("https://git.acme.example", SHOP, is_public=False)


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def png(width: int = 1, height: int = 1) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" + b"\xff\0\0" * min(width, 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def found(body: str, uploads: Uploads = UPLOADS) -> list[str]:
    return [link.address for link in find_links([Source("the description", body, None)], uploads)]


def test_an_attachment_is_found_wherever_a_reader_sees_it() -> None:
    for body in [
        *(f"![]({ASSET})", f"text ![a picture]({ASSET}) text", f'<img width="300" src="{ASSET}">'),
        *(f"<p><img src='{ASSET}'></p>", f"[screenshot]({ASSET})", f"Look: {ASSET}."),
        *(f"- item\n  > {ASSET}\n", f"![one]({ASSET}) and again ![two]({ASSET}#top)"),
    ]:
        assert found(body) == [ASSET]


def test_an_address_in_code_is_no_attachment() -> None:
    for body in [f"`{ASSET}`", f"```\n![]({ASSET})\n```", f"    ![]({ASSET})", "no address", ""]:
        assert found(body) == []


@pytest.mark.parametrize(
    "address",
    [
        ASSET,
        FILE,
        "https://github.com/acme/shop/files/99/trace%20of%20it.txt",
        f"https://github.com/Acme/Shop/assets/12/{UUID}",
        "https://user-images.githubusercontent.com/1/2-abc.png",
        f"https://private-user-images.githubusercontent.com/1/2-{UUID}.png?jwt=a.b.c",
    ],
)
def test_attachments_are_taken_from_githubs_own_hosts(address: str) -> None:
    assert UPLOADS.have(address)
    assert not ENTERPRISE.have(address)


@pytest.mark.parametrize(
    "address",
    [
        f"http://github.com/user-attachments/assets/{UUID}",
        f"https://github.com.evil.example/user-attachments/assets/{UUID}",
        f"https://github.com@evil.example/user-attachments/assets/{UUID}",
        f"https://user:pass@github.com/user-attachments/assets/{UUID}",
        f"https://github.com:8443/user-attachments/assets/{UUID}",
        f"https://evil.example/user-attachments/assets/{UUID}",
        "https://github.com/user-attachments/assets/../../acme/secret/raw/main/key",
        "https://github.com/user-attachments/files/1/..",
        "https://github.com/user-attachments/files/1/%2e%2e",
        "https://github.com/user-attachments/files/1/%252e%252e%252fsettings",
        "https://github.com/user-attachments/files/1/..%2f..%2fsettings",
        r"https://github.com/user-attachments/files/1/..\..\settings",
        "https://github.com/acme/other/files/99/trace.txt",
        "https://github.com/acme/shop/raw/main/.env",
        "https://github.com/settings/tokens",
        "https://raw.githubusercontent.com/acme/shop/main/.env",
        "https://camo.githubusercontent.com/abc",
        "https://user-images.githubusercontent.com.evil.example/1/2.png",
        "https://169.254.169.254/user-attachments/files/1/a.txt",
        "file:///etc/passwd",
        "https://[::1/x",
        "https://github.com:x/user-attachments/files/1/a.txt",
    ],
)
def test_nothing_else_is_asked_for(address: str) -> None:
    assert not UPLOADS.have(address)
    assert found(f"![]({address})\n\n{address}") == []


def test_an_enterprise_server_has_its_own_addresses() -> None:
    assert ENTERPRISE.have(f"https://git.acme.example/user-attachments/assets/{UUID}")
    assert ENTERPRISE.have(f"https://git.acme.example/storage/user/1/files/{UUID}")
    assert ENTERPRISE.have(f"https://media.git.acme.example/user/1/files/{UUID}")
    assert not ENTERPRISE.have(f"https://media.evil.example/user/1/files/{UUID}")


def test_only_the_server_itself_gets_a_token_and_only_for_private_repositories() -> None:
    assert UPLOADS.wants_token(FILE)
    assert not UPLOADS.wants_token("https://user-images.githubusercontent.com/1/2.png")
    assert not Uploads("https://github.com", SHOP, is_public=True).wants_token(FILE)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://github-production-user-asset-6210df.s3.amazonaws.com/1/a?X-Amz-Signature=x", True),
        ("https://objects.githubusercontent.com/a", True),
        ("https://github.com/login", True),
        ("https://evil.s3.amazonaws.com/github-production-user-asset-6210df.s3.amazonaws.com", False),
        ("https://github-production-user-asset-6210df.s3.amazonaws.com.evil.example/a", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("http://objects.githubusercontent.com/a", False),
    ],
)
def test_a_redirect_leads_to_githubs_stores_only(address: str, allowed: bool) -> None:
    assert UPLOADS.may_lead_to(address) is allowed


def test_signed_addresses_are_found_in_githubs_html_by_their_uuid() -> None:
    signed = f"https://private-user-images.githubusercontent.com/1/2-{UUID}.png?jwt=a.b.c"

    assert UPLOADS.signed_in(f'<p><img src="{signed}&amp;x=1" alt="no"></p>') == {UUID: f"{signed}&x=1"}
    assert UPLOADS.signed_in(f'<img src="https://evil.example/2-{UUID}.png?jwt=a">') == {}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        *((png(), "png"), (b"\xff\xd8\xff\xe0rest", "jpg"), (b"GIF89a", "gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "webp")),
        *((b"<svg>", None), (b"", None)),
    ],
)
def test_an_image_is_told_by_its_first_bytes(content: bytes, kind: str | None) -> None:
    assert image_type(content) == kind


JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 5, 7) + b"\x01\x01\x11\x00..\xff\xd9"
GIF = b"GIF89a" + struct.pack("<HH", 5, 7) + b"rest;"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (png(), True),
        (png(8001, 2), False),
        (png()[:-3], False),
        (png().replace(b"IDAT", b"IDAX"), False),
        (png() + b"\0" * MOST_SHOWN_BYTES, False),
        (JPEG, True),
        (JPEG[:-1], False),
        (GIF, True),
        (GIF[:6] + struct.pack("<HH", 9000, 7) + b"rest;", False),
        (b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + b"\0" * 4 + b"\0" * 4 + b"\1\0\0\1\0\0", True),
        (b"RIFF" + struct.pack("<I", 99) + b"WEBPVP8X" + b"\0" * 4 + b"\0" * 4 + b"\1\0\0\1\0\0", False),
        (b"%PDF-1.7", False),
    ],
)
def test_a_model_is_shown_whole_images_of_a_size_it_takes(content: bytes, shown: bool) -> None:
    assert can_be_shown(content) is shown
