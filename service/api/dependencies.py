"""Dependencies of the API that are built outside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from detectors.rca.fault_catalogue import Knowledge
from detectors.rca.fault_catalogue import load as load_knowledge
from outrider.clock import Clock, SystemClock
from outrider.documents import serialization
from outrider.records.change_log import ChangeLog
from outrider.records.ingest_buffer import IngestBuffer
from service.incidents.llm_narrative import Explainer, NoExplainer


@dataclass(frozen=True, slots=True)
class ApiExtras:
    """The clock, the platform's own metrics, and optional parts of the API.

    Without ``targets`` the API reads target health from the store, which holds entities but no names. Without
    ``ingest_buffer`` there are no ingest endpoints; without ``change_log`` there are no changes and no start-ups.
    ``explainer`` summarizes incidents. ``knowledge`` is the fault catalog.
    """

    clock: Clock = field(default_factory=SystemClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    targets: Callable[[], Sequence[serialization.Target]] | None = None
    database_revision: Callable[[], str] | None = None
    ingest_buffer: IngestBuffer | None = None
    change_log: ChangeLog | None = None
    explainer: Explainer = field(default_factory=NoExplainer)
    knowledge: Knowledge = field(default_factory=load_knowledge)
