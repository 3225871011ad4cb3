"""The quick way through a page whose lines are those of an earlier page but for their values.

Nothing of a line is copied or hashed: its bytes are compared where they stand. Any other page, be it
new, malformed or with timestamps, is left to the careful way (``exposition.Parser``).
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
    """What stands in each line before its value; of a comment all of it.

    ``lengths`` are those of ``heads``; ``samples`` tells which lines have a value.
    """

    heads: Sequence[bytes]
    lengths: Rows
    samples: NDArray[np.bool_]

    @staticmethod
    def of(body: bytes, series: Iterable[bytes]) -> Template | None:
        """Recognise pages like this one, whose samples are about these series in this order.

        None for a page that is written in an unusual way.
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
        """The values of a page with these very lines in this order; None for any other page."""
        letters = np.frombuffer(body, dtype=np.uint8)
        ends = np.flatnonzero(letters == _NEWLINE)
        if ends.size != self.lengths.size or not body.endswith(b"\n"):
            return None
        starts = np.concatenate(([0], ends[:-1] + 1))
        behind = starts + self.lengths
        room, begins = ends - behind, behind[self.samples]
        if room[~self.samples].any() or (room[self.samples] < 2).any() or (letters[begins] != _BLANK).any():
            return None
        if not all(map(body.startswith, self.heads, starts.tolist())):
            return None
        pairs = zip((begins + 1).tolist(), ends[self.samples].tolist(), strict=True)
        return floats([body[begin:end] for begin, end in pairs])


def floats(texts: Sequence[bytes]) -> Floats | None:
    """The numbers; None when one is none. Python would also read ``1_000``, which the format forbids."""
    if b"_" in b" ".join(texts):
        return None
    try:
        return np.array(list(map(float, texts)), dtype=np.float64)
    except ValueError:
        return None
