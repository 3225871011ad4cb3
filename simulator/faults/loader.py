"""Reads fault files: one YAML a fault, in ``catalogue``. Errors give file, line and key.

::

    fault: gpu-power-throttle     # id of outrider/vocabulary/faults.yaml, or of its never_a_fault with negative: true
    negative: true                # a harmless state that resembles a fault; needs entity:
    entity: service               # only with negative: its entity kind
    lasts: 12m
    onset: {shape: ramp, seconds: 60}   # step (the default) | ramp (seconds) | intermittent (on_seconds, off_seconds)
    likely: serving               # entities that a seed may choose: a word of scope.LIKELY (default: any)
    holds: place                  # place (default): everything on the entity at the time
                                  # process: the engine processes at the start; new ones are unaffected
                                  # revision: pods of the revision of an action; a rollback cures it
    needs: [traffic]              # precondition at injection: a word of needs.NEEDS
    excludes: [gpu-lost]          # faults that cannot affect the same entity at the same time
    removes: true                 # the entity and its parts are absent: no other fault can start there
    cures:                        # operations on the entity (or its node) that end its effects; until: only that long
      - {action: reset_gpu, until: 6m}              # after the start; a restart cures by holds: process
      - {action: reboot_node}
    effects:                      # effects (simulator/effects.py), from mild to severe: one draw of the
                                  # seed sets the position in all ranges; a single number is fixed
      - {lever: gpus.power_limit_ratio, do: multiply, to: [0.7, 0.45]}
      - {lever: nodes.rdma_errors_per_second, do: add, to: [5, 40], after: 10s, onset: {shape: step}}
      - {lever: services.rate_factor, do: multiply, to: [1.1, 1.3], of: capacity, least: 1.7}
      - {lever: slots.host_memory_bytes, do: add, to: [8.0e+10, 9.0e+10], since: process}
    deeds:                        # functions of actions.py with their arguments
      - {at: start, do: xid, code: [79]}            # at: start | end | a duration after the start
      - {at: 40s, every: 2m, do: kubernetes_event, code: NodeNotReady, about: node, text: "Node {node} ..."}
    symptoms: [hw_accel_power_watts, engine_tpot_seconds]   # signals, in the expected order of change

``multiply`` multiplies an effect by ``1 + (value - 1) * strength``; ``add`` adds ``value * strength``; ``set`` sets the
value once the strength exceeds 0.5. An effect applies to the scope of the entity (scope.py). With ``of: capacity``, the
value is a target share of the service's capacity, at least ``least``. With ``since: process``, the onset of each slot
counts from the start of its engine process, if that is later.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any

import yaml

from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.model import ActionKind, EntityKind
from outrider.text.yaml_file import Document, Path_, near, read
from outrider.vocabulary.catalog import signals
from outrider.vocabulary.faults import faults
from outrider.vocabulary.units import parse_duration
from simulator.effects import ClusterEffects, GpuEffects, NodeEffects, ServiceEffects, SlotEffects
from simulator.faults.actions import ABOUT, ACTIONS, FIELDS
from simulator.faults.definition import DOINGS, HOLDS, DeclaredAction, Effect, FaultDefinition
from simulator.faults.lines import KNOWN_XIDS
from simulator.faults.needs import NEEDS
from simulator.faults.onset import SHAPES, Onset
from simulator.faults.scope import LIKELY

CATALOGUE = Path(__file__).parent / "catalogue"
LEVERS = {
    "gpus": GpuEffects.NEUTRAL,
    "nodes": NodeEffects.NEUTRAL,
    "slots": SlotEffects.NEUTRAL,
    "services": ServiceEffects.NEUTRAL,
    "cluster": ClusterEffects.NEUTRAL,
}
_ALL_EFFECTS = tuple(f"{group}.{effect_name}" for group, effects in LEVERS.items() for effect_name in effects)
_FILE = {"fault", "negative", "entity", "lasts", "onset", "likely", "holds", "needs", "excludes", "removes", "cures"}
_KEYS = tuple(sorted(_FILE | {"effects", "deeds", "symptoms"}))
_EFFECT = ("lever", "do", "to", "onset", "after", "of", "least", "since")
_ONSET = {"step": (), "ramp": ("seconds",), "intermittent": ("on_seconds", "off_seconds")}
MOST_LASTS = timedelta(days=2)
CURES = {  # the kinds of entity whose faults an operation can end
    ActionKind.WAKE_ENGINE: (EntityKind.REPLICA,),
    ActionKind.RESET_GPU: (EntityKind.GPU,),
    ActionKind.REBOOT_NODE: (EntityKind.GPU, EntityKind.NODE),
}


@cache
def never_a_fault() -> tuple[str, ...]:
    """Returns the harmless states that resemble faults."""
    text = resources.files("outrider.vocabulary").joinpath("faults.yaml").read_text(encoding="utf-8")
    return tuple(yaml.safe_load(text)["never_a_fault"])


def load(folder: Path = CATALOGUE) -> dict[str, FaultDefinition]:
    """Reads every fault file of a folder, by id. Raises ConfigError with all problems of all files, by line."""
    result: dict[str, FaultDefinition] = {}
    problems: list[ConfigProblem] = []
    for path in sorted(folder.glob("*.yaml")):
        reader = _Reader(read(path))
        declared = reader.declared()
        if declared is not None and declared.fault != path.stem:
            reader.problem(("fault",), f'"{declared.fault}" does not match the file name {path.name}')
        problems += reader.problems
        if declared is not None:
            result[declared.fault] = declared
    if problems:
        raise _refusal(problems)
    return result


def _refusal(problems: Sequence[ConfigProblem]) -> ConfigError:
    ordered = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
    more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
    return ConfigError(f"{ordered[0]}{more}", ordered, hint="fix these lines; see simulator/faults/loader.py")


class _Reader:
    """Reads one document and collects all its problems."""

    def __init__(self, document: Document) -> None:
        self.problems: list[ConfigProblem] = []
        self._document = document

    def problem(self, path: Path_, message: str) -> None:
        """Records a problem at a key."""
        self.problems.append(self._document.problem(path, message))

    def declared(self) -> FaultDefinition | None:
        """Returns the fault, or None if the file is not a mapping or names no known fault."""
        top = self._mapping(self._document.value, ())
        self._known(top, (), _KEYS)
        kind = self._kind(top)
        if kind is None:
            return None
        fault = str(top["fault"])
        negative = bool(top.get("negative", False))
        holds = self._word(top, ("holds",), HOLDS, "place")
        actions = tuple(self._actions(top))
        if holds == "revision" and not any(action.do in ("rollout", "reconfigure") for action in actions):
            self.problem(("holds",), "is revision, but no deed is a rollout or reconfigure")
        return FaultDefinition(
            fault=fault,
            kind=kind,
            layer=None if negative else faults()[fault].layer,
            negative=negative,
            lasts=self._lasts(top),
            onset=self._onset(top, ()) or Onset(),
            likely=self._word(top, ("likely",), tuple(LIKELY), "any"),
            holds=holds,  # type: ignore[arg-type]  # checked against HOLDS
            effects=tuple(self._effects(top, kind)),
            actions=actions,
            symptoms=self._words(top, "symptoms", tuple(signals()), "signal"),
            needs=self._words(top, "needs", tuple(NEEDS), "need"),
            excludes=self._words(top, "excludes", tuple(faults()), "fault id"),
            removes=bool(top.get("removes", False)),
            cures=self._cures(top, kind),
        )

    # --- header of the file ---------------------------------------------------------------------------

    def _kind(self, top: Mapping[str, Any]) -> EntityKind | None:
        fault, negative = str(top.get("fault", "")), bool(top.get("negative", False))
        known = never_a_fault() if negative else tuple(faults())
        if "fault" not in top:
            self.problem(("fault",), "is missing")
            return None
        if fault not in known:
            kind_of_id = "state of never_a_fault" if negative else "fault id"
            self.problem(("fault",), f'"{fault}" is not a known {kind_of_id}{near(fault, known)}')
            return None
        if not negative:
            if "entity" in top:
                self.problem(("entity",), "is defined by the fault id; only a negative file has this key")
            return faults()[fault].entity
        kind = self._word(top, ("entity",), tuple(kind.value for kind in EntityKind), "")
        if "entity" not in top:
            self.problem(("entity",), "is missing: a negative file needs its entity kind")
        return EntityKind(kind) if kind else EntityKind.SERVICE

    def _lasts(self, top: Mapping[str, Any]) -> timedelta:
        lasts = self._duration(top, ("lasts",)) if "lasts" in top else None
        if "lasts" not in top:
            self.problem(("lasts",), "is missing: give a duration such as 12m")
        elif lasts is not None and not timedelta(0) < lasts <= MOST_LASTS:
            self.problem(("lasts",), "must be more than 0 s and at most 2 days")
        return lasts or timedelta(minutes=10)

    def _onset(self, of: Mapping[str, Any], path: Path_) -> Onset | None:
        if "onset" not in of:
            return None
        path = (*path, "onset")
        mapping = self._mapping(of["onset"], path)
        shape = self._word(mapping, (*path, "shape"), SHAPES, "")
        if not shape:
            if "shape" not in mapping:
                self.problem(path, f"needs a shape: {', '.join(SHAPES)}")
            return None
        wanted = _ONSET[shape]
        self._known(mapping, path, ("shape", *wanted))
        seconds = {key: self._number(mapping.get(key), (*path, key)) for key in wanted}
        if any(value <= 0 for value in seconds.values()):
            self.problem(path, f"{shape} needs {' and '.join(wanted)} above 0")
            return None
        return Onset(shape, **seconds)  # type: ignore[arg-type]  # checked against SHAPES

    # --- effects --------------------------------------------------------------------------------------

    def _effects(self, top: Mapping[str, Any], kind: EntityKind) -> list[Effect]:
        result = []
        for number, entry in enumerate(self._list(top, "effects")):
            path: Path_ = ("effects", number)
            mapping = self._mapping(entry, path)
            self._known(mapping, path, _EFFECT)
            effect_name = str(mapping.get("lever", ""))
            group, _, name = effect_name.partition(".")
            if name not in LEVERS.get(group, {}):
                self.problem((*path, "lever"), f'"{effect_name}" is not an effect{near(effect_name, _ALL_EFFECTS)}')
                continue
            if group == "cluster" and kind is not EntityKind.CLUSTER:
                self.problem((*path, "lever"), f"affects the whole cluster, but the fault is about one {kind.value}")
            result.append(self._effect(mapping, path, group, name))
        return result

    def _effect(self, mapping: Mapping[str, Any], path: Path_, group: str, effect_name: str) -> Effect:
        do = self._word(mapping, (*path, "do"), DOINGS, "set")
        if "do" not in mapping:
            self.problem(path, f"needs do: {', '.join(DOINGS)}")
        written = mapping.get("to")
        bounds = written if isinstance(written, list) else [written, written]
        if len(bounds) != 2:
            self.problem((*path, "to"), "must be one number, or two from mild to severe")
            bounds = [0.0, 0.0]
        low, high = (self._number(bound, (*path, "to")) for bound in bounds)
        of_capacity = self._word(mapping, (*path, "of"), ("capacity",), "") == "capacity"
        if of_capacity and group != "services":
            self.problem((*path, "of"), "capacity applies only to effects of services")
        since_process = self._word(mapping, (*path, "since"), ("process",), "") == "process"
        if since_process and group != "slots":
            self.problem((*path, "since"), "process applies only to effects of slots")
        neutral = {"multiply": 1.0, "add": 0.0}.get(do, LEVERS[group][effect_name])
        if not of_capacity and (abs(high - neutral) < abs(low - neutral) or (low - neutral) * (high - neutral) < 0):
            self.problem(
                (*path, "to"), f"runs from {low:g} to {high:g}: write it from mild to severe, away from {neutral:g}"
            )
        after = self._duration(mapping, (*path, "after")) if "after" in mapping else None
        return Effect(
            group=group,
            effect_name=effect_name,
            do=do,  # type: ignore[arg-type]  # checked against DOINGS
            low=low,
            high=high,
            onset=self._onset(mapping, path),
            after_seconds=after.total_seconds() if after else 0.0,
            of_capacity=of_capacity,
            least=self._number(mapping.get("least", 0.0), (*path, "least")),
            since_process=since_process,
        )

    # --- actions --------------------------------------------------------------------------------------

    def _cures(self, top: Mapping[str, Any], kind: EntityKind) -> dict[ActionKind, float]:
        result: dict[ActionKind, float] = {}
        for number, entry in enumerate(self._list(top, "cures")):
            path: Path_ = ("cures", number)
            mapping = self._mapping(entry, path)
            self._known(mapping, path, ("action", "until"))
            name = self._word(mapping, (*path, "action"), tuple(CURES), "")
            if not name:
                if "action" not in mapping:
                    self.problem(path, f"needs action: {', '.join(CURES)}")
                continue
            if kind not in CURES[ActionKind(name)]:
                self.problem((*path, "action"), f"{name} cannot cure a fault of a {kind.value}")
            until = self._duration(mapping, (*path, "until")) if "until" in mapping else None
            result[ActionKind(name)] = until.total_seconds() if until else inf
        return result

    def _actions(self, top: Mapping[str, Any]) -> list[DeclaredAction]:
        result = []
        for number, entry in enumerate(self._list(top, "deeds")):
            path: Path_ = ("deeds", number)
            mapping = self._mapping(entry, path)
            name = str(mapping.get("do", ""))
            if name not in ACTIONS:
                self.problem((*path, "do"), f'"{name}" is not an action{near(name, ACTIONS)}')
                continue
            every = self._duration(mapping, (*path, "every")) if "every" in mapping else None
            if every is not None and every <= timedelta(0):
                self.problem((*path, "every"), "must be more than 0 s")
            result.append(
                DeclaredAction(
                    name,
                    ACTIONS[name].call,
                    self._at(mapping, path),
                    every.total_seconds() if every else None,
                    self._arguments(mapping, path, name),
                )
            )
        return result

    def _at(self, mapping: Mapping[str, Any], path: Path_) -> float | None:
        at = mapping.get("at")
        if at == "end":
            if "every" in mapping:
                self.problem((*path, "every"), "is not allowed with at: end")
            return None
        if at == "start":
            return 0.0
        if at is None:
            self.problem(path, "needs at: start, end, or a duration after the start")
            return 0.0
        after = self._duration(mapping, (*path, "at"))
        return after.total_seconds() if after else 0.0

    def _arguments(self, entry: Mapping[str, Any], path: Path_, name: str) -> dict[str, object]:
        action = ACTIONS[name]
        self._known(entry, path, ("at", "every", "do", *action.arguments))
        for missing in sorted(action.required - set(entry)):
            self.problem(path, f"{name} needs {missing}")
        return {
            key: self._argument(entry, (*path, key), action.arguments[key]) for key in action.arguments if key in entry
        }

    def _argument(self, mapping: Mapping[str, Any], path: Path_, kind: str) -> object:
        value = mapping[str(path[-1])]
        if kind.startswith("timedelta"):
            return self._duration(mapping, path)
        if kind.startswith("tuple[int"):
            codes = tuple(value) if isinstance(value, list) else (value,)
            if unknown := [code for code in codes if code not in KNOWN_XIDS]:
                self.problem(path, f"{unknown[0]} is not an XID with a known driver text")
            return codes
        expected = {"int": int, "float": (int, float), "bool": bool, "str": str}[kind.removesuffix(" | None")]
        if not isinstance(value, expected) or (isinstance(value, bool) and kind != "bool"):  # type: ignore[arg-type]
            self.problem(path, f"{value!r} is not of type {kind}")
        elif isinstance(value, str):
            self._text(value, path)
        return value

    def _text(self, text: str, path: Path_) -> None:
        if path[-1] == "about" and text not in ABOUT:
            self.problem(path, f'"{text}" is not one of {", ".join(ABOUT)}')
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
        except ValueError as error:
            self.problem(path, f"unbalanced braces: {error}")
            return
        for field in fields:
            if field not in FIELDS:
                self.problem(path, f'"{{{field}}}" is not a field{near(field, FIELDS)}; fields are {", ".join(FIELDS)}')

    # --- single values --------------------------------------------------------------------------------

    def _mapping(self, value: Any, path: Path_) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return {str(key): inner for key, inner in value.items()}
        self.problem(path, "is not a mapping")
        return {}

    def _known(self, mapping: Mapping[str, Any], path: Path_, keys: Sequence[str]) -> None:
        for key in mapping:
            if key not in keys:
                self.problem((*path, key), f"unknown key{near(key, keys)}")

    def _list(self, top: Mapping[str, Any], key: str) -> list[Any]:
        value = top.get(key, [])
        if isinstance(value, list):
            return value
        self.problem((key,), "is not a list")
        return []

    def _words(self, top: Mapping[str, Any], key: str, known: Sequence[str], noun: str) -> tuple[str, ...]:
        words = tuple(str(word) for word in self._list(top, key))
        for number, word in enumerate(words):
            if word not in known:
                self.problem((key, number), f'"{word}" is not a known {noun}{near(word, known)}')
        return words

    def _word(self, mapping: Mapping[str, Any], path: Path_, known: Sequence[str], default: str) -> str:
        word = str(mapping.get(str(path[-1]), default))
        if word in known or (word == default and str(path[-1]) not in mapping):
            return word
        self.problem(path, f'"{word}" is not one of {", ".join(known)}')
        return default

    def _number(self, value: Any, path: Path_) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        self.problem(path, "is missing" if value is None else f"{value!r} is not a number")
        return 0.0

    def _duration(self, mapping: Mapping[str, Any], path: Path_) -> timedelta | None:
        written = mapping[str(path[-1])]
        try:
            return parse_duration(str(written))
        except UsageError:
            self.problem(path, f"{written!r} is not a duration: write it as 15s, 5m or 1h30m")
            return None
