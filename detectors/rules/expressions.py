"""The rule language: expressions over signals, compiled once into arithmetic over all entities.

    mean(engine_kv_cache_usage_ratio, "5m") > 0.95 and last(engine_requests_waiting) > 0

The main comparison comes first; guards such as a minimum number of requests follow. Python's own parser reads the
text, and only a few node types are accepted. Nothing is ever executed as Python.

A quantile of fewer observations than ``percentiles.fewest_observations`` is undefined, or than its optional fourth
argument. A comparison with a quantile holds only if every value of its bucket fulfils it: between two bounds of a
histogram the interpolated value is an assumption.
"""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import newest
from detectors.rules.evaluation import (
    REDUCTIONS,
    Numbers,
    Truths,
    Unknown,
    all_of,
    any_of,
    certain,
    mapped,
    negated,
    with_reasons,
)
from outrider import windows
from outrider.errors import UsageError
from outrider.model import Floats, SignalKey, SignalKind, Window
from outrider.vocabulary import catalog, percentiles

FUNCTIONS = (
    'last(x), sum(x, "5m"), mean(x, "5m"), max(x, "5m"), min(x, "5m"), rate(x, "5m"), '
    'quantile(0.99, x, "5m"), present(x), greatest(a, b)'
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)([smhd])")
_ARITHMETIC: dict[type[ast.operator], Callable[[Floats, Floats], Floats]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Floats, Floats], NDArray[np.bool_]]]] = {
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


class _Bound(Enum):
    """The side of a quantile's bucket that a comparison reads."""

    NONE = auto()
    LOW = auto()
    HIGH = auto()


@dataclass(frozen=True, slots=True)
class Condition:
    """The main comparison of an expression, its first one; the others are guards.

    ``observed`` is the left side as reported: of a quantile the interpolated value, where ``left`` is a proven bound.
    """

    left: Callable[[Window], Numbers]
    right: Callable[[Window], Numbers]
    symbol: str
    signals: tuple[str, ...]
    observed: Callable[[Window], Numbers]


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """A rule's compiled expression. ``span`` is the longest duration in it, ``keys`` the columns it reads."""

    holds: Callable[[Window], Truths]
    condition: Condition | None
    keys: tuple[SignalKey, ...]
    signals: tuple[str, ...]
    span: timedelta


def compile_expression(rule: str, text: str) -> CompiledExpression:
    """Compiles an expression of the named rule.

    Raises UsageError with the rule, the position (from 1) and what was expected.
    """
    return _Compiler(rule, text).compile()


class _Compiler:
    """Turns one syntax tree into closures and collects the columns they read."""

    def __init__(self, rule: str, text: str) -> None:
        """``rule`` is for error messages."""
        self._rule = rule
        self._text = " ".join(text.split())
        self._keys: dict[SignalKey, None] = {}
        self._span = timedelta(0)
        self._condition: Condition | None = None

    def compile(self) -> CompiledExpression:
        try:
            tree = ast.parse(self._text, mode="eval").body
            holds = self._truth(tree)
        except SyntaxError as error:
            message = f"rule {self._rule}: position {error.offset or 1}: the expression cannot be read: {error.msg}"
            raise UsageError(message, hint=f"an expression compares signals by {FUNCTIONS}") from error
        except (RecursionError, MemoryError, ValueError) as error:
            message = (
                f"rule {self._rule}: position 1: the expression cannot be read: it is nested too deeply or malformed"
            )
            raise UsageError(message, hint="split it into several rules") from error
        names = tuple(dict.fromkeys(key.name for key in self._keys))
        return CompiledExpression(holds, self._condition, tuple(self._keys), names, self._span)

    def _fail(self, node: ast.expr, message: str, hint: str = "") -> UsageError:
        return UsageError(f"rule {self._rule}: position {node.col_offset + 1}: {message}", hint=hint)

    def _truth(self, node: ast.expr) -> Callable[[Window], Truths]:
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(value) for value in node.values]
            join = all_of if isinstance(node.op, ast.And) else any_of
            return lambda window: join([part(window) for part in parts])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand)
            return lambda window: negated(inner(window))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Call) and _called(node) == "present":
            return self._present(node)
        raise self._fail(node, "expected a comparison", "such as last(engine_requests_waiting) > 10")

    def _comparison(self, node: ast.Compare) -> Callable[[Window], Truths]:
        if len(node.ops) != 1:
            raise self._fail(node, "comparisons cannot be chained", "write a < b and b < c")
        result = _COMPARISONS.get(type(node.ops[0]))
        if result is None:
            raise self._fail(node, "expected one of > >= < <= == !=")
        symbol, compare = result
        known = dict(self._keys)
        self._keys = {}
        left, right = self._side(node.left, symbol), self._side(node.comparators[0], _MIRRORED.get(symbol, symbol))
        names = tuple(dict.fromkeys(key.name for key in self._keys))
        self._keys = {**known, **self._keys}
        self._condition = self._condition or Condition(left, right, symbol, names, self._number(node.left))

        def holds(window: Window) -> Truths:
            one, other = left(window), right(window)
            unknown = np.maximum(one.unknown, other.unknown)
            with np.errstate(invalid="ignore"):
                return Truths(compare(one.values, other.values) & (unknown == Unknown.KNOWN), unknown)

        return holds

    def _side(self, node: ast.expr, symbol: str) -> Callable[[Window], Numbers]:
        """One side of a comparison. ``symbol`` is the comparison as read from this side."""
        if isinstance(node, ast.Call) and _called(node) == "quantile" and symbol in _MIRRORED and not node.keywords:
            return self._quantile(node, _Bound.LOW if symbol in (">", ">=") else _Bound.HIGH)
        return self._number(node)

    def _number(self, node: ast.expr) -> Callable[[Window], Numbers]:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            constant = float(node.value)
            return lambda window: certain(np.full(len(window.entities), constant))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._number(node.operand)
            return lambda window: mapped([inner(window)], lambda values: -values[0])
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            apply = _ARITHMETIC[type(node.op)]
            one, other = self._number(node.left), self._number(node.right)
            return lambda window: mapped([one(window), other(window)], lambda values: apply(values[0], values[1]))
        if isinstance(node, ast.Name):
            return self._last(node, node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self._fail(node, "expected a number, a signal or a function", f"functions: {FUNCTIONS}")

    def _call(self, node: ast.Call) -> Callable[[Window], Numbers]:
        name = _called(node)
        if node.keywords:
            raise self._fail(node, f"{name} takes no named arguments")
        if name == "last":
            self._expect(node, 1, "last(x)")
            return self._last(node, node.args[0])
        if name in {"sum", "mean", "max", "min", "rate"}:
            self._expect(node, 2, f'{name}(x, "5m")')
            return self._over(name, node)
        if name == "quantile":
            return self._quantile(node, _Bound.NONE)
        if name == "greatest":
            self._expect(node, 2, "greatest(a, b)")
            parts = [self._number(argument) for argument in node.args]
            return lambda window: mapped([part(window) for part in parts], lambda both: np.maximum(*both))
        if name == "present":
            raise self._fail(node, "present(x) is true or false, not a number")
        raise self._fail(node, f"there is no function {name or 'of that form'}", f"functions: {FUNCTIONS}")

    def _expect(self, node: ast.Call, count: int, form: str) -> None:
        if len(node.args) != count:
            raise self._fail(node, f"expected {form}, found {len(node.args)} arguments")

    def _last(self, at: ast.expr, node: ast.expr) -> Callable[[Window], Numbers]:
        name = self._signal(node)
        if catalog.signal(name).kind is SignalKind.HISTOGRAM:
            raise self._fail(at, f"{name} is a histogram", f'use quantile(0.99, {name}, "5m")')
        key = self._read(SignalKey(name))
        return lambda window: with_reasons(window, [key], newest(window, window.column(key)))

    def _over(self, function: str, node: ast.Call) -> Callable[[Window], Numbers]:
        name, span = self._signal(node.args[0]), self._duration(node.args[1])
        kind = catalog.signal(name).kind
        counts = function in {"sum", "rate"}
        if counts and kind is not SignalKind.DELTA:
            raise self._fail(
                node, f"{function} needs a counter, and {name} is a {kind.value}", f'use mean({name}, "5m")'
            )
        if not counts and kind is SignalKind.HISTOGRAM:
            raise self._fail(node, f"{name} is a histogram", f'use quantile(0.99, {name}, "5m")')
        key = self._read(SignalKey(name))
        reduce = REDUCTIONS[function]

        def over(window: Window) -> Numbers:
            columns = windows.recent(window, span)
            return with_reasons(window, [key], reduce(window.column(key)[:, columns], window, span))

        return over

    def _quantile(self, node: ast.Call, bound: _Bound) -> Callable[[Window], Numbers]:
        self._expect(node, 4 if len(node.args) == 4 else 3, 'quantile(0.99, x, "5m")')
        share = node.args[0]
        if not (isinstance(share, ast.Constant) and isinstance(share.value, float) and 0 < share.value < 1):
            raise self._fail(share, "expected a quantile between 0 and 1, such as 0.99")
        rank = share.value
        name, span = self._signal(node.args[1]), self._duration(node.args[2])
        if catalog.signal(name).kind is not SignalKind.HISTOGRAM:
            raise self._fail(node, f"{name} is not a histogram", f'use mean({name}, "5m") or max({name}, "5m")')
        keys = [self._read(key) for key in catalog.signal(name).bucket_keys]
        fewest = self._count(node.args[3]) if len(node.args) == 4 else percentiles.fewest_observations(rank)

        def quantile(window: Window) -> Numbers:
            value, low, high = windows.quantile_interval(window, name, rank, span, fewest)
            # its values are above the lower bound and at most the upper one
            sides = {_Bound.NONE: value, _Bound.LOW: np.nextafter(low, np.inf), _Bound.HIGH: high}
            return with_reasons(window, keys, sides[bound])

        return quantile

    def _count(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 1:
            return node.value
        raise self._fail(node, "expected a number of observations, such as 100")

    def _present(self, node: ast.Call) -> Callable[[Window], Truths]:
        self._expect(node, 1, "present(x)")
        name = self._signal(node.args[0])
        histogram = catalog.signal(name).kind is SignalKind.HISTOGRAM
        keys = [self._read(key) for key in (catalog.signal(name).bucket_keys if histogram else [SignalKey(name)])]

        def present(window: Window) -> Truths:
            seen = [~np.isnan(newest(window, window.column(key))) for key in keys]
            return Truths(np.any(seen, axis=0), np.zeros(len(window.entities), dtype=np.uint8))

        return present

    def _signal(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            raise self._fail(node, "expected the name of a signal")
        if catalog.known(node.id):
            return node.id
        near = difflib.get_close_matches(node.id, list(catalog.signals()), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see the signal catalog for names"
        raise self._fail(node, f"there is no signal {node.id}", hint)

    def _duration(self, node: ast.expr) -> timedelta:
        text = node.value if isinstance(node, ast.Constant) else None
        result = _DURATION.fullmatch(text) if isinstance(text, str) else None
        if result is None or int(result[1]) == 0:
            raise self._fail(node, 'expected a duration in quotes, such as "30s", "5m", "1h" or "1d"')
        span = timedelta(seconds=int(result[1]) * _UNITS[result[2]])
        self._span = max(self._span, span)
        return span

    def _read(self, key: SignalKey) -> SignalKey:
        self._keys[key] = None
        return key


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""
