"""Output of healthy and broken models; event streams split at any byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.probes.result import Outcome, worst
from collectors.probes.sse import Event, EventStream
from collectors.probes.validity import validity_of

GOOD = (
    "January, February, March, April, May, June, July",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
    "一月、二月、三月、四月、五月、六月、七月、八月、九月、十月、十一月、十二月",
    "1月、2月、3月、4月、5月、6月、7月、8月、9月、10月、11月、12月です。",
    "Here are the months:\n\n1. January\n2. February\n3. March\n4. April\n",
    "Январь, февраль, март, апрель, май (January, February)",
    "```python\nimport calendar\nprint(list(calendar.month_name))\n```",
    "The fusion of α and β: see § 3 — “quoted” … 🙂",
    "no no no",
    "12",
)


@pytest.mark.parametrize("text", GOOD)
def test_output_of_healthy_models_is_valid(text: str) -> None:
    assert validity_of(text) is Outcome.OK


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", Outcome.EMPTY),
        (" \n\t", Outcome.EMPTY),
        ("!" * 40, Outcome.REPEATED),
        ("the the the the the the", Outcome.REPEATED),
        ("January, February, and then and then and then and then and then and then and then", Outcome.REPEATED),
        ("好的好的好的好的好的好的好的好的", Outcome.REPEATED),
        ("yes " * 11 + "no " + "yes " * 8, Outcome.REPEATED),
        ("\ufffd\ufffdabc\ufffd", Outcome.GARBLED),
        ("\x00\x01\x02\x03 ok", Outcome.GARBLED),
        ("arro\u0627\u0644\u043c\u0438\u0440 \u0e01\u0e02 \u4e00\u4e01 ziel", Outcome.GARBLED),
    ],
)
def test_output_of_broken_models_is_invalid(text: str, outcome: Outcome) -> None:
    assert validity_of(text) is outcome


def read(body: bytes, cuts: list[int]) -> list[Event]:
    events, found, begin = EventStream(), [], 0
    for cut in [*sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]:
        found += events.feed(body[begin:cut])
        begin = cut
    return [*found, *events.end()]


@given(
    data=st.lists(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1), max_size=4),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 10_000), max_size=8),
    mark=st.booleans(),
)
def test_sse_events_do_not_depend_on_chunk_boundaries(data, end, cuts, mark) -> None:
    lines = [b": comment", b"unknown"]
    for parts in data:
        lines += [b"data: " + part.encode() for part in parts] + [b""]
    body = (b"\xef\xbb\xbf" if mark else b"") + end.join([*lines, b""])
    assert [event.data for event in read(body, cuts)] == ["\n".join(parts) for parts in data]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_arbitrary_bytes_do_not_raise(body: bytes, cuts: list[int]) -> None:
    assert all(isinstance(event.data, str) for event in read(body, cuts))


def test_outcome_codes_are_stable() -> None:
    assert {one.value: one.code for one in Outcome} == {
        "ok": 0, "refused": 1, "timeout": 2, "dns": 3, "tls": 4, "http_status": 5, "wrong_answer": 6, "other": 7,
        "broken_off": 8, "no_generation": 9, "empty": 10, "repeated": 11, "garbled": 12, "stalled": 13,
        "slow_first_token": 14, "slow": 15, "unfinished": 16, "stream_error": 17, "cert_expired": 18,
        "cert_expiring": 19, "not_serving": 20, "wrong_records": 21, "not_asked": 22,
    }  # fmt: skip


def test_the_worst_outcome_is_the_failure_nearest_to_the_network() -> None:
    assert worst([Outcome.OK, Outcome.NO_GENERATION, Outcome.SLOW]) is Outcome.NO_GENERATION
    assert worst([Outcome.HTTP_STATUS, Outcome.DNS]) is Outcome.DNS
    assert worst([Outcome.OK, Outcome.CERT_EXPIRING]) is Outcome.CERT_EXPIRING
    assert all(worst([Outcome.OK, one]) is one for one in Outcome if one is not Outcome.NOT_SENT)


def test_a_long_text_is_judged_by_a_part() -> None:
    words = " ".join(f"word{number}" for number in range(200_000))
    assert validity_of(words) is Outcome.OK
    assert validity_of(words + "!" * 5_000) is Outcome.REPEATED
