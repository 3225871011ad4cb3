"""PromQL as Prometheus reads it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.wire.promql import (
    Aggregation,
    Binary,
    Call,
    Matcher,
    Negative,
    Number,
    PromqlError,
    Selector,
    parse,
)

VALID = """\
up == 0
up{job="a", instance!~"b.*"} == bool 0
{__name__="up", job="a"}
-1 + 2 * 3 ^ 2 ^ 0.5 < up
(1 - a / b) * 100 > 90 # a comment
sum(rate(http_requests_total[5m])) by (job)
sum by (job, le,) (rate(http_requests_total{code=~"5.."}[1h30m]))
sum without (x) (a) / ignoring(x) group_left(y) sum(c)
a and on(instance) b or c unless d
histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m]))) > 2.5e-1
topk(3, a) > 0x1F
count_values("v", a) > 1
clamp_min(a, 1)
a{b="c\\"d", e='f', g=`h\\i`}
max_over_time(job:rate:sum5m[10m]) % 2 == 1
absent(up{job="x"})
vector(1) > 0
time() - a > 60
""".splitlines()
INVALID = """\
up ==
sum(
a{b=c}
a{b="c"
rate(a[5m]
a b
1 > > 2
a[5]5
"a" and
)""".splitlines()


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """Expressions that promtool accepts as alert rules."""
    if shutil.which("promtool") is None:
        pytest.skip("missing: promtool (Debian package prometheus)")
    folder = tmp_path_factory.mktemp("promql")

    def check(expression):
        rule = {"alert": "A", "expr": expression}
        (folder / "rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": [rule]}]}), encoding="utf-8")
        done = subprocess.run(
            ["promtool", "check", "rules", str(folder / "rules.yaml")], capture_output=True, check=False
        )
        return done.returncode == 0

    return check


@pytest.mark.parametrize("text", VALID)
def test_what_prometheus_accepts_is_read(text, accepted):
    parse(text)
    assert accepted(text)


@pytest.mark.parametrize("text", INVALID)
def test_what_prometheus_refuses_is_refused(text, accepted):
    with pytest.raises(PromqlError):
        parse(text)
    assert not accepted(text)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a - b - c", Binary("-", Binary("-", Selector("a"), Selector("b")), Selector("c"))),
        ("2 ^ 3 ^ 4", Binary("^", Number(2), Binary("^", Number(3), Number(4)))),
        ("-2 ^ 2", Negative(Binary("^", Number(2), Number(2)))),
        ("-2 * 3", Binary("*", Negative(Number(2)), Number(3))),
        ("a and b or c", Binary("or", Binary("and", Selector("a"), Selector("b")), Selector("c"))),
        ("a > 1 and b", Binary("and", Binary(">", Selector("a"), Number(1)), Selector("b"))),
        ('a{b!="c"}[1m30s]', Selector("a", (Matcher("b", "!=", "c"),), 90.0)),
        ("sum(a) by (b)", Aggregation("sum", Selector("a"), ("b",))),
        ("a > bool on(x) b", Binary(">", Selector("a"), Selector("b"), "bool on(x)")),
        ("topk(2, a)", Aggregation("topk", Selector("a"), (), parameter=Number(2))),
        ("sum > 1", Binary(">", Selector("sum"), Number(1))),
        ("f(a, 1)", Call("f", (Selector("a"), Number(1)))),
    ],
)  # fmt: skip
def test_operators_bind_as_in_prometheus(text, tree):
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rate(a[5m:1m]) > 1", "a subquery cannot be translated"),
        ("a offset 5m > 1", "offset cannot be translated"),
        ("a @ 100 > 1", "@ cannot be translated"),
        ('{job="a"} > 1', "without the name of a metric"),
        ("a > NaN", "NaN is not a number"),
        ("(" * 100 + "a" + ")" * 100, "is nested too deeply"),
        ("", "expected a metric, a number or a function, found the end"),
        ("a ; b", "cannot be read at '; b'"),
    ],
)
def test_what_no_rule_can_have_is_named(text, reason):
    with pytest.raises(PromqlError, match="^[^\n]*" + reason.replace("(", r"\(")):
        parse(text)


NAMES = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True).filter(
    lambda name: name not in {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "inf", "nan", "offset",
                              "sum", "min", "max", "avg", "group", "count", "topk", "quantile", "limitk"}
)  # fmt: skip
MATCHERS = st.builds(Matcher, NAMES, st.sampled_from(["=", "!=", "=~", "!~"]), st.text("ab\"\\ '", max_size=4))
SELECTORS = st.builds(Selector, NAMES, st.lists(MATCHERS, max_size=2).map(tuple))
OPERATORS = st.sampled_from(["+", "-", "*", "/", "%", "^", ">", "<=", "and", "or", "unless"])
LABELS = st.lists(NAMES, min_size=1, max_size=2).map(tuple)
TREES = st.recursive(
    st.one_of(SELECTORS, st.integers(0, 99).map(lambda number: Number(number / 4))),
    lambda inner: st.one_of(
        st.builds(Binary, OPERATORS, inner, inner),
        st.builds(Negative, inner),
        st.builds(Call, NAMES, st.lists(inner, max_size=2).map(tuple)),
        st.builds(Aggregation, st.sampled_from(["sum", "max"]), inner, LABELS, st.booleans()),
    ),
    max_leaves=8,
)


def written(node):
    """PromQL with parentheses around every operand."""
    if isinstance(node, Number):
        return f"{node.value:g}"
    if isinstance(node, Selector):
        inner = ",".join(f"{one.label}{one.symbol}{_quoted(one.value)}" for one in node.matchers)
        return node.metric + (f"{{{inner}}}" if inner else "")
    if isinstance(node, Binary):
        return f"({written(node.left)}) {node.symbol} ({written(node.right)})"
    if isinstance(node, Negative):
        return f"-({written(node.inner)})"
    if isinstance(node, Call):
        return f"{node.function}({', '.join(map(written, node.arguments))})"
    word = "without" if node.without else "by"
    return f"{node.operator} {word} ({', '.join(node.labels)}) ({written(node.inner)})"


def _quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(TREES)
def test_a_tree_that_is_written_is_read_back(tree):
    assert parse(written(tree)) == tree


@given(st.text("abc(){}[]=~!<>+-*/ \"'`,.0159mh#\n", max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        parse(text)
    except PromqlError as error:
        assert str(error)  # noqa: PT017 - both outcomes are right
