"""A parser of Prometheus text 0.0.4 and OpenMetrics 1.0 that remembers every series it has seen.

Pages of one target differ in their values only. A line is therefore split at its last space and the
bytes before it looked up in a dictionary: labels are parsed once per series, and a warm page costs a
dictionary look-up a line. Pages with the same series in the same order share one ``Layout``, so that
whoever evaluates pages can prepare row indices once per layout instead of once per page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from collectors.exposition.format_sniffing import invalid_line, is_openmetrics
from collectors.exposition.template_cache import Template, floats
from outrider.model import Floats

Rows = NDArray[np.intp]
MAX_SERIES = 500_000
MAX_LAYOUTS = 32_768

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(
    rb'\s*(?:([a-zA-Z_:][a-zA-Z0-9_:]*|"(?:[^"\\]|\\.)*")\s*=\s*)?"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))',
)
_ESCAPE = re.compile(r'\\[\\n"]')
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}
_HASH = ord("#")


@dataclass(frozen=True, slots=True)
class Series:
    """A metric name with its labels. ``name`` is the name on the line: ``x_bucket``, not ``x``."""

    name: str
    labels: Mapping[str, str]

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Equal for two lines about the same series, in whatever order their labels stand."""
        return self.name, tuple(sorted(self.labels.items()))

    def __str__(self) -> str:
        """As it would stand on a page, its labels in order."""
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return f"{self.name}{{{inside}}}" if inside else self.name


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """The series of a page in page order. Two pages share a layout when only their numbers differ.

    ``names`` leaves out the ``repeats``: rows of a series that stands on the page before. ``types`` are the first
    that the page gives of each family; ``contradicted`` names the families that it gives another one of as well.
    """

    series: list[Series]
    names: dict[str, Rows]
    types: dict[str, str]
    repeats: int = 0
    contradicted: tuple[str, ...] = ()
    _moves: WeakKeyDictionary[Layout, Rows] = field(default_factory=WeakKeyDictionary)

    def rows_in(self, other: Layout) -> Rows:
        """For each of our rows the row of the same series in another layout, -1 where it has none."""
        found = self._moves.get(other)
        if found is None:
            rows = {series.identity: row for row, series in reversed(tuple(enumerate(other.series)))}
            found = np.array([rows.get(series.identity, -1) for series in self.series], dtype=np.intp)
            self._moves[other] = found
        return found

    @staticmethod
    def of(
        series: Iterable[Series], types: Mapping[str, str] | None = None, contradicted: tuple[str, ...] = ()
    ) -> Layout:
        """Index the series by name."""
        ordered = list(series)
        rows: dict[str, list[int]] = {}
        seen = set()
        for row, one in enumerate(ordered):
            if one.identity not in seen:
                seen.add(one.identity)
                rows.setdefault(one.name, []).append(row)
        names = {name: np.array(found, dtype=np.intp) for name, found in rows.items()}
        return Layout(ordered, names, dict(types or {}), len(ordered) - len(seen), contradicted)


@dataclass(frozen=True, slots=True)
class Page:
    """One parsed page. ``timestamps`` are unix seconds, NaN where the line gives none."""

    layout: Layout
    values: Floats
    timestamps: Floats

    @property
    def series(self) -> list[Series]:
        """What each row of ``values`` is about."""
        return self.layout.series

    @property
    def names(self) -> dict[str, Rows]:
        """The rows of each metric name."""
        return self.layout.names

    @property
    def types(self) -> dict[str, str]:
        """The ``# TYPE`` of each family."""
        return self.layout.types

    @property
    def samples(self) -> int:
        """Sample lines, every one counted."""
        return int(self.values.size)


@dataclass(slots=True)
class Parser:
    """Parses pages; remembers series and layouts up to a bound, then forgets them all at once.

    What a source is expected to serve next outlives that, so a fleet with more series than the bound
    is parsed as fast as a small one.

    Not safe for use from two threads at a time.
    """

    max_series: int = MAX_SERIES
    max_layouts: int = MAX_LAYOUTS
    _ids: dict[bytes, int] = field(default_factory=dict)
    _series: list[Series] = field(default_factory=list)
    _layouts: dict[tuple[bytes, bytes], Layout] = field(default_factory=dict)  # by series and what is said of types
    _heads: list[bytes] = field(default_factory=list)
    _templates: dict[Layout, Template] = field(default_factory=dict)
    _expected: dict[str, tuple[Layout, Template]] = field(default_factory=dict)

    def parse(self, body: bytes, *, openmetrics: bool | None = None, source: str = "") -> Page:
        """Parse a whole page.

        ``openmetrics`` comes from the Content-Type; None means: when the page ends in ``# EOF``.
        ``source`` names whoever serves it: its next page, which will be much like this one, is parsed
        faster. An empty page is a page without samples. Raises CollectError with reason NOT_METRICS (HTML, JSON
        or a malformed line, which is named) or TRUNCATED (the page stops in mid-air).
        """
        if len(self._series) > self.max_series:
            self._forget()
        body = body.removeprefix(b"\xef\xbb\xbf")  # some editors and shells begin a file with a byte order mark
        is_open = is_openmetrics(body, openmetrics)
        expected = self._expected.get(source)
        if expected is not None:
            layout, template = expected
            values = template.values(body)
            if values is not None:
                return Page(layout, values, np.full(values.size, np.nan))
        return self._carefully(body, source, is_open=is_open)

    def _carefully(self, body: bytes, source: str, *, is_open: bool) -> Page:
        """A page of which nothing is known yet."""
        lines = [line for line in body.split(b"\n") if line and line[0] != _HASH]
        parts = [line.rpartition(b" ") for line in lines]
        ids: list[int | None] = [self._ids.get(part[0]) for part in parts]
        raw = [part[2] for part in parts]
        stamps: dict[int, float] = {}
        if None in ids:
            self._learn(lines, parts, ids, raw, stamps, is_open=is_open)
        values = _numbers(raw, lines)
        layout = self._layout(ids, _type_lines(body))
        timestamps = np.full(values.size, np.nan)
        if stamps:
            kept = [number for number, found in enumerate(ids) if found is not None]
            timestamps[:] = [stamps.get(number, np.nan) for number in kept]
        elif source:
            self._expect(source, layout, body, ids)
        return Page(layout, values, timestamps)

    def _expect(self, source: str, layout: Layout, body: bytes, ids: list[int | None]) -> None:
        """Prepare for the next page of a source; sources with the same page share what is prepared."""
        template = self._templates.get(layout)
        expected = self._expected.get(source)
        if template is None or (expected is not None and expected[1] is template):  # its comments have changed
            template = Template.of(body, [self._heads[row] for row in ids if row is not None])
        if template is not None:
            self._templates[layout] = template
            self._expected[source] = layout, template

    def _learn(
        self,
        lines: list[bytes],
        parts: list[tuple[bytes, bytes, bytes]],
        ids: list[int | None],
        raw: list[bytes],
        stamps: dict[int, float],
        *,
        is_open: bool,
    ) -> None:
        """Resolve the lines that the dictionary did not know: new series, timestamps, exemplars."""
        ticks = 1.0 if is_open else 1000.0  # a second
        for number, found in enumerate(ids):
            if found is not None:
                continue
            head, _, value = parts[number][0].rpartition(b" ")
            known, stamp = self._ids.get(head), parts[number][2]
            try:
                if known is None or stamp.startswith(b"#"):
                    head, rest = _split_line(lines[number])
                    value, stamp = _value_and_stamp(rest)
                    known = self._ids.get(head)
                    if known is None:
                        known = self._remember(head)
                ids[number], raw[number] = known, value
                if stamp:
                    stamps[number] = float(stamp) / ticks
            except _BlankLineError:
                raw[number] = b""
            except ValueError as error:
                raise invalid_line(lines[number]) from error
        if any(found is None for found in ids):
            kept = [number for number, found in enumerate(ids) if found is not None]
            places = {old: new for new, old in enumerate(kept)}
            raw[:] = [raw[number] for number in kept]
            lines[:] = [lines[number] for number in kept]
            ids[:] = [ids[number] for number in kept]
            moved = {places[number]: stamp for number, stamp in stamps.items()}
            stamps.clear()
            stamps.update(moved)

    def _remember(self, head: bytes) -> int:
        series = _parse_series(head)
        self._series.append(series)
        self._heads.append(head)
        self._ids[head] = len(self._series) - 1
        return len(self._series) - 1

    def _layout(self, ids: list[int | None], said: list[bytes]) -> Layout:
        key = np.array(ids, dtype=np.int64).tobytes(), b"\n".join(said)
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= self.max_layouts:
                self._layouts.clear()
                self._templates.clear()
            found = Layout.of((self._series[row] for row in ids if row is not None), *_types(said))
            self._layouts[key] = found
        return found

    def forget(self, source: str) -> None:
        """Let go of what is expected of a source that serves no more."""
        self._expected.pop(source, None)

    def _forget(self) -> None:
        """Let go of the dictionary. What sources are expected to serve next stays: they need it no more."""
        self._ids.clear()
        self._series.clear()
        self._heads.clear()
        self._layouts.clear()
        self._templates.clear()


class _BlankLineError(Exception):
    """The line holds only white space or an indented comment."""


def _numbers(raw: list[bytes], lines: list[bytes]) -> Floats:
    values = floats(raw)
    if values is None:
        raise invalid_line(next(line for line, text in zip(lines, raw, strict=True) if floats([text]) is None))
    return values


def _split_line(line: bytes) -> tuple[bytes, bytes]:
    """A line into the bytes of its series and what follows. Raises ValueError, _BlankLineError."""
    text = line.strip()
    if not text or text[0] == _HASH:
        raise _BlankLineError
    name = _NAME.match(text)
    end = name.end() if name else 0
    brace = end + len(text[end:]) - len(text[end:].lstrip())
    if text[brace : brace + 1] == b"{":
        end = _labels_end(text, brace + 1)
    elif name is None or text[end : end + 1] not in {b" ", b"\t"}:
        raise ValueError("no name, or nothing behind it")
    return text[:end], text[end:]


def _labels_end(text: bytes, start: int) -> int:
    """The position behind the closing brace of a label set whose first byte is at ``start``."""
    while True:
        found = _LABEL.match(text, start)
        if found is None:
            rest = text[start:]
            if rest.lstrip()[:1] == b"}":
                return start + len(rest) - len(rest.lstrip()) + 1
            raise ValueError("a malformed label")
        start = found.end()


def _value_and_stamp(rest: bytes) -> tuple[bytes, bytes]:
    """The value and the timestamp, empty when there is none. An exemplar behind ``#`` is left out."""
    fields = rest.partition(b" #")[0].split()
    if not 1 <= len(fields) <= 2:
        raise ValueError("a sample has a value and at most a timestamp")
    return fields[0], fields[1] if len(fields) == 2 else b""


def _parse_series(head: bytes) -> Series:
    name, brace, inside = head.partition(b"{")
    if not brace:
        return Series(sys.intern(name.decode()), {})
    labels: dict[str, str] = {}
    metric = name.strip().decode()
    position = 0
    while found := _LABEL.match(inside, position):
        position = found.end()
        value = _unescape(found[2].decode())
        if found[1] is None:
            if metric:
                raise ValueError("two metric names")
            metric = value
            continue
        label = found[1].decode()
        label = sys.intern(_unescape(label[1:-1]) if label.startswith('"') else label)
        if label in labels:
            raise ValueError("a label given twice")
        labels[label] = sys.intern(value)
    if not metric:
        raise ValueError("no metric name")
    return Series(sys.intern(metric), labels)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: _UNESCAPED[found[0]], text) if "\\" in text else text


def _type_lines(body: bytes) -> list[bytes]:
    """The ``# TYPE`` lines of a page; looked for, since most lines are none."""
    found, at = list[bytes](), body.find(b"# TYPE ")
    while at >= 0:
        end = body.find(b"\n", at)
        end = len(body) if end < 0 else end
        if at == 0 or body[at - 1 : at] == b"\n":
            found.append(body[at:end])
        at = body.find(b"# TYPE ", end)
    return found


def _types(lines: Iterable[bytes]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The first type that ``# TYPE`` lines give of each family, and the families of which they give another one too."""
    found: dict[str, str] = {}
    contradicted: dict[str, None] = {}
    for line in lines:
        words = line.decode(errors="replace").split()
        if len(words) >= 4:
            family = words[2].strip('"')
            if found.setdefault(family, words[3]) != words[3]:
                contradicted[family] = None
    return found, tuple(contradicted)
