"""Redaction of log lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.events.redact import MOST_CHARACTERS, redacted

SECRETS = (
    "sk-proj-abcdefghijklmnop1234",
    "hf_AbCdEfGhIjKlMnOpQrSt",
    "ghp_abcdefghijklmnopqrstuvwx",
    "glpat-abcdefghij_klmnopqrs",
    "AKIAIOSFODNN7EXAMPLE",
    "nvapi-abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.SflKxwRJSMeKKF2QT4",
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "using {} for the hub", 'key="{}"', "Authorization: Bearer {}", "(token={})"])
def test_known_secrets_are_redacted(secret: str, around: str) -> None:
    assert secret not in redacted(around.format(secret))


@pytest.mark.parametrize(
    ("expected", "gone"),
    [
        ("HF_TOKEN=abc123 not accepted", "abc123"),
        ("api_key: 'very secret words'", "very secret"),
        ("password=hunter2, user=x", "hunter2"),
        ("--api-key=plain-text-key", "plain-text-key"),
        ("GET https://user:pass@hub.example/x?sig=abcdef", "pass"),
        ("GET https://hub.example/x?X-Amz-Signature=abcdef", "abcdef"),
        ("mail ada.lovelace@mail.example.org now", "lovelace"),
        ("connect to 10.99.91.49<58525> failed", "10.99.91.49"),
        ("peer 2001:db8::8a2e:370:7334 closed", "370"),
        ("peer fe80::1 closed", "fe80"),
        ("addr ::ffff:10.0.0.1 closed", "10.0.0.1"),
        ("Received request cmpl-1: prompt: 'my diagnosis is', params: SamplingParams(n=1)", "diagnosis"),
        ('{"messages": [{"role": "user", "content": "my salary"}]}', "salary"),
        ("prompt_token_ids=[1, 2, 3]", "[1, 2"),
        ("-----BEGIN RSA PRIVATE KEY-----MIIEow", "MIIEow"),
    ],
)
def test_sensitive_values_are_redacted(expected: str, gone: str) -> None:
    assert gone not in redacted(expected)


@pytest.mark.parametrize(
    "expected",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has 79.11 GiB",
        "[rank1]:[E ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "c10::Error: CUDA error: an illegal memory access",
        "2026-11-18 12:00:31 [kv_cache_utils.py:1087] GPU KV cache size: 49,152 tokens",
        "max_num_batched_tokens=8192, tokenizer=llama, 812.4 tokens/s",
        "NCCL version 2.27.5+cuda12.9, driver 570.124.06",
        "GPU 00000000:3B:00.0 at 12:00:31",
    ],
)
def test_diagnostic_values_are_kept(expected: str) -> None:
    assert redacted(expected) == expected


@given(st.text())
def test_redaction_never_raises_and_is_idempotent(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == redacted(redacted(once))


@pytest.mark.slow
def test_a_huge_line_is_truncated_before_redaction() -> None:
    assert len(redacted("x" * 100_000)) == MOST_CHARACTERS
