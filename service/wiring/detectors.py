"""Builds the rules and the detectors of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from alerts.rules import files as rule_files
from alerts.rules import slo_rules
from detectors import registry
from detectors.rules import burn_rate, threshold
from outrider.model import EntityKind
from outrider.vocabulary.rules import Rule
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


def detection(settings: Settings, loaded: Sequence[Rule], interval: timedelta | None = None) -> Detection:
    """Returns all detectors, those of rules and SLOs included. ``interval`` defaults to the configured one."""
    detectors = (
        *registry.make_all(settings.detect.budgets, settings.detect.holiday_spans, settings.detect.zone),
        *threshold.compile_rules(loaded),
        *burn_rate.compile_slos(settings.resolved_slos),
    )
    return Detection(detectors, interval or settings.collect.interval, NEEDS, settings.detect.trial)
