"""Every detector by name. The dict below is the whole registration: nothing is found by scanning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from detectors import isolation, seasonal
from detectors.containerfaults import ContainerFaultDetector
from detectors.enginelogs import EngineLogDetector
from detectors.entries import EntryDetector
from detectors.hardfaults import GpuFaultDetector
from detectors.hostfaults import HostFaultDetector
from detectors.isolation import IsolationDetector
from detectors.liveness import LivenessDetector
from detectors.neighbours import NeighbourDetector
from detectors.nodefaults import NodeFaultDetector, PortFaultDetector
from detectors.podfaults import PodFaultDetector
from detectors.saturation import SaturationDetector, SurgeDetector
from detectors.seasonal import SeasonalDetector
from detectors.startups import StartupDetector
from detectors.targets import TargetsDetector
from outrider.model import EntityKind
from outrider.ports import Detector

DETECTORS: dict[str, Callable[[], Detector]] = {
    "liveness": LivenessDetector,
    "saturation": SaturationDetector,
    "surge": SurgeDetector,
    "targets": TargetsDetector,
    "gpu-faults": GpuFaultDetector,
    "node-faults": NodeFaultDetector,
    "port-faults": PortFaultDetector,
    "host-faults": HostFaultDetector,
    "neighbours": NeighbourDetector,
    "container-faults": ContainerFaultDetector,
    "pod-faults": PodFaultDetector,
    "startups": StartupDetector,
    "engine-logs": EngineLogDetector,
    "entries": EntryDetector,
    "seasonal-service": partial(SeasonalDetector, EntityKind.SERVICE, seasonal.WATCHED[EntityKind.SERVICE]),
    "seasonal-replica": partial(SeasonalDetector, EntityKind.REPLICA, seasonal.WATCHED[EntityKind.REPLICA]),
    "seasonal-gpu": partial(SeasonalDetector, EntityKind.GPU, seasonal.WATCHED[EntityKind.GPU]),
    "seasonal-node": partial(SeasonalDetector, EntityKind.NODE, seasonal.WATCHED[EntityKind.NODE]),
    "isolation-replica": partial(IsolationDetector, EntityKind.REPLICA, isolation.WATCHED[EntityKind.REPLICA]),
    "isolation-gpu": partial(IsolationDetector, EntityKind.GPU, isolation.WATCHED[EntityKind.GPU]),
    "isolation-node": partial(IsolationDetector, EntityKind.NODE, isolation.WATCHED[EntityKind.NODE]),
}
