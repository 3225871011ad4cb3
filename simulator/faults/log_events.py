"""Actions that write a line to a kernel log, an engine log, the Kubernetes events or the change log.

A ``text`` may contain the fields of ``FIELDS``, filled from the pod or node of the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults import lines
from simulator.journal import JournalSource

if TYPE_CHECKING:
    from datetime import timedelta

    from simulator.cluster.pods import Pod
    from simulator.faults.base import Injection
    from simulator.fleet import Fleet

FIELDS = (
    *("entity", "cluster", "service", "namespace", "pod", "node", "gpu", "index", "pci", "model", "revision"),
    "sequences",
)
ABOUT = ("entity", "gpu", "node", "pod", "service", "cluster")

Subject = tuple[EntityRef, "Pod | None", "int | None"]


def kernel_line(fleet: Fleet, fault: Injection, code: str, text: str = "") -> None:
    """Writes a line to the kernel log of every node in scope. Without ``text``, the default line of its code."""
    for node in fault.here(fleet).nodes.tolist():
        entity = fleet.entity(EntityKind.NODE, fleet.nodes.names[node])
        fleet.journal.write(fleet.at, JournalSource.KERNEL, entity, code, fill(fleet, fault, text, None, node))


def engine_line(fleet: Fleet, fault: Injection, code: str, text: str = "", died: timedelta | None = None) -> None:
    """Writes a line to the engine log of every pod in scope. Without ``text``, the default line of its code.

    With ``died``, only for processes that ended within that time, once for each end.
    """
    for pod in pods_here(fleet, fault):
        if died is not None and not _is_new_death(fleet, fault, pod, died.total_seconds()):
            continue
        fleet.journal.write(fleet.at, JournalSource.ENGINE, pod_entity(fleet, pod), code, fill(fleet, fault, text, pod))


def _is_new_death(fleet: Fleet, fault: Injection, pod: Pod, within_seconds: float) -> bool:
    if pod.crashed_at is None or fleet.at - pod.crashed_at >= within_seconds:
        return False
    death = (pod.slot, pod.crashed_at)
    if death in fault.logged_deaths:
        return False
    fault.logged_deaths.add(death)
    return True


def kubernetes_event(
    fleet: Fleet, fault: Injection, code: str, text: str, about: str = "pod", normal: bool = False
) -> None:
    """Writes an event of the API server about each pod or node in scope, the service, or the entity itself."""
    for entity, pod, node in subjects(fleet, fault, about):
        write_event(fleet, entity, code, fill(fleet, fault, text, pod, node), "Normal" if normal else "Warning")


def change(fleet: Fleet, fault: Injection, code: str, text: str, about: str = "entity") -> None:
    """Writes a change (flag, limit, driver, certificate) to the change log."""
    for entity, pod, node in subjects(fleet, fault, about):
        fleet.change(entity, code, fill(fleet, fault, text, pod, node))


# --- used by other actions ----------------------------------------------------------------------------


def write_event(fleet: Fleet, entity: EntityRef, code: str, text: str, kind: str = "Warning") -> None:
    """Writes a Kubernetes event of type ``kind``."""
    fleet.journal.write(fleet.at, JournalSource.KUBERNETES, entity, code, text, type=kind)


def pods_here(fleet: Fleet, fault: Injection) -> list[Pod]:
    """Returns the pods in scope."""
    return [fleet.pods.pods[slot] for slot in fault.here(fleet).slots.tolist()]


def running_here(fleet: Fleet, fault: Injection) -> list[Pod]:
    """Returns the ready pods in scope."""
    return [pod for pod in pods_here(fleet, fault) if pod.ready]


def pod_entity(fleet: Fleet, pod: Pod) -> EntityRef:
    """Returns a pod as an entity."""
    return fleet.entity(EntityKind.POD, pod.name, pod.service.namespace)


def subjects(fleet: Fleet, fault: Injection, about: str) -> list[Subject]:
    """Returns the entities of a line, each with the pod or the node that fills its fields."""
    here = fault.here(fleet)
    if about == "pod":
        return [(pod_entity(fleet, pod), pod, pod.node) for pod in pods_here(fleet, fault)]
    if about == "node":
        hosts = fleet.nodes.names
        return [(fleet.entity(EntityKind.NODE, hosts[node]), None, node) for node in here.nodes.tolist()]
    if about == "gpu":
        return [(fleet.entity(EntityKind.GPU, fleet.gpu_uuid(gpu)), None, None) for gpu in here.gpus.tolist()]
    if about == "service":
        chosen = [fleet.spec.services[number] for number in here.services.tolist()]
        return [(fleet.entity(EntityKind.SERVICE, kind.name, kind.namespace), None, None) for kind in chosen]
    whole = fleet.entity(EntityKind.CLUSTER, fleet.spec.cluster)
    return [(whole if about == "cluster" else fault.entity, None, None)]


def fill(fleet: Fleet, fault: Injection, text: str, pod: Pod | None = None, node: int | None = None) -> str:
    """Fills the fields of a text from ``pod`` and ``node``, else from the first ones in scope."""
    if "{" not in text:
        return text
    here, spec = fault.here(fleet), fleet.spec
    if pod is None and here.slots.size:
        pod = fleet.pods.pods[int(here.slots[0])]
    if node is None:
        node = pod.node if pod is not None and pod.node is not None else next(iter(here.nodes.tolist()), None)
    service = pod.service if pod is not None else spec.services[next(iter(here.services.tolist()), 0)]
    gpu = next(iter(here.gpus.tolist()), None)
    index = 0 if gpu is None else int(fleet.gpus.index[gpu])
    return text.format(
        entity=fault.entity.name,
        cluster=spec.cluster,
        service=service.name,
        namespace=service.namespace,
        model=service.engine.model,
        pod="" if pod is None else pod.name,
        node="" if node is None else fleet.nodes.names[node],
        gpu="" if gpu is None else fleet.gpu_uuid(gpu),
        index=index,
        pci=lines.pci(index),
        revision=fault.revision,
        sequences=service.engine.max_sequences,
    )
