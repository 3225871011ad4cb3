"""Builds the rules and the detectors of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta

from alerts.rules import files as rule_files
from alerts.rules import slo_rules
from detectors import registry
from detectors.rules import burn_rate, threshold
from outrider.model import EntityKind
from outrider.vocabulary.rules import Rule
from planner.forecast.calendar import holidays as country_holidays
from service.config import runbook_links
from service.config.settings import Settings
from service.engine import fleet_state, rule_checks, situation
from service.engine.detector_memory import Detection

_READERS = (fleet_state.NEEDS, situation.NEEDS, rule_checks.NEEDS)
NEEDS = {kind: tuple(key for needs in _READERS for key in needs.get(kind, ())) for kind in EntityKind}


def rules(settings: Settings) -> tuple[Rule, ...]:
    """Returns the packaged rules, those of the configuration, and one rule per SLO."""
    loaded = rule_files.load_rules(settings.rules.files, settings.rules.enable)
    return runbook_links.of_rules(
        (*loaded, *slo_rules.rules_of(settings.resolved_slos)), settings.knowledge.runbooks_url
    )


def holiday_spans(settings: Settings, now: datetime) -> tuple[tuple[float, float], ...]:
    """The listed holidays and those of the country, in unix seconds: from a year before ``now`` to ten after it."""
    spans = list(settings.detect.holidays_in(settings.zone))
    if settings.planner.holidays is not None:
        first, last = date(now.year - 1, 1, 1), date(now.year + 10, 12, 31)
        events = country_holidays(settings.planner.holidays, first, last, settings.zone.key)
        spans += [(event.start, event.end) for event in events]
    return tuple((start.timestamp(), end.timestamp()) for start, end in dict.fromkeys(spans))


def detection(
    settings: Settings, loaded: Sequence[Rule], now: datetime, interval: timedelta | None = None
) -> Detection:
    """Returns all detectors, those of rules and SLOs included. ``interval`` defaults to the configured one."""
    detectors = (
        *registry.make_all(settings.detect.budgets, holiday_spans(settings, now), settings.zone),
        *threshold.compile_rules(loaded),
        *burn_rate.compile_slos(settings.resolved_slos),
    )
    return Detection(detectors, interval or settings.collect.interval, NEEDS, settings.detect.trial)
