"""Writes a rule expression as PromQL. Pure.

A comparison is a series while it holds. Values of one entity have the same labels, so operators join them. ``not``
needs the entities that are observed, because a missing series is not a false one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from outrider.vocabulary.units import parse_duration
from outrider.wire.promql import PromqlError
from service.rules.promql.series import SignalSeries

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


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
        left, right = _number(node.left, series), _number(node.comparators[0], series)
        if left.scalar and right.scalar:
            raise PromqlError("it compares two numbers")
        return f"{left.text} {_COMPARISONS[type(node.ops[0])]} {right.text}"
    if isinstance(node, ast.Call):
        return series.present(_name(node.args[0]))
    raise PromqlError("it is not a comparison")


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
        return _Value(series.quantile(share, signal, seconds))
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
