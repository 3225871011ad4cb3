"""Server-sent events as they come off a connection (WHATWG HTML, section 9.2.6). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Several ``data`` lines are joined by line ends."""

    data: str
    name: str = ""


class EventStream:
    """Feed it bytes in whatever pieces they come; it gives the events that are whole.

    Lines end in CR LF, LF or CR; comments and unknown fields are skipped; bytes that are no UTF-8 become
    replacement characters. An event that the stream ends in the middle of counts: many servers leave out the
    last empty line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._after_cr = False
        self._data: list[str] = []
        self._name = ""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that this piece completes."""
        if self._after_cr and piece:  # a CR LF that came in two pieces is one line end
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        text = self._rest + piece
        if not self._begun and len(text) >= 3:
            text, self._begun = text.removeprefix(b"\xef\xbb\xbf"), True
        self._after_cr = text.endswith(b"\r")
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            found = self._line(line)
            if found is not None:
                yield found

    def end(self) -> Iterator[Event]:
        """The event that the end of the stream completes, if any."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        found = self._line(b"")
        if found is not None:
            yield found

    def _line(self, line: bytes) -> Event | None:
        if not line:
            found = Event("\n".join(self._data), self._name) if self._data else None
            self._data, self._name = [], ""
            return found
        field, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None
