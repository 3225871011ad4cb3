"""Runs test files of alert rules through the detectors and the alert state machine of the cycle. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from alerts.rules import slo_rules
from alerts.rules.context import service_context
from alerts.state import machine
from detectors.rules import burn_rate, threshold
from outrider.model import (
    SUM_BUCKET,
    Alert,
    AlertState,
    CellStatus,
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    NoVerdict,
    NoVerdictReason,
    Plan,
    PlanReason,
    Priority,
    Recommendation,
    SampleBatch,
    SignalKey,
    SignalKind,
    Statuses,
    TimeRange,
)
from outrider.ports import Collected
from outrider.topology import Topology
from outrider.vocabulary import catalog
from service.engine.detector_memory import Detection
from service.rules.fixture_file import (
    FINDING,
    OBSERVED,
    PLANNED,
    AlertCheck,
    ExpectedAlert,
    InputSeries,
    RuleFixture,
    RuleTest,
)

_INTERNAL = frozenset({"detectors", "services", "priority_of_fault"})  # labels of alerts that no rule sets
_READY = "svc_ready_backends"
_NO_DETECTOR = "fixture"  # name of the detector of findings that name only a fault


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The alerts at the time of one check. ``differences`` are empty if it passed."""

    test: RuleTest
    check: AlertCheck
    found: tuple[Alert, ...]
    differences: tuple[str, ...]


def run(fixture: RuleFixture) -> tuple[CheckResult, ...]:
    """The result of every check of a test file, in its order."""
    return tuple(result for test in fixture.tests for result in _run(test, fixture))


def _run(test: RuleTest, fixture: RuleFixture) -> Iterator[CheckResult]:
    steps = [int(check.after / test.interval) for check in test.checks]
    cycles = enumerate(_cycles(test, _wanted(test, fixture), fixture, max(steps, default=-1) + 1))
    alerts_at = {step: alerts for step, alerts in cycles if step in steps}
    for check, step in zip(test.checks, steps, strict=True):
        state = AlertState(check.state)
        found = tuple(
            alert for alert in alerts_at[step] if alert.state is state and check.alertname in (None, alert.rule)
        )
        yield CheckResult(test, check, found, tuple(_differences(check.expected, found)))


def _wanted(test: RuleTest, fixture: RuleFixture) -> frozenset[str]:
    """The rules to run: those of the checks, and those that raise the priority of others."""
    names = [check.alertname for check in test.checks]
    every = [rule.name for rule in fixture.rules] + [slo.rule for slo in fixture.slos]
    if None in names:
        return frozenset(every)
    raising = [rule.name for rule in fixture.rules if rule.service_level] if test.services else []
    return frozenset([*raising, *(name for name in names if name is not None)])


def _cycles(test: RuleTest, wanted: frozenset[str], fixture: RuleFixture, count: int) -> Iterator[tuple[Alert, ...]]:
    """The alerts after each cycle, also those that resolved in it."""
    slos = [slo for slo in fixture.slos if slo.rule in wanted]
    rules = [rule for rule in (*fixture.rules, *slo_rules.rules_of(slos)) if rule.name in wanted]
    detection = Detection((*threshold.compile_rules(rules), *burn_rate.compile_slos(slos)), test.interval)
    edges = [(below, service) for below, above in test.services.items() for service in above]
    topology = Topology.build(edges, test.facts, test.facts)
    inputs = _Inputs(test)
    active: tuple[Alert, ...] = ()
    for step in range(count):
        now = test.start + step * test.interval
        result = detection.run(now, Collected(tuple(inputs.batches(step, now))), topology)
        verdicts = (*result.alertable, *inputs.findings(step, now))
        context = service_context(
            active, inputs.ready(step), {}, lambda entity: topology.above(entity, EntityKind.SERVICE)
        )
        active = machine.advance(active, verdicts, inputs.plan(step, now), rules, context, now)
        yield active


def _differences(expected: Sequence[ExpectedAlert], found: Sequence[Alert]) -> Iterator[str]:
    left = {(alert.rule, alert.entity): alert for alert in found}
    for item in expected:
        alert = left.pop((item.rule, item.entity), None)
        if alert is None:
            yield f"{item.rule} on {item.entity} is missing"
            continue
        labels = labels_of(alert)
        for name, text in item.labels.items():
            if labels.get(name) != text:
                yield f"{item.rule} on {item.entity}: {name} is {labels.get(name, 'absent')}, expected {text}"
    for rule, entity in left:
        yield f"{rule} on {entity} is unexpected"


def labels_of(alert: Alert) -> dict[str, str]:
    """The labels of an alert in the notation of test files: those of its entity, its rule and its fault."""
    entity = alert.entity
    of_rule = {name: text for name, text in alert.labels.items() if name not in _INTERNAL}
    place = {"namespace": entity.namespace} if entity.namespace else {}
    fault = {"fault": alert.fault} if alert.fault else {}
    own = {"alertname": alert.rule, "cluster": entity.cluster, **place, entity.kind.value: entity.name}
    return {**of_rule, **own, "priority": alert.priority.value, **fault}


class _Inputs:
    """The series of a test, by step."""

    def __init__(self, test: RuleTest) -> None:
        self._interval = test.interval
        self._findings = [item for item in test.series if item.name == FINDING]
        self._plans = [item for item in test.series if item.name == PLANNED]
        self._ready = [item for item in test.series if item.name == _READY]
        self._grids = grids([item for item in test.series if item.name not in (FINDING, PLANNED)])

    def batches(self, step: int, now: datetime) -> Iterator[SampleBatch]:
        """The values of one cycle: an entity without any is not on a page."""
        for grid in self._grids:
            batch = grid.batch(step, now, self._interval)
            if batch is not None:
                yield batch

    def ready(self, step: int) -> dict[EntityRef, int]:
        """The ready replicas of services that have a number of them."""
        return {item.entity: int(value) for item in self._ready if (value := _value(item, step)) is not None}

    def findings(self, step: int, now: datetime) -> Iterator[Finding | NoVerdict]:
        """Findings with their score; a stale one has no verdict."""
        for item in self._findings:
            detector = item.labels.get("detector", _NO_DETECTOR)
            score = _value(item, step)
            if score is not None and score > 0:
                yield _finding(item, detector, score, now)
            elif score is None and _status(item, step) == CellStatus.STALE:
                yield NoVerdict(detector, item.entity, NoVerdictReason.NO_VALUES)

    def plan(self, step: int, now: datetime) -> Plan | None:
        """The figures of the capacity plan; None if the test has none."""
        if not self._plans:
            return None
        figures: dict[EntityRef, dict[str, float]] = {}
        for item in self._plans:
            value = _value(item, step)
            if value is not None:
                figures.setdefault(item.entity, {})[item.labels["measure"]] = value
        return Plan(recommendations=tuple(_planned(service, values, now) for service, values in figures.items()))


@dataclass(frozen=True, slots=True)
class Grid:
    """Values of all entities of one kind: arrays of shape (entities, steps, keys)."""

    kind: EntityKind
    entities: tuple[EntityRef, ...]
    keys: tuple[SignalKey, ...]
    values: Floats
    status: Statuses

    def batch(self, step: int, now: datetime, interval: timedelta) -> SampleBatch | None:
        """The values of one step; None if there are none."""
        if step >= self.values.shape[1]:
            return None
        rows = np.flatnonzero((self.status[:, step] != CellStatus.ABSENT).any(axis=1))
        if rows.size == 0:
            return None
        return SampleBatch(
            source="fixture",
            scraped_at=now,
            kind=self.kind,
            keys=self.keys,
            entities=tuple(self.entities[row] for row in rows),
            values=self.values[rows, step],
            status=self.status[rows, step],
            interval_seconds=interval.total_seconds(),
        )


def grids(series: Sequence[InputSeries]) -> list[Grid]:
    """The values of all series of signals, by kind of entity."""
    by_kind: dict[EntityKind, list[InputSeries]] = {}
    for item in series:
        by_kind.setdefault(item.entity.kind, []).append(item)
    return [_grid(kind, items) for kind, items in by_kind.items()]


def _grid(kind: EntityKind, series: Sequence[InputSeries]) -> Grid:
    entities = tuple(dict.fromkeys(item.entity for item in series))
    keys = tuple(dict.fromkeys(key for item in series for key in _keys(item.name)))
    shape = (len(entities), max(item.values.values.size for item in series), len(keys))
    values, status = np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
    rows = {entity: row for row, entity in enumerate(entities)}
    columns = {key: column for column, key in enumerate(keys)}
    for item in series:
        row, size = rows[item.entity], item.values.values.size
        if catalog.signal(item.name).kind is SignalKind.HISTOGRAM:
            _observe(item, values[row], status[row], columns)
        else:
            values[row, :size, columns[SignalKey(item.name)]] = item.values.values
            status[row, :size, columns[SignalKey(item.name)]] = item.values.status
    return Grid(kind, entities, keys, values, status)


def _keys(name: str) -> tuple[SignalKey, ...]:
    signal = catalog.signal(name)
    return signal.bucket_keys if signal.kind is SignalKind.HISTOGRAM else (SignalKey(name),)


def _observe(item: InputSeries, values: Floats, status: Statuses, columns: Mapping[SignalKey, int]) -> None:
    """Adds observations of one value to the buckets of their entity, (steps, keys); the other buckets get zero."""
    signal, observed = catalog.signal(item.name), float(item.labels[OBSERVED])
    bucket = int(np.searchsorted(signal.bounds, observed, side="left"))
    counts, size = item.values.values, item.values.values.size
    every = np.array([columns[key] for key in signal.bucket_keys])
    present = item.values.status == CellStatus.PRESENT
    rows = np.flatnonzero(present)
    values[np.ix_(rows, every)] = np.nan_to_num(values[np.ix_(rows, every)])
    values[rows, columns[SignalKey(item.name, bucket=bucket)]] += counts[present]
    values[rows, columns[SignalKey(item.name, bucket=SUM_BUCKET)]] += counts[present] * observed
    for column in every:
        status[:size, column] = np.minimum(status[:size, column], item.values.status)


def _value(item: InputSeries, step: int) -> float | None:
    if step >= item.values.values.size or np.isnan(item.values.values[step]):
        return None
    return float(item.values.values[step])


def _status(item: InputSeries, step: int) -> int:
    return int(item.values.status[step]) if step < item.values.status.size else CellStatus.ABSENT


def _finding(item: InputSeries, detector: str, score: float, now: datetime) -> Finding:
    return Finding(
        detector=detector,
        entity=item.entity,
        signals=(),
        severity=Priority.P2,
        score=score,
        observed=score,
        expected=None,
        window=TimeRange(now, now),
        evidence=(),
        fingerprint=f"{detector}|{item.entity.key}|{item.labels.get('fault', '')}",
        fault=item.labels.get("fault"),
    )


def _planned(service: EntityRef, figures: Mapping[str, float], now: datetime) -> Recommendation:
    return Recommendation(
        service=service,
        gpu_type="",
        current_replicas=1,
        target_replicas=1,
        gpus=1,
        floor=1,
        ceiling=1,
        binding="forecast",
        need_at=None,
        needed_by=None,
        lead_time=timedelta(0),
        cost_per_hour=None,
        currency="",
        derivation=dict(figures),
        reason=PlanReason.FORECAST_PEAK,
        made_at=now,
    )
