"""Every detector by name. The dict below is the whole registration: nothing is found by scanning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial

from detectors.anomaly import drift, level_shift, multivariate, robust_z, seasonal
from detectors.anomaly.drift import DriftDetector
from detectors.anomaly.level_shift import LevelShiftDetector
from detectors.anomaly.multivariate import IsolationDetector
from detectors.anomaly.robust_z import RobustZDetector
from detectors.anomaly.seasonal import SeasonalDetector
from detectors.base.protocols import LearningDetector
from detectors.engine.batch_limit import BatchLimitDetector
from detectors.engine.engine_errors import EngineErrorDetector
from detectors.engine.engine_logs import EngineLogDetector
from detectors.engine.liveness import LivenessDetector
from detectors.engine.missing_metrics import VanishedDetector
from detectors.engine.output_validity import ValidityDetector
from detectors.engine.prefix_cache import PrefixCacheDetector
from detectors.engine.slow_startup import StartupDetector
from detectors.engine.slowness import SlownessDetector
from detectors.hardware.gpu_faults import GpuFaultDetector
from detectors.hardware.gpu_memory_excess import MemoryUseDetector
from detectors.hardware.gpu_memory_leak import DeviceMemoryDetector
from detectors.hardware.power_anomaly import PowerDrawDetector
from detectors.hardware.power_cap import PowerCapDetector
from detectors.learning import learning_detector
from detectors.load import saturation
from detectors.load.blackbox import OutsideDetector
from detectors.load.forecast_deviation import TrafficForecastDetector
from detectors.load.gateway import EntryDetector
from detectors.load.ingress_state import WayIn
from detectors.load.kpi import KpiDetector
from detectors.load.load_imbalance import SkewDetector
from detectors.load.queueing import SurgeDetector
from detectors.load.request_outcomes import OutcomeDetector
from detectors.load.saturation import SaturationDetector
from detectors.platform.autoscaler import ScalingDetector
from detectors.platform.container_faults import ContainerFaultDetector
from detectors.platform.host_faults import HostFaultDetector
from detectors.platform.node_faults import NodeFaultDetector, PortFaultDetector
from detectors.platform.noisy_neighbor import NeighbourDetector
from detectors.platform.pod_faults import PodFaultDetector
from detectors.platform.scrape_targets import TargetsDetector
from detectors.statistics.baseline import Span
from outrider.model import EntityKind
from outrider.ports import Detector

DETECTORS: dict[str, Callable[[], Detector]] = {
    "liveness": LivenessDetector,
    "saturation": SaturationDetector,
    "surge": SurgeDetector,
    "entry": EntryDetector,
    "traffic-forecast": TrafficForecastDetector,
    "outcomes": OutcomeDetector,
    "skew": SkewDetector,
    "kpi": KpiDetector,
    "scaling": ScalingDetector,
    "targets": TargetsDetector,
    "slowness": SlownessDetector,
    "engine-errors": EngineErrorDetector,
    "prefix-cache": PrefixCacheDetector,
    "validity": ValidityDetector,
    "batch-limit": BatchLimitDetector,
    "vanished-metrics": VanishedDetector,
    "device-memory": DeviceMemoryDetector,
    "power-cap": PowerCapDetector,
    "power-draw": PowerDrawDetector,
    "memory-use": MemoryUseDetector,
    "gpu-faults": GpuFaultDetector,
    "node-faults": NodeFaultDetector,
    "port-faults": PortFaultDetector,
    "host-faults": HostFaultDetector,
    "neighbours": NeighbourDetector,
    "container-faults": ContainerFaultDetector,
    "pod-faults": PodFaultDetector,
    "startups": StartupDetector,
    "engine-logs": EngineLogDetector,
    "outside": OutsideDetector,
    "seasonal-service": partial(SeasonalDetector, EntityKind.SERVICE, seasonal.WATCHED[EntityKind.SERVICE]),
    "seasonal-replica": partial(SeasonalDetector, EntityKind.REPLICA, seasonal.WATCHED[EntityKind.REPLICA]),
    "seasonal-gpu": partial(SeasonalDetector, EntityKind.GPU, seasonal.WATCHED[EntityKind.GPU]),
    "seasonal-node": partial(SeasonalDetector, EntityKind.NODE, seasonal.WATCHED[EntityKind.NODE]),
    "isolation-replica": partial(IsolationDetector, EntityKind.REPLICA, multivariate.WATCHED[EntityKind.REPLICA]),
    "isolation-gpu": partial(IsolationDetector, EntityKind.GPU, multivariate.WATCHED[EntityKind.GPU]),
    "isolation-node": partial(IsolationDetector, EntityKind.NODE, multivariate.WATCHED[EntityKind.NODE]),
    **{f"level-shift-{kind.value}": partial(LevelShiftDetector, kind, *of) for kind, of in level_shift.WATCHED.items()},
    **{f"robust-z-{kind.value}": partial(RobustZDetector, kind, *of) for kind, of in robust_z.WATCHED.items()},
    **{f"drift-{kind.value}": partial(DriftDetector, kind, *of) for kind, of in drift.WATCHED.items()},
}

STATE_BYTES, LEARNT_BYTES = 1280, 16384
"""What is remembered of an entity at most: by a detector of one relation, and by one of a past or of an objective."""

ABSOLUTE = {
    "a relation": "limits with a unit of their own: a share, seconds, degrees, a count, a state or a code",
    "a rule": "its expression compares with what its owner wrote",
}
"""Why a detector may say something else of values in another unit; the statistical ones may not."""

SYMPTOMS = {
    "saturation": saturation.REPLICA_WAITS,
    "surge": saturation.SERVICE_WAITS,
}
"""The second name of a detector: under it a symptom is told that none of its faults explains."""


def make_all(
    alarms_per_entity_day: Mapping[EntityKind, float] | None = None,
    holidays: Sequence[Span] = (),
    zone: tzinfo = UTC,
) -> tuple[Detector, ...]:
    """Every detector, made anew.

    The budget of a class of entities is shared evenly by the statistical detectors of the class; a class that is
    not named keeps the default. On holidays, (start, end) in unix seconds, no season is expected or learnt.
    ``zone`` is where the days of the week begin and end.
    """
    made = tuple(make() for make in DETECTORS.values())
    shares = Counter(one.kind for one in made if isinstance(one, LearningDetector))
    for one in made:
        budget = (alarms_per_entity_day or {}).get(one.kind)
        if budget is not None and isinstance(one, LearningDetector):
            one.set_budget(budget / shares[one.kind])
        if isinstance(one, learning_detector.Statistical):
            one.set_holidays(holidays)
        if isinstance(one, learning_detector.Statistical | WayIn):
            one.set_zone(zone)
    return made
