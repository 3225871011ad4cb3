"""Parser of Prometheus text 0.0.4 and OpenMetrics 1.0 that caches every series.

Pages of one target differ only in values. A line is therefore split at its last space and the bytes before it are
looked up in a dictionary: labels are parsed once per series, and a repeated page costs one lookup per line. Pages
with the same series in the same order share one ``Layout``, so that row indices are prepared once per layout instead
of once per page.
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
        """Equal for two lines of the same series, in any order of labels."""
        return self.name, tuple(sorted(self.labels.items()))

    def __str__(self) -> str:
        """As written on a page, with sorted labels."""
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return f"{self.name}{{{inside}}}" if inside else self.name


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """The series of a page in page order. Two pages share a layout if only their numbers differ.

    ``names`` omits the ``repeats``: rows of a series that appears earlier on the page. ``types`` are the first ones
    given for each family; ``contradicted`` names the families with more than one type.
    """

    series: list[Series]
    names: dict[str, Rows]
    types: dict[str, str]
    repeats: int = 0
    contradicted: tuple[str, ...] = ()
    _moves: WeakKeyDictionary[Layout, Rows] = field(default_factory=WeakKeyDictionary)

    def rows_in(self, other: Layout) -> Rows:
        """For each row, the row of the same series in another layout, -1 if there is none."""
        rows_of_other = self._moves.get(other)
        if rows_of_other is None:
            rows = {series.identity: row for row, series in reversed(tuple(enumerate(other.series)))}
            rows_of_other = np.array([rows.get(series.identity, -1) for series in self.series], dtype=np.intp)
            self._moves[other] = rows_of_other
        return rows_of_other

    @staticmethod
    def of(
        series: Iterable[Series], types: Mapping[str, str] | None = None, contradicted: tuple[str, ...] = ()
    ) -> Layout:
        """Indexes the series by name."""
        ordered = list(series)
        rows: dict[str, list[int]] = {}
        identities = set()
        for row, item in enumerate(ordered):
            if item.identity not in identities:
                identities.add(item.identity)
                rows.setdefault(item.name, []).append(row)
        names = {name: np.array(indices, dtype=np.intp) for name, indices in rows.items()}
        return Layout(ordered, names, dict(types or {}), len(ordered) - len(identities), contradicted)


@dataclass(frozen=True, slots=True)
class Page:
    """One parsed page. ``timestamps`` are unix seconds, NaN if the line has none."""

    layout: Layout
    values: Floats
    timestamps: Floats

    @property
    def series(self) -> list[Series]:
        """The series of each row of ``values``."""
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
        """Number of sample lines, repeats included."""
        return int(self.values.size)


@dataclass(slots=True)
class Parser:
    """Parses pages; caches series and layouts up to a limit, then clears both caches.

    Templates of the sources' next pages survive that, so a fleet with more series than the limit is parsed as fast as
    a small one. Not thread-safe.
    """

    max_series: int = MAX_SERIES
    max_layouts: int = MAX_LAYOUTS
    _ids: dict[bytes, int] = field(default_factory=dict)
    _series: list[Series] = field(default_factory=list)
    _layouts: dict[tuple[bytes, bytes], Layout] = field(default_factory=dict)  # by series and type lines
    _heads: list[bytes] = field(default_factory=list)
    _templates: dict[Layout, Template] = field(default_factory=dict)
    _expected: dict[str, tuple[Layout, Template]] = field(default_factory=dict)

    def parse(self, body: bytes, *, openmetrics: bool | None = None, source: str = "") -> Page:
        """Parses a whole page.

        ``openmetrics`` comes from the Content-Type; None: OpenMetrics if the page ends in ``# EOF``. ``source`` names
        the target: its next, similar page is parsed faster. An empty page is a page without samples. Raises
        CollectError with reason NOT_METRICS (HTML, JSON or a malformed line, which is quoted) or TRUNCATED (an
        incomplete page).
        """
        if len(self._series) > self.max_series:
            self._clear()
        body = body.removeprefix(b"\xef\xbb\xbf")  # some editors and shells write a byte order mark
        is_open = is_openmetrics(body, openmetrics)
        expected = self._expected.get(source)
        if expected is not None:
            layout, template = expected
            values = template.values(body)
            if values is not None:
                return Page(layout, values, np.full(values.size, np.nan))
        return self._parse_fully(body, source, is_open=is_open)

    def _parse_fully(self, body: bytes, source: str, *, is_open: bool) -> Page:
        """Parses a page without a template."""
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
            numbers = [number for number, series_id in enumerate(ids) if series_id is not None]
            timestamps[:] = [stamps.get(number, np.nan) for number in numbers]
        elif source:
            self._expect(source, layout, body, ids)
        return Page(layout, values, timestamps)

    def _expect(self, source: str, layout: Layout, body: bytes, ids: list[int | None]) -> None:
        """Prepares for the next page of a source; sources with the same page share the template."""
        template = self._templates.get(layout)
        expected = self._expected.get(source)
        if template is None or (expected is not None and expected[1] is template):  # its comments changed
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
        """Resolves the lines missing from the dictionary: new series, timestamps, exemplars."""
        ticks = 1.0 if is_open else 1000.0  # per second
        for number, series_id in enumerate(ids):
            if series_id is not None:
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
        if any(series_id is None for series_id in ids):
            numbers = [number for number, series_id in enumerate(ids) if series_id is not None]
            new_rows = {old: new for new, old in enumerate(numbers)}
            raw[:] = [raw[number] for number in numbers]
            lines[:] = [lines[number] for number in numbers]
            ids[:] = [ids[number] for number in numbers]
            moved = {new_rows[number]: stamp for number, stamp in stamps.items()}
            stamps.clear()
            stamps.update(moved)

    def _remember(self, head: bytes) -> int:
        series = _parse_series(head)
        self._series.append(series)
        self._heads.append(head)
        self._ids[head] = len(self._series) - 1
        return len(self._series) - 1

    def _layout(self, ids: list[int | None], type_lines: list[bytes]) -> Layout:
        key = np.array(ids, dtype=np.int64).tobytes(), b"\n".join(type_lines)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= self.max_layouts:
                self._layouts.clear()
                self._templates.clear()
            layout = Layout.of((self._series[row] for row in ids if row is not None), *_types(type_lines))
            self._layouts[key] = layout
        return layout

    def forget(self, source: str) -> None:
        """Drops the template of a removed source."""
        self._expected.pop(source, None)

    def _clear(self) -> None:
        """Clears the dictionary. Templates of the sources stay: they do not need it."""
        self._ids.clear()
        self._series.clear()
        self._heads.clear()
        self._layouts.clear()
        self._templates.clear()


class _BlankLineError(Exception):
    """The line has only white space or an indented comment."""


def _numbers(raw: list[bytes], lines: list[bytes]) -> Floats:
    values = floats(raw)
    if values is None:
        raise invalid_line(next(line for line, text in zip(lines, raw, strict=True) if floats([text]) is None))
    return values


def _split_line(line: bytes) -> tuple[bytes, bytes]:
    """Splits a line into the bytes of its series and the rest. Raises ValueError, _BlankLineError."""
    text = line.strip()
    if not text or text[0] == _HASH:
        raise _BlankLineError
    name = _NAME.match(text)
    end = name.end() if name else 0
    brace = end + len(text[end:]) - len(text[end:].lstrip())
    if text[brace : brace + 1] == b"{":
        end = _labels_end(text, brace + 1)
    elif name is None or text[end : end + 1] not in {b" ", b"\t"}:
        raise ValueError("no name, or nothing after it")
    return text[:end], text[end:]


def _labels_end(text: bytes, start: int) -> int:
    """Position after the closing brace of a label set whose first byte is at ``start``."""
    while True:
        label = _LABEL.match(text, start)
        if label is None:
            rest = text[start:]
            if rest.lstrip()[:1] == b"}":
                return start + len(rest) - len(rest.lstrip()) + 1
            raise ValueError("a malformed label")
        start = label.end()


def _value_and_stamp(rest: bytes) -> tuple[bytes, bytes]:
    """The value and the timestamp, empty without one. An exemplar after ``#`` is ignored."""
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
    while match := _LABEL.match(inside, position):
        position = match.end()
        value = _unescape(match[2].decode())
        if match[1] is None:
            if metric:
                raise ValueError("two metric names")
            metric = value
            continue
        label = match[1].decode()
        label = sys.intern(_unescape(label[1:-1]) if label.startswith('"') else label)
        if label in labels:
            raise ValueError("a label given twice")
        labels[label] = sys.intern(value)
    if not metric:
        raise ValueError("no metric name")
    return Series(sys.intern(metric), labels)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED[match[0]], text) if "\\" in text else text


def _type_lines(body: bytes) -> list[bytes]:
    """The ``# TYPE`` lines of a page; found by search, since most lines are samples."""
    lines, at = list[bytes](), body.find(b"# TYPE ")
    while at >= 0:
        end = body.find(b"\n", at)
        end = len(body) if end < 0 else end
        if at == 0 or body[at - 1 : at] == b"\n":
            lines.append(body[at:end])
        at = body.find(b"# TYPE ", end)
    return lines


def _types(lines: Iterable[bytes]) -> tuple[dict[str, str], tuple[str, ...]]:
    """First type of each family in ``# TYPE`` lines, and the families with contradicting types."""
    types: dict[str, str] = {}
    contradicted: dict[str, None] = {}
    for line in lines:
        words = line.decode(errors="replace").split()
        if len(words) >= 4:
            family = words[2].strip('"')
            if types.setdefault(family, words[3]) != words[3]:
                contradicted[family] = None
    return types, tuple(contradicted)
