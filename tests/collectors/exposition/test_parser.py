"""The parser agrees with prometheus_client and reports invalid pages in one message."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from collectors.exposition.parser import Page, Parser
from outrider.errors import CollectError, CollectReason

RECORDINGS = Path(__file__).parents[2] / "recordings"
DATA = Path(os.environ.get("OUTRIDER_DATA", Path(__file__).parents[4] / "shared"))


def ours(page: Page) -> Counter:
    found: Counter = Counter()
    for series, value, stamp in zip(page.series, page.values, page.timestamps, strict=True):
        name = series.name
        if page.types.get(name) == "counter" and not name.endswith("_total"):
            name += "_total"  # prometheus_client renames these
        found[row(name, series.labels, float(value), None if math.isnan(stamp) else float(stamp))] += 1
    return found


def theirs(text: str) -> Counter:
    samples = (sample for family in plain_families(text) for sample in family.samples)
    return Counter(row(one.name, one.labels, float(one.value), one.timestamp) for one in samples)


def row(name, labels, value, stamp):
    return name, tuple(sorted(labels.items())), "NaN" if math.isnan(value) else value, stamp


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)
LABEL_VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=12
)
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**12), 10**12).map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e3", "1.5E-9"]),
)
SAMPLES = st.tuples(
    NAMES,
    st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=4),
    VALUES,
    st.one_of(st.none(), st.integers(0, 2_000_000_000_000)),
)


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def line(name, labels, value, stamp):
    inside = ",".join(f'{label}="{escape(text)}"' for label, text in labels.items())
    series = f"{name}{{{inside}}}" if labels else name
    return f"{series} {value}" if stamp is None else f"{series} {value} {stamp}"


@given(st.lists(SAMPLES, max_size=8))
def test_results_equal_those_of_prometheus_client(samples) -> None:
    text = "".join(line(*sample) + "\n" for sample in samples)
    parser = Parser()
    wanted = theirs(text)
    assert ours(parser.parse(text.encode())) == wanted
    assert ours(parser.parse(text.encode())) == wanted  # warm: from the dictionary


@given(st.lists(st.tuples(SAMPLES, VALUES), max_size=8), st.randoms(use_true_random=False))
def test_fast_and_slow_path_give_equal_results(samples, random) -> None:
    """The next page of a source, and that page with one letter changed."""
    comments = [random.choice(["", "# HELP x y\n", "# TYPE x gauge\n", "\n"]) for _ in samples]
    first, then = (
        "".join(expected + line(*sample) + "\n" for expected, sample in zip(comments, page, strict=True)).encode()
        for page in ([old for old, _ in samples], [(*old[:2], new, old[3]) for old, new in samples])
    )
    parser = Parser()
    for _ in range(2):  # the second time every series is known, and the third page is expected
        parser.parse(first, source="s")
    assert outcome(parser, then, "s") == outcome(Parser(), then, "")
    at = random.randrange(len(then) + 1)
    broken = then[:at] + random.choice([b"", b" ", b"#", b"{", b"1", b"\n", b"x"]) + then[at + random.randrange(2) :]
    assert outcome(parser, broken, "s") == outcome(Parser(), broken, "")


def outcome(parser: Parser, body: bytes, source: str):
    """All rows in order, or the error; either of two broken lines may be named."""
    try:
        page = parser.parse(body, source=source)
    except CollectError as error:
        return error.reason
    rows = zip(page.series, page.values, page.timestamps, strict=True)
    return [row(one.name, one.labels, float(value), repr(float(stamp))) for one, value, stamp in rows]


def test_the_next_page_of_a_source_takes_the_fast_path(monkeypatch) -> None:
    parser, text = Parser(), b'# HELP a b c\n# TYPE a gauge\na{x="y z"} 1\nb 2\n'
    for _ in range(2):
        parser.parse(text, source="one")
    monkeypatch.setattr(Parser, "_parse_fully", None)
    assert parser.parse(text.replace(b" 2", b" NaN"), source="one").values[0] == 1
    parser.parse(text, source="one")
    with pytest.raises(TypeError):  # a source nobody has seen
        parser.parse(text, source="other")
    with pytest.raises(TypeError):
        parser.parse(text.replace(b"b c", b"b d"), source="one")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_page_or_a_collect_error(body) -> None:
    with suppress(CollectError):
        page = Parser().parse(body)
        assert len(page.series) == page.values.size == page.timestamps.size


def test_label_values_may_contain_sample_lines() -> None:
    body = b'a{x="} 5 6",y="b # {} 1",z="q\\"\\\\\\n"} 7\na{x="{"} 1e2 1700000000123\nb 2\n'
    page = Parser().parse(body)
    assert [dict(series.labels) for series in page.series] == [
        {"x": "} 5 6", "y": "b # {} 1", "z": 'q"\\\n'},
        {"x": "{"},
        {},
    ]
    assert page.values.tolist() == [7, 100, 2]
    assert page.timestamps[1] == 1700000000.123


def test_openmetrics_with_exemplars_and_seconds() -> None:
    text = (
        "# TYPE foo histogram\n"
        'foo_bucket{le="1.0"} 4 1700000000.5 # {trace_id="a b"} 0.67 1700000000.1\n'
        'foo_bucket{le="+Inf"} 5 1700000000.5 # {} 3\n'
        "foo_sum 3.5 1700000000.5\nfoo_count 5 1700000000.5\n# EOF\n"
    )
    page = Parser().parse(text.encode())
    wanted = [sample for family in openmetrics_families(text) for sample in family.samples]
    assert [(one.name, one.value) for one in wanted] == [
        (series.name, value) for series, value in zip(page.series, page.values, strict=True)
    ]
    assert page.timestamps[0] == 1700000000.5
    assert page.types["foo"] == "histogram"


def test_quoted_names_of_newer_exporters() -> None:
    page = Parser().parse(b'{"http.requests",code="200"} 3\n{"http.requests","a.b"="c"} 4\n')
    assert page.names["http.requests"].tolist() == [0, 1]
    assert page.series[1].labels == {"a.b": "c"}


def test_white_space_and_comments_are_ignored() -> None:
    page = Parser().parse(b"# HELP a b\n# odd comment\n\n  # indented\n\t\na\t 1\r\nb  2 \n")
    assert [series.name for series in page.series] == ["a", "b"]
    assert page.values.tolist() == [1, 2]
    assert page.samples == 2


def test_a_label_in_another_encoding_is_reported() -> None:
    with pytest.raises(CollectError, match="not valid UTF-8: 'a\\{b=") as caught:
        Parser().parse(b'x 1\na{b="\xff\xfe"} 1\n')
    assert "encoding" in caught.value.hint


def test_an_empty_page_has_no_samples() -> None:
    assert Parser().parse(b"").samples == 0


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (b"<!doctype html><html></html>", CollectReason.NOT_METRICS, "HTML"),
        (b'{"status": "ok"}\n', CollectReason.NOT_METRICS, "JSON"),
        (b"[1, 2]\n", CollectReason.NOT_METRICS, "JSON"),
        (b'a 1\nb{c="d', CollectReason.TRUNCATED, "last line"),
        (b"a 1\nb 12", CollectReason.TRUNCATED, "last line"),
        (b"a 1\nhello world\n", CollectReason.NOT_METRICS, "'hello world'"),
        (b"a 1_000\n", CollectReason.NOT_METRICS, "1_000"),
        (b"a 1 2 3\n", CollectReason.NOT_METRICS, "a 1 2 3"),
        (b'a{b="c" 1\n', CollectReason.NOT_METRICS, "a{b="),
        (b'a{b="1",b="2"} 1\n', CollectReason.NOT_METRICS, "a{b="),
        (b"\xf0\xfe 1\n", CollectReason.NOT_METRICS, "not valid UTF-8"),
        (b'a{b="\xff"} 1\n', CollectReason.NOT_METRICS, "not valid UTF-8"),
    ],
)
def test_invalid_pages_are_rejected(body, reason, words) -> None:
    with pytest.raises(CollectError, match=r"^[^\n]+$") as caught:
        Parser().parse(body)
    assert caught.value.reason == reason
    assert words in caught.value.message


def test_openmetrics_without_eof_is_incomplete() -> None:
    with pytest.raises(CollectError) as caught:
        Parser().parse(b"a 1\n", openmetrics=True)
    assert caught.value.reason == CollectReason.TRUNCATED


def test_pages_that_differ_only_in_values_share_a_layout() -> None:
    parser = Parser()
    first = parser.parse(b'a{b="c"} 1\nd 2\n')
    second = parser.parse(b'a{b="c"} 5\nd 6\n')
    other = parser.parse(b'd 6\na{b="c"} 5\n')
    assert first.layout is second.layout
    assert other.layout is not first.layout
    assert other.layout.rows_in(first.layout).tolist() == [1, 0]


def test_more_series_than_the_limit_take_the_fast_path(monkeypatch) -> None:
    parser = Parser(max_series=10)
    pages = {f"s{n}": "".join(f'm{{source="{n}",i="{i}"}} 1\n' for i in range(6)).encode() for n in range(5)}
    for _ in range(3):
        for source, body in pages.items():
            parser.parse(body, source=source)
    assert len(parser._series) <= 16
    monkeypatch.setattr(Parser, "_parse_fully", None)
    for source, body in pages.items():
        page = parser.parse(body.replace(b" 1", b" 7"), source=source)
        assert page.values.tolist() == [7.0] * 6
        assert page.series[0].labels["source"] == source.removeprefix("s")
    parser.forget("s0")
    with pytest.raises(TypeError):
        parser.parse(pages["s0"], source="s0")


def test_the_cache_is_bounded() -> None:
    parser = Parser(max_series=10, max_layouts=3)
    for number in range(100):
        page = parser.parse(f'a{{n="{number}"}} {number}\n'.encode())
        assert page.values.tolist() == [number]
        assert len(parser._series) <= 12
        assert len(parser._layouts) <= 3


def recorded_pages():
    for path in sorted(RECORDINGS.rglob("*.metrics.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts = [found for found in map(json.loads, lines) if "text" in found]
        yield pytest.param(texts[len(texts) // 2]["text"], id=path.name)


@pytest.mark.parametrize("text", list(recorded_pages()))
def test_recorded_pages_parse_like_prometheus_client(text) -> None:
    assert ours(Parser().parse(text.encode())) == theirs(text)


@pytest.mark.parametrize("path", sorted([*DATA.glob("pages/*.txt"), *DATA.glob("recordings/*/pages/*.txt")]) or [None])
def test_published_pages_parse_like_prometheus_client(path) -> None:
    if path is None:
        pytest.skip(f"no pages of other systems under {DATA}; set OUTRIDER_DATA to try them")
    text = path.read_text(encoding="utf-8")
    text = text if text.endswith("\n") else text + "\n"
    assert ours(Parser().parse(text.encode())) == theirs(text)


def test_pages_that_differ_only_in_types_keep_their_types() -> None:
    """The first page must not decide how later pages are read."""
    parser, line = Parser(), "# TYPE a {}\n"
    pages = {
        "gauge": line.format("gauge"),
        "counter": line.format("counter"),
        "both": line.format("counter") + line.format("gauge"),
    }
    for _ in range(2):
        found = {
            name: parser.parse((expected + "a 1\n").encode(), source=name).layout for name, expected in pages.items()
        }
        assert {name: layout.types["a"] for name, layout in found.items()} == {
            "gauge": "gauge",
            "counter": "counter",
            "both": "counter",
        }
        assert {name: layout.contradicted for name, layout in found.items()} == {
            "gauge": (),
            "counter": (),
            "both": ("a",),
        }
