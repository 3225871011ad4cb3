"""Every detector by name. The dict below is the whole registration: nothing is found by scanning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from detectors import isolation, seasonal
from detectors.devicememory import DeviceMemoryDetector
from detectors.engineerrors import EngineErrorDetector
from detectors.hardfaults import GpuFaultDetector
from detectors.isolation import IsolationDetector
from detectors.liveness import LivenessDetector
from detectors.nodefaults import NodeFaultDetector, PortFaultDetector
from detectors.powercap import PowerCapDetector
from detectors.prefixcache import PrefixCacheDetector
from detectors.saturation import SaturationDetector, SurgeDetector
from detectors.seasonal import SeasonalDetector
from detectors.slowness import SlownessDetector
from detectors.targets import TargetsDetector
from detectors.validity import ValidityDetector
from detectors.vanished import VanishedDetector
from outrider.model import EntityKind
from outrider.ports import Detector

DETECTORS: dict[str, Callable[[], Detector]] = {
    "liveness": LivenessDetector,
    "saturation": SaturationDetector,
    "surge": SurgeDetector,
    "targets": TargetsDetector,
    "slowness": SlownessDetector,
    "engine-errors": EngineErrorDetector,
    "prefix-cache": PrefixCacheDetector,
    "validity": ValidityDetector,
    "vanished-metrics": VanishedDetector,
    "device-memory": DeviceMemoryDetector,
    "power-cap": PowerCapDetector,
    "gpu-faults": GpuFaultDetector,
    "node-faults": NodeFaultDetector,
    "port-faults": PortFaultDetector,
    "seasonal-service": partial(SeasonalDetector, EntityKind.SERVICE, seasonal.WATCHED[EntityKind.SERVICE]),
    "seasonal-replica": partial(SeasonalDetector, EntityKind.REPLICA, seasonal.WATCHED[EntityKind.REPLICA]),
    "seasonal-gpu": partial(SeasonalDetector, EntityKind.GPU, seasonal.WATCHED[EntityKind.GPU]),
    "seasonal-node": partial(SeasonalDetector, EntityKind.NODE, seasonal.WATCHED[EntityKind.NODE]),
    "isolation-replica": partial(IsolationDetector, EntityKind.REPLICA, isolation.WATCHED[EntityKind.REPLICA]),
    "isolation-gpu": partial(IsolationDetector, EntityKind.GPU, isolation.WATCHED[EntityKind.GPU]),
    "isolation-node": partial(IsolationDetector, EntityKind.NODE, isolation.WATCHED[EntityKind.NODE]),
}
