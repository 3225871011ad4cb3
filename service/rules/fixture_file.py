"""Reads test files of alert rules: series over time, and the alerts expected at some times.

The keys are those of promtool's unit tests. Every mistake of a file is reported with its line and key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pydantic

from alerts.rules import files as rule_files
from alerts.rules.parser import RuleEntry
from detectors import registry
from detectors.rules.threshold import compile_rules
from outrider.clock import parse_rfc3339
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, SignalKind
from outrider.text import yaml_file
from outrider.text.yaml_file import Document, Path_, near
from outrider.text.yaml_shapes import Shapes
from outrider.vocabulary import catalog
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import Rule
from outrider.vocabulary.slo import Slo
from outrider.vocabulary.units import parse_duration
from service.config.settings import Settings
from service.config.slo_settings import SloSettings, slo_problems
from service.engine import watchdogs
from service.rules.series_notation import MOST_VALUES, NotationError, Values, parse_series, parse_values

FINDING, PLANNED = "finding", "plan"  # names of series that are not signals
OBSERVED = "observed"  # label of a histogram: the value that was observed
STATES = ("firing", "pending")
START = datetime(2026, 1, 1, tzinfo=UTC)
_INTERVAL = timedelta(seconds=15)
_KINDS = tuple(kind.value for kind in EntityKind)
_PLACE = ("namespace", "cluster")
_TOP = ("rule_files", "enable", "slos", "interval", "tests")
_TEST = ("name", "interval", "start", "input_series", "facts", "services", "alert_rule_test")
_CHECK = ("eval_time", "alertname", "state", "exp_alerts")


@dataclass(frozen=True, slots=True)
class InputSeries:
    """Values of one signal of an entity. The name may also be ``finding`` or ``plan``, with labels of its own."""

    name: str
    entity: EntityRef
    labels: Mapping[str, str]
    values: Values


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """An alert that must be there. ``labels`` are further labels that it must have."""

    rule: str
    entity: EntityRef
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlertCheck:
    """The alerts expected at one time: those of one rule, or all if ``alertname`` is None."""

    after: timedelta
    alertname: str | None
    state: str
    expected: tuple[ExpectedAlert, ...]
    line: int


@dataclass(frozen=True, slots=True)
class RuleTest:
    """One test. ``services`` are the services that a fault of an entity can reach, ``facts`` those of the topology."""

    name: str
    line: int
    start: datetime
    interval: timedelta
    series: tuple[InputSeries, ...]
    services: Mapping[EntityRef, tuple[EntityRef, ...]]
    facts: Mapping[EntityRef, Mapping[str, str]]
    checks: tuple[AlertCheck, ...]


@dataclass(frozen=True, slots=True)
class RuleFixture:
    """A test file with the rules and SLOs that it tests."""

    file: Path
    rules: tuple[Rule, ...]
    slos: tuple[Slo, ...]
    tests: tuple[RuleTest, ...]


def read(path: Path, settings: Settings) -> RuleFixture:
    """Reads a test file. Its rules are those of the settings, with those that it names.

    Raises ConfigError with every mistake in line order.
    """
    document = yaml_file.read(path)
    reader = _Reader(document, settings)
    fixture = reader.fixture(path)
    if reader.problems:
        raise yaml_file.refuse(reader.problems)
    return fixture


class _Reader(Shapes):
    """Reads one document and collects its mistakes."""

    def __init__(self, document: Document, settings: Settings) -> None:
        super().__init__()
        self._document, self._settings = document, settings
        self._entries: dict[str, RuleEntry] = {}
        self._slos: dict[str, Slo] = {slo.rule: slo for slo in settings.resolved_slos}

    def fixture(self, path: Path) -> RuleFixture:
        top = self._keys((), self.mapping(self._document, (), self._document.value), _TOP)
        self._read_rules(path, top)
        self._read_slos(top)
        interval = self._duration(("interval",), top.get("interval"), _INTERVAL)
        if not top.get("tests"):
            self.note(self._document, ("tests",), "is missing: expected a list of tests")
        tests = [
            self._test(("tests", index), item, interval)
            for index, item in enumerate(self.items(self._document, ("tests",), top.get("tests", [])))
        ]
        rules = tuple(entry.rule for entry in self._entries.values() if entry.enabled)
        return RuleFixture(path, rules, tuple(self._slos.values()), tuple(tests))

    # --- rules ------------------------------------------------------------------------------------

    def _read_rules(self, path: Path, top: Mapping[str, Any]) -> None:
        names = self.texts(self._document, ("rule_files",), top.get("rule_files", []))
        enable = [name for _, name in self.texts(self._document, ("enable",), top.get("enable", []))]
        files = [path.parent / name for _, name in names]
        for (key, _), file in zip(names, files, strict=True):
            if not file.is_file():
                self.note(self._document, key, f"{file} is not a file")
                return
        known = self._settings.rules
        try:
            entries = rule_files.load_entries([*known.files, *files], [*known.enable, *enable])
        except UsageError as error:
            found = getattr(error, "problems", ())
            self.problems += found
            if not found:
                self.note(self._document, ("enable",) if enable else (), error.message)
            return
        self._entries = {entry.rule.name: entry for entry in entries}
        for entry in entries:
            try:
                compile_rules([entry.rule])
            except UsageError as error:
                self.problems.append(entry.problem("expr", error.message))

    def _read_slos(self, top: Mapping[str, Any]) -> None:
        entries = self.items(self._document, ("slos",), top.get("slos", []))
        try:
            slos = Settings.model_validate({"slos": entries}).slos
        except pydantic.ValidationError as error:
            self.problems += yaml_file.problems_of(error, self._document, Settings)
            return
        known: Sequence[SloSettings] = slos
        self.problems += slo_problems(known, self._document)
        self._slos |= {slo.rule: slo for slo in (entry.slo(self._settings.cluster) for entry in known)}

    # --- one test ---------------------------------------------------------------------------------

    def _test(self, path: Path_, value: Any, interval: timedelta) -> RuleTest:
        entry = self._keys(path, self.mapping(self._document, path, value), _TEST)
        checks = [
            self._check((*path, "alert_rule_test", index), item)
            for index, item in enumerate(self._required(path, entry, "alert_rule_test"))
        ]
        series = [
            self._series((*path, "input_series", index), item)
            for index, item in enumerate(self._required(path, entry, "input_series"))
        ]
        every = self._duration((*path, "interval"), entry.get("interval"), interval)
        for index, check in enumerate(checks):
            if check is not None and check.after / every >= MOST_VALUES:
                where = (*path, "alert_rule_test", index, "eval_time")
                self.note(self._document, where, f"is more than {MOST_VALUES:,} intervals after the start")
        return RuleTest(
            name=str(entry.get("name", f"test {path[-1]}")),
            line=self._document.line(path),
            start=self._start((*path, "start"), entry.get("start")),
            interval=every,
            series=tuple(item for item in series if item is not None),
            services=self._services((*path, "services"), entry.get("services", [])),
            facts=self._facts((*path, "facts"), entry.get("facts", [])),
            checks=tuple(item for item in checks if item is not None),
        )

    def _series(self, path: Path_, value: Any) -> InputSeries | None:
        entry = self._keys(path, self.mapping(self._document, path, value), ("series", "values"))
        parsed = self._notation((*path, "series"), entry.get("series"))
        values = self._values((*path, "values"), entry.get("values"))
        if parsed is None or values is None:
            return None
        name, labels = parsed
        entity, rest = self._entity((*path, "series"), labels)
        allowed = self._labels_of((*path, "series"), name, rest, entity)
        for label in rest:
            if label not in allowed:
                self.note(self._document, (*path, "series"), f"unknown label {label}{near(label, (*allowed, *_KINDS))}")
        return None if entity is None else InputSeries(name, entity, rest, values)

    def _values(self, path: Path_, value: Any) -> Values | None:
        if not isinstance(value, str):  # YAML reads 0x20 as a hexadecimal number
            self.expected(self._document, path, 'a text in quotes such as "0x20 5+1x3"', value)
            return None
        try:
            return parse_values(value)
        except NotationError as error:
            self.note(self._document, path, str(error))
            return None

    def _labels_of(self, path: Path_, name: str, labels: Mapping[str, str], entity: EntityRef | None) -> Sequence[str]:
        """The labels that a series may have besides those of its entity. Notes a wrong name or value."""
        if name == FINDING:
            self._finding(path, labels)
            return ("fault", "detector")
        if name == PLANNED:
            if "measure" not in labels or (entity is not None and entity.kind is not EntityKind.SERVICE):
                self.note(self._document, path, 'plan needs the labels measure and service="..."')
            return ("measure",)
        if not catalog.known(name):
            known = near(name, (*catalog.signals(), FINDING, PLANNED))
            self.note(self._document, path, f"there is no signal {name}{known}")
            return tuple(labels)
        if catalog.signal(name).kind is not SignalKind.HISTOGRAM:
            return ()
        if _number(labels.get(OBSERVED, "")) is None:
            self.note(
                self._document, path, f'{name} is a histogram: the label {OBSERVED}="1.5" gives the value observed'
            )
        return (OBSERVED,)

    def _finding(self, path: Path_, labels: Mapping[str, str]) -> None:
        fault, detector = labels.get("fault"), labels.get("detector")
        if fault is None and detector is None:
            self.note(self._document, path, "finding needs the label fault, detector or both")
        if fault is not None and fault not in faults():
            self.note(self._document, path, f"unknown fault {fault!r}{near(fault, faults())}")
        if detector is not None and detector not in _detectors():
            self.note(self._document, path, f"unknown detector {detector!r}{near(detector, _detectors())}")

    def _check(self, path: Path_, value: Any) -> AlertCheck | None:
        entry = self._keys(path, self.mapping(self._document, path, value), _CHECK)
        name = entry.get("alertname")
        if name is not None and not self._known_rule((*path, "alertname"), str(name)):
            return None
        state = entry.get("state", STATES[0])
        if state not in STATES:
            self.expected(self._document, (*path, "state"), " or ".join(STATES), state)
        if "eval_time" not in entry:
            self.note(self._document, (*path, "eval_time"), "is missing: expected a time after the start such as 10m")
        items = self.items(self._document, (*path, "exp_alerts"), entry.get("exp_alerts") or [])
        expected = [self._expected((*path, "exp_alerts", index), item, name) for index, item in enumerate(items)]
        return AlertCheck(
            after=self._duration((*path, "eval_time"), entry.get("eval_time"), timedelta(0)),
            alertname=name,
            state=str(state),
            expected=tuple(item for item in expected if item is not None),
            line=self._document.line(path),
        )

    def _expected(self, path: Path_, value: Any, name: str | None) -> ExpectedAlert | None:
        entry = self._keys(path, self.mapping(self._document, path, value), ("exp_labels",))
        where = (*path, "exp_labels")
        labels = {
            key: str(text) for key, text in self.mapping(self._document, where, entry.get("exp_labels", {})).items()
        }
        rule = labels.pop("alertname", name)
        if rule is None:
            self.note(self._document, where, "alertname is missing, because the check names no rule")
            return None
        if name is not None and rule != name:
            self.note(self._document, where, f"alertname {rule} is not that of the check, {name}")
        if not self._known_rule(where, rule):
            return None
        entity, rest = self._entity(where, labels)
        return None if entity is None else ExpectedAlert(rule, entity, rest)

    def _known_rule(self, path: Path_, name: str) -> bool:
        """True if the rule is in force; notes the mistake otherwise."""
        if not self._entries:
            return False  # the rules themselves could not be read
        entry = self._entries.get(name)
        if name in self._slos or (entry is not None and entry.enabled):
            return True
        if entry is None:
            message = f"no rule is named {name!r}{near(name, (*self._entries, *self._slos))}"
        else:
            message = f"the rule {name} is off or replaced; enable: [{name}] switches it on"
        self.note(self._document, path, message)
        return False

    # --- parts ------------------------------------------------------------------------------------

    def _services(self, path: Path_, value: Any) -> dict[EntityRef, tuple[EntityRef, ...]]:
        result: dict[EntityRef, tuple[EntityRef, ...]] = {}
        for index, item in enumerate(self.items(self._document, path, value)):
            entry = self._keys(
                (*path, index), self.mapping(self._document, (*path, index), item), ("entity", "service")
            )
            below, service = (self._named((*path, index, key), entry.get(key)) for key in ("entity", "service"))
            if below is not None and service is not None:
                result[below] = (*result.get(below, ()), service)
        return result

    def _facts(self, path: Path_, value: Any) -> dict[EntityRef, dict[str, str]]:
        result: dict[EntityRef, dict[str, str]] = {}
        for index, item in enumerate(self.items(self._document, path, value)):
            where = (*path, index)
            entry = self._keys(where, self.mapping(self._document, where, item), ("entity", "labels"))
            entity = self._named((*where, "entity"), entry.get("entity"))
            labels = self.mapping(self._document, (*where, "labels"), entry.get("labels", {}))
            if entity is not None:
                result.setdefault(entity, {}).update({key: str(text) for key, text in labels.items()})
        return result

    def _named(self, path: Path_, value: Any) -> EntityRef | None:
        """The entity of a text such as ``{gpu="GPU-1"}``."""
        parsed = self._notation(path, f"entity{value}" if isinstance(value, str) else value)
        if parsed is None:
            return None
        entity, rest = self._entity(path, parsed[1])
        if rest:
            self.note(self._document, path, f"unknown label {next(iter(rest))}")
        return entity

    def _notation(self, path: Path_, value: Any) -> tuple[str, dict[str, str]] | None:
        if not isinstance(value, str):
            self.expected(self._document, path, 'a series such as svc_requests_total{service="chat"}', value)
            return None
        try:
            return parse_series(value)
        except NotationError as error:
            self.note(self._document, path, str(error))
            return None

    def _entity(self, path: Path_, labels: Mapping[str, str]) -> tuple[EntityRef | None, dict[str, str]]:
        """The entity that the labels name, and the other labels."""
        kinds = [label for label in labels if label in _KINDS and label not in _PLACE] or (
            ["cluster"] if "cluster" in labels else []
        )
        if len(kinds) != 1:
            message = f"expected one label that is a kind of entity: {', '.join(_KINDS)}"
            self.note(self._document, path, message)
            return None, {}
        kind, cluster = kinds[0], labels.get("cluster", self._settings.cluster)
        rest = {label: text for label, text in labels.items() if label not in (kind, *_PLACE)}
        return EntityRef(cluster, EntityKind(kind), labels.get("namespace"), labels[kind]), rest

    def _required(self, path: Path_, entry: Mapping[str, Any], key: str) -> list[Any]:
        if key not in entry:
            self.note(self._document, (*path, key), "is missing: expected a list")
        return self.items(self._document, (*path, key), entry.get(key, []))

    def _keys(self, path: Path_, entry: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
        for key in entry:
            if key not in known:
                self.note(
                    self._document, (*path, key), f"unknown key{near(key, known) or '; known: ' + ', '.join(known)}"
                )
        return entry

    def _duration(self, path: Path_, value: Any, default: timedelta) -> timedelta:
        if value is None:
            return default
        try:
            duration = parse_duration(str(value))
        except UsageError as error:
            self.note(self._document, path, f"{error.message}; {error.hint}")
            return default
        if not duration and path[-1] == "interval":
            self.expected(self._document, path, "a duration above 0", value)
            return default
        return duration

    def _start(self, path: Path_, value: Any) -> datetime:
        if value is None:
            return START
        try:
            return value if isinstance(value, datetime) and value.tzinfo else parse_rfc3339(str(value))
        except ValueError:
            self.expected(self._document, path, "a time such as 2026-01-01T00:00:00Z", str(value))
            return START


def _detectors() -> tuple[str, ...]:
    """Names of detectors, of their families, and of the symptoms that they report."""
    names = [*registry.DETECTORS, *(name for other in registry.SYMPTOMS.values() for name in other), watchdogs.DETECTOR]
    return tuple(dict.fromkeys((*names, *(name.rpartition("-")[0] for name in names if "-" in name))))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
