"""A search for secrets in a stream finds each spelling, wherever the stream is cut."""

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.redaction import Redactor

SECRETS = ("canary-8f2c61d0", "pass word+42/é", "-----BEGIN KEY-----\nMIIEow==\n-----END KEY-----")


def wrapped(text: str) -> str:
    return "\n".join(f"  {text[start : start + 7]}" for start in range(0, len(text), 7))


def spellings(secret: str, before: str) -> tuple[bytes, ...]:
    encoded = base64.b64encode((before + secret + "!").encode()).decode()
    return (
        *(secret.encode(), quote(secret, safe="").encode()),
        *("".join(f"%{byte:02x}" for byte in secret.encode()).encode(), secret.replace("\n", "\r\n").encode()),
        *(secret.replace(" ", "+").encode(), encoded.encode()),
        *(encoded.replace("+", "-").replace("/", "_").encode(), wrapped(encoded).encode()),
    )


@given(st.data())
def test_every_spelling_is_found_wherever_the_stream_is_cut(data: st.DataObject) -> None:
    secret = data.draw(st.sampled_from(SECRETS))
    spelled = data.draw(st.sampled_from(spellings(secret, data.draw(st.sampled_from(("", "a", "bc"))))))
    text = data.draw(st.sampled_from((b"", b"\n", b"%", b"x" * 100 + b"\\"))) + b"\n" + spelled + b"\n rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert Redactor(SECRETS).holds_secret(pieces)


@pytest.mark.parametrize("text", ["", "canary-8f2c61d1", "%%%", "\\n\\n", "passwordé42"])
def test_other_text_is_no_secret(text: str) -> None:
    assert not Redactor((*SECRETS, "short")).holds_secret([text.encode(), b"", b"%"])
    assert not Redactor().holds_secret([text.encode()])


def test_a_secret_is_found_between_any_number_of_url_encoded_spaces() -> None:
    spelled = ("%20%0A" * 40).join(SECRETS[0]).encode()
    assert Redactor(SECRETS).holds_secret([b"x" * 5000 + spelled + b"%zz" * 2000])
