"""Weak evidence from changes and log lines, by code and component.

A change of a service's pods concerns the service, one of a driver the node. A hint becomes a hypothesis of an incident
that it can reach. It neither opens nor joins incidents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from detectors.base.changes import CHANGE_TEXT, ChangeKind, sort_of
from detectors.rca.hypotheses import WINDOW, FaultHypothesis, Reach
from outrider.model import EntityKind, EntityRef, Event, EventKind, Evidence, Finding
from outrider.vocabulary.faults import faults

CHANGE_WINDOW = timedelta(minutes=30)  # a new revision shows its fault once it serves its share of the load
CHANGE_STRENGTH = 0.55  # "after" is not "because of"
LOG_STRENGTH = 0.55  # a log line without a finding of a detector
LOG_HOLD = timedelta(minutes=10)
LOG_TEXT = "incidents.evidence.log"
CHANGE_BY_TEXT, CHANGE_FROM_TEXT = f"{CHANGE_TEXT}_by", f"{CHANGE_TEXT}_from"
SLOWER = frozenset({"engine_tpot_seconds", "engine_itl_seconds", "svc_tpot_seconds"})
MOST_CARDS = 8  # GPUs of one node that a driver change applies to
_MOST_CHARACTERS = 120  # characters of old and new values, and of a log line


_PUT_ON_NODES = (ChangeKind.DRIVER, ChangeKind.NETWORK)
NEW_REVISION = (ChangeKind.ROLLOUT, ChangeKind.FLAGS, ChangeKind.MODEL, ChangeKind.CONFIG)

_OF_A_REVISION = frozenset({
    "bad-rollout", "kernel-regression", "crash-loop", "model-load-failed", "garbled-output", "slow-start", "gpu-oom",
    "prefix-cache-collapse", "batch-misconfigured", "pod-oom", "host-memory-leak", "gpu-memory-leak",
    "gpu-memory-fragmentation", "kv-transfer-fail", "engine-asleep", "tp-topology-bad",
})  # fmt: skip
# Faults for which a change of each kind is relevant evidence.
FAULTS_OF_CHANGE: Mapping[ChangeKind, frozenset[str]] = {
    **dict.fromkeys(NEW_REVISION, _OF_A_REVISION),
    ChangeKind.DRIVER: frozenset({
        "gpu-slow-peer", "gpu-lost", "gpu-xid-hardware", "gpu-xid-application", "nccl-timeout", "nvlink-degraded",
        "pcie-degraded", "node-lost", "engine-dead", "engine-core-dead", "kernel-regression", "slow-start",
        "gpu-power-throttle", "metric-renamed", "exporter-down",
    }),
    ChangeKind.NETWORK: frozenset({
        "network-loss", "ib-link-down", "kv-transfer-fail", "nccl-timeout", "cert-or-dns", "node-lost", "switch-down",
    }),
    ChangeKind.SCALE: frozenset({
        "kv-pressure", "traffic-surge", "traffic-skew", "pods-pending", "autoscaler-stuck", "slow-start",
        "image-pull-slow",
    }),
}  # fmt: skip
# Faults of too few replicas. A scale-out answers them, so it is no evidence of them.
_OF_TOO_FEW = frozenset({"kv-pressure", "traffic-surge"})
# Faults suggested by log lines of model servers, besides lines that detectors turn into findings.
FAULT_OF_LINE: Mapping[str, str] = {
    "engine_dead": "engine-core-dead",
    "worker_died": "engine-core-dead",
    "cuda_error": "engine-core-dead",  # a GPU fault also causes an XID, which has its own detector
    "gpu_missing": "gpu-lost",
    "nccl_error": "nccl-timeout",
    "nccl_timeout": "nccl-timeout",
    "kv_transfer_failed": "kv-transfer-fail",
    "invalid_logits": "garbled-output",
    "cuda_oom": "gpu-oom",
    "memory_fragmented": "gpu-memory-fragmentation",
    "host_memory": "pod-oom",
    "oom-kill": "pod-oom",
    "disk_full": "disk-full",
    "storage_error": "storage-slow",
    "link-down": "ib-link-down",
    "sleep": "engine-asleep",
    **dict.fromkeys(
        ("weights_missing", "weights_corrupt", "weights_wrong", "kv_cache_too_small", "load_failed"),
        "model-load-failed",
    ),
    **dict.fromkeys(("flags_wrong", "config_unreadable"), "bad-rollout"),
}


@dataclass(frozen=True, slots=True)
class Hint:
    """One change or log line on one component. ``sort`` None: a log line."""

    entity: EntityRef
    event: Event
    sort: ChangeKind | None

    def supports(self, fault: str) -> bool:
        """True if it is relevant evidence for the fault."""
        if self.sort is None:
            return FAULT_OF_LINE.get(self.event.code) == fault
        return fault in FAULTS_OF_CHANGE[self.sort] and not (fault in _OF_TOO_FEW and self._grows)

    @property
    def _grows(self) -> bool:
        """True for a change to more replicas."""
        before, after = (self.event.attributes.get(name, "") for name in ("from", "to"))
        return before.isdecimal() and after.isdecimal() and int(after) > int(before)

    @property
    def evidence(self) -> Evidence:
        """The change or line with its time, and the actor and old and new values if known."""
        return line_evidence(self.event) if self.sort is None else change_evidence(self.event)


def gather(events: Sequence[Event], reach: Reach, now: datetime) -> dict[EntityRef, list[Hint]]:
    """Recent changes and lines by component, oldest first."""
    result: dict[EntityRef, list[Hint]] = {}
    for event in sorted(events, key=lambda item: (item.at, item.id)):
        if event.kind is EventKind.CHANGE and now - CHANGE_WINDOW - WINDOW <= event.at <= now:
            sort = sort_of(event.code)
            places = _places(event, sort, reach) if sort is not None else ()
        elif event.kind is EventKind.LOG and event.code in FAULT_OF_LINE and now - LOG_HOLD <= event.at <= now:
            sort, places = None, (event.entity,)
        else:
            continue
        for entity in places:
            result.setdefault(entity, []).append(Hint(entity, event, sort))
    return result


def _places(event: Event, sort: ChangeKind, reach: Reach) -> tuple[EntityRef, ...]:
    """The nodes for changes of node software, else the services of the changed entity."""
    if sort in _PUT_ON_NODES:
        nodes = tuple(sorted(reach.nodes(event.entity), key=lambda node: node.key))
        return nodes or (event.entity,)
    return reach.services(event.entity) or (event.entity,)


def suggested(
    hints: Mapping[EntityRef, Sequence[Hint]], findings: Mapping[EntityRef, Sequence[Finding]], reach: Reach
) -> list[FaultHypothesis]:
    """Hypotheses from hints, besides those of a new revision on its service."""
    hypotheses: dict[tuple[EntityRef, str], FaultHypothesis] = {}
    for held in hints.values():
        for hint in held:
            for hypothesis in _of_hint(hint, findings, reach):
                hypotheses[hypothesis.entity, hypothesis.fault or ""] = hypothesis
    changed = {entity for entity, held in hints.items() if any(hint.sort is ChangeKind.DRIVER for hint in held)}
    for hypothesis in _of_many_nodes(changed, hints, findings, reach):
        hypotheses[hypothesis.entity, hypothesis.fault or ""] = hypothesis
    return list(hypotheses.values())


def _of_hint(hint: Hint, findings: Mapping[EntityRef, Sequence[Finding]], reach: Reach) -> Iterator[FaultHypothesis]:
    after = hint.event.at + CHANGE_WINDOW - WINDOW
    if hint.sort is None:
        fault = FAULT_OF_LINE[hint.event.code]
        for place in _of_kind(hint.entity, faults()[fault].entity, reach):
            yield FaultHypothesis(place, fault, hint.event.at, LOG_STRENGTH, firing=False)
    elif hint.sort is ChangeKind.NETWORK and hint.entity.kind is EntityKind.NODE:
        yield FaultHypothesis(hint.entity, "network-loss", after, CHANGE_STRENGTH, firing=False)
    elif hint.sort is ChangeKind.FLAGS and _slower(hint.entity, findings):
        yield FaultHypothesis(hint.entity, "batch-misconfigured", after, CHANGE_STRENGTH, firing=False)
    elif hint.sort is ChangeKind.DRIVER:
        for card in reach.topology.above(hint.entity, EntityKind.GPU)[:MOST_CARDS]:
            if any(_slower(replica, findings) for replica in reach.up(card) if replica.kind is EntityKind.REPLICA):
                yield FaultHypothesis(card, "gpu-slow-peer", after, CHANGE_STRENGTH, firing=False)


def _of_many_nodes(
    changed: set[EntityRef],
    hints: Mapping[EntityRef, Sequence[Hint]],
    findings: Mapping[EntityRef, Sequence[Finding]],
    reach: Reach,
) -> Iterator[FaultHypothesis]:
    """A slower service most of whose nodes have a new driver: the driver is the cause, not a single GPU."""
    for service in {item for node in changed for item in reach.services(node)}:
        nodes = reach.nodes(service)
        if 2 * len(nodes & changed) > len(nodes) > 1 and _slower(service, findings):
            newest = max(hint.event.at for node in nodes & changed for hint in hints[node])
            since = newest + CHANGE_WINDOW - WINDOW
            yield FaultHypothesis(service, "kernel-regression", since, CHANGE_STRENGTH + 0.05, firing=False)


def _of_kind(entity: EntityRef, kind: EntityKind, reach: Reach) -> tuple[EntityRef, ...]:
    """The component of a kind that a line refers to: its own, or the only one near it."""
    if entity.kind is kind:
        return (entity,)
    near = (*reach.topology.below(entity, kind), *reach.topology.above(entity, kind))
    return near if len(near) == 1 else ()


def _slower(entity: EntityRef, findings: Mapping[EntityRef, Sequence[Finding]]) -> bool:
    return any(SLOWER.intersection(finding.signals) for finding in findings.get(entity, ()))


def change_evidence(event: Event) -> Evidence:
    """Evidence of a change: kind, time, and the actor and old and new values if known."""
    sort = sort_of(event.code) or ChangeKind.ROLLOUT
    arguments = {"code": event.code, "at": f"{event.at:%H:%M:%S}"}
    actor = event.attributes.get("actor", "")
    before, after = (event.attributes.get(name, "")[:_MOST_CHARACTERS] for name in ("from", "to"))
    if not actor and not (before or after):
        return Evidence("", None, None, f"{CHANGE_TEXT}.{sort}", arguments)
    arguments |= {"before": before or "-", "after": after or "-"} | ({"actor": actor} if actor else {})
    return Evidence("", None, None, f"{CHANGE_BY_TEXT if actor else CHANGE_FROM_TEXT}.{sort}", arguments)


def line_evidence(event: Event) -> Evidence:
    """Evidence of a log line and its time."""
    line = " ".join((event.attributes.get("text") or event.code).split())[:_MOST_CHARACTERS]
    return Evidence("", None, None, LOG_TEXT, {"at": f"{event.at:%H:%M:%S}", "line": line})
