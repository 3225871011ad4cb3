"""What is known of each fault, as values: its signs, what it explains, what it could be mistaken for.

The text lies in ``knowledge/*.yaml`` (keys explained there); this module reads and checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import yaml

from outrider import catalog, yamlfile
from outrider.errors import ConfigProblem
from outrider.faults import Fault, faults
from outrider.model import ActionKind, EntityKind

Moves = Literal["up", "down", "still", "changes"]
Within = Literal["entity", "node", "service", "cluster"]
Scope = Literal["path", "peers", "below", "cluster"]


@dataclass(frozen=True, slots=True)
class Sign:
    """A signal that speaks for a fault, and which way it moves."""

    signal: str
    moves: Moves


@dataclass(frozen=True, slots=True)
class Condition:
    """No claim of the fault ``absent`` stands ``within`` reach, or evidence on ``signal`` lies in a range.

    Or the entity rests on one of the kind ``single`` only.
    """

    absent: str | None = None
    within: Within = "entity"
    single: str | None = None
    signal: str | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True)
class LookAlike:
    """What a fault could be mistaken for. ``why`` is the text key of the reason to turn it down.

    All of ``when`` must hold; empty means that the detector's own definition already tells them apart.
    """

    name: str
    why: str
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultKnowledge:
    """One entry. ``explains`` maps a scope to the fault ids that are consequences there."""

    fault: Fault
    signs: tuple[Sign, ...]
    hurts: frozenset[EntityKind]
    explains: Mapping[Scope, frozenset[str]]
    look_alikes: tuple[LookAlike, ...]
    checks: tuple[str, ...]
    remedy: tuple[ActionKind, ...]

    def consequences(self, scope: Scope) -> frozenset[str]:
        """The fault ids it explains in a scope."""
        return self.explains.get(scope, frozenset())

    def resembles(self, name: str) -> bool:
        """True when ``name`` is among its look-alikes."""
        return any(other.name == name for other in self.look_alikes)


Knowledge = Mapping[str, FaultKnowledge]


@cache
def load() -> Knowledge:
    """The packaged knowledge by fault id. Raises ConfigError naming file and line of every fault in it."""
    folder = resources.files("detectors").joinpath("knowledge")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return read({f"detectors/knowledge/{entry.name}": entry.read_text(encoding="utf-8") for entry in files})


@cache
def harmless_states() -> frozenset[str]:
    """States that look alarming and are none, such as ``engine-idle``."""
    text = resources.files("outrider").joinpath("faults.yaml").read_text(encoding="utf-8")
    return frozenset(yaml.safe_load(text)["never_a_fault"])


def read(texts: Mapping[str, str]) -> Knowledge:
    """Knowledge from YAML texts by file name; a text with the one key ``groups`` names sets of faults.

    Raises ConfigError when a fault, signal, kind, action or key is unknown, or a fault stands twice.
    """
    documents = [yamlfile.parse(text, file) for file, text in texts.items()]
    reader = _Reader()
    for document in documents:
        reader.read_groups(document)
    for document in documents:
        reader.read_faults(document)
    if reader.problems:
        raise yamlfile.refuse(reader.problems)
    return reader.entries


@dataclass
class _Reader:
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    entries: dict[str, FaultKnowledge] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def read_groups(self, document: yamlfile.Document) -> None:
        for name, members in (document.value or {}).get("groups", {}).items():
            path = ("groups", name)
            self.groups[name] = tuple(self._known(document, path, member, faults(), "fault") for member in members)

    def read_faults(self, document: yamlfile.Document) -> None:
        for fault_id, entry in (document.value or {}).items():
            if fault_id == "groups":
                continue
            path: yamlfile.Path_ = (fault_id,)
            if fault_id not in faults():
                self._known(document, path, fault_id, faults(), "fault")
            elif fault_id in self.entries:
                self.problems.append(document.problem(path, "stands in another file too"))
            elif self._keys(document, path, entry, _KEYS, required=True):
                self.entries[fault_id] = self._entry(document, path, faults()[fault_id], entry)

    def _entry(
        self, document: yamlfile.Document, path: yamlfile.Path_, fault: Fault, entry: dict[str, Any]
    ) -> FaultKnowledge:
        signals = catalog.signals()
        return FaultKnowledge(
            fault=fault,
            signs=tuple(
                Sign(
                    self._known(document, (*path, "signs", i, "signal"), sign.get("signal"), signals, "signal"),
                    self._known(document, (*path, "signs", i, "moves"), sign.get("moves"), get_args(Moves), "move"),
                )
                for i, sign in enumerate(entry["signs"])
            ),
            hurts=frozenset(
                EntityKind(kind)
                for kind in entry["hurts"]
                if self._known(document, (*path, "hurts"), kind, list(EntityKind), "kind") in list(EntityKind)
            ),
            explains=self._explains(document, (*path, "explains"), entry["explains"]),
            look_alikes=tuple(
                self._look_alike(document, (*path, "look_alikes", name), name, other)
                for name, other in entry["look_alikes"].items()
            ),
            checks=tuple(self._known(document, (*path, "checks"), name, signals, "signal") for name in entry["checks"]),
            remedy=tuple(
                ActionKind(kind)
                for kind in entry["remedy"]
                if self._known(document, (*path, "remedy"), kind, list(ActionKind), "action") in list(ActionKind)
            ),
        )

    def _explains(
        self, document: yamlfile.Document, path: yamlfile.Path_, scopes: dict[str, list[str]]
    ) -> dict[Scope, frozenset[str]]:
        self._keys(document, path, scopes, get_args(Scope), required=False)
        found: dict[Scope, frozenset[str]] = {}
        for scope in get_args(Scope):
            members: list[str] = []
            for name in scopes.get(scope, ()):
                if name.startswith("@"):
                    group = self._known(document, (*path, scope), name[1:], self.groups, "group")
                    members.extend(self.groups.get(group, ()))
                else:
                    members.append(self._known(document, (*path, scope), name, faults(), "fault"))
            found[scope] = frozenset(members)
        return found

    def _look_alike(
        self, document: yamlfile.Document, path: yamlfile.Path_, name: str, entry: dict[str, Any]
    ) -> LookAlike:
        self._known(document, path, name, {*faults(), *harmless_states()}, "fault or state")
        self._keys(document, path, entry, ("why", "when"), required=False)
        conditions = []
        for index, condition in enumerate(entry.get("when", ())):
            place = (*path, "when", index)
            self._keys(document, place, condition, _CONDITION, required=False)
            if "single" in condition:
                self._known(document, (*place, "single"), condition["single"], list(EntityKind), "kind")
            elif "absent" in condition:
                self._known(document, (*place, "absent"), condition["absent"], faults(), "fault")
                self._known(document, (*place, "within"), condition.get("within", "entity"), get_args(Within), "reach")
            elif self._known(document, (*place, "signal"), condition.get("signal"), catalog.signals(), "signal") and (
                "above" not in condition and "below" not in condition
            ):
                self.problems.append(document.problem(place, 'a condition on a signal needs "above" or "below"'))
            conditions.append(Condition(**{k: v for k, v in condition.items() if k in Condition.__slots__}))
        if not isinstance(entry.get("why"), str):
            self.problems.append(document.problem(path, 'needs "why", the key of a text'))
        return LookAlike(name, str(entry.get("why", "")), tuple(conditions))

    def _keys(
        self,
        document: yamlfile.Document,
        path: yamlfile.Path_,
        entry: Mapping[str, Any],
        known: Iterable[str],
        *,
        required: bool,
    ) -> bool:
        before = len(self.problems)
        known = tuple(known)
        for key in entry:
            self._known(document, (*path, key), key, known, "key")
        if required:
            for key in known:
                if key not in entry:
                    self.problems.append(document.problem(path, f'"{key}" is missing'))
        return len(self.problems) == before

    def _known(
        self, document: yamlfile.Document, path: yamlfile.Path_, name: Any, known: Iterable[str], what: str
    ) -> Any:
        """``name`` itself; notes a problem when it is not among ``known``."""
        known = tuple(known)
        if name not in known:
            message = f'unknown {what} "{name}"{yamlfile.near(str(name), known)}'
            self.problems.append(document.problem(path, message))
        return name


_CONDITION = ("absent", "within", "single", "signal", "above", "below")
_KEYS = ("signs", "hurts", "explains", "look_alikes", "checks", "remedy")
