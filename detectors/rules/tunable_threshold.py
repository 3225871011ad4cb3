"""The tunable number of a rule's expression: the right side of its first comparison.

    last(engine_kv_cache_usage_ratio) > 0.95 and last(engine_requests_waiting) > 0
                                        ^^^^
An expression is evaluated with the first comparison true and with it false. That allows any number of
thresholds to be judged in one pass over the values.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.rules.evaluation import Unknown
from detectors.rules.expressions import CompiledExpression, compile_expression
from outrider.model import Floats, Window

_SYMBOLS: dict[type[ast.cmpop], str] = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}
_TRUE, _FALSE = "1 > 0", "0 > 1"
_ROUNDED = 1e-6  # stored values are single precision and may be lower by this much
_DIGITS = 3  # significant digits of a proposed threshold


@dataclass(frozen=True, slots=True)
class TunableThreshold:
    """A rule's expression with its threshold, at ``start`` to ``end`` in ``text``.

    ``threshold`` is None if the first comparison has no number on its right side, or is negated. Then only the rule's
    waiting time can be tuned.
    """

    text: str
    threshold: float | None
    start: int
    end: int
    symbol: str
    whole: CompiledExpression
    if_true: CompiledExpression
    if_false: CompiledExpression

    @property
    def above(self) -> bool:
        """True if larger values alert."""
        return self.symbol in {">", ">="}

    def turned(self, threshold: float) -> str:
        """The expression with another threshold."""
        return self.text[: self.start] + format_threshold(threshold) + self.text[self.end :]

    def stricter(self, threshold: float, than: float) -> bool:
        """True if fewer values alert."""
        return threshold > than if self.above else threshold < than

    def beyond(self, level: float) -> float:
        """The nearest threshold of few digits at which ``level`` no longer alerts."""
        if level == 0.0:
            return 0.001 if self.above else -0.001
        unit = 10.0 ** (math.floor(math.log10(abs(level))) + 1 - _DIGITS)
        steps, slack = level / unit, abs(level / unit) * _ROUNDED
        near = (math.floor(steps + slack) + 1) if self.above else (math.ceil(steps - slack) - 1)
        return float(f"{near * unit:.12g}")

    def left(self, window: Window) -> tuple[Floats, NDArray[np.bool_]]:
        """The compared value, (entities,), and whether it is known; never known without a threshold."""
        if self.threshold is None or self.whole.condition is None:
            nothing = np.full(len(window.entities), np.nan)
            return nothing, np.zeros(nothing.shape, dtype=bool)
        numbers = self.whole.condition.left(window)
        return numbers.values, numbers.unknown == Unknown.KNOWN

    def judge(self, window: Window, thresholds: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(holds, silent) at each threshold, (thresholds, entities); silent means no verdict, as in the rule."""
        if self.threshold is None:
            whole = self.whole.holds(window)
            shape = (thresholds.size, len(window.entities))
            return np.broadcast_to(whole.holds, shape), np.broadcast_to(whole.unknown >= Unknown.MISSING, shape)
        values, known = self.left(window)
        with np.errstate(invalid="ignore"):
            hit = _COMPARE[self.symbol](values[None, :], thresholds[:, None])
        # usually all values are normal and known: skip what no cell needs
        no = self.if_false.holds(window)
        yes = self.if_true.holds(window) if hit.any() else no
        whole = no if known.all() else self.whole.holds(window)
        holds = np.where(known, np.where(hit, yes.holds, no.holds), whole.holds)
        unknown = np.where(known, np.where(hit, yes.unknown, no.unknown), whole.unknown)
        return holds, unknown >= Unknown.MISSING


_COMPARE = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}


def format_threshold(threshold: float) -> str:
    """A threshold in the notation of expressions."""
    return f"{threshold:.12g}" if abs(threshold) < 1e12 else repr(threshold)


def tunable_threshold_of(rule: str, expression: str) -> TunableThreshold:
    """The tunable threshold of an expression. Raises UsageError if it cannot be compiled."""
    text = " ".join(expression.split())
    whole = compile_expression(rule, text)
    first = _first(ast.parse(text, mode="eval").body)
    result = _number(first.comparators[0]) if first is not None and text.isascii() else None
    symbol = _SYMBOLS.get(type(first.ops[0])) if first is not None else None
    if first is None or result is None or symbol is None or not _reads(first.left):
        return TunableThreshold(text, None, 0, 0, "", whole, whole, whole)
    before, after = text[: first.col_offset], text[first.end_col_offset :]
    right = first.comparators[0]
    assert right.end_col_offset is not None
    return TunableThreshold(
        text,
        result,
        right.col_offset,
        right.end_col_offset,
        symbol,
        whole,
        compile_expression(rule, f"{before}{_TRUE}{after}"),
        compile_expression(rule, f"{before}{_FALSE}{after}"),
    )


def _first(node: ast.expr) -> ast.Compare | None:
    """The main comparison as the compiler picks it; None if ``not`` or present() comes first."""
    if isinstance(node, ast.BoolOp):
        return _first(node.values[0])
    return node if isinstance(node, ast.Compare) else None


def _number(node: ast.expr) -> float | None:
    try:
        return float(ast.literal_eval(node))
    except (ValueError, TypeError):
        return None


def _reads(node: ast.expr) -> bool:
    """True if the node reads a signal."""
    return any(isinstance(child, ast.Name) for child in ast.walk(node))
