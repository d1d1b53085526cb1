"""Secrets in text: none survives, also not in base64 or URL-encoded, and no other text changes."""

import base64
import re
import time
from urllib.parse import quote, quote_plus, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.redaction import MINTED_SECONDS, REDACTED, SHORTEST_SECRET, Redactor, _unquoted, _without_gaps

SECRET = "s3cr3t/with+odd=chars"
KEY_BODY = "\n".join("MIIEowIBAAKCAQEA" + "x9Kq" * 12 for _ in range(5))

secrets = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40).filter(
    lambda text: not set(REDACTED) & set(text) and ">" not in text
)
prose = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=60)
gaps = st.text(st.sampled_from(" \t\n\r>"), max_size=4)


def test_what_looks_like_a_token_or_a_key_is_redacted_though_nobody_knew_it() -> None:
    for token in [
        "ghp_" + "a1B2" * 9,
        "ghs_" + "a1B2" * 9,
        "github_pat_" + "a1B2_" * 12,
        "sk-ant-api03-" + "abCD12-_" * 6,
        "sk-proj-" + "abCD12" * 6,
        "gsk_" + "a1B2" * 13,
        "hf_" + "aBcD" * 9,
        "AKIA" + "ABCDEFGH12345678",
        "AIza" + "a" * 35,
        "ya29." + "a1B2" * 9,
        "xoxb-123456789012-abcdef",
        "https://hooks.slack.com/services/T00000000/B00000000/a1B2a1B2a1B2a1B2a1B2a1B2",
        "glpat-" + "a1B2" * 5,
        "npm_" + "a1B2" * 9,
        "pypi-AgEIcHlwaS5vcmc" + "a1B2" * 12,
        "sk_live_" + "a1B2" * 6,
        "SG." + "a" * 22 + "." + "b" * 43,
        "dckr_pat_" + "a1B2" * 7,
        "hvs." + "a1B2" * 7,
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiIxMjM0NSJ9.c2lnbmF0dXJl",
        f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_BODY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\\n{KEY_BODY}\\n-----END RSA PRIVATE KEY-----".replace("\n", "\\n"),
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n" + KEY_BODY,
        f"> -----BEGIN EC PRIVATE KEY-----\n> {KEY_BODY}".replace("\n", "\n> "),
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk",
        f"-----BEGIN PRIVATE KEY-----\n  2\t{KEY_BODY}\n  7\t-----END PRIVATE KEY-----".replace("\nMII", "\n  3\tMII"),
    ]:
        cleaned = Redactor().redact(f"It is {token} here, and so on")
        assert re.sub(r"https://|>| ", "", cleaned) == f"Itis{REDACTED}here,andsoon"


def test_other_words_stay() -> None:
    for text in [
        "task-list sk- the AKIA prefix, eyJ and gl-something",
        "risk-based-assessment-of-everything-here",
        "sk-navigation-drawer-container--Wide, sk-learn-pipelines-and-other-words",
        "ghp_this-is-not-a-token, npm_config_registry, hf_hub_download, xoxb-your-token-here",
        "glpat-your-token-goes-here",
        "a key begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----\nMIIEowIBAAKCAQEAMIIEowIBAAKCAQEA\n-----END CERTIFICATE-----",
        "postgresql://USER:PASSWORD@HOST:5432/DATABASE at 0123456789abcdef0123456789abcdef01234567",
        "100% of `a\\nb`, 50%25, &amp; and <b>; c:\\users\\name\\x\n\n> quoted\n\n\n",
    ]:
        assert Redactor([SECRET]).redact(text) == text


@given(text=prose)
def test_text_without_secrets_stays(text: str) -> None:
    assert Redactor([SECRET, "another-secret-of-the-bot"]).redact(text) == text


def encodings(secret: str) -> dict[str, str]:
    """Return every spelling of a secret that must not survive."""
    raw = secret.encode()
    percent = quote(secret, safe="")
    return {
        "whole": secret,
        "percent": percent,
        "percent, usual": quote_plus(secret),
        "percent, lower case": re.sub("%..", lambda code: code[0].lower(), percent),
        "percent, all": "".join(f"%{byte:02x}" for byte in raw),
        "lines": "\n".join(secret),
        "quoted": "\n> ".join(secret),
    }


@given(secret=secrets, before=prose, after=prose)
@example(secret="00000000000,", before="%", after="")
def test_a_known_secret_survives_in_no_encoding(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    for name, spelled in encodings(secret).items():
        text = f"{before} {spelled} {after}"
        cleaned = redactor.redact(text)
        assert spelled not in cleaned, name
        assert REDACTED in cleaned, name
        assert not redactor.knows_nothing_of(f"before\n{text}\nafter"), name
        assert len(cleaned) <= len(text) * 5 // 4 + len(REDACTED), name
        if "%" not in secret:
            assert redactor.holds_secret([text.encode(errors="replace")]), name
        assert not redactor.holds_secret([cleaned.encode(errors="replace")]), name


@given(secret=secrets, data=st.data())
def test_a_known_secret_survives_with_no_gaps_between_its_characters(secret: str, data: st.DataObject) -> None:
    assert not secret.endswith(" ")
    spread = "".join(character + data.draw(gaps) for character in secret[:-1]) + secret[-1]
    assert Redactor([secret]).redact(f"It is\n{spread}\nhere") == f"It is\n{REDACTED}\nhere"


@given(secret=secrets, before=st.binary(max_size=7), after=st.binary(max_size=7), urlsafe=st.booleans())
def test_a_known_secret_survives_in_no_base64_text(secret: str, before: bytes, after: bytes, urlsafe: bool) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    encoded = encode(before + secret.encode() + after).decode()
    redactor = Redactor([secret])
    assert redactor.redact(f"x: {encoded}.") == f"x: {REDACTED}."
    assert redactor.redact(f"x: {quote(encoded, safe='')}.").endswith(f"{REDACTED}.")
    assert redactor.holds_secret([f"x: {encoded}.".encode()])


def test_base64_that_was_wrapped_into_lines_is_redacted() -> None:
    redactor = Redactor([SECRET])
    encoded = base64.encodebytes(b"x" * 50 + SECRET.encode() + b"y" * 60).decode()
    for text in (encoded, encoded.replace("\n", "\n> ")):
        left = re.sub(r"[\s>]", "", redactor.redact(text)).split(REDACTED)
        assert not any(SECRET[:4].encode() in base64.b64decode(part[: len(part) // 4 * 4]) for part in left)


def test_the_words_after_a_base64_secret_stay() -> None:
    encoded = base64.b64encode(SECRET.encode()).decode()
    cleaned = Redactor([SECRET]).redact(f"It is {encoded}\nNext I will test.")
    assert cleaned == f"It is {REDACTED}\nNext I will test."


@given(text=prose, known=st.lists(secrets, max_size=3), encoding=st.sampled_from(sorted(encodings(SECRET))))
def test_redacting_twice_changes_nothing_more(text: str, known: list[str], encoding: str) -> None:
    redactor = Redactor(known)
    once = redactor.redact(text + "".join(encodings(secret)[encoding] for secret in known))
    assert redactor.redact(once) == once


@given(
    secret=secrets, encoding=st.sampled_from(sorted(encodings(SECRET))), size=st.integers(1, 30), at=st.integers(0, 30)
)
def test_a_secret_in_a_stream_is_found_wherever_it_was_cut(secret: str, encoding: str, size: int, at: int) -> None:
    text = ("x" * at + " " + encodings(secret)[encoding] + " and more").encode()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert Redactor([secret]).holds_secret(pieces)
    assert not Redactor([SECRET]).holds_secret(pieces)


@given(st.binary())
def test_gaps_and_url_encoding_are_read_as_their_definitions_say(stream: bytes) -> None:
    text = stream.decode("latin-1")
    assert _without_gaps(text) == re.sub(r"[\s>]+", "", text)
    assert _unquoted(text) == unquote(text, "latin-1")


def test_words_and_short_secrets_are_left_alone() -> None:
    text = "the pass word is 'a b c d e f'"
    assert Redactor(["word", "x" * (SHORTEST_SECRET - 1), "a b c d e f"]).redact(text) == text


def test_each_line_of_a_private_key_is_a_secret() -> None:
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_BODY}\n-----END RSA PRIVATE KEY-----\n"
    redactor = Redactor([key])
    assert redactor.redact(f"see {KEY_BODY.splitlines()[1]} there") == f"see {REDACTED} there"
    assert redactor.redact("-----BEGIN RSA PRIVATE KEY-----") == "-----BEGIN RSA PRIVATE KEY-----"


def test_a_token_that_was_minted_is_known_for_an_hour_after_its_end() -> None:
    now = 0.0
    redactor = Redactor(clock=lambda: now)
    redactor.learn("v1.0123456789abcdef")
    now = MINTED_SECONDS - 1
    redactor.learn("v1.another-token-of-later")
    assert redactor.redact("v1.0123456789abcdef") == REDACTED
    now = MINTED_SECONDS + 1
    redactor.learn("v1.a-third-token")
    assert redactor.redact("v1.0123456789abcdef v1.another-token-of-later") == f"v1.0123456789abcdef {REDACTED}"


@pytest.mark.parametrize(
    "piece",
    [
        "prose, 100% of it\n",
        SECRET,
        "\n> ".join(SECRET),
        "\\",
        "%25",
        "sk-",
        "ghp_",
        "eyJaaaaaaaa-",
        "eyJaaaaaaaa.",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n" + "A" * 60,
        base64.b64encode(SECRET.encode()).decode(),
    ],
)
def test_the_time_grows_with_the_text_only(piece: str) -> None:
    redactor = Redactor([SECRET, "aaaaaaaab"])

    def seconds(size: int) -> float:
        text = piece * (size // len(piece)) + "-----END PRIVATE KEY-----"
        started = time.process_time()
        redactor.redact(text)
        return time.process_time() - started

    # Sixteen times the text: a quadratic search would take 256 times as long. Of three runs, the fastest counts.
    small, large = (min(seconds(size) for _ in range(3)) for size in (20_000, 320_000))
    assert large < 50 * small


names = st.text(st.sampled_from("abcXYZ019_-.+~@"), min_size=1, max_size=12).filter(lambda name: name.strip("."))
DATA_DIR = "/var/lib/thread_tree"
PLACED = Redactor(["s3cr3t-of-the-bot"], places=[DATA_DIR])


@given(before=prose, owner=names, folder=names, name=names, below=names, after=prose, is_escaped=st.booleans())
def test_what_is_posted_shows_no_path_of_the_machine(
    before: str, owner: str, folder: str, name: str, below: str, after: str, is_escaped: bool
) -> None:
    for place in (f"worktrees/{owner}/{folder}/{name}/{below}", f"homes/7/{below}", f"checks/{owner}/0/tree/{below}"):
        path = f"{DATA_DIR}/{place}"
        path = re.sub(r"([_*~])", r"\\\1", path) if is_escaped else path
        shown = PLACED.public(f"{before} {path} {after}")
        assert "thread_tree" not in shown
        assert r"thread\_tree" not in shown
        assert below in shown.replace("\\", "") or "[redacted]" in shown
        assert PLACED.public(shown) == shown


def test_what_is_in_a_worktree_is_named_from_there() -> None:
    tree, elsewhere = f"{DATA_DIR}/worktrees/acme/shop/issue-3", "/srv/var/lib/thread_tree/homes/3"
    assert PLACED.public(f'File "{tree}/tests/run.py" in {tree}.') == 'File "tests/run.py" in .'
    assert PLACED.public(f"{DATA_DIR}/homes/12/.cache, {DATA_DIR}/repos/a/b.git") == "~/.cache, repos/a/b.git"
    assert PLACED.public(f"{DATA_DIR}/else, {elsewhere}") == f"DATA_DIR/else, {elsewhere}"
    short = Redactor(places=["/data"])
    assert short.public("A volume at /data, /data/homes/3 and /database") == "A volume at /data, ~ and /database"
    # The log tells operators where something is.
    assert PLACED.redact(tree) == tree
