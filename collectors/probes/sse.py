"""Parser of server-sent events (WHATWG HTML, section 9.2.6). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Several ``data`` lines are joined by line feeds."""

    data: str
    name: str = ""


class EventStream:
    """Incremental parser: accepts bytes in any chunks, yields complete events.

    Lines end in CR LF, LF or CR; comments and unknown fields are skipped; bytes that are not UTF-8 become replacement
    characters. An event truncated by the end of the stream counts: many servers omit the last empty line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._after_cr = False
        self._data: list[str] = []
        self._name = ""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that this chunk completes."""
        if self._after_cr and piece:  # a CR LF split over two chunks is one line end
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        text = self._rest + piece
        if not self._begun and len(text) >= 3:
            text, self._begun = text.removeprefix(b"\xef\xbb\xbf"), True
        self._after_cr = text.endswith(b"\r")
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event

    def end(self) -> Iterator[Event]:
        """The event that the end of the stream completes, if any."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        event = self._line(b"")
        if event is not None:
            yield event

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event("\n".join(self._data), self._name) if self._data else None
            self._data, self._name = [], ""
            return event
        field, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None
