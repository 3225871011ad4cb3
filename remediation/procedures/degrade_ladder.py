"""The degrade ladder: levels with their thresholds and contents, and what each service can give up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import ceil
from typing import Any, Literal, get_args

from outrider.errors import ConfigProblem, UsageError
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from outrider.vocabulary.units import parse_duration

Indicator = Literal["wait_ratio", "overload_ratio", "burning", "prompt_ratio", "rejected_ratio"]
INDICATORS: tuple[str, ...] = get_args(Indicator)
CLASSES = ("vip", "standard", "offline")  # of request_class: two tiers, and the mode that can wait
MOST_OBSERVED = timedelta(minutes=5)  # the facts of a decision reach back this far
_LADDER_KEYS = (
    "faults",
    "patience",
    "wait_objective",
    "dwell",
    "longest_exit",
    "unmeasured_exit",
    "spare_ratio",
    "levels",
)
_LEVEL_KEYS = ("name", "enter", "enter_for", "exit", "exit_for", "load_ratio", "content", "ask")
_CONTENT_KEYS = (
    *("reject", "defer", "pause", "max_prompt_ratio", "max_prompt_exempt", "max_output_tokens", "fallback_model"),
)
_NAMES = ("limit_prompts", "pause_offline", "defer_low_priority", "cap_output", "smaller_model", "vip_only")


@dataclass(frozen=True, slots=True)
class Content:
    """What gateways and clients do at a level.

    ``reject`` classes get 429 with a time to wait; ``defer`` classes are scheduled after all others; ``pause`` scales
    offline Deployments to zero; ``fallback_model`` serves the service's smaller model. Prompts of more than
    ``max_prompt_ratio`` times the usual mean length get 429 as well, unless their class is in ``max_prompt_exempt``.
    """

    reject: tuple[str, ...] = ()
    defer: tuple[str, ...] = ()
    pause: bool = False
    max_prompt_ratio: float | None = None
    max_prompt_exempt: tuple[str, ...] = ()
    max_output_tokens: int | None = None
    fallback_model: bool = False

    @property
    def rejects(self) -> bool:
        """True if some requests get 429."""
        return bool(self.reject) or self.max_prompt_ratio is not None

    def plus(self, deeper: Content) -> Content:
        """The content of both levels together; the deeper level's cap applies."""
        return Content(
            reject=tuple(dict.fromkeys((*self.reject, *deeper.reject))),
            defer=tuple(dict.fromkeys((*self.defer, *deeper.defer))),
            pause=self.pause or deeper.pause,
            max_prompt_ratio=deeper.max_prompt_ratio or self.max_prompt_ratio,
            max_prompt_exempt=deeper.max_prompt_exempt if deeper.max_prompt_ratio else self.max_prompt_exempt,
            max_output_tokens=deeper.max_output_tokens or self.max_output_tokens,
            fallback_model=self.fallback_model or deeper.fallback_model,
        )


@dataclass(frozen=True, slots=True)
class Level:
    """One level; ``number`` starts at 1. ``load_ratio`` is the estimated share of the work that is left."""

    number: int
    name: str
    enter: Mapping[str, float]
    enter_for: timedelta
    exit: Mapping[str, float]
    exit_for: timedelta
    load_ratio: float
    content: Content
    ask: bool = False

    @property
    def limits_prompts(self) -> bool:
        """True for a level that is taken only while prompts are longer than usual."""
        return self.content.max_prompt_ratio is not None


@dataclass(frozen=True, slots=True)
class Ladder:
    """All levels of one service, with the times that they share."""

    levels: tuple[Level, ...]
    faults: frozenset[str]
    patience: timedelta
    wait_objective: timedelta
    dwell: timedelta
    longest_exit: timedelta
    unmeasured_exit: timedelta
    spare_ratio: float

    def level(self, number: int) -> Level | None:
        """The level of a number; None for 0, and for a level that the ladder no longer has."""
        return next((level for level in self.levels if level.number == number), None)

    def load_ratio(self, number: int) -> float:
        """The estimated share of the work that is left at a level; 1 at level 0."""
        level = self.level(number)
        return 1.0 if level is None else level.load_ratio

    def content(self, number: int, *, limits_prompts: bool) -> Content:
        """The contents of all levels up to a number, those that limit prompts only with ``limits_prompts``."""
        total = Content()
        for level in self.levels:
            if level.number <= number and (limits_prompts or not level.limits_prompts):
                total = total.plus(level.content)
        return total

    def below(self, number: int, *, limits_prompts: bool) -> int:
        """The number of the next level up, 0 for none. Levels that limit prompts count with ``limits_prompts``."""
        numbers = (level.number for level in self.levels if limits_prompts or not level.limits_prompts)
        return max((other for other in numbers if other < number), default=0)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What one service can give up.

    ``classes`` are the request classes that its clients mark: without them no class is rejected or deferred. ``pause``
    are its offline Deployments. ``startup`` is the time until an ordered replica serves. ``max_prompt_tokens`` and
    ``max_output_tokens`` are the lowest limits of a level, in tokens.
    """

    enabled: bool = True
    classes: frozenset[str] = frozenset()
    pause: tuple[str, ...] = ()
    fallback_model: str | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    wait_objective: timedelta | None = None
    levels: frozenset[str] | None = None
    startup: timedelta = timedelta(minutes=5)

    def applicable(self, content: Content) -> Content:
        """The part of a content that changes anything for this service.

        A class is rejected only if another one is left: VIP only without marked VIPs would reject everybody.
        """
        reject = tuple(name for name in content.reject if name in self.classes)
        left = self.classes - set(reject)
        keeps = bool(left) and ("standard" not in reject or "vip" in left)
        defer = tuple(name for name in content.defer if name in self.classes and self.classes - {name, *reject})
        cap = content.max_output_tokens
        return replace(
            content,
            reject=reject if keeps else tuple(name for name in reject if name == "offline"),
            defer=tuple(name for name in defer if name not in reject),
            pause=content.pause and bool(self.pause),
            max_prompt_exempt=tuple(name for name in content.max_prompt_exempt if name in self.classes),
            max_output_tokens=max(cap, self.max_output_tokens or 0) if cap else None,
            fallback_model=content.fallback_model and self.fallback_model is not None,
        )


@dataclass(frozen=True, slots=True)
class Ladders:
    """The ladder with the options of each service, by name. ``ladder`` None: services are never degraded."""

    ladder: Ladder | None = None
    default: ServiceOptions = field(default_factory=ServiceOptions)
    services: Mapping[str, ServiceOptions] = field(default_factory=dict)

    def options(self, service: str) -> ServiceOptions:
        """The options of a service."""
        return self.services.get(service, self.default)

    def of(self, service: str) -> Ladder | None:
        """The ladder of a service: only levels that change something for it. None if it has none."""
        options = self.options(service)
        if self.ladder is None or not options.enabled:
            return None
        levels, total = [], Content()
        for level in self.ladder.levels:
            after = options.applicable(total.plus(level.content))
            if after == total or (options.levels is not None and level.name not in options.levels):
                continue
            levels.append(level)
            total = after
        objective = options.wait_objective or self.ladder.wait_objective
        return replace(self.ladder, levels=tuple(levels), wait_objective=objective) if levels else None

    def parameters(self, service: str, number: int, usual_prompt_tokens: float | None = None) -> dict[str, Any]:
        """The content of a level for one service, as parameters of the action. Level 0: everything is allowed.

        ``usual_prompt_tokens`` is the usual mean length of a prompt, None if prompts are not limited.
        """
        options, ladder, usual = self.options(service), self.of(service), usual_prompt_tokens
        total = Content() if ladder is None else ladder.content(number, limits_prompts=usual is not None)
        content = options.applicable(total)
        named = ladder.level(number) if ladder else None
        limit = ceil(content.max_prompt_ratio * usual) if content.max_prompt_ratio and usual else None
        return {
            "level": number,
            "name": named.name if named else "normal",
            "reject": list(content.reject),
            "defer": list(content.defer),
            "pause": list(options.pause) if content.pause else [],
            "max_prompt_tokens": max(limit, options.max_prompt_tokens or 1) if limit else None,
            "max_prompt_exempt": list(content.max_prompt_exempt) if limit else [],
            "max_output_tokens": content.max_output_tokens,
            "model": options.fallback_model if content.fallback_model else None,
        }


def read(document: yaml_file.Document) -> Ladder:
    """Parses a ladder. Raises ConfigError with every mistake, in line order."""
    entry = document.value.get("degrade") if isinstance(document.value, dict) else None
    if not isinstance(entry, dict):
        raise yaml_file.refuse([document.problem(("degrade",), "expected the keys faults, levels and times")])
    problems = [*_unknown(document, ("degrade",), entry, _LADDER_KEYS), *_fault_problems(document, entry)]
    for key in ("patience", "wait_objective", "dwell", "longest_exit", "unmeasured_exit"):
        problems += _duration_problems(document, ("degrade", key), entry.get(key))
    problems += _number_problems(document, ("degrade", "spare_ratio"), entry.get("spare_ratio"), 0.0, 1.0)
    levels = entry.get("levels")
    if not isinstance(levels, list) or not levels:
        problems.append(document.problem(("degrade", "levels"), "expected a list of levels"))
        levels = []
    for index, level in enumerate(levels):
        problems += _level_problems(document, ("degrade", "levels", index), level)
    problems += _order_problems(document, levels)
    if problems:
        raise yaml_file.refuse(problems)
    return _ladder(entry)


def _ladder(entry: Mapping[str, Any]) -> Ladder:
    return Ladder(
        levels=tuple(_level(number, level) for number, level in enumerate(entry["levels"], start=1)),
        faults=frozenset(entry["faults"]),
        patience=parse_duration(entry["patience"]),
        wait_objective=parse_duration(entry["wait_objective"]),
        dwell=parse_duration(entry["dwell"]),
        longest_exit=parse_duration(entry["longest_exit"]),
        unmeasured_exit=parse_duration(entry["unmeasured_exit"]),
        spare_ratio=float(entry["spare_ratio"]),
    )


def _level(number: int, entry: Mapping[str, Any]) -> Level:
    content = entry["content"]
    ratio = content.get("max_prompt_ratio")
    return Level(
        number=number,
        name=entry["name"],
        enter={key: float(value) for key, value in entry["enter"].items()},
        enter_for=parse_duration(entry["enter_for"]),
        exit={key: float(value) for key, value in entry["exit"].items()},
        exit_for=parse_duration(entry["exit_for"]),
        load_ratio=float(entry["load_ratio"]),
        content=Content(
            reject=tuple(content.get("reject") or ()),
            defer=tuple(content.get("defer") or ()),
            pause=bool(content.get("pause", False)),
            max_prompt_ratio=None if ratio is None else float(ratio),
            max_prompt_exempt=tuple(content.get("max_prompt_exempt") or ()),
            max_output_tokens=content.get("max_output_tokens"),
            fallback_model=bool(content.get("fallback_model", False)),
        ),
        ask=bool(entry.get("ask", False)),
    )


def _fault_problems(document: yaml_file.Document, entry: Mapping[str, Any]) -> list[ConfigProblem]:
    named = entry.get("faults")
    if not isinstance(named, list) or not named:
        return [document.problem(("degrade", "faults"), "expected a list of fault ids")]
    return [
        document.problem(("degrade", "faults", index), f"unknown fault {fault!r}{yaml_file.near(str(fault), faults())}")
        for index, fault in enumerate(named)
        if fault not in faults()
    ]


def _level_problems(document: yaml_file.Document, path: yaml_file.Path_, level: Any) -> list[ConfigProblem]:
    if not isinstance(level, dict):
        return [document.problem(path, "expected a level such as {name: cap_output, enter: ..., content: ...}")]
    problems = _unknown(document, path, level, _LEVEL_KEYS)
    if level.get("name") not in _NAMES:
        problems.append(document.problem((*path, "name"), f"expected one of {', '.join(_NAMES)}"))
    problems += _number_problems(document, (*path, "load_ratio"), level.get("load_ratio"), 0.0, 1.0)
    for key in ("enter_for", "exit_for"):
        problems += _duration_problems(document, (*path, key), level.get(key), MOST_OBSERVED)
    for key in ("enter", "exit"):
        problems += _threshold_problems(document, (*path, key), level.get(key))
    if not problems:
        problems += _hysteresis_problems(document, path, level)
    problems += _content_problems(document, (*path, "content"), level.get("content"))
    return problems or _prompt_problems(document, path, level)


def _prompt_problems(
    document: yaml_file.Document, path: yaml_file.Path_, level: Mapping[str, Any]
) -> list[ConfigProblem]:
    """A limit of prompts needs to know that prompts are long, and ends by what it rejects."""
    limits = "max_prompt_ratio" in level["content"]
    pairs = (("enter", "prompt_ratio"), ("exit", "rejected_ratio"))
    return [
        document.problem((*path, side), f"expected {key} if and only if the content has max_prompt_ratio")
        for side, key in pairs
        if (key in level[side]) is not limits
    ] + [
        document.problem((*path, side, key), f"{key} is not an {side} value")
        for side, key in (("exit", "prompt_ratio"), ("enter", "rejected_ratio"))
        if key in level[side]
    ]


def _threshold_problems(document: yaml_file.Document, path: yaml_file.Path_, value: Any) -> list[ConfigProblem]:
    if not isinstance(value, dict) or "wait_ratio" not in value:
        return [document.problem(path, "expected values that include wait_ratio, such as {wait_ratio: 2}")]
    problems = _unknown(document, path, value, INDICATORS)
    for key in set(value) & set(INDICATORS):
        problems += _number_problems(document, (*path, key), value[key], 0.0, None)
    return problems


def _hysteresis_problems(
    document: yaml_file.Document, path: yaml_file.Path_, level: Mapping[str, Any]
) -> list[ConfigProblem]:
    return [
        document.problem((*path, "exit", key), f"expected less than its enter value {level['enter'][key]:g}")
        for key, value in level["exit"].items()
        if key in level["enter"] and value >= level["enter"][key]
    ]


def _content_problems(document: yaml_file.Document, path: yaml_file.Path_, content: Any) -> list[ConfigProblem]:
    if not isinstance(content, dict) or not content:
        return [document.problem(path, f"expected one or more of {', '.join(_CONTENT_KEYS)}")]
    problems = _unknown(document, path, content, _CONTENT_KEYS)
    if "max_prompt_ratio" in content:
        ratio_path = (*path, "max_prompt_ratio")
        problems += _number_problems(document, ratio_path, content["max_prompt_ratio"], 1.0, None)
    for key in ("reject", "defer", "max_prompt_exempt"):
        named = content.get(key) or []
        if not isinstance(named, list) or not set(map(str, named)) <= set(CLASSES):
            problems.append(document.problem((*path, key), f"expected a list of {', '.join(CLASSES)}"))
    for key in ("pause", "fallback_model"):
        if not isinstance(content.get(key, False), bool):
            problems.append(document.problem((*path, key), "expected true or false"))
    cap = content.get("max_output_tokens")
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        problems.append(document.problem((*path, "max_output_tokens"), "expected a whole number of tokens above 0"))
    return problems


def _order_problems(document: yaml_file.Document, levels: Sequence[Any]) -> list[ConfigProblem]:
    """A deeper level leaves no more work, and no name occurs twice."""
    problems, known = [], set[str]()
    for index, level in enumerate(levels):
        if not isinstance(level, dict):
            continue
        path: yaml_file.Path_ = ("degrade", "levels", index)
        if level.get("name") in known:
            problems.append(document.problem((*path, "name"), f"duplicate level {level['name']!r}"))
        known.add(str(level.get("name")))
        before = levels[index - 1].get("load_ratio") if index and isinstance(levels[index - 1], dict) else None
        own = level.get("load_ratio")
        if isinstance(own, int | float) and isinstance(before, int | float) and own > before:
            problems.append(
                document.problem((*path, "load_ratio"), f"expected at most {before:g}, as the level before")
            )
    return problems


def _unknown(
    document: yaml_file.Document, path: yaml_file.Path_, entry: Mapping[Any, Any], known: Sequence[str]
) -> list[ConfigProblem]:
    return [
        document.problem((*path, str(key)), f"unknown key{yaml_file.near(str(key), known)}")
        for key in entry
        if key not in known
    ]


def _number_problems(
    document: yaml_file.Document, path: yaml_file.Path_, value: Any, least: float, most: float | None
) -> list[ConfigProblem]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and least <= value and (most is None or value <= most):
        return []
    expected = f"a number of {least:g} or more" if most is None else f"a number from {least:g} to {most:g}"
    return [document.problem(path, f"expected {expected}")]


def _duration_problems(
    document: yaml_file.Document, path: yaml_file.Path_, value: Any, most: timedelta | None = None
) -> list[ConfigProblem]:
    try:
        known = parse_duration(value) if isinstance(value, str) else None
    except UsageError:
        known = None
    if known is None:
        return [document.problem(path, "expected a duration such as 30s or 2m")]
    if most is not None and known > most:
        return [document.problem(path, f"expected at most {most.total_seconds() / 60:g}m")]
    return []
