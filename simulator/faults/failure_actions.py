"""Actions that break a device, a process or an exporter, and actions that replace pods on purpose."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from outrider.model import EntityKind
from simulator.cluster.pods import Phase
from simulator.faults import lines
from simulator.faults.log_events import fill, pod_entity, pods_here, running_here, write_event
from simulator.journal import JournalSource

if TYPE_CHECKING:
    from simulator.cluster.pods import Pod
    from simulator.faults.base import Injection
    from simulator.fleet import Fleet

Undo = Callable[["Fleet"], None]
EXPORTERS = {"dcgm": "dcgm-", "npu": "npu-", "node": "", "cadvisor": "cadvisor-"}
_STARTING = (Phase.LOADING, Phase.WARMING)


def crash(
    fleet: Fleet,
    fault: Injection,
    held: bool = True,
    starting: bool = False,
    age: timedelta | None = None,
    code: str = "",
    text: str = "",
) -> None:
    """Kills the engine process of every ready pod in scope; with ``starting``, of loading pods as well.

    While ``held`` the process cannot start before the end, and the kubelet retries at growing intervals. Otherwise it
    starts after its back-off. Deleting the pod cures it at once. Processes younger than ``age`` keep running. ``code``
    and ``text`` are the last line of its log, if any (see ``engine_line``).
    """
    youngest = fleet.at - (age.total_seconds() if age is not None else 0.0)
    for pod in pods_here(fleet, fault):
        if not (pod.ready or (starting and pod.phase in _STARTING)) or pod.started_at > youngest:
            continue
        if code:
            fleet.journal.write(
                fleet.at, JournalSource.ENGINE, pod_entity(fleet, pod), code, fill(fleet, fault, text, pod)
            )
        _kill(fleet, fault, pod, held=held)


def oom_kill(fleet: Fleet, fault: Injection) -> None:
    """OOM-kills the process of every pod in scope; the kubelet restarts it."""
    for pod in running_here(fleet, fault):
        fleet.kubelets.kill_for_memory(pod)
        fault.mark_impacted(pod.slot)


def xid(fleet: Fleet, fault: Injection, code: tuple[int, ...], one: bool = False, lasting: bool = False) -> Undo | None:
    """Logs an XID of every device in scope, or of ``one`` of them. The seed picks one of ``code`` for all.

    The driver's gauge keeps the last XID until the end, or forever if ``lasting``.
    """
    number = code[int(np.random.default_rng([fault.seed, 17]).integers(len(code)))]
    gpus = fault.here(fleet).gpus
    gpus = gpus[fault.seed % gpus.size :][:1] if one and gpus.size else gpus
    for gpu in gpus.tolist():
        device = fleet.entity(EntityKind.GPU, fleet.gpu_uuid(gpu))
        owner = int(fleet.pods.owner[gpu])
        text = lines.xid_text(number, None if owner < 0 else fleet.pods.pods[owner].name)
        fleet.journal.write(fleet.at, JournalSource.KERNEL, device, "xid", text, xid=str(number))
    fleet.gpus.xid[gpus] = number

    def driver_reset(fleet: Fleet) -> None:
        fleet.gpus.xid[gpus[fleet.gpus.xid[gpus] == number]] = 0

    return None if lasting else driver_reset


def lose_gpu(fleet: Fleet, fault: Injection) -> Undo:
    """Fails the devices in scope: their engines die, and no pod is scheduled on them before the end."""
    gpus = fault.here(fleet).gpus
    for pod in pods_here(fleet, fault):
        if pod.ready or pod.phase in _STARTING:
            _kill(fleet, fault, pod)
    fleet.gpus.healthy[gpus] = False

    def repaired(fleet: Fleet) -> None:
        fleet.gpus.healthy[gpus] = True

    return repaired


def vanish(fleet: Fleet, fault: Injection) -> Undo:
    """Removes the devices in scope from the exporter's page until the end."""
    gpus = fault.here(fleet).gpus
    fleet.gpus.visible[gpus] = False

    def back(fleet: Fleet) -> None:
        fleet.gpus.visible[gpus] = True

    return back


def evict(fleet: Fleet, fault: Injection, count: int = 1, text: str = lines.EVICTED) -> None:
    """Evicts ``count`` of the pods in scope; their controller creates new ones."""
    for pod in _some(fleet, fault, count):
        write_event(fleet, pod_entity(fleet, pod), "Evicted", fill(fleet, fault, text, pod))
        fault.mark_impacted(pod.slot)
        fleet.restart(pod.slot)


def restart_some(fleet: Fleet, fault: Injection, count: int = 1, text: str = "planned restart of {pod}") -> None:
    """Restarts ``count`` ready pods in scope, chosen by the seed, as an operator would."""
    for pod in _some(fleet, fault, count):
        fleet.journal.write(
            fleet.at, JournalSource.CHANGE, pod_entity(fleet, pod), "restart", fill(fleet, fault, text, pod)
        )
        fleet.restart(pod.slot)


def exporter_down(fleet: Fleet, fault: Injection, exporter: str = "dcgm") -> Undo:
    """Stops an exporter of every node in scope: one of ``EXPORTERS``; ``dcgm`` means the device exporter."""
    gone = set(_exporters(fleet, fault, exporter)) - fleet.exporters_down
    fleet.exporters_down |= gone

    def started(fleet: Fleet) -> None:
        fleet.exporters_down -= gone

    return started


def _exporters(fleet: Fleet, fault: Injection, exporter: str) -> list[str]:
    """Returns the targets of an exporter on the nodes in scope."""
    result = []
    for node in fault.here(fleet).nodes.tolist():
        huawei = any("Ascend" in fleet.gpus.type_name[gpu] for gpu in np.flatnonzero(fleet.gpus.node == node)[:1])
        short = "npu" if exporter == "dcgm" and huawei else exporter
        result.append(f"{EXPORTERS[short]}{fleet.nodes.names[node]}")
    return result


def _some(fleet: Fleet, fault: Injection, count: int) -> list[Pod]:
    """Returns ``count`` ready pods in scope, chosen by the seed."""
    pods = running_here(fleet, fault)
    return [pods[int(place)] for place in fault.random.permutation(len(pods))[:count]]


def _kill(fleet: Fleet, fault: Injection, pod: Pod, *, held: bool = True) -> None:
    """Kills the process of a pod; while ``held`` it can start again only at the fault's end."""
    fleet.crash(pod.slot, fault.reason, held=held)
    fault.mark_impacted(pod.slot)
    slot, generation, reason = pod.slot, pod.generation, fault.reason

    def cure(fleet: Fleet) -> None:
        fleet.pods.cure(slot, generation, reason, fleet.at)

    fault.later(fleet, inf, cure)
