"""Fast path for a page whose lines equal those of an earlier page except for the values.

Nothing of a line is copied or hashed: its bytes are compared in place. Any other page (new, malformed, with
timestamps) takes the full path (``exposition.parser.Parser``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

_NEWLINE, _BLANK = ord("\n"), ord(" ")
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The part of each line before its value; of a comment the whole line.

    ``lengths`` are those of ``heads``; ``samples`` marks the lines with a value.
    """

    heads: Sequence[bytes]
    lengths: Rows
    samples: NDArray[np.bool_]

    @staticmethod
    def of(body: bytes, series: Iterable[bytes]) -> Template | None:
        """Builds a template of pages like this one, whose samples belong to these series in this order.

        None for a page with unusual formatting.
        """
        heads, samples, rest = list[bytes](), list[bool](), iter(series)
        head = next(rest, None)
        for line in body.removesuffix(b"\n").split(b"\n"):
            is_sample = head is not None and line.startswith(head) and line[len(head) : len(head) + 1] == b" "
            samples.append(is_sample)
            heads.append(head if is_sample and head is not None else line)
            head = next(rest, None) if is_sample else head
        if head is not None:
            return None
        lengths = np.fromiter(map(len, heads), dtype=np.intp, count=len(heads))
        return Template(heads, lengths, np.array(samples, dtype=bool))

    def values(self, body: bytes) -> Floats | None:
        """Values of a page with exactly these lines in this order; None for any other page."""
        bytes_of_page = np.frombuffer(body, dtype=np.uint8)
        ends = np.flatnonzero(bytes_of_page == _NEWLINE)
        if ends.size != self.lengths.size or not body.endswith(b"\n"):
            return None
        starts = np.concatenate(([0], ends[:-1] + 1))
        value_starts = starts + self.lengths
        room, begins = ends - value_starts, value_starts[self.samples]
        if room[~self.samples].any() or (room[self.samples] < 2).any() or (bytes_of_page[begins] != _BLANK).any():
            return None
        if not all(map(body.startswith, self.heads, starts.tolist())):
            return None
        pairs = zip((begins + 1).tolist(), ends[self.samples].tolist(), strict=True)
        return floats([body[begin:end] for begin, end in pairs])


def floats(texts: Sequence[bytes]) -> Floats | None:
    """The numbers; None if one is invalid. Python would also accept ``1_000``, which the format forbids."""
    if b"_" in b" ".join(texts):
        return None
    try:
        return np.array(list(map(float, texts)), dtype=np.float64)
    except ValueError:
        return None
