"""Reads scenario files. A file is a mapping with one key, ``scenarios``, whose value lists them.

::

    id: gpu-lost-beside-surge       # lower case, digits and hyphens; once over all files
    load: weekly                    # a name of simulator.traffic.shapes.SHAPES
    world: single                   # single | standby: with a second cluster on stand-by
    storm: false                    # with any seed its faults touch 10 or more entities; scored separately
    watch: 3m                       # time after the end of the last fault; at least the default
    negative: false                 # without a fault: only states of never_a_fault
    note: purpose of the scenario
    faults:
      - {fault: gpu-lost, after: 4m, lasts: 10m, entity: serving, cluster: main}

``after`` counts from the start of the scenario (default 4m); ``lasts`` defaults to the fault's own duration;
``entity`` is a name or words of ``entity_choice.WORDS``; ``cluster`` is main or standby.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import resources
from math import ceil
from pathlib import Path
from typing import Any, Literal

from outrider.errors import ConfigProblem, UsageError
from outrider.text import yaml_file
from outrider.text.yaml_file import Document, Path_
from outrider.vocabulary.faults import faults
from outrider.vocabulary.units import format_duration, parse_duration
from simulator.faults import FAULTS
from simulator.scenarios.entity_choice import is_name
from simulator.traffic.shapes import SHAPES

TAIL = timedelta(minutes=3)  # grace period of detection, plus one scrape
LEAD = timedelta(minutes=4)
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SCENARIO_KEYS = ("id", "faults", "load", "negative", "storm", "world", "watch", "note")
_FAULT_KEYS = ("fault", "entity", "after", "lasts", "cluster")
_WORLDS = ("single", "standby")
_CLUSTERS = ("main", "standby")
_SHAPES = tuple(name for name in SHAPES if name != "trace")  # a trace needs a file, which scenarios do not have


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a scenario. ``where`` is its position in the file, for errors found only on a fleet."""

    fault: str
    after: timedelta
    lasts: timedelta
    entity: str = ""
    cluster: Literal["main", "standby"] = "main"
    where: ConfigProblem = field(default_factory=lambda: ConfigProblem("", 0, "", ""), compare=False)

    @property
    def until(self) -> timedelta:
        """End of the fault, counted from the start of the scenario."""
        return self.after + self.lasts


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named set of faults under one load. ``faults`` are in file order.

    ``watch`` is the time after the last fault in which late detections and aftermath are observed.
    """

    id: str
    faults: tuple[PlannedFault, ...]
    load: str = "weekly"
    negative: bool = False
    storm: bool = False
    world: Literal["single", "standby"] = "single"
    note: str = ""
    watch: timedelta = TAIL

    @property
    def lookalike(self) -> bool:
        """True if a fault occurs beside a harmless state, or with a fault that it is confused with."""
        known, vocabulary = [planned.fault for planned in self.faults], faults()
        if any(FAULTS[fault].negative for fault in known):
            return True
        return any(other in vocabulary[fault].confusable for fault in known for other in known if fault != other)

    @property
    def minutes(self) -> int:
        """Total minutes: until the end of the last fault, plus the time watched after it."""
        return ceil((max(planned.until for planned in self.faults) + self.watch).total_seconds() / 60)


def load(paths: Sequence[Path] | None = None) -> tuple[Scenario, ...]:
    """Returns the scenarios of these files, by default the packaged ones, in order of files and lines.

    Raises ConfigError with all problems by file, line and key.
    """
    return read(_packaged() if paths is None else [yaml_file.read(path) for path in paths])


def read(documents: Sequence[Document]) -> tuple[Scenario, ...]:
    """Returns the scenarios of parsed files. Raises ConfigError as ``load`` does."""
    problems: list[ConfigProblem] = []
    result: dict[str, Scenario] = {}
    for document in documents:
        listed = document.value.get("scenarios") if isinstance(document.value, dict) else None
        if not isinstance(listed, list) or not listed:
            problems.append(document.problem((), "expected the key scenarios with a list of scenarios"))
            continue
        problems += [
            document.problem((key,), f"unknown key{yaml_file.near(key, ('scenarios',))}")
            for key in map(str, document.value)
            if key != "scenarios"
        ]
        for place, entry in enumerate(listed):
            reader = _Reader(document, ("scenarios", place))
            scenario = reader.scenario(entry)
            problems += reader.problems
            if scenario is not None and scenario.id in result:
                problems.append(document.problem(("scenarios", place, "id"), f"{scenario.id!r} is already used"))
            elif scenario is not None:
                result[scenario.id] = scenario
    if problems:
        raise yaml_file.refuse(problems)
    return tuple(result.values())


def _packaged() -> list[Document]:
    folder = resources.files("simulator.scenarios")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [yaml_file.parse(file.read_text(encoding="utf-8"), f"simulator/scenarios/{file.name}") for file in files]


class _Reader:
    """Reads one scenario and collects all its problems."""

    def __init__(self, document: Document, path: Path_) -> None:
        self.document, self.path = document, path
        self.problems: list[ConfigProblem] = []

    def scenario(self, entry: Any) -> Scenario | None:
        """Returns the scenario, None if it has a problem."""
        if not self._mapping(self.path, entry, _SCENARIO_KEYS):
            return None
        identity = entry.get("id")
        if not isinstance(identity, str) or not _ID.fullmatch(identity):
            self._wrong((*self.path, "id"), f"{identity!r} is not an id; expected words of a-z and 0-9 with hyphens")
        load_shape = self._load(entry.get("load", "weekly"))
        world = self._one_of((*self.path, "world"), entry.get("world", "single"), _WORLDS)
        negative, storm = self._flag(entry, "negative"), self._flag(entry, "storm")
        watch = self._duration((*self.path, "watch"), entry.get("watch"), TAIL)
        if watch < TAIL:
            self._wrong((*self.path, "watch"), f"expected {format_duration(TAIL)} or longer")
        listed = entry.get("faults")
        if not isinstance(listed, list) or not listed:
            self._wrong((*self.path, "faults"), "expected a list of one or more faults")
            return None
        faults = [self._fault(place, one, world) for place, one in enumerate(listed)]
        planned = [fault for fault in faults if fault is not None]
        self._check_together(planned, negative)
        if self.problems:
            return None
        note = " ".join(str(entry.get("note", "")).split())
        return Scenario(str(identity), tuple(planned), load_shape, negative, storm, world, note, watch)

    def _fault(self, place: int, entry: Any, world: str) -> PlannedFault | None:
        path = (*self.path, "faults", place)
        if not self._mapping(path, entry, _FAULT_KEYS):
            return None
        name = entry.get("fault")
        if name not in FAULTS:
            self._wrong((*path, "fault"), f"unknown fault {name!r}{yaml_file.near(str(name), FAULTS)}")
            return None
        cluster = self._one_of((*path, "cluster"), entry.get("cluster", "main"), _CLUSTERS)
        if cluster == "standby" and world != "standby":
            self._wrong((*path, "cluster"), "this world has no standby; expected world: standby")
        entity = entry.get("entity", "")
        if not isinstance(entity, str):
            self._wrong((*path, "entity"), f"{entity!r} is not an entity; expected its name or words such as serving")
        after = self._duration((*path, "after"), entry.get("after"), LEAD, zero=True)
        lasts = self._duration((*path, "lasts"), entry.get("lasts"), FAULTS[name].lasts)
        where = self.document.problem((*path, "entity" if "entity" in entry else "fault"), "")
        return PlannedFault(str(name), after, lasts, str(entity), cluster, where)

    def _check_together(self, planned: Sequence[PlannedFault], negative: bool) -> None:
        """Checks the faults of a scenario against each other."""
        kinds = {FAULTS[one.fault].negative for one in planned}
        if planned and negative and kinds != {True}:
            self._wrong((*self.path, "negative"), "the scenario has a fault; expected only states of never_a_fault")
        if planned and not negative and kinds == {True}:
            self._wrong((*self.path, "faults"), "the scenario has no fault; expected one, or negative: true")
        for number, one in enumerate(planned):
            for other in planned[:number]:
                if one.after < other.until and other.after < one.until and _same_place(one, other):
                    self.problems.append(
                        ConfigProblem(
                            one.where.file,
                            one.where.line,
                            one.where.key,
                            f"{one.fault} on this entity overlaps the one in line {other.where.line}; "
                            "expected another time or entity",
                        )
                    )

    def _mapping(self, path: Path_, entry: Any, keys: Sequence[str]) -> bool:
        if not isinstance(entry, dict):
            self._wrong(path, f"expected a mapping with {', '.join(keys)}")
            return False
        for key in map(str, entry):
            if key not in keys:
                self._wrong((*path, key), f"unknown key{yaml_file.near(key, keys) or '; expected ' + ', '.join(keys)}")
        return True

    def _load(self, value: Any) -> str:
        path = (*self.path, "load")
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
            self._wrong(path, f"a zero load sends no requests; expected one of {', '.join(_SHAPES)}")
        elif value not in _SHAPES:
            near = yaml_file.near(str(value), _SHAPES) or f"; expected one of {', '.join(_SHAPES)}"
            self._wrong(path, f"unknown load shape {value!r}{near}")
        return str(value)

    def _one_of(self, path: Path_, value: Any, known: Sequence[str]) -> Any:
        if value not in known:
            self._wrong(path, f"{value!r} is not known; expected {' or '.join(known)}")
        return value

    def _flag(self, entry: dict[str, Any], key: str) -> bool:
        value = entry.get(key, False)
        if not isinstance(value, bool):
            self._wrong((*self.path, key), f"{value!r} is not a boolean; expected true or false")
        return bool(value)

    def _duration(self, path: Path_, value: Any, default: timedelta, zero: bool = False) -> timedelta:
        if value is None:
            return default
        try:
            result = parse_duration(str(value))
        except UsageError:
            self._wrong(path, f"{value!r} is not a duration; expected one such as 90s or 10m")
            return default
        if result == timedelta(0) and not zero:
            self._wrong(path, "expected longer than 0s")
        return result

    def _wrong(self, path: Path_, message: str) -> None:
        self.problems.append(self.document.problem(path, message))


def _same_place(one: PlannedFault, other: PlannedFault) -> bool:
    """Returns True if two plans of the same fault must have the same entity."""
    if (one.fault, one.cluster) != (other.fault, other.cluster):
        return False
    return one.entity == "same" or (one.entity == other.entity and is_name(one.entity))
