"""Start-ups of replicas by phase: from pod conditions, Events, the engine's log, and its first response.

A phase without data is omitted; no phase is estimated. A container restart in the same pod is a start-up of its own,
without the phases that only a new pod has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from collectors.events.unresolved_event import FIRST_LOOK
from collectors.kubernetes.api import Json, items, mapping, parse_time, text
from collectors.kubernetes.engine_args import serving_container
from collectors.kubernetes.pods import PodFacts
from collectors.kubernetes.startup_log import INIT_ENGINE, Mark
from outrider.model import EntityKind, EntityRef
from outrider.records.change_log import PhaseTime, StartPhase, Startup

FOLLOWED = timedelta(hours=6)  # a start-up without a served request is dropped after this time
MOST_FOLLOWED = 20_000
_SCALE_UPS = frozenset({"TriggeredScaleUp", "Nominated"})  # cluster-autoscaler, Karpenter
_PULLED = re.compile(r"in (?P<took>(?:\d+(?:\.\d+)?(?:h|ms|m|µs|us|s))+)")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|µs|us|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


@dataclass(slots=True)
class _Start:
    """State of one start-up: timestamps by name, phase durations with their source."""

    startup: Startup
    restarts: int
    times: dict[str, datetime] = field(default_factory=dict)
    took: dict[str, tuple[float, str]] = field(default_factory=dict)
    scaled_up: bool = False
    has_init: bool = False
    changed: bool = True
    is_old: bool = False  # it ran before the first reading: its phases are unknown

    @property
    def is_first(self) -> bool:
        """True for the first start in a pod."""
        return self.restarts == 0


@dataclass(slots=True)
class StartupTracker:
    """Tracks the pods that request accelerators. ``node_ready`` returns the ready time of a node by name."""

    cluster: str
    node_ready: Callable[[str], datetime | None]
    gpu_type: Callable[[str], str]
    starts: dict[str, _Start] = field(default_factory=dict)
    done: list[Startup] = field(default_factory=list)

    def pod(self, facts: PodFacts, pod: Json, at: datetime) -> None:
        """Applies the state of a pod."""
        restarts, started = _main_container(pod)
        start = self.starts.get(facts.uid)
        if start is not None and restarts > start.restarts and started is not None:
            self._close(start, started)
            start = None
        if start is None:
            start = self._begin(facts, pod, restarts, started, at)
            if start is None:
                return
        self._read(start, facts, pod, started)

    def gone(self, uid: str, at: datetime) -> None:
        """Applies the deletion of a pod."""
        start = self.starts.pop(uid, None)
        if start is not None:
            self._close(start, at)

    def event(self, event: Json, at: datetime) -> None:
        """Applies an Event about a pod: scheduling, autoscaling and image pulls."""
        involved = mapping(event.get("involvedObject")) or mapping(event.get("regarding"))
        start = self.starts.get(text(involved.get("uid")))
        if start is None or text(involved.get("kind")) != "Pod":
            return
        reason, message = text(event.get("reason")), text(event.get("message")) or text(event.get("note"))
        when = parse_time(event.get("eventTime")) or parse_time(event.get("firstTimestamp")) or at
        if reason in _SCALE_UPS:
            start.scaled_up = start.changed = True
        elif reason == "Pulling" and start.is_first:
            start.times.setdefault("pulling", when)
        elif reason == "Pulled" and start.is_first:
            seconds = pull_seconds(message)
            pull_start = start.times.get("pulling")
            if seconds is None and pull_start is not None:
                seconds = max(0.0, (when - pull_start).total_seconds())
            if seconds is not None:
                before = start.took.get(StartPhase.PULL, (0.0, ""))[0]
                start.took[StartPhase.PULL] = (before + seconds, "event Pulled")
            start.times["pulled"] = when
            start.changed = True

    def mark(self, namespace: str, pod: str, mark: Mark) -> None:
        """Applies a line of the engine's log. Of lines from every rank, the slowest counts."""
        start = next(
            (
                item
                for item in self.starts.values()
                if (item.startup.pod.namespace, item.startup.pod.name) == (namespace, pod)
            ),
            None,
        )
        if start is None or mark.at < start.startup.began_at - timedelta(seconds=1):
            return
        seconds = mark.seconds
        if mark.edge == "begin":
            start.times.setdefault(f"{mark.phase} begin", mark.at)
            return
        if seconds is None:
            phase_start = start.times.get(f"{mark.phase} begin")
            if phase_start is None:
                return
            seconds = max(0.0, (mark.at - phase_start).total_seconds())
        if start.is_old:
            return
        start.took[mark.phase] = (max(seconds, start.took.get(mark.phase, (0.0, ""))[0]), "engine log")
        start.changed = True

    def resume(self, stored: Iterable[Startup], at: datetime) -> tuple[Startup, ...]:
        """Restores start-ups stored before a restart; returns those whose pods were deleted since.

        For a pod that has run for long, only the stored record has its phases.
        """
        starts = {start.startup.id: start for start in self.starts.values()}
        deleted = []
        for row in stored:
            start = starts.get(row.id)
            if start is None:
                deleted.append(replace(row, gone_at=at))
            elif start.is_old:
                start.startup, start.changed = row, False
            elif row.served_at is not None:
                start.startup = replace(start.startup, served_at=row.served_at)
        return tuple(deleted)

    def waiting(self) -> Iterator[Startup]:
        """Start-ups that are ready and have not served a request yet."""
        for start in self.starts.values():
            if start.startup.ready_at is not None and start.startup.served_at is None and not start.is_old:
                yield start.startup

    def served(self, name: str, at: datetime) -> None:
        """Records that the replica of a start-up, by its id, has served its first request."""
        start = next((item for item in self.starts.values() if item.startup.id == name), None)
        if start is not None and start.startup.served_at is None:
            start.startup, start.changed = replace(start.startup, served_at=at), True

    def drain(self, at: datetime) -> tuple[Startup, ...]:
        """Start-ups that changed since the last call, in their current state."""
        changed, self.done = self.done, []
        for start in self.starts.values():
            if start.changed:
                start.changed = False
                changed.append(self._record(start))
        stale = [uid for uid, start in self.starts.items() if self._over(start, at)]
        for uid in stale[: max(0, len(self.starts) - MOST_FOLLOWED)]:
            del self.starts[uid]
        return tuple(changed)

    def _over(self, start: _Start, at: datetime) -> bool:
        return start.startup.served_at is not None or start.startup.began_at < at - FOLLOWED

    def _begin(
        self, facts: PodFacts, pod: Json, restarts: int, started: datetime | None, at: datetime
    ) -> _Start | None:
        created = parse_time(facts.created)
        if not facts.accelerators or facts.is_over or created is None:
            return None
        began = created if restarts == 0 else started
        if began is None:
            return None
        is_old = facts.uid not in self.starts and began < at - FIRST_LOOK and _ready(pod) is not None
        if is_old:
            began = created  # its location is worth storing anyway
        startup = Startup(
            id=f"{self.cluster}/{facts.uid}/{restarts}",
            pod=EntityRef(self.cluster, EntityKind.POD, facts.namespace, facts.name),
            began_at=began,
            replica=facts.group,
            workload=facts.workload,
            service=facts.service,
            gpus=facts.gpus,
        )
        start = self.starts[facts.uid] = _Start(startup, restarts, is_old=is_old)
        return start

    def _read(self, start: _Start, facts: PodFacts, pod: Json, started: datetime | None) -> None:
        status = mapping(pod.get("status"))
        before = (start.startup, dict(start.times))
        for condition in items(status.get("conditions")):
            when = parse_time(condition.get("lastTransitionTime"))
            if text(condition.get("status")) == "True" and when is not None:
                start.times.setdefault(text(condition.get("type")), when)
        start.has_init = bool(items(mapping(pod.get("spec")).get("initContainers")))
        if started is not None:
            start.times.setdefault("started", started)
        if start.is_old:
            start.times.clear()
        image = text(serving_container(mapping(pod.get("spec"))).get("image"))
        ready = start.startup.ready_at if start.is_old else start.startup.ready_at or _ready(pod)
        if (
            ready is not None
            and not start.is_old
            and (ready < start.startup.began_at or (not start.is_first and ready < start.times.get("started", ready)))
        ):
            ready = None  # that was the previous process
        start.startup = replace(
            start.startup,
            node=facts.node,
            image=image,
            service=facts.service,
            ready_at=ready,
            gpu_type=self.gpu_type(facts.node),
        )
        start.changed |= before != (start.startup, start.times)

    def _close(self, start: _Start, at: datetime | None = None) -> None:
        if at is not None:
            start.startup = replace(start.startup, gone_at=at)
        self.done.append(self._record(start))

    def _record(self, start: _Start) -> Startup:
        if start.is_old:
            return start.startup
        ready_at = self.node_ready(start.startup.node) if start.startup.node else None
        return replace(start.startup, phases=tuple(_phases(start, ready_at)))


def _phases(start: _Start, node_ready: datetime | None) -> Iterator[PhaseTime]:
    """The phases in order, each with its source."""
    startup, times, took = start.startup, start.times, start.took
    began, scheduled, started = startup.began_at, times.get("PodScheduled"), times.get("started")
    if start.is_first:
        came = node_ready if node_ready is not None and node_ready > began else None
        if came is not None and (start.scaled_up or scheduled is None or scheduled >= came):
            yield PhaseTime(StartPhase.NODE_PROVISION, (came - began).total_seconds(), "condition Ready of the node")
        if scheduled is not None:
            since = max(began, came) if came is not None and came <= scheduled else began
            yield PhaseTime(StartPhase.SCHEDULE, (scheduled - since).total_seconds(), "condition PodScheduled")
        initialized = times.get("Initialized")
        if start.has_init and initialized is not None and scheduled is not None:
            yield PhaseTime(
                StartPhase.INIT, max(0.0, (initialized - scheduled).total_seconds()), "condition Initialized"
            )
        if StartPhase.PULL in took:
            yield PhaseTime(StartPhase.PULL, *took[StartPhase.PULL])
        if started is not None and "pulled" in times:
            yield PhaseTime(
                StartPhase.CREATE,
                max(0.0, (started - times["pulled"]).total_seconds()),
                "event Pulled, container state",
            )
    yield from _process(start)
    if startup.ready_at is not None and startup.served_at is not None:
        waited = max(0.0, (startup.served_at - startup.ready_at).total_seconds())
        yield PhaseTime(StartPhase.FIRST_REQUEST, waited, "engine counters")


def _process(start: _Start) -> Iterator[PhaseTime]:
    """Phases of the process between its start and readiness."""
    took, attributed = start.took, 0.0
    for phase in (StartPhase.WEIGHT_LOAD, StartPhase.COMPILE, StartPhase.GRAPH_CAPTURE):
        if phase in took:
            attributed += took[phase][0]
            yield PhaseTime(phase, *took[phase])
    warm = took.get(StartPhase.WARM_UP)
    if warm is None and INIT_ENGINE in took:  # includes compilation and capture
        within = sum(took[phase][0] for phase in (StartPhase.COMPILE, StartPhase.GRAPH_CAPTURE) if phase in took)
        warm = (max(0.0, took[INIT_ENGINE][0] - within), took[INIT_ENGINE][1])
    if warm is not None:
        attributed += warm[0]
        yield PhaseTime(StartPhase.WARM_UP, *warm)
    started, ready = start.times.get("started"), start.startup.ready_at
    if started is not None and ready is not None and ready >= started:
        rest = (ready - started).total_seconds() - attributed
        yield PhaseTime(StartPhase.OTHER, max(0.0, rest), "condition Ready, container state")


def pull_seconds(message: str) -> float | None:
    """Duration of a pull from ``Successfully pulled image "x" in 1m2.3s``; 0 if the image was present."""
    if "already present on machine" in message:
        return 0.0
    match = _PULLED.search(message)
    if match is None:
        return None
    return sum(float(amount) * _UNITS[unit] for amount, unit in _PIECE.findall(match["took"]))


def _main_container(pod: Json) -> tuple[int, datetime | None]:
    """Restarts and start time of the serving container."""
    status = mapping(pod.get("status"))
    serving = text(serving_container(mapping(pod.get("spec"))).get("name"))
    states = items(status.get("containerStatuses"))
    state = next((item for item in states if text(item.get("name")) == serving), states[0] if states else {})
    count = state.get("restartCount")
    running = mapping(mapping(state.get("state")).get("running"))
    return (count if isinstance(count, int) and count > 0 else 0), parse_time(running.get("startedAt"))


def _ready(pod: Json) -> datetime | None:
    for condition in items(mapping(pod.get("status")).get("conditions")):
        if condition.get("type") == "Ready" and text(condition.get("status")) == "True":
            return parse_time(condition.get("lastTransitionTime"))
    return None
