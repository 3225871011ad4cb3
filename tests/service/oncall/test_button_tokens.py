"""Signed tokens: a claim survives the round trip, and nothing else is accepted."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import ButtonAction, ButtonClaim
from service.oncall.button_tokens import ButtonSigner, ForgedTokenError, expired

AT = datetime(2026, 5, 4, 12, tzinfo=UTC)
CLAIM = ButtonClaim(ButtonAction.ACKNOWLEDGE, "inc-1", "李", "ding", AT, "abc123")
SIGNER = ButtonSigner("a key of some length", "https://api.example/")
texts = st.text(max_size=40)
claims = st.builds(
    ButtonClaim, st.sampled_from(ButtonAction), texts, texts, texts,
    st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)), texts,
)  # fmt: skip


@given(claims)
def test_a_token_holds_its_claim(claim):
    assert SIGNER.claim(SIGNER.token(claim)) == claim


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text):
    with pytest.raises(ForgedTokenError):
        SIGNER.claim(text)


@given(claims, st.data())
def test_a_changed_token_is_refused(claim, data):
    token = SIGNER.token(claim)
    position = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("abcXYZ019-_.")).replace(token[position], "~")
    changed = token[:position] + letter + token[position + 1 :]
    with pytest.raises(ForgedTokenError):
        SIGNER.claim(changed)


def test_another_key_does_not_verify():
    with pytest.raises(ForgedTokenError):
        replace(SIGNER, key="another key").claim(SIGNER.token(CLAIM))


def test_a_signature_belongs_to_its_payload():
    other = SIGNER.token(replace(CLAIM, subject="inc-2"))
    with pytest.raises(ForgedTokenError):
        SIGNER.claim(f"{other.partition('.')[0]}.{SIGNER.token(CLAIM).partition('.')[2]}")


def test_the_address_fits_into_a_short_message():
    url = SIGNER.url(replace(CLAIM, subject="inc-20261121T0805-3f2a9c", nonce="a" * 24))
    assert url.startswith("https://api.example/api/v1/buttons/")
    assert len(url) < 400


def test_a_button_expires_at_its_time():
    assert not expired(CLAIM, AT - timedelta(seconds=1))
    assert expired(CLAIM, AT)
