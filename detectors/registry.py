"""Every detector by name. The dict below is the whole registration: nothing is found by scanning."""

from __future__ import annotations

from collections.abc import Callable

from detectors.hardfaults import GpuFaultDetector
from detectors.liveness import LivenessDetector
from detectors.nodefaults import NodeFaultDetector, PortFaultDetector
from detectors.saturation import SaturationDetector, SurgeDetector
from detectors.targets import TargetsDetector
from outrider.ports import Detector

DETECTORS: dict[str, Callable[[], Detector]] = {
    "liveness": LivenessDetector,
    "saturation": SaturationDetector,
    "surge": SurgeDetector,
    "targets": TargetsDetector,
    "gpu-faults": GpuFaultDetector,
    "node-faults": NodeFaultDetector,
    "port-faults": PortFaultDetector,
}
