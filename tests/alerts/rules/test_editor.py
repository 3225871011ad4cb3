"""One key of one rule is changed in a text, and nothing else in it."""

import difflib

import pytest
import yaml

from alerts.rules.editor import with_key
from outrider.errors import UsageError

EXPR = 'mean(engine_kv_cache_usage_ratio, "5m") > 0.9 and last(engine_requests_waiting) > 0.9'
AT = (EXPR.index("0.9"), EXPR.index("0.9") + 3, "0.955")
TURNED = EXPR.replace("0.9", "0.955", 1)
FILE = """\
# ours, agreed on Monday
version: 1
rules:
  # the cache
  - name: cache   # (ours)
    kind: replica
    expr: >-
      mean(engine_kv_cache_usage_ratio, "5m") > 0.9
      and last(engine_requests_waiting) > 0.9
    wait: 10m  # as the others
  - {name: flow, wait: 5m}
  - name: last
    priority: P3
# the end
"""


def changed_lines(before: str, after: str) -> list[str]:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in diff if line[0] in "+-" and not line.startswith(("+++", "---"))]


@pytest.mark.parametrize(
    ("rule", "key", "value", "part", "lines"),
    [
        ("cache", "wait", "15m", None, ["-    wait: 10m  # as the others", "+    wait: 15m  # as the others"]),
        (
            "cache", "expr", TURNED, AT,
            [
                '-      mean(engine_kv_cache_usage_ratio, "5m") > 0.9',
                '+      mean(engine_kv_cache_usage_ratio, "5m") > 0.955',
            ],
        ),
        ("flow", "wait", "15m", None, ["-  - {name: flow, wait: 5m}", "+  - {name: flow, wait: 15m}"]),
        ("last", "wait", "15m", None, ["+    wait: 15m"]),
        ("packaged", "wait", "1h30m", None, ["+  - name: packaged", "+    wait: 1h30m"]),
    ],
)  # fmt: skip
def test_only_the_named_key_changes(rule, key, value, part, lines):
    after = with_key(FILE, "rules.yaml", rule, key, value, part=part)
    assert changed_lines(FILE, after) == lines
    named = next(one for one in yaml.safe_load(after)["rules"] if one["name"] == rule)
    assert named[key] == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n",
        "version: 1\nrules: []\n",
        "version: 1\nrules: []  # none\n",
        "rules: []\nversion: 1",
        "rules: [{name: other, wait: 1m}]\n",
        "rules:\n- name: other\n  wait: 1m",
        "rules:\n- name: other\n  expr: |\n    last(engine_up) > 1\n\nversion: 1\n",
        "rules:\nversion: 1\n",
        'rules:\n  - name: r\n    expr: "mean(engine_kv_cache_usage_ratio, \\"5m\\") > 0.9"\n',
        "rules:\n  - name: r\n    expr: 'mean(engine_kv_cache_usage_ratio, \"5m\") > 0.9'\n    wait: 1m\n",
        "rules:\r\n  - name: r\r\n    wait: 1m\r\n",
        "{version: 1, rules: [{name: r, expr: last(engine_up) < 1}]}",
    ],
)
def test_the_rule_has_the_new_value_in_every_yaml_form(text):
    after = with_key(text, "rules.yaml", "r", "expr", EXPR, part=AT)
    found = {one["name"]: one for one in yaml.safe_load(after)["rules"]}
    before = {one["name"]: one for one in (yaml.safe_load(text) or {}).get("rules") or []}
    assert found.pop("r")["expr"] == EXPR
    before.pop("r", None)
    assert found == before
    for comment in ("# nothing yet", "# none"):
        assert (comment in text) == (comment in after)


def test_an_escaped_expression_is_replaced_as_a_whole():
    escaped = 'rules:\n  - name: r\n    expr: "mean(engine_kv_cache_usage_ratio, \\"5m\\") > 0.9"  # ours\n'
    old = 'mean(engine_kv_cache_usage_ratio, "5m") > 0.9'
    after = with_key(escaped, "f", "r", "expr", old.replace("0.9", "0.95"), part=(len(old) - 3, len(old), "0.95"))
    assert yaml.safe_load(after)["rules"][0]["expr"] == old.replace("0.9", "0.95")
    assert "# ours" in after


@pytest.mark.parametrize(
    "text",
    [
        "rules:\n  - name: r\n    wait: &w 1m\n  - name: s\n    wait: *w\n",
        "- a list\n",
        "rules: 3\n",
        "rules: [\n",
    ],
)
def test_a_form_that_cannot_be_changed_in_place_is_refused_with_a_hint(text):
    with pytest.raises(UsageError, match=r"cannot be changed in place") as refused:
        with_key(text, "rules.yaml", "r", "wait", "15m")
    assert "wait: 15m" in refused.value.hint
