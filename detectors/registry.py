"""Every detector by name. The dict below is the whole registration: nothing is found by scanning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial

from detectors import drift, isolation, levelshift, pasts, robustz, saturation, seasonal
from detectors.baseline import Span
from detectors.batchlimit import BatchLimitDetector
from detectors.containerfaults import ContainerFaultDetector
from detectors.devicememory import DeviceMemoryDetector
from detectors.drift import DriftDetector
from detectors.engineerrors import EngineErrorDetector
from detectors.enginelogs import EngineLogDetector
from detectors.entry import EntryDetector
from detectors.hardfaults import GpuFaultDetector
from detectors.hostfaults import HostFaultDetector
from detectors.isolation import IsolationDetector
from detectors.kpi import KpiDetector
from detectors.levelshift import LevelShiftDetector
from detectors.liveness import LivenessDetector
from detectors.memoryuse import MemoryUseDetector
from detectors.neighbours import NeighbourDetector
from detectors.nodefaults import NodeFaultDetector, PortFaultDetector
from detectors.outcomes import OutcomeDetector
from detectors.outside import OutsideDetector
from detectors.podfaults import PodFaultDetector
from detectors.powercap import PowerCapDetector
from detectors.powerdraw import PowerDrawDetector
from detectors.prefixcache import PrefixCacheDetector
from detectors.robustz import RobustZDetector
from detectors.saturation import SaturationDetector
from detectors.scaling import ScalingDetector
from detectors.seasonal import SeasonalDetector
from detectors.skew import SkewDetector
from detectors.slowness import SlownessDetector
from detectors.startups import StartupDetector
from detectors.surge import SurgeDetector
from detectors.targets import TargetsDetector
from detectors.traffic import TrafficForecastDetector
from detectors.validity import ValidityDetector
from detectors.vanished import VanishedDetector
from detectors.wayin import WayIn
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
    "isolation-replica": partial(IsolationDetector, EntityKind.REPLICA, isolation.WATCHED[EntityKind.REPLICA]),
    "isolation-gpu": partial(IsolationDetector, EntityKind.GPU, isolation.WATCHED[EntityKind.GPU]),
    "isolation-node": partial(IsolationDetector, EntityKind.NODE, isolation.WATCHED[EntityKind.NODE]),
    **{f"level-shift-{kind.value}": partial(LevelShiftDetector, kind, *of) for kind, of in levelshift.WATCHED.items()},
    **{f"robust-z-{kind.value}": partial(RobustZDetector, kind, *of) for kind, of in robustz.WATCHED.items()},
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
    shares = Counter(one.kind for one in made if isinstance(one, pasts.NeedsPast))
    for one in made:
        budget = (alarms_per_entity_day or {}).get(one.kind)
        if budget is not None and isinstance(one, pasts.NeedsPast):
            one.set_budget(budget / shares[one.kind])
        if isinstance(one, pasts.Statistical):
            one.set_holidays(holidays)
        if isinstance(one, pasts.Statistical | WayIn):
            one.set_zone(zone)
    return made
