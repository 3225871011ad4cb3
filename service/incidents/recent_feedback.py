"""Operator feedback of the last month, for detectors that learn from it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from detectors.anomaly.feedback_suppression import KEPT_SECONDS
from detectors.anomaly.multivariate import MultivariateDetector
from detectors.base.protocols import AlertFeedback
from outrider.ports import StateReader
from outrider.vocabulary.rules import Rule
from service.engine import fleet_state
from service.incidents import tuning

EVERY = timedelta(minutes=5)


def of(state: StateReader, rules: Sequence[Rule], now: datetime) -> tuple[AlertFeedback, ...]:
    """Returns one entry per judged occurrence of the rules that use the multivariate detectors."""
    since = now - timedelta(seconds=KEPT_SECONDS)
    family = MultivariateDetector.family
    names = [rule.name for rule in rules if any(name.split("-")[0] == family for name in rule.detectors)]
    verdicts = [
        verdict for name in names for verdict in state.feedback(rule=name, since=since, limit=fleet_state.UNLIMITED)
    ]
    return tuple(
        AlertFeedback(alert.entity, alert.starts_at, alert.ends_at, alert.useful)
        for alert in tuning.judged_of(verdicts, state, now)
    )
