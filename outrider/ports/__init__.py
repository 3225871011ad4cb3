"""Protocols between the stages, one module per stage. The stages implement them; only ``service`` joins stages.

Import the names from here. Must not import a stage.
"""

from __future__ import annotations

from outrider.ports.actuation import Actuator
from outrider.ports.collecting import Collected, Source
from outrider.ports.detection import Detector, LocalizingDetector
from outrider.ports.metric_store import MetricStore
from outrider.ports.notification import Notifier, ThreadingNotifier
from outrider.ports.state_store import (
    DEFAULT_STATE_RETENTION,
    CycleCommit,
    StateReader,
    StateRetention,
    StateStore,
)
from outrider.records.silences import Silence

__all__ = [
    "DEFAULT_STATE_RETENTION",
    "Actuator",
    "Collected",
    "CycleCommit",
    "Detector",
    "LocalizingDetector",
    "MetricStore",
    "Notifier",
    "Silence",
    "Source",
    "StateReader",
    "StateRetention",
    "StateStore",
    "ThreadingNotifier",
]
