"""Knowledge of each fault: its signs, its consequences, its look-alikes, its checks and remedies.

``knowledge/*.yaml`` holds the texts and documents the keys. This module parses and validates them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

import yaml

from detectors import packaged_data
from outrider.errors import ConfigError, ConfigProblem
from outrider.model import ActionKind, EntityKind
from outrider.text import yaml_file
from outrider.text.i18n import texts
from outrider.text.yaml_file import Document, Path_
from outrider.text.yaml_shapes import Shapes
from outrider.vocabulary import catalog
from outrider.vocabulary.faults import Fault, faults

Moves = Literal["up", "down", "still", "changes"]
Within = Literal["entity", "node", "service", "cluster"]
Scope = Literal["path", "peers", "below", "cluster"]


@dataclass(frozen=True, slots=True)
class Sign:
    """A signal that indicates a fault, and its direction."""

    signal: str
    moves: Moves


@dataclass(frozen=True, slots=True)
class Condition:
    """The fault ``absent`` is not a hypothesis ``within`` reach, or a value of ``signal`` is in a range.

    Alternatively: the entity rests on only one of the kind ``single``.
    """

    absent: str | None = None
    within: Within = "entity"
    single: str | None = None
    signal: str | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A similar fault. ``why`` is the text key of the reason to rule it out.

    All of ``when`` must hold; empty means that the detector's own definition already separates them.
    """

    name: str
    why: str
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultKnowledge:
    """One entry. ``explains`` maps a scope to the fault ids that are consequences there.

    ``checks`` are signals to check first, ``runbook`` the page for operators.
    """

    fault: Fault
    signs: tuple[Sign, ...]
    hurts: frozenset[EntityKind]
    explains: Mapping[Scope, frozenset[str]]
    look_alikes: tuple[LookAlike, ...]
    checks: tuple[str, ...]
    remedy: tuple[ActionKind, ...]
    runbook: str = ""

    def consequences(self, scope: Scope) -> frozenset[str]:
        """The fault ids that it explains in a scope."""
        return self.explains.get(scope, frozenset())

    def resembles(self, name: str) -> bool:
        """True if ``name`` is one of its look-alikes."""
        return any(other.name == name for other in self.look_alikes)


Knowledge = Mapping[str, FaultKnowledge]


@cache
def load() -> Knowledge:
    """The packaged knowledge by fault id. Raises ConfigError with file and line of every mistake."""
    return read(packaged_data.fault_knowledge())


def load_with(own: Mapping[str, str]) -> Knowledge:
    """The packaged knowledge, overlaid with the YAML texts ``own`` by file name.

    An entry for a packaged fault changes only the keys that it gives; groups are visible to own entries only. Raises
    ConfigError as ``read`` does.
    """
    return read(packaged_data.fault_knowledge(), own) if own else load()


@cache
def harmless_states() -> frozenset[str]:
    """States that look like faults but are not, such as ``engine-idle``."""
    return frozenset(yaml.safe_load(packaged_data.fault_vocabulary())["never_a_fault"])


def read(files: Mapping[str, str], own: Mapping[str, str] | None = None) -> Knowledge:
    """Parses knowledge from YAML texts by file name; the key ``groups`` names sets of faults. ``own`` overlays it.

    Raises ConfigError with every mistake of every file: an unknown fault, signal, kind, action or key, a value of the
    wrong shape, a duplicate fault.
    """
    reader = _Reader()
    for layer in (files, own or {}):
        tops = [(document, reader.top(document)) for document in _parsed(layer)]
        reader.begin_layer()
        for document, top in tops:
            reader.read_groups(document, top)
        for document, top in tops:
            reader.read_faults(document, top)
    if reader.problems:
        raise yaml_file.refuse(reader.problems)
    return reader.entries


def _parsed(files: Mapping[str, str]) -> list[Document]:
    documents: list[Document] = []
    problems: list[ConfigProblem] = []
    for file, text in files.items():
        try:
            documents.append(yaml_file.parse(text, file))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise yaml_file.refuse(problems)
    return documents


class _Reader(Shapes):
    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, tuple[str, ...]] = {}
        self.entries: dict[str, FaultKnowledge] = {}
        self._below: dict[str, FaultKnowledge] = {}
        self._why = frozenset(texts("en"))

    def begin_layer(self) -> None:
        """Marks the entries so far as those that the next files may change."""
        self._below = dict(self.entries)

    def top(self, document: Document) -> dict[str, Any]:
        """The keys of a file; none for an empty one."""
        return {} if document.value is None else self.mapping(document, (), document.value)

    def read_groups(self, document: Document, top: Mapping[str, Any]) -> None:
        if "groups" not in top:
            return
        for name, members in self.mapping(document, ("groups",), top["groups"]).items():
            result = self.texts(document, ("groups", name), members)
            self.groups[name] = tuple(self._known(document, path, item, faults(), "fault") for path, item in result)

    def read_faults(self, document: Document, top: Mapping[str, Any]) -> None:
        for fault_id, entry in top.items():
            path: Path_ = (fault_id,)
            if fault_id == "groups":
                continue
            if fault_id not in faults():
                self._known(document, path, fault_id, faults(), "fault")
            elif self.entries.get(fault_id) is not self._below.get(fault_id):
                self.note(document, path, "is also defined in another file")
            else:
                below = self._below.get(fault_id)
                keys = self._keys(document, path, entry, _KEYS, required=below is None)
                result = self._entry(document, path, faults()[fault_id], keys)
                if below is not None:
                    result = replace(below, **{key: getattr(result, key) for key in keys})
                self.entries[fault_id] = result

    def _entry(self, document: Document, path: Path_, fault: Fault, entry: Mapping[str, Any]) -> FaultKnowledge:
        signs = self.items(document, (*path, "signs"), entry.get("signs", []))
        alike = self.mapping(document, (*path, "look_alikes"), entry.get("look_alikes", {}))
        explains = entry.get("explains", {})
        return FaultKnowledge(
            fault=fault,
            signs=tuple(self._sign(document, (*path, "signs", i), sign) for i, sign in enumerate(signs)),
            hurts=frozenset(map(EntityKind, self._words(document, path, entry, "hurts", list(EntityKind), "kind"))),
            explains=self._explains(document, (*path, "explains"), explains),
            look_alikes=tuple(
                self._look_alike(document, (*path, "look_alikes", name), name, other) for name, other in alike.items()
            ),
            checks=tuple(self._words(document, path, entry, "checks", catalog.signals(), "signal")),
            remedy=tuple(map(ActionKind, self._words(document, path, entry, "remedy", list(ActionKind), "action"))),
            runbook=self._runbook(document, (*path, "runbook"), entry.get("runbook", "")),
        )

    def _runbook(self, document: Document, path: Path_, value: Any) -> str:
        if isinstance(value, str) and (not value or _RUNBOOK.fullmatch(value)):
            return value
        self.expected(document, path, "a page such as docs/runbooks/gpu-lost.md, or an address", value)
        return ""

    def _sign(self, document: Document, path: Path_, value: Any) -> Sign:
        sign = self._keys(document, path, value, ("signal", "moves"), required=True)
        return Sign(
            self._named(document, path, sign, "signal", catalog.signals(), "signal"),
            self._named(document, path, sign, "moves", get_args(Moves), "move"),
        )

    def _explains(self, document: Document, path: Path_, value: Any) -> dict[Scope, frozenset[str]]:
        scopes = self._keys(document, path, value, get_args(Scope), required=False)
        result: dict[Scope, frozenset[str]] = {}
        for scope in get_args(Scope):
            members: list[str] = []
            for place, name in self.texts(document, (*path, scope), scopes.get(scope, [])):
                if name.startswith("@"):
                    group = self._known(document, place, name[1:], self.groups, "group")
                    members.extend(self.groups.get(group, ()))
                else:
                    members.append(self._known(document, place, name, faults(), "fault"))
            result[scope] = frozenset(members)
        return result

    def _look_alike(self, document: Document, path: Path_, name: str, value: Any) -> LookAlike:
        self._known(document, path, name, {*faults(), *harmless_states()}, "fault or state")
        before = len(self.problems)
        entry = self._keys(document, path, value, ("why", "when"), required=False)
        when = self.items(document, (*path, "when"), entry.get("when", []))
        conditions = tuple(self._condition(document, (*path, "when", i), item) for i, item in enumerate(when))
        why = entry.get("why")
        if isinstance(why, str):
            self._known(document, (*path, "why"), f"{_WHY}{why}", self._why, "text")
        elif "why" in entry:
            self.expected(document, (*path, "why"), "the key of a text", why)
        elif len(self.problems) == before:
            self.note(document, path, 'needs "why", the key of a text')
        return LookAlike(name, str(why), conditions)

    def _condition(self, document: Document, path: Path_, value: Any) -> Condition:
        before = len(self.problems)
        entry = self._keys(document, path, value, Condition.__slots__, required=False)
        if len(self.problems) > before:
            return Condition()
        if len({"absent", "single", "signal"} & entry.keys()) != 1:
            self.note(document, path, 'needs one of "absent", a fault, "single", a kind of entity, or "signal"')
        if "single" in entry:
            return Condition(single=self._named(document, path, entry, "single", list(EntityKind), "kind"))
        if "absent" in entry:
            absent = self._named(document, path, entry, "absent", faults(), "fault")
            within = self._named(document, path, {"within": "entity", **entry}, "within", get_args(Within), "reach")
            return Condition(absent=absent, within=within)
        signal = self._named(document, path, entry, "signal", catalog.signals(), "signal") if "signal" in entry else ""
        above, below = (
            self.number(document, (*path, key), entry[key]) if key in entry else None for key in ("above", "below")
        )
        if signal and "above" not in entry and "below" not in entry:
            self.note(document, path, 'a condition on a signal needs "above" or "below"')
        return Condition(signal=signal, above=above, below=below)

    def _keys(
        self, document: Document, path: Path_, value: Any, known: Iterable[str], *, required: bool
    ) -> dict[str, Any]:
        """The keys of a mapping, those that nobody knows noted and left out."""
        before = len(self.problems)
        entry = self.mapping(document, path, value)
        if len(self.problems) > before:
            return {}
        known = tuple(known)
        for key in entry:
            self._known(document, (*path, key), key, known, "key")
        if required:
            for key in known:
                if key not in entry:
                    self.note(document, path, f'"{key}" is missing')
        return {key: inner for key, inner in entry.items() if key in known}

    def _words(
        self, document: Document, path: Path_, entry: Mapping[str, Any], key: str, known: Iterable[str], noun: str
    ) -> list[str]:
        """The known words of a list."""
        known = tuple(known)
        words = self.texts(document, (*path, key), entry.get(key, []))
        return [item for place, item in words if self._known(document, place, item, known, noun) in known]

    def _named(
        self, document: Document, path: Path_, entry: Mapping[str, Any], key: str, known: Iterable[str], noun: str
    ) -> Any:
        """The word at a key. A missing key is not reported."""
        name = entry.get(key, "")
        if key in entry and not isinstance(name, str):
            self.expected(document, (*path, key), f"the name of a {noun}", name)
        elif key in entry:
            self._known(document, (*path, key), name, known, noun)
        return name

    def _known(self, document: Document, path: Path_, name: str, known: Iterable[str], noun: str) -> str:
        """``name`` itself; notes a problem when it is not among ``known``."""
        known = tuple(known)
        if name not in known:
            close = yaml_file.near(name, known).replace(_WHY, "")
            self.note(document, path, f'unknown {noun} "{name.removeprefix(_WHY)}"{close}')
        return name


_KEYS = ("signs", "hurts", "explains", "look_alikes", "checks", "remedy", "runbook")
_WHY = "incidents.why."
_RUNBOOK = re.compile(r"(docs/runbooks/[\w-]+\.md|https?://\S+)")
