"""Proposes a threshold or a waiting time of a rule from feedback, with its effect on stored values.

The rule is replayed as it is and at stricter settings; either the threshold or the waiting time changes, never both. A
setting scores the useless alerts dropped, minus five for every useful one dropped. A setting that drops a useful P0 or
P1, or delays it by more than two minutes, is never proposed. Of equal ones the nearest to the current setting wins,
which keeps the largest margin for useful alerts.

Misleading with little feedback or feedback from one kind of day; the intervals show how little. Other rules that alert
on the same fault are not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from detectors.rules.rule_backtest import JudgedAlert, RuleBacktest, parts, window_of
from detectors.rules.tunable_threshold import TunableThreshold, tunable_threshold_of
from outrider.model import EntityRef, Floats, TimeRange, Window
from outrider.vocabulary.indicators import wilson_interval
from outrider.vocabulary.rules import Rule

Read = Callable[[datetime, datetime], Window]
"""Stored values of the rule's entities in [start, end), on the grid of cycles."""

LEAST_VERDICTS = 10  # judged occasions that the replay reproduces
LEAST_USELESS = 3
WORTH = 5  # useless alerts that offset one useful P2 or P3
MOST_PAGE_DELAY = timedelta(minutes=2)
WAITS = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200))
_MOST_THRESHOLDS, _MOST_WAITS, _MOST_LEVELS = 8, 5, 200
_LEVEL_OF = timedelta(hours=6)  # of a longer span, its start shows the extreme
MOST_AT_ONCE = timedelta(hours=6)


class ProposalReason(StrEnum):
    """Reason for a proposed setting, or for none."""

    BETTER = "better"
    NOT_OVER_VALUES = "not_over_values"
    TOO_FEW_VERDICTS = "too_few_verdicts"
    NOTHING_USELESS = "nothing_useless"
    NOTHING_USEFUL = "nothing_useful"
    PAGE_NOT_CHECKED = "page_not_checked"
    NOT_REPRODUCED = "not_reproduced"
    DROPS_A_PAGE = "drops_a_page"
    NONE_BETTER = "none_better"
    BUDGET = "budget"  # rule of statistical detectors, which have budgets instead of replayable values
    BUDGET_STAYS = "budget_stays"
    TOO_FEW_FOR_BUDGET = "too_few_for_budget"


@dataclass(frozen=True, slots=True)
class Setting:
    """Tunable values of a rule. ``threshold`` None: it has no tunable threshold."""

    threshold: float | None
    wait: timedelta


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a setting on the judged alerts. Delays are relative to the current setting, of kept useful ones.

    ``late_pages`` are useful P0 and P1 delayed by more than ``MOST_PAGE_DELAY``.
    """

    setting: Setting
    kept_useful: int
    dropped_useful: int
    dropped_pages: int
    late_pages: int
    kept_useless: int
    dropped_useless: int
    delay_median_seconds: float | None
    delay_most_seconds: float | None
    alerts_per_day: float

    @property
    def worth(self) -> int:
        """Useless alerts dropped, minus the weight of dropped useful ones."""
        return self.dropped_useless - WORTH * self.dropped_useful

    @property
    def safe(self) -> bool:
        """True if every useful page still fires in time."""
        return not self.dropped_pages and not self.late_pages

    @property
    def dropped_useless_interval(self) -> tuple[float, float]:
        """95 % interval of the share of useless alerts dropped."""
        return wilson_interval(self.dropped_useless, self.dropped_useless + self.kept_useless)


@dataclass(frozen=True, slots=True)
class Proposal:
    """``best`` is the proposed setting, None with a reason. ``expression`` is the rule's with its threshold.

    ``unchecked`` are judged spans that the replay cannot evaluate: their values are gone, or the current setting does
    not fire on stored values.
    """

    rule: str
    reason: ProposalReason
    judged: int
    useless: int
    now: Effect | None = None
    best: Effect | None = None
    candidates: tuple[Effect, ...] = ()
    expression: str | None = None
    unchecked: tuple[JudgedAlert, ...] = ()
    days: float = 0.0


def propose(
    rule: Rule,
    judged: Sequence[JudgedAlert],
    read: Read | None,
    entities: Sequence[EntityRef],
    span: TimeRange,
    *,
    kept: Mapping[str, Window] | None = None,
    tried: Sequence[Setting] | None = None,
    piece: timedelta = MOST_AT_ONCE,
    progress: Callable[[float], None] = lambda _: None,
) -> Proposal:
    """Returns the best setting of a rule with an expression, and the effects of all tried ones.

    ``span`` is the range of stored values, read in steps of ``piece``. ``kept`` are values of single spans from before
    it, by the id of the judged one. ``tried`` replaces the default settings. Pure except for ``read``. Raises
    UsageError for an expression that cannot be compiled.
    """
    useless = [item for item in judged if not item.useful]
    proposal = Proposal(rule.name, ProposalReason.NOT_OVER_VALUES, occasions(judged), occasions(useless))
    if rule.expr is None or read is None:
        return proposal
    first = _too_little(judged, useless)
    if first is not None:
        return replace(proposal, reason=first)
    apart = (
        {item.id: kept[item.id] for item in judged if item.starts_at < span.start and item.id in kept} if kept else {}
    )
    within = [item for item in judged if item.starts_at >= span.start or item.id in apart]
    gone = tuple(item for item in judged if item.starts_at < span.start and item.id not in apart)
    if _pages(gone):
        return replace(proposal, reason=ProposalReason.PAGE_NOT_CHECKED, unchecked=gone)
    dial = tunable_threshold_of(rule.name, rule.expr)
    now = Setting(dial.threshold, rule.wait)
    others = tuple(tried) if tried is not None else _candidates(dial, rule, within, read, apart)
    settings = (now, *others)
    replayed = _replay(dial, settings, rule, entities, within, read, span, min(piece, MOST_AT_ONCE), progress)
    _add_apart(replayed, dial, settings, rule, within, apart)
    again = replayed.caught[0]
    lost = tuple(item for item, seen in zip(within, again, strict=True) if not seen)
    days = (span.end - span.start) / timedelta(days=1)
    effects = [_effect(setting, place, within, replayed, days) for place, setting in enumerate(settings)]
    proposal = replace(
        proposal,
        now=effects[0],
        candidates=tuple(effects[1:]),
        unchecked=(*gone, *lost),
        days=days,
        expression=dial.text,
    )
    if _pages(lost):
        return replace(proposal, reason=ProposalReason.PAGE_NOT_CHECKED)
    if occasions([item for item, seen in zip(within, again, strict=True) if seen]) < LEAST_VERDICTS:
        return replace(proposal, reason=ProposalReason.NOT_REPRODUCED)
    return _chosen(proposal, dial, effects[1:])


def _too_little(judged: Sequence[JudgedAlert], useless: Sequence[JudgedAlert]) -> ProposalReason | None:
    if occasions(judged) < LEAST_VERDICTS:
        return ProposalReason.TOO_FEW_VERDICTS
    if occasions(useless) < LEAST_USELESS:
        return ProposalReason.NOTHING_USELESS
    return ProposalReason.NOTHING_USEFUL if len(useless) == len(judged) else None


def occasions(judged: Sequence[JudgedAlert]) -> int:
    """Number of judged occasions: all alerts of one incident count once."""
    return len({one.occasion or f"{one.fingerprint} {one.starts_at}" for one in judged})


def _pages(judged: Sequence[JudgedAlert]) -> list[JudgedAlert]:
    return [item for item in judged if item.useful and item.is_page]


def _chosen(proposal: Proposal, dial: TunableThreshold, effects: Sequence[Effect]) -> Proposal:
    worth = [effect for effect in effects if effect.worth > 0]
    safe = [item for item in worth if item.safe]
    if not safe:
        reason = ProposalReason.DROPS_A_PAGE if worth else ProposalReason.NONE_BETTER
        return replace(proposal, reason=reason)
    assert proposal.now is not None
    present = proposal.now.setting

    def order(one: Effect) -> tuple[float, float, float]:
        far = abs((one.setting.threshold or 0.0) - (present.threshold or 0.0)) / max(
            abs(present.threshold or 0.0), 1e-9
        )
        return -one.worth, one.delay_median_seconds or 0.0, far + (one.setting.wait - present.wait).total_seconds()

    best = min(safe, key=order)
    turned = best.setting.threshold
    expression = dial.text if turned is None or turned == dial.threshold else dial.turned(turned)
    return replace(proposal, reason=ProposalReason.BETTER, best=best, expression=expression)


def _effect(setting: Setting, place: int, judged: Sequence[JudgedAlert], replayed: RuleBacktest, days: float) -> Effect:
    """Effect on spans that the current setting reproduces; others are not evidence."""
    seen, caught = replayed.caught[0], replayed.caught[place]
    useful = np.array([item.useful for item in judged], dtype=bool)
    page = np.array([item.is_page for item in judged], dtype=bool)
    kept, dropped = seen & caught, seen & ~caught
    late = replayed.fired_at[place] - replayed.fired_at[0]
    delays = late[kept & useful]
    return Effect(
        setting,
        int((kept & useful).sum()),
        int((dropped & useful).sum()),
        int((dropped & useful & page).sum()),
        int((late[kept & useful & page] > MOST_PAGE_DELAY.total_seconds()).sum()),
        int((kept & ~useful).sum()),
        int((dropped & ~useful).sum()),
        float(np.median(delays)) if delays.size else None,
        float(delays.max()) if delays.size else None,
        float(replayed.alarms[place] / days) if days > 0 else 0.0,
    )


def _replay(
    dial: TunableThreshold,
    settings: Sequence[Setting],
    rule: Rule,
    entities: Sequence[EntityRef],
    judged: Sequence[JudgedAlert],
    read: Read,
    span: TimeRange,
    piece: timedelta,
    progress: Callable[[float], None],
) -> RuleBacktest:
    replayed = RuleBacktest(dial, *_numbers(settings), rule, entities, judged)
    start, whole = span.start, (span.end - span.start).total_seconds()
    while start < span.end:
        end = min(start + piece, span.end)
        replayed.feed(read(start - window_of(dial), end), start)
        start = end
        progress(1.0 - (span.end - start).total_seconds() / whole)
    return replayed


def _numbers(settings: Sequence[Setting]) -> tuple[Floats, Floats]:
    thresholds = np.array([np.nan if setting.threshold is None else setting.threshold for setting in settings])
    return thresholds, np.array([setting.wait.total_seconds() for setting in settings])


def _add_apart(
    replayed: RuleBacktest,
    dial: TunableThreshold,
    settings: Sequence[Setting],
    rule: Rule,
    judged: Sequence[JudgedAlert],
    apart: Mapping[str, Window],
) -> None:
    """Replays each span with stored values of its own; other alerts in it are unknown and do not count."""
    for place, item in enumerate(judged):
        window = apart.get(item.id)
        if window is not None:
            alone = RuleBacktest(dial, *_numbers(settings), rule, window.entities, (item,))
            alone.feed(window, item.starts_at)
            replayed.caught[:, place], replayed.fired_at[:, place] = alone.caught[:, 0], alone.fired_at[:, 0]


def _candidates(
    dial: TunableThreshold,
    rule: Rule,
    judged: Sequence[JudgedAlert],
    read: Read,
    apart: Mapping[str, Window],
) -> tuple[Setting, ...]:
    """Thresholds just beyond the levels of useless alerts, and longer waiting times."""
    result = [Setting(dial.threshold, wait) for wait in WAITS if wait > rule.wait][:_MOST_WAITS]
    if dial.threshold is None:
        return tuple(result)
    useless = [entry for entry in judged if not entry.useful][-_MOST_LEVELS:]
    levels = []
    for item in useless:
        window = apart.get(item.id)
        if window is None:
            end = min(item.ends_at, item.starts_at + _LEVEL_OF) + rule.wait
            window = read(item.starts_at - window_of(dial), end)
        levels.append(_level(dial, rule.wait, item, window))
    beyond = {dial.beyond(level) for level in levels if np.isfinite(level)}
    steps = sorted(entry for entry in beyond if dial.stricter(entry, dial.threshold))
    if len(steps) > _MOST_THRESHOLDS:
        places = np.linspace(0, len(steps) - 1, _MOST_THRESHOLDS).round().astype(int)
        steps = [steps[place] for place in places]
    return (*(Setting(step, rule.wait) for step in steps), *result)


def _level(dial: TunableThreshold, wait: timedelta, one: JudgedAlert, window: Window) -> float:
    """The strictest threshold at which the alert would still fire, without guards; NaN if unknown."""
    if one.entity not in window.entities:
        return float("nan")
    row = window.entities.index(one.entity)
    seen = [dial.left(part)[0][row] for _, part in parts(window, one.starts_at, window_of(dial))]
    return _sustained(np.array(seen), max(1, int(wait / window.step) + 1), above=dial.above)


def _sustained(values: Floats, steps: int, *, above: bool) -> float:
    """The level held for this many steps in a row; steps without a value do not interrupt it."""
    known = values[~np.isnan(values)] * (1.0 if above else -1.0)
    if known.size == 0:
        return float("nan")
    if known.size <= steps:
        level = float(known.min())
    else:
        level = float(np.lib.stride_tricks.sliding_window_view(known, steps).min(axis=1).max())
    return level if above else -level
