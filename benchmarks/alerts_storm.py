"""Storms of received alerts: 10,000 alerts of a fleet, of which 30 % belong to incidents that overlap another one.

Each incident has one cause (a switch, a node, a GPU or an engine) and the alerts that a Prometheus with the usual rules
raises below it, in random order, within three minutes. Of some incidents no alert names the cause, and some alerts
name only an address that nothing else knows. They arrive as Alertmanager's webhook delivers them, and run through the
whole cycle. Scored: pages against alerts, pairs of alerts grouped as the causes demand, and incidents that
got none of their own. The peer is the best grouping by labels that an Alertmanager could be configured with.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, quick, result
from collectors.receive.alert_formats import alertmanager
from collectors.receive.alert_formats.record import AlertRules
from outrider import log
from outrider.clock import ManualClock
from outrider.model import AlertState, EntityKind, EntityRef
from outrider.ports import Collected
from outrider.records.received_alerts import received_id
from outrider.topology import Topology
from service.config.settings import Settings
from service.wiring import platform

SEED, ALERTS, OVERLAP_RATIO = 11, 10_000, 0.3
CAUSE_MISSING_RATIO, ADDRESS_ONLY_RATIO = 0.1, 0.01
RACKS, NODES, GPUS = 24, 8, 8  # per rack, per node
START, STEP = datetime(2026, 3, 1, tzinfo=UTC), timedelta(seconds=15)
SPREAD, LASTS, QUIET = timedelta(minutes=3), timedelta(minutes=6), timedelta(minutes=30)
LABEL_GROUPS = (
    ("alertname",),
    ("node",),
    ("pod",),
    ("namespace",),
    ("service",),
    ("node", "pod"),
    ("alertname", "node"),
)


def _entity(kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
    return EntityRef("default", kind, namespace, name)


RULES = AlertRules(
    faults={"SwitchUnreachable": "switch-down", "VllmEngineDown": "engine-dead", "GpuFallenOffBus": "gpu-lost"}
)


@dataclass(slots=True)
class Fleet:
    """Racks of nodes. Each node has one pod per pair of GPUs; a service has its pods on the nodes of two racks."""

    topology: Topology = field(default_factory=Topology)
    places: dict[str, dict[str, str]] = field(default_factory=dict)  # labels of each pod

    @staticmethod
    def build() -> Fleet:
        """Builds the topology of all racks."""
        edges: list[tuple[EntityRef, EntityRef]] = []
        places: dict[str, dict[str, str]] = {}
        labels: dict[EntityRef, dict[str, str]] = {}
        for rack in range(RACKS):
            switch = _entity(EntityKind.SWITCH, f"sw-{rack}")
            for index in range(NODES):
                name = f"n-{rack}-{index}"
                node = _entity(EntityKind.NODE, name)
                service = _entity(EntityKind.SERVICE, f"svc-{rack // 2}-{index % 4}", "llm")
                edges.append((switch, node))
                for card in range(GPUS):
                    gpu, pod_name = _entity(EntityKind.GPU, f"GPU-{name}-{card}"), f"p-{name}-{card // 2}"
                    pod = _entity(EntityKind.POD, pod_name, "llm")
                    replica = _entity(EntityKind.REPLICA, pod_name, "llm")
                    labels[gpu] = {"index": str(card), "node": name}
                    edges += [(node, gpu), (gpu, pod), (node, pod), (pod, replica), (replica, service)]
                    places[pod_name] = {"pod": pod_name, "node": name, "service": service.name, "rack": str(rack)}
        return Fleet(Topology.build(dict.fromkeys(edges), labels=labels), places)


@dataclass(slots=True)
class Storm:
    """One incident: rack, node and GPU, and its alerts by their delay after the cause.

    The first alert is about the cause, or about its first symptom if ``cause`` is None.
    """

    number: int
    place: tuple[int, int, int]
    kind: str
    cause: dict[str, str] | None
    alerts: list[tuple[timedelta, dict[str, str]]]
    starts_at: datetime = START

    def named(self) -> Iterator[tuple[str, tuple[timedelta, dict[str, str]]]]:
        """Yields fingerprint, delay and labels of every alert."""
        return ((f"{self.number}/{index}", alert) for index, alert in enumerate(self.alerts))

    @staticmethod
    def id_of(print_: str) -> str:
        """Returns the fingerprint of the alert of Outrider."""
        return received_id(alertmanager.ALERTMANAGER, print_)

    @property
    def prints(self) -> list[str]:
        """The same of all alerts."""
        return [self.id_of(print_) for print_, _ in self.named()]


def storms(fleet: Fleet, random_: random.Random, total: int) -> list[Storm]:
    """Returns incidents on separate racks and nodes with about that many alerts, and their starts."""
    result: list[Storm] = []
    while sum(len(storm.alerts) for storm in result) < total:
        result.append(_storm(len(result), fleet, random_))
        if len(result) % 3 == 2:  # every third one has a neighbor in the same rack, with which it may overlap
            result.append(_storm(len(result), fleet, random_, rack=result[-1].place[0]))
    _place(result, random_)
    return result


def _place(incidents: Sequence[Storm], random_: random.Random) -> None:
    """Sets the starts: pairs that overlap begin within two minutes, all others are far apart."""
    at, index, overlapping = START + QUIET, 0, 0
    while index < len(incidents):
        incidents[index].starts_at = at
        pair = index + 1 < len(incidents) and overlapping < OVERLAP_RATIO * (index + 2)
        if pair and _apart(incidents[index], incidents[index + 1]):
            incidents[index + 1].starts_at = at + timedelta(seconds=random_.randrange(0, 120))
            overlapping += 2
            index += 1
        at, index = at + LASTS + QUIET, index + 1


def _apart(one: Storm, other: Storm) -> bool:
    """True if neither contains the other: a node of a rack whose switch is gone is no incident of its own."""
    same_rack, same_node = one.place[0] == other.place[0], one.place[:2] == other.place[:2]
    if "switch" in (one.kind, other.kind):
        return not same_rack
    return not same_node or ("node" not in (one.kind, other.kind) and one.place[2] // 2 != other.place[2] // 2)


def _storm(number: int, fleet: Fleet, random_: random.Random, rack: int | None = None) -> Storm:
    kind = random_.choices(("switch", "node", "gpu", "engine"), (2, 5, 2, 1))[0]
    rack = random_.randrange(RACKS) if rack is None else rack
    index, card = random_.randrange(NODES), random_.randrange(GPUS)
    node = f"n-{rack}-{index}"
    pods = {
        "switch": [pod for pod, labels in fleet.places.items() if labels["rack"] == str(rack)],
        "node": [pod for pod, labels in fleet.places.items() if labels["node"] == node],
    }.get(kind, [f"p-{node}-{card // 2}"])
    cause = {
        "switch": {"alertname": "SwitchUnreachable", "switch": f"sw-{rack}"},
        "node": {"alertname": "KubeNodeNotReady", "node": node},
        "gpu": {"alertname": "GpuFallenOffBus", "node": node, "gpu_uuid": f"GPU-{node}-{card}"},
        "engine": {"alertname": "VllmEngineDown", **_of_pod(fleet, pods[0], with_service=True)},
    }[kind]
    cause |= {"severity": "critical"}
    below = list(_below(kind, fleet, pods, rack, node))
    random_.shuffle(below)
    delays = [timedelta(seconds=random_.uniform(0, SPREAD.total_seconds())) for _ in below]
    alerts = list(zip(delays, (_labelled(labels, random_) for labels in below), strict=True))
    if random_.random() < CAUSE_MISSING_RATIO:
        return Storm(number, (rack, index, card), kind, None, alerts)
    late = timedelta(seconds=random_.choice((0, 0, 15, 45)))  # a cause is often reported after its first symptoms
    return Storm(number, (rack, index, card), kind, cause, [(late, cause), *alerts])


def _labelled(labels: dict[str, str], random_: random.Random) -> dict[str, str]:
    """The labels as they arrive: relabeling has lost the entity of a few, and left an address."""
    if random_.random() >= ADDRESS_ONLY_RATIO:
        return labels
    address = f"10.{random_.randrange(256)}.{random_.randrange(256)}.{random_.randrange(256)}:9400"
    return {"alertname": labels["alertname"], "severity": labels["severity"], "instance": address}


def _below(kind: str, fleet: Fleet, pods: Sequence[str], rack: int, node: str) -> Iterator[dict[str, str]]:
    """The symptoms that the usual rules raise."""
    nodes = [f"n-{rack}-{index}" for index in range(NODES)] if kind == "switch" else [node] if kind == "node" else []
    for name in nodes:
        for alert in ("TargetDown", "NodeNetworkUnreachable", "KubeletDown", "DcgmExporterDown"):
            yield {"alertname": alert, "node": name, "severity": "warning"}
    # alerts of kube-state-metrics name the pod alone, those of the engine also their service
    names = ("KubePodNotReady", "KubeContainerWaiting", "VllmTargetDown", "VllmNoRequests", "PodProbeFailing")
    for pod in pods:
        for alert in names if kind != "engine" else names[2:]:
            labels = _of_pod(fleet, pod, with_service=alert.startswith("Vllm"))
            yield {"alertname": alert, "severity": "warning", **labels}


def _of_pod(fleet: Fleet, pod: str, *, with_service: bool) -> dict[str, str]:
    labels = {"namespace": "llm", "pod": pod}
    return labels | ({"service": fleet.places[pod]["service"]} if with_service else {})


class Run:
    """The cycle on stores in memory, and the deliveries of an Alertmanager."""

    def __init__(self, fleet: Fleet) -> None:
        """The fleet never changes."""
        self.clock = ManualClock(START)
        self.cycle = platform.cycle_in_memory(Settings(), _NoSource(), self.clock, interval=STEP)
        self.state, self._topology = self.cycle.parts.state, fleet.topology

    def deliver(self, alerts: Iterable[tuple[str, Mapping[str, str]]], status: str) -> None:
        """Delivers alerts with their fingerprints in one group."""
        entries = [
            {"status": status, "labels": labels, "fingerprint": print_, "annotations": {"summary": "-"}}
            for print_, labels in alerts
        ]
        if entries:
            body = json.dumps({"version": "4", "groupKey": "g", "alerts": entries}).encode()
            decoded = alertmanager.decode("alertmanager", body, RULES, self.clock.now())
            self.state.receive_alerts(decoded.alerts, 1_000_000)

    def step(self) -> None:
        """Runs one cycle."""
        self.cycle.run_stages(self.clock.advance(STEP), Collected(topology=self._topology))

    def play(self, session: Sequence[Storm]) -> dict[str, str]:
        """Plays storms that overlap until all incidents are closed; returns the incident of each alert, if any."""
        self.clock.set(session[0].starts_at)
        named = [(storm, print_, alert) for storm in session for print_, alert in storm.named()]
        waiting = sorted(
            ((storm.starts_at + delay, print_, labels) for storm, print_, (delay, labels) in named),
            key=lambda item: item[:2],
        )
        ends = max(storm.starts_at for storm in session) + LASTS
        while self.clock.now() < ends:
            due = [item for item in waiting if item[0] <= self.clock.now()]
            waiting = waiting[len(due) :]
            self.deliver(((print_, labels) for _, print_, labels in due), "firing")
            self.step()
        firing = self.state.alerts(states=[AlertState.FIRING], limit=10**6)
        groups = {alert.fingerprint: alert.incident for alert in firing}
        self.deliver(((print_, labels) for _, print_, (_, labels) in named), "resolved")
        for _ in range(40):
            self.step()
            if not self.state.incidents(open_only=True, limit=1):
                break
        return {print_: incident for print_, incident in groups.items() if incident is not None}


class _NoSource:
    """The benchmark hands everything to the cycle itself."""

    async def collect(self, at: datetime) -> Collected:
        """Returns an empty topology."""
        return Collected(topology=Topology(at=at))

    async def close(self) -> None:
        """Releases nothing."""


def sessions(incidents: Sequence[Storm]) -> Iterator[list[Storm]]:
    """Yields the storms that overlap, together."""
    session: list[Storm] = []
    for storm in sorted(incidents, key=lambda item: item.starts_at):
        if session and storm.starts_at - session[0].starts_at > QUIET:
            yield session
            session = []
        session.append(storm)
    yield session


def pair_f1(truth: Mapping[str, int], groups: Mapping[str, object]) -> float:
    """Returns the F1 over pairs of alerts that belong together; an alert without a group is alone."""
    both = Counter((truth[print_], groups[print_]) for print_ in truth if print_ in groups)
    right = sum(_pairs(count) for count in both.values())
    grouped = sum(_pairs(count) for count in Counter(groups[print_] for print_ in truth if print_ in groups).values())
    wanted = sum(_pairs(count) for count in Counter(truth.values()).values())
    precision, recall = right / grouped if grouped else 0.0, right / wanted
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def best_labels(incidents: Sequence[Storm]) -> tuple[float, int, str]:
    """Returns F1, notifications and labels of the best grouping by labels, per storm and half hour as Alertmanager."""
    truth = {print_: storm.number for storm in incidents for print_, _ in storm.named()}
    scored = []
    for names in LABEL_GROUPS:
        groups = {
            print_: ((storm.starts_at - START) // QUIET, *(labels.get(name, "") for name in names))
            for storm in incidents
            for print_, (_, labels) in storm.named()
        }
        scored.append((pair_f1(truth, groups), len(set(groups.values())), ", ".join(names)))
    return max(scored)


def lost(incidents: Sequence[Storm], groups: Mapping[str, str]) -> int:
    """Returns the number of storms without an incident of their own.

    The incident of a storm is that of its cause, or of most of its alerts if no alert names the cause. It is lost if
    there is none, or if it is that of another storm, too.
    """
    own = [_incident_of(storm, groups) for storm in incidents]
    shared = Counter(own)
    return sum(incident is None or shared[incident] > 1 for incident in own)


def _incident_of(storm: Storm, groups: Mapping[str, str]) -> str | None:
    if storm.cause is not None:
        return groups.get(storm.prints[0])
    known = Counter(groups[print_] for print_ in storm.prints if print_ in groups)
    return known.most_common(1)[0][0] if known else None


def run() -> list[Result]:
    """Returns the folding of pages, the F1 of grouped pairs, and the distinct incidents lost."""
    log.configure(level="critical")
    fleet, random_ = Fleet.build(), random.Random(SEED)
    incidents = storms(fleet, random_, 1_000 if quick() else ALERTS)
    run_, groups, overlapping = Run(fleet), dict[str, str](), 0
    for session in sessions(incidents):
        groups |= run_.play(session)
        overlapping += len(session) if len(session) > 1 else 0
    truth = {storm.id_of(print_): storm.number for storm in incidents for print_, _ in storm.named()}
    pages = sum(message.is_page for message in run_.state.messages(limit=10**6))
    folding, f1, missed = 1 - pages / len(truth), pair_f1(truth, groups), lost(incidents, groups)
    peer_f1, peer_pages, labels = best_labels(incidents)
    peer = f"grouping by {labels}, the best of {len(LABEL_GROUPS)}"
    note = (
        f"{len(truth)} alerts of {len(incidents)} incidents, {overlapping / len(incidents):.0%} of them overlapping; "
        f"{sum(storm.cause is None for storm in incidents)} without an alert about their cause; {pages} pages"
    )
    peer_folding = 1 - peer_pages / len(truth)
    ratio = folding / peer_folding
    return [
        result("alerts_storm", folding, "fewer pages", 0.95, folding >= 0.95, peer, peer_folding, ratio, note=note),
        result("alerts_storm_f1", f1, "F1 of pairs", 0.90, f1 >= 0.90, peer, peer_f1, f1 / peer_f1),
        result("alerts_storm_lost", float(missed), "distinct incidents lost", 0.0, missed == 0),
    ]


if __name__ == "__main__":
    main(run)
