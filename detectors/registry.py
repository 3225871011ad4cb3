"""All detectors by name. The dict below is the complete registration; nothing is discovered by scanning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial

from detectors.anomaly import drift, level_shift, multivariate, robust_z, seasonal
from detectors.anomaly.drift import DriftDetector
from detectors.anomaly.level_shift import LevelShiftDetector
from detectors.anomaly.multivariate import MultivariateDetector
from detectors.anomaly.robust_z import RobustZDetector
from detectors.anomaly.seasonal import SeasonalDetector
from detectors.base.protocols import LearningDetector
from detectors.engine.batch_limit import BatchLimitDetector
from detectors.engine.engine_errors import EngineErrorDetector
from detectors.engine.engine_logs import EngineLogDetector
from detectors.engine.liveness import LivenessDetector
from detectors.engine.missing_metrics import MissingMetricsDetector
from detectors.engine.output_validity import OutputValidityDetector
from detectors.engine.prefix_cache import PrefixCacheDetector
from detectors.engine.slow_startup import SlowStartupDetector
from detectors.engine.slowness import SlownessDetector
from detectors.hardware.gpu_faults import GpuFaultDetector
from detectors.hardware.gpu_memory_excess import GpuMemoryExcessDetector
from detectors.hardware.gpu_memory_leak import GpuMemoryLeakDetector
from detectors.hardware.power_anomaly import PowerAnomalyDetector
from detectors.hardware.power_cap import PowerCapDetector
from detectors.learning import learning_detector
from detectors.load import saturation
from detectors.load.blackbox import BlackboxDetector
from detectors.load.forecast_deviation import ForecastDeviationDetector
from detectors.load.gateway import GatewayDetector
from detectors.load.ingress_state import IngressDetector
from detectors.load.kpi import KpiDetector
from detectors.load.load_imbalance import LoadImbalanceDetector
from detectors.load.queueing import QueueingDetector
from detectors.load.request_outcomes import RequestOutcomeDetector
from detectors.load.saturation import SaturationDetector
from detectors.platform.autoscaler import AutoscalerDetector
from detectors.platform.container_faults import ContainerFaultDetector
from detectors.platform.host_faults import HostFaultDetector
from detectors.platform.node_faults import NodeFaultDetector, PortFaultDetector
from detectors.platform.noisy_neighbor import NoisyNeighborDetector
from detectors.platform.pod_faults import PodFaultDetector
from detectors.platform.scrape_targets import ScrapeTargetDetector
from detectors.statistics.baseline import Span
from outrider.model import EntityKind
from outrider.ports import Detector

DETECTORS: dict[str, Callable[[], Detector]] = {
    "liveness": LivenessDetector,
    "saturation": SaturationDetector,
    "surge": QueueingDetector,
    "entry": GatewayDetector,
    "traffic-forecast": ForecastDeviationDetector,
    "outcomes": RequestOutcomeDetector,
    "skew": LoadImbalanceDetector,
    "kpi": KpiDetector,
    "scaling": AutoscalerDetector,
    "targets": ScrapeTargetDetector,
    "slowness": SlownessDetector,
    "engine-errors": EngineErrorDetector,
    "prefix-cache": PrefixCacheDetector,
    "validity": OutputValidityDetector,
    "batch-limit": BatchLimitDetector,
    "vanished-metrics": MissingMetricsDetector,
    "device-memory": GpuMemoryLeakDetector,
    "power-cap": PowerCapDetector,
    "power-draw": PowerAnomalyDetector,
    "memory-use": GpuMemoryExcessDetector,
    "gpu-faults": GpuFaultDetector,
    "node-faults": NodeFaultDetector,
    "port-faults": PortFaultDetector,
    "host-faults": HostFaultDetector,
    "neighbors": NoisyNeighborDetector,
    "container-faults": ContainerFaultDetector,
    "pod-faults": PodFaultDetector,
    "startups": SlowStartupDetector,
    "engine-logs": EngineLogDetector,
    "outside": BlackboxDetector,
    "seasonal-service": partial(SeasonalDetector, EntityKind.SERVICE, seasonal.WATCHED[EntityKind.SERVICE]),
    "seasonal-replica": partial(SeasonalDetector, EntityKind.REPLICA, seasonal.WATCHED[EntityKind.REPLICA]),
    "seasonal-gpu": partial(SeasonalDetector, EntityKind.GPU, seasonal.WATCHED[EntityKind.GPU]),
    "seasonal-node": partial(SeasonalDetector, EntityKind.NODE, seasonal.WATCHED[EntityKind.NODE]),
    "isolation-replica": partial(MultivariateDetector, EntityKind.REPLICA, multivariate.WATCHED[EntityKind.REPLICA]),
    "isolation-gpu": partial(MultivariateDetector, EntityKind.GPU, multivariate.WATCHED[EntityKind.GPU]),
    "isolation-node": partial(MultivariateDetector, EntityKind.NODE, multivariate.WATCHED[EntityKind.NODE]),
    **{f"level-shift-{kind.value}": partial(LevelShiftDetector, kind, *of) for kind, of in level_shift.WATCHED.items()},
    **{f"robust-z-{kind.value}": partial(RobustZDetector, kind, *of) for kind, of in robust_z.WATCHED.items()},
    **{f"drift-{kind.value}": partial(DriftDetector, kind, *of) for kind, of in drift.WATCHED.items()},
}

STATE_BYTES, LEARNT_BYTES = 1280, 16384
"""What is remembered of an entity at most: by a detector of one relation, and by one of a past or of an objective."""

ABSOLUTE = {
    "a relation": "limits with a fixed unit: a share, seconds, degrees, a count, a state or a code",
    "a rule": "its expression compares with a value set by its owner",
}
"""Reasons for a detector to change its verdict if a value comes in another unit. Statistical detectors may not."""

_PROCESS = "the process or revision stays faulty until it is replaced, between failures as well"
_EVENT = "an event that no later value takes back: it counts for ten minutes, in which somebody acts on it"
OUTLASTS = {
    "gpu-xid-hardware": _EVENT,
    "gpu-xid-application": _EVENT,
    "gpu-ecc-uncorrectable": "an uncorrectable error counts for ten minutes, a row remap until the GPU is reset",
    "pod-oom": _EVENT,
    "gpu-oom": _EVENT,
    "nccl-timeout": _EVENT,
    "model-load-failed": _EVENT,
    "gpu-memory-fragmentation": _PROCESS,
    "bad-rollout": _PROCESS,
    "crash-loop": "a process of the loop may run for minutes before it ends again",
    "kv-transfer-fail": "transfers are rare; two minutes without a failure are the fewest that show an end",
    "host-memory-leak": "a climb of five minutes; only a new process frees the memory",
    "gpu-memory-leak": "a climb of four minutes; only a new process frees the memory",
    "gpu-slow-peer": "the mean step of a trailing minute, compared with that of its peers",
    "tp-topology-bad": "the mean step of a trailing minute, since the process started",
    "kernel-regression": "the mean step of a trailing minute, since a change",
    "prefix-cache-collapse": "a new cache is cold for minutes",
    "kv-pressure": "a queue that grew is over when it is served",
    "traffic-surge": "a queue that grew is over when it is served",
    "long-prompt-burst": "a queue that grew is over when it is served",
    "retry-storm": "a queue that grew is over when it is served",
    "metric-renamed": "a metric is back after several pages of the new process, none of which may lack it",
}
"""Faults whose alerts may last longer than two minutes after the values are good, with the reason."""

SYMPTOMS = {
    "saturation": (saturation.REPLICA_WAITS,),
    "surge": (saturation.SERVICE_WAITS, saturation.BACKLOG),
}
"""Other names of a detector, used for findings of a symptom that none of its faults explains."""


def make_all(
    alarms_per_entity_day: Mapping[EntityKind, float] | None = None,
    holidays: Sequence[Span] = (),
    zone: tzinfo = UTC,
) -> tuple[Detector, ...]:
    """Returns a new instance of every detector.

    The budget of a class of entities is split evenly among the statistical detectors of the class. A class that is not
    named keeps the default. Seasonal profiles are neither expected nor learned on holidays, given as (start, end) in
    unix seconds. ``zone`` is that of times of day and days of the week.
    """
    detectors = tuple(make() for make in DETECTORS.values())
    shares = Counter(entry.kind for entry in detectors if isinstance(entry, LearningDetector))
    for item in detectors:
        budget = (alarms_per_entity_day or {}).get(item.kind)
        if budget is not None and isinstance(item, LearningDetector):
            item.set_budget(budget / shares[item.kind])
        if isinstance(item, learning_detector.StatisticalDetector | IngressDetector):
            item.set_holidays(holidays)
            item.set_zone(zone)
    return detectors
