from hypothesis import given
from hypothesis import strategies as st

from bot.inbox.delivery import is_signed, sign

SECRET, OLD_SECRET = b"It's a Secret to Everybody", b"the one before"
BODY = b"Hello, World!"


def test_the_documented_example_is_valid() -> None:
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    documented = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert sign(BODY, SECRET) == documented
    assert is_signed(BODY, documented, [SECRET])


def test_during_rotation_both_secrets_are_valid() -> None:
    for secret in (SECRET, OLD_SECRET):
        assert is_signed(BODY, sign(BODY, secret), [SECRET, OLD_SECRET])


def test_another_secret_another_body_and_no_secret_are_wrong() -> None:
    assert not is_signed(BODY, sign(BODY, b"guessed"), [SECRET])
    assert not is_signed(BODY + b" ", sign(BODY, SECRET), [SECRET])
    assert not is_signed(BODY, sign(BODY, b""), [])


@given(st.text(st.characters()))
def test_no_header_makes_it_raise(header: str) -> None:
    assert not is_signed(BODY, header, [SECRET])
