"""Parses PromQL into a tree. Pure.

Covers the language of alert rules. What no rule expression can have (subqueries, ``offset``, ``@``) is refused by name,
as is text that is not PromQL. https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

AGGREGATIONS = (
    "sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile",
    "limitk", "limit_ratio",
)  # fmt: skip
_MOST_DEPTH = 60
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_TOKEN = re.compile(
    rf"""(?P<space>\s+|\#[^\n]*)
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+(?![a-zA-Z0-9_]))
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>{_NAME})
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
    |(?P<symbol>==|!=|<=|>=|=~|!~|[-+*/%^(){{}}\[\],=<>@:])""",
    re.VERBOSE,
)
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
_COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
# binding power, weakest first; ^ is the only one that groups from the right
_POWER = {"or": 1, "and": 2, "unless": 2, **dict.fromkeys(_COMPARISONS, 3), "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
          "atan2": 5, "^": 6}  # fmt: skip


class PromqlError(ValueError):
    """Text that is not PromQL, or a part that no rule expression can have; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on a label."""

    label: str
    symbol: str
    value: str

    def __str__(self) -> str:
        """As written."""
        return f'{self.label}{self.symbol}"{self.value}"'


@dataclass(frozen=True, slots=True)
class Selector:
    """Series of one metric; with ``seconds`` their values over a range."""

    metric: str
    matchers: tuple[Matcher, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A function call."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation over labels. ``without``: the labels are removed instead of kept."""

    operator: str
    inner: Node
    labels: tuple[str, ...] = ()
    without: bool = False
    parameter: Node | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands. ``modifier`` is the text of ``bool`` and of vector matching; empty without."""

    symbol: str
    left: Node
    right: Node
    modifier: str = ""


@dataclass(frozen=True, slots=True)
class Negative:
    """A number or vector with its sign turned."""

    inner: Node


Node = Number | Text | Selector | Call | Aggregation | Binary | Negative


def parse(text: str) -> Node:
    """The tree of an expression. Raises PromqlError."""
    parser = _Parser(list(_tokens(text)))
    node = parser.expression()
    parser.expect_end()
    return node


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PromqlError(f"cannot be read at {text[position : position + 20]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            yield _Token(kind, match[kind])
        position = match.end()


@dataclass
class _Parser:
    """Precedence climbing over a list of tokens."""

    tokens: list[_Token]
    place: int = 0
    depth: int = field(default=0)

    @property
    def token(self) -> _Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else _Token("end", "")

    def take(self, *texts: str) -> _Token | None:
        """The next token if it is one of these."""
        token = self.token
        if token.kind in ("string", "end") or token.text not in texts:
            return None
        self.place += 1
        return token

    def expect(self, text: str) -> None:
        if self.take(text) is None:
            raise self.unexpected(f"{text!r}")

    def expect_end(self) -> None:
        if self.token.kind != "end":
            raise self.unexpected("the end")

    def unexpected(self, expected: str) -> PromqlError:
        found = "the end" if self.token.kind == "end" else repr(self.token.text)
        return PromqlError(f"expected {expected}, found {found}")

    def expression(self, power: int = 0) -> Node:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise PromqlError("is nested too deeply")
        left = self.unary()
        while self.token.kind != "string" and (binding := _POWER.get(self._operator(), 0)) > power:
            symbol = self.token.text.lower()
            self.place += 1
            modifier = self.modifier()
            right = self.expression(binding - 1 if symbol == "^" else binding)
            left = Binary(symbol, left, right, modifier)
        self.depth -= 1
        return left

    def _operator(self) -> str:
        return self.token.text.lower() if self.token.kind in ("name", "symbol") else ""

    def modifier(self) -> str:
        words = []
        if self.take("bool"):
            words.append("bool")
        for word in ("on", "ignoring", "group_left", "group_right"):
            if self.take(word):
                labels = self.label_list() if word in ("on", "ignoring") or self.token.text == "(" else ()
                words.append(f"{word}({', '.join(labels)})")
        return " ".join(words)

    def unary(self) -> Node:
        if self.take("-"):
            return Negative(self.expression(_POWER["*"]))
        if self.take("+"):
            return self.expression(_POWER["*"])
        return self.suffixed(self.primary())

    def suffixed(self, node: Node) -> Node:
        """A range, and what no rule expression can have."""
        if self.take("["):
            seconds = self.duration()
            if self.token.text.startswith(":"):
                raise PromqlError("a subquery cannot be translated")
            self.expect("]")
            if not isinstance(node, Selector):
                raise PromqlError("a range is possible after a metric only")
            node = Selector(node.metric, node.matchers, seconds)
        if self.token.text.lower() == "offset" and self.token.kind == "name":
            raise PromqlError("offset cannot be translated: rules read the present")
        if self.take("@"):
            raise PromqlError("@ cannot be translated: rules read the present")
        return node

    def primary(self) -> Node:
        token = self.token
        if self.take("("):
            node = self.expression()
            self.expect(")")
            return node
        if token.text == "{" and token.kind == "symbol":
            return self.selector("")
        self.place += 1
        if token.kind == "number":
            return Number(float(int(token.text, 16)) if token.text[:2].lower() == "0x" else float(token.text))
        if token.kind == "duration":
            return Number(seconds_of(token.text))
        if token.kind == "string":
            return Text(_unquoted(token.text))
        if token.kind == "name":
            return self.named(token.text)
        self.place -= 1
        raise self.unexpected("a metric, a number or a function")

    def named(self, name: str) -> Node:
        if name.lower() in ("inf", "nan") and self.token.text not in ("(", "{"):
            raise PromqlError(f"{name} is not a number that a rule can compare with")
        if name.lower() in AGGREGATIONS and self.token.text.lower() in ("(", "by", "without"):
            return self.aggregation(name.lower())
        if self.token.text == "(":
            return Call(name, self.arguments())
        return self.selector(name)

    def aggregation(self, operator: str) -> Node:
        labels, without = self.grouping()
        arguments = self.arguments()
        if not labels and not without:
            labels, without = self.grouping()
        if not 1 <= len(arguments) <= 2:
            raise PromqlError(f"{operator} has one operand, or a parameter and one")
        return Aggregation(operator, arguments[-1], labels, without, arguments[0] if len(arguments) == 2 else None)

    def grouping(self) -> tuple[tuple[str, ...], bool]:
        word = self.token.text.lower()
        if word not in ("by", "without"):
            return (), False
        self.place += 1
        return self.label_list(), word == "without"

    def arguments(self) -> tuple[Node, ...]:
        self.expect("(")
        found: list[Node] = []
        while not self.take(")"):
            found.append(self.expression())
            if not self.take(",") and self.token.text != ")":
                raise self.unexpected("',' or ')'")
        return tuple(found)

    def label_list(self) -> tuple[str, ...]:
        self.expect("(")
        labels: list[str] = []
        while not self.take(")"):
            labels.append(self.label())
            if not self.take(",") and self.token.text != ")":
                raise self.unexpected("',' or ')'")
        return tuple(labels)

    def label(self) -> str:
        token = self.token
        if token.kind not in ("name", "string"):
            raise self.unexpected("a label")
        self.place += 1
        return _unquoted(token.text) if token.kind == "string" else token.text

    def selector(self, metric: str) -> Selector:
        matchers: list[Matcher] = []
        if self.take("{"):
            while not self.take("}"):
                label = self.label()
                if self.token.text in (",", "}") and not metric:
                    metric = label  # {"metric", label="value"}
                elif label == "__name__" and not metric and self.take("="):
                    metric = self.string()
                else:
                    matchers.append(self.matcher(label))
                if not self.take(",") and self.token.text != "}":
                    raise self.unexpected("',' or '}'")
        if not metric:
            raise PromqlError("a selector without the name of a metric cannot be translated")
        return Selector(metric, tuple(matchers))

    def matcher(self, label: str) -> Matcher:
        symbol = self.take("=", "!=", "=~", "!~")
        if symbol is None:
            raise self.unexpected("=, !=, =~ or !~")
        return Matcher(label, symbol.text, self.string())

    def string(self) -> str:
        token = self.token
        if token.kind != "string":
            raise self.unexpected("a text in quotes")
        self.place += 1
        return _unquoted(token.text)

    def duration(self) -> float:
        token = self.token
        if token.kind not in ("duration", "number"):
            raise self.unexpected("a duration such as 5m")
        self.place += 1
        return seconds_of(token.text) if token.kind == "duration" else float(token.text)


def seconds_of(text: str) -> float:
    """The seconds of a duration such as ``1h30m``. Raises PromqlError."""
    if not _DURATION.fullmatch(text):
        raise PromqlError(f"{text!r} is not a duration such as 5m")
    return sum(float(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdwy])", text))


def _unquoted(text: str) -> str:
    return text[1:-1] if text.startswith("`") else _ESCAPED.sub(_character, text[1:-1])


def _character(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1])
