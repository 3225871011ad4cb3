"""Export of alert rules as PrometheusRule (monitoring.coreos.com/v1), for a Prometheus that alerts by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alerts.rules.parser import PLAN
from collectors.mapping.model import Adapter
from detectors.rules.expressions import compile_expression
from outrider.documents.summaries import rule_name
from outrider.text.i18n import Language, translate
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import AbsentPolicy, Rule
from outrider.vocabulary.severity import SEVERITIES
from outrider.vocabulary.units import exact_duration
from outrider.wire.promql import PromqlError
from service.rules.prometheus_import import API_VERSION, KIND, RULE_LABEL
from service.rules.promql.series import AdapterSeries, SignalSeries, StoredSeries
from service.rules.promql.writer import write

_ENTITY = "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }}"
_TARGET = "{{ $labels.job }} {{ $labels.instance }}"


@dataclass(frozen=True, slots=True)
class ExportedRules:
    """A PrometheusRule object, and the reason of each rule that it lacks."""

    document: dict[str, Any]
    left_out: dict[str, str]


def export(rules: Sequence[Rule], language: Language, adapter: Adapter | None = None) -> ExportedRules:
    """The rules over the series of ``store.metrics``, or over the metrics of an adapter."""
    entries, left_out = [], dict[str, str]()
    for rule in rules:
        try:
            entries.append(_entry(rule, language, adapter))
        except PromqlError as error:
            left_out[rule.name] = str(error)
    name = "outrider" if adapter is None else f"outrider-{adapter.name.replace('_', '-')}"
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "outrider"}},
        "spec": {"groups": [{"name": name, "rules": entries}]},
    }
    return ExportedRules(document, left_out)


def _entry(rule: Rule, language: Language, adapter: Adapter | None) -> dict[str, Any]:
    if rule.expr is None:
        of_plan = any(detector.startswith(PLAN) for detector in rule.detectors)
        source = "figures of the capacity plan" if of_plan else "findings of detectors"
        raise PromqlError(f"it matches {source}, which are not metrics")
    series: SignalSeries = StoredSeries(rule.kind, rule.where)
    if adapter is not None:
        series = AdapterSeries(adapter, rule.where)
    known = faults().get(rule.fault or "")
    priority = rule.priority or (known.otherwise if known else None)
    severity = {"severity": SEVERITIES[priority], "priority": priority.value} if priority else {}
    entity = _ENTITY if adapter is None else _TARGET
    action = translate(rule.default_action_text, language) if rule.default_action_text else ""
    return {
        "alert": "".join(word.capitalize() for word in rule.name.split("-")),
        "expr": _condition(rule, series),
        **({"for": exact_duration(rule.wait.total_seconds())} if rule.wait else {}),
        **({"keep_firing_for": exact_duration(rule.clear.total_seconds())} if rule.clear else {}),
        "labels": {**rule.labels, **severity, RULE_LABEL: rule.name},
        "annotations": {
            "summary": f"{rule_name(rule.name, language)}: {entity}",
            **({"description": action} if action else {}),
            **({"runbook": rule.runbook} if rule.runbook else {}),
        },
    }


def _condition(rule: Rule, series: SignalSeries) -> str:
    condition = write(rule.expr or "", series)
    if rule.absent is not AbsentPolicy.FIRE:
        return condition
    missing = [series.absent(signal) for signal in _signals(rule)]
    return " or ".join((f"({condition})", *missing))


def _signals(rule: Rule) -> tuple[str, ...]:
    return compile_expression(rule.name, rule.expr or "").signals
