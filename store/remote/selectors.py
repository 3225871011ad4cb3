"""PromQL selectors and the fields of queries, spelled so that spans are half-open to the millisecond. Pure.

Prometheus 2 reads ``[start, end]`` for a range, Prometheus 3, VictoriaMetrics and newer Mimir and Thanos
``(start, end]``. A query therefore reaches one millisecond further back than it needs, and what lies before the start
is left out when the answer is read. What Prometheus 2 folds over a step may so hold a sample of the millisecond before.
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
    """A text inside a regular expression."""
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", text)


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric (empty: any) with matchers."""

    metric: str
    matchers: tuple[str, ...] = ()

    def equal(self, label: str, value: str) -> Selector:
        """The same, with one more label that must have a value."""
        return Selector(self.metric, (*self.matchers, f"{label}={quoted(value)}"))

    def among(self, label: str, values: Collection[str]) -> Selector:
        """The same, with one more label that must have one of these values."""
        if len(values) == 1:
            return self.equal(label, next(iter(values)))
        return self.matching(label, "|".join(map(literal, values)))

    def matching(self, label: str, expression: str) -> Selector:
        """The same, with one more label that must match a regular expression as a whole."""
        return Selector(self.metric, (*self.matchers, f"{label}=~{quoted(expression)}"))

    @property
    def text(self) -> str:
        """PromQL."""
        return f"{self.metric}{{{','.join(self.matchers)}}}"

    def raw(self, first: int, last: int) -> dict[str, str]:
        """The fields of a query for every sample with a stamp from ``first`` to ``last``, in milliseconds."""
        return {"query": f"{self.text}[{last - first + 1}ms]", "time": seconds(last)}

    def folded_once(self, function: str, start: int, end: int) -> dict[str, str]:
        """The fields of a query for one number a series over [start, end), in milliseconds."""
        return {"query": f"{function}({self.text}[{end - start}ms])", "time": seconds(end - 1)}

    def folded(self, function: str, start: int, step: int, steps: int) -> dict[str, str]:
        """The fields of a range query for one number a series and step, in milliseconds: stamps end the steps."""
        return {
            "query": f"{function}({self.text}[{step}ms])",
            "start": seconds(start + step - 1),
            "end": seconds(start + steps * step - 1),
            "step": seconds(step),
        }


def seconds(milliseconds: int) -> str:
    """Milliseconds as the seconds that the API takes, exactly."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
