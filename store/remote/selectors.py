"""PromQL selectors and query parameters for spans that are half-open to the millisecond. Pure.

Prometheus 2 reads ``[start, end]`` for a range; Prometheus 3, VictoriaMetrics and newer Mimir and Thanos
``(start, end]``. A query therefore starts one millisecond early, and samples before the start are dropped from the
response. Values aggregated by Prometheus 2 may therefore include a sample of the previous millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_SPECIAL = re.compile(r"[.+*?()|\[\]{}^$\\]")


def quoted(text: str) -> str:
    """A PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def literal(text: str) -> str:
    """A text escaped for a regular expression."""
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", text)


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric (empty: any) with matchers."""

    metric: str
    matchers: tuple[str, ...] = ()

    def equal(self, label: str, value: str) -> Selector:
        """The selector with an equality matcher added."""
        return Selector(self.metric, (*self.matchers, f"{label}={quoted(value)}"))

    def among(self, label: str, values: Collection[str]) -> Selector:
        """The selector with a matcher for one of several values added."""
        if len(values) == 1:
            return self.equal(label, next(iter(values)))
        return self.matching(label, "|".join(map(literal, values)))

    def matching(self, label: str, expression: str) -> Selector:
        """The selector with a regular-expression matcher for the whole value added."""
        return Selector(self.metric, (*self.matchers, f"{label}=~{quoted(expression)}"))

    @property
    def text(self) -> str:
        """PromQL text."""
        return f"{self.metric}{{{','.join(self.matchers)}}}"

    def raw(self, first: int, last: int) -> dict[str, str]:
        """Parameters of a query for every sample with a stamp from ``first`` to ``last``, in milliseconds."""
        return {"query": f"{self.text}[{last - first + 1}ms]", "time": seconds(last)}

    def folded_once(self, function: str, start: int, end: int) -> dict[str, str]:
        """Parameters of a query for one number per series over [start, end), in milliseconds."""
        return {"query": f"{function}({self.text}[{end - start}ms])", "time": seconds(end - 1)}

    def folded(self, function: str, start: int, step: int, steps: int) -> dict[str, str]:
        """Parameters of a range query for one number per series and step, in milliseconds. Stamps are step ends."""
        return {
            "query": f"{function}({self.text}[{step}ms])",
            "start": seconds(start + step - 1),
            "end": seconds(start + steps * step - 1),
            "step": seconds(step),
        }


def seconds(milliseconds: int) -> str:
    """Milliseconds as seconds in exact decimal notation."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
