"""What the verdicts of the last month say to detectors that learn from them."""

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
    """One lesson a judged spell of the rules that the ensemble's findings make true."""
    since = now - timedelta(seconds=KEPT_SECONDS)
    family = MultivariateDetector.family
    heard = [rule.name for rule in rules if any(name.split("-")[0] == family for name in rule.detectors)]
    said = [one for name in heard for one in state.feedback(rule=name, since=since, limit=fleet_state.UNLIMITED)]
    return tuple(
        AlertFeedback(one.entity, one.starts_at, one.ends_at, one.useful) for one in tuning.judged_of(said, state, now)
    )
