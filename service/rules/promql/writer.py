"""Writes a rule expression as PromQL. Pure.

A comparison is a series while it holds. Values of one entity have the same labels, so operators join them. ``not``
needs the entities that are observed, because a missing series is not a false one.

Outrider compares every value of a quantile's bucket, Prometheus an interpolated one. Both agree at the bounds of the
buckets, so the limit of such a comparison becomes a bound.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from outrider.vocabulary import catalog, percentiles
from outrider.vocabulary.units import parse_duration
from outrider.wire.promql import PromqlError
from service.rules.promql.series import SignalSeries

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Value:
    """A number or a vector of one value for each entity."""

    text: str
    scalar: bool = False


def write(expression: str, series: SignalSeries) -> str:
    """The condition in PromQL. The expression is one that compiles. Raises PromqlError with the reason if it cannot."""
    return _truth(ast.parse(" ".join(expression.split()), mode="eval").body, series)


def _truth(node: ast.expr, series: SignalSeries) -> str:
    if isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        return word.join(f"({_truth(part, series)})" for part in node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"{series.every()} unless ({_truth(node.operand, series)})"
    if isinstance(node, ast.Compare):
        return _comparison(node, series)
    if isinstance(node, ast.Call):
        return series.present(_name(node.args[0]))
    raise PromqlError("it is not a comparison")


def _comparison(node: ast.Compare, series: SignalSeries) -> str:
    left, right, symbol = node.left, node.comparators[0], _COMPARISONS[type(node.ops[0])]
    if symbol in _MIRRORED and _is_quantile(right):
        left, right, symbol = right, left, _MIRRORED[symbol]
    one, other = _number(left, series), _number(right, series)
    if one.scalar and other.scalar:
        raise PromqlError("it compares two numbers")
    if symbol in _MIRRORED and _is_quantile(left):
        if not other.scalar:
            raise PromqlError("it compares a quantile with a value that is not a number")
        symbol, limit = _at_a_bound(_name(left.args[1]), symbol, _folded(right))
        return f"{one.text} {symbol} {limit:.12g}"
    return f"{one.text} {symbol} {other.text}"


def _is_quantile(node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "quantile"


def _at_a_bound(signal: str, symbol: str, limit: float) -> tuple[str, float]:
    """The comparison of the interpolated value that holds exactly if every value of its bucket fulfils the given one.

    The value is above the lower bound of its bucket and at most the upper one; in the last bucket it is the last bound.
    """
    bounds = (0.0, *catalog.signal(signal).bounds)
    if symbol in (">", ">="):
        above = [bound for bound in bounds[:-1] if bound >= limit]
        if not above:
            raise PromqlError(f"the quantile of {signal} never exceeds {bounds[-1]:g}, the last bound of its buckets")
        return ">", above[0]
    below = [bound for bound in bounds[1:] if bound < limit or (bound == limit and symbol == "<=")]
    if not below:
        raise PromqlError(f"no bucket of {signal} is below {limit:g}")
    return "<=", below[-1]


def _folded(node: ast.expr) -> float:
    """The value of an expression of numbers alone."""
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        return -_folded(node.operand)
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_folded(node.left), _folded(node.right))
    assert isinstance(node, ast.Call)
    return max(_folded(argument) for argument in node.args)


def _number(node: ast.expr, series: SignalSeries) -> _Value:
    if isinstance(node, ast.Constant):
        return _Value(f"{float(node.value):.12g}", scalar=True)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        inner = _number(node.operand, series)
        return _Value(f"-({inner.text})", inner.scalar)
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, series), _number(node.right, series)
        return _Value(f"({left.text} {_ARITHMETIC[type(node.op)]} {right.text})", left.scalar and right.scalar)
    if isinstance(node, ast.Name):
        return _Value(series.last(node.id))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _called(node.func.id, node.args, series)
    raise PromqlError("a part of it has no form in PromQL")


def _called(function: str, arguments: list[ast.expr], series: SignalSeries) -> _Value:
    if function == "last":
        return _Value(series.last(_name(arguments[0])))
    if function == "quantile":
        share, signal, seconds = _constant(arguments[0]), _name(arguments[1]), _seconds(arguments[2])
        given = [int(_constant(argument)) for argument in arguments[3:]]
        fewest = given[0] if given else percentiles.fewest_observations(share)
        return _Value(series.quantile(share, signal, seconds, fewest))
    if function == "greatest":
        return _greatest(*(_number(argument, series) for argument in arguments))
    signal, seconds = _name(arguments[0]), _seconds(arguments[1])
    if function == "rate":
        return _Value(f"({series.over('sum', signal, seconds)} / {seconds:.12g})")
    return _Value(series.over(function, signal, seconds))


def _greatest(one: _Value, other: _Value) -> _Value:
    if one.scalar and other.scalar:
        return _Value(one.text if float(one.text) >= float(other.text) else other.text, scalar=True)
    if one.scalar or other.scalar:
        vector, least = (other, one) if one.scalar else (one, other)
        return _Value(f"clamp_min({vector.text}, {least.text})")
    return _Value(f"(({one.text}) >= ({other.text}) or ({other.text}) and ({one.text}))")


def _name(node: ast.expr) -> str:
    assert isinstance(node, ast.Name)
    return node.id


def _constant(node: ast.expr) -> float:
    assert isinstance(node, ast.Constant)
    return float(node.value)  # type: ignore[arg-type]


def _seconds(node: ast.expr) -> float:
    assert isinstance(node, ast.Constant)
    return parse_duration(str(node.value)).total_seconds()
