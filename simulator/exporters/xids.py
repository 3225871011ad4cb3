"""XID codes in the format of dcgm-exporter: the text of a code, and its count in the last five minutes."""

from __future__ import annotations

from collections import Counter, deque

from outrider.model import EntityKind
from simulator.fleet import Fleet

WINDOW_SECONDS = 300.0
_TEXTS = {
    0: "No Error",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    61: "Internal micro-controller breakpoint/warning",
    62: "Internal micro-controller halt",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    69: "Graphics Engine class error",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context Switch Timeout Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    136: "Link Training Failed",
    137: "NVLink FLA privilege error",
    140: "Unrecovered ECC Error",
    143: "GPU Initialization Error",
    154: "GPU Recovery Action Changed",
}


def xid_text(code: int) -> str:
    """Returns the text of a code; codes without one are unknown errors."""
    return _TEXTS.get(code, "Unknown Error")


class XidWindow:
    """Counts the XID lines of the journal per device over the last ``WINDOW_SECONDS``."""

    def __init__(self) -> None:
        self._read = 0
        self._lines: deque[tuple[float, str, str]] = deque()  # at, UUID, code
        self.counts: dict[str, Counter[str]] = {}

    def advance(self, fleet: Fleet) -> None:
        """Reads new entries and drops old ones; ``counts`` is by UUID, then by code."""
        for line in fleet.journal.after(self._read):
            if "xid" in line.attributes and line.entity.kind is EntityKind.GPU:
                self._lines.append((line.at, line.entity.name, line.attributes["xid"]))
                self.counts.setdefault(line.entity.name, Counter())[line.attributes["xid"]] += 1
        self._read = fleet.journal.newest
        while self._lines and self._lines[0][0] <= fleet.at - WINDOW_SECONDS:
            _, device, code = self._lines.popleft()
            left = self.counts[device]
            left[code] -= 1
            if left[code] == 0:
                del left[code]
