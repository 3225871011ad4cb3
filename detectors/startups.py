"""Pods that take far longer to start than their peers took, and what holds them up.

A start has stages that Kubernetes tells apart: waiting for a place, pulling the image, and loading the model until
ready. Usual is what the pods of the same service took (``pod_startup_seconds``), and what pulls took by the kubelet's
own figure. A pull that lasts is the way to the registry; a load that lasts on several nodes of one storage is the
storage, and else the replica's own. A stage is judged while it lasts: its figure comes when it is over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

import numpy as np

from detectors.memory import align, empty
from detectors.spells import newest, spell, unusable
from detectors.verdicts import evidence, finding
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology

PULL_FACTOR, LOAD_FACTOR = 3.0, 1.5  # of usual: pulls scatter with the registry, loads of one model hardly do
PULL_UNKNOWN_SECONDS = 300.0  # a large image from a distant registry takes minutes
LEAST_PULL_SECONDS, LEAST_LOAD_SECONDS = 60.0, 120.0
PENDING_SECONDS = 120.0  # a node that is ordered is there in minutes; the scheduler tries again at once
SLOW_NODES = 2  # of one storage
CREATING = 1.0  # pod_waiting_reason: ContainerCreating
HISTORY = 64  # pulls that are remembered
_PULLED = re.compile(r"in (?:(?P<m>\d+)m)?(?P<s>\d+(?:\.\d+)?)(?P<unit>ms|s)\b")

_DEFAULTS = {"usual": np.nan, "scheduled": np.nan, "started": np.nan}


@dataclass(frozen=True, slots=True)
class _Late:
    """One pod whose stage takes too long; times in seconds."""

    pod: EntityRef
    since: float
    took: float
    usual: float


class StartupDetector:
    """image-pull-slow, slow-start, storage-slow and pods-pending."""

    name = "startups"
    kind = EntityKind.POD
    keys: tuple[SignalKey, ...] = tuple(
        map(SignalKey, ("pod_ready", "pod_startup_seconds", "pod_waiting_reason", "pod_unschedulable"))
    )
    window = timedelta(minutes=10)
    state_version = 1

    def initial(self) -> DetectorState:
        """No pod known, and no pull."""
        return empty(self.state_version, _DEFAULTS)
