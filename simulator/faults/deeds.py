"""What faults do once, beside bending levers: the named functions that a fault file's ``deeds`` call.

Each takes the fleet, the fault at work and the arguments of the file, and may return how to put back
what it did; the fault does that when it ends or is stopped. Arguments are checked against the
signature when a file is read. A ``text`` may hold the fields of ``FIELDS``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from outrider.model import EntityKind, EntityRef
from simulator.control import Control
from simulator.faults import lines
from simulator.journal import Voice

if TYPE_CHECKING:
    from simulator.faults.base import Injection
    from simulator.fleet import Fleet
    from simulator.pods import Pod

Undo = Callable[["Fleet"], None]
FIELDS = (
    *("entity", "cluster", "service", "namespace", "pod", "node", "gpu", "index", "pci", "model", "revision"),
    "sequences",
)
RESTART_SECONDS = 10.0  # the kubelet starts a killed container again after its first back-off
ABOUT = ("entity", "gpu", "node", "pod", "service", "cluster")


@dataclass(frozen=True, slots=True)
class Deed:
    """A function and what its arguments are: name to annotation, and the names without a default."""

    call: Callable[..., Undo | None]
    arguments: Mapping[str, str]
    required: frozenset[str]


def crash(fleet: Fleet, fault: Injection, down: timedelta | None = None) -> None:
    """The engine process of every pod here dies. It cannot start again until the end, or after ``down``.

    Deleting the pod cures it at once. While it is down, the kubelet tries at growing intervals.
    """
    for pod in _running(fleet, fault):
        _kill(fleet, fault, pod, inf if down is None else down.total_seconds())


def oom_kill(fleet: Fleet, fault: Injection, down: timedelta | None = None) -> None:
    """The kernel kills the process of every pod here at its memory limit; it starts again after ``down``."""
    for pod in _running(fleet, fault):
        where = _subject(fleet, pod, "pod")
        fleet.journal.say(fleet.at, Voice.KERNEL, where, "oom-kill", "")
        text = lines.OOM_EVENT.format(pod=pod.name, pid=lines.pid(pod.name, pod.generation))
        _event(fleet, fleet.entity(EntityKind.NODE, fleet.nodes.names[pod.node or 0]), "OOMKilling", text)
        _kill(fleet, fault, pod, RESTART_SECONDS if down is None else down.total_seconds())


def restart_some(fleet: Fleet, fault: Injection, count: int = 1, text: str = "planned restart of {pod}") -> None:
    """An operator replaces ``count`` of the pods here on purpose. The seed chooses among those that serve."""
    pods = list(_running(fleet, fault))
    for place in fault.random.permutation(len(pods))[:count]:
        pod = pods[int(place)]
        _change(fleet, _subject(fleet, pod, "pod"), "restart", _fill(fleet, fault, text, pod))
        fleet.restart(pod.slot)


def xid(fleet: Fleet, fault: Injection, code: tuple[int, ...], lasting: bool = False) -> Undo | None:
    """The driver logs an XID of every device here: one of ``code``, the same each time, drawn by the seed.

    The last XID stands in the driver's gauge until the end, or for ever when ``lasting``.
    """
    number = code[int(np.random.default_rng([fault.seed, 17]).integers(len(code)))]
    gpus = fault.here(fleet).gpus
    for gpu in gpus.tolist():
        device = fleet.entity(EntityKind.GPU, fleet.gpu_uuid(gpu))
        owner = int(fleet.pods.owner[gpu])
        text = lines.xid_text(number, None if owner < 0 else fleet.pods.pods[owner].name)
        fleet.journal.say(fleet.at, Voice.KERNEL, device, "xid", text, xid=str(number))
    fleet.gpus.xid[gpus] = number

    def driver_reset(fleet: Fleet) -> None:
        fleet.gpus.xid[gpus[fleet.gpus.xid[gpus] == number]] = 0

    return None if lasting else driver_reset


def lose_gpu(fleet: Fleet, fault: Injection) -> Undo:
    """The devices here fail: their engines die, and no pod is placed on them before the end."""
    gpus = fault.here(fleet).gpus
    for pod in _running(fleet, fault):
        _kill(fleet, fault, pod)
    fleet.gpus.healthy[gpus] = False

    def repaired(fleet: Fleet) -> None:
        fleet.gpus.healthy[gpus] = True

    return repaired


def vanish(fleet: Fleet, fault: Injection) -> Undo:
    """The devices here are gone from the exporter's page until the end."""
    gpus = fault.here(fleet).gpus
    fleet.gpus.visible[gpus] = False

    def back(fleet: Fleet) -> None:
        fleet.gpus.visible[gpus] = True

    return back


def kernel_line(fleet: Fleet, fault: Injection, code: str, text: str = "") -> None:
    """A line in the kernel log of every node here. Without ``text``, the usual one of its code."""
    for node in fault.here(fleet).nodes.tolist():
        where = fleet.entity(EntityKind.NODE, fleet.nodes.names[node])
        fleet.journal.say(fleet.at, Voice.KERNEL, where, code, _fill(fleet, fault, text, None, node))


def engine_line(fleet: Fleet, fault: Injection, code: str, text: str = "") -> None:
    """A line in the log of the model server of every pod here. Without ``text``, the usual one of its code."""
    for pod in _pods(fleet, fault):
        where = _subject(fleet, pod, "pod")
        fleet.journal.say(fleet.at, Voice.ENGINE, where, code, _fill(fleet, fault, text, pod))


def kubernetes_event(fleet: Fleet, fault: Injection, code: str, text: str, about: str = "pod") -> None:
    """An event of the API server about each pod or node here, or about the service or the entity itself."""
    for where, pod, node in _subjects(fleet, fault, about):
        _event(fleet, where, code, _fill(fleet, fault, text, pod, node))


def change(fleet: Fleet, fault: Injection, code: str, text: str, about: str = "entity") -> None:
    """Somebody changed something: a flag, a limit, a driver, a certificate. It stands in the list of changes."""
    for where, pod, node in _subjects(fleet, fault, about):
        _change(fleet, where, code, _fill(fleet, fault, text, pod, node))


def evict(fleet: Fleet, fault: Injection, count: int = 1, text: str = lines.EVICTED) -> None:
    """The kubelet evicts ``count`` of the pods here; their controller makes new ones."""
    pods = list(_running(fleet, fault))
    for place in fault.random.permutation(len(pods))[:count]:
        pod = pods[int(place)]
        _event(fleet, _subject(fleet, pod, "pod"), "Evicted", _fill(fleet, fault, text, pod))
        fault.hurts(pod.slot)
        fleet.restart(pod.slot)


def exporter_down(fleet: Fleet, fault: Injection, exporter: str = "dcgm") -> Undo:
    """An exporter of every node here stops: ``dcgm`` or ``node``."""
    prefix = "dcgm-" if exporter == "dcgm" else ""
    gone = {f"{prefix}{fleet.nodes.names[node]}" for node in fault.here(fleet).nodes.tolist()}
    fleet.exporters_down |= gone

    def started(fleet: Fleet) -> None:
        fleet.exporters_down -= gone

    return started


def rollout(fleet: Fleet, fault: Injection, text: str = "", revision: str = "") -> None:
    """The services here are rolled out to a new revision, pod by pod: the one that ``holds: revision`` means."""
    for number in fault.here(fleet).services.tolist():
        service = fleet.spec.services[number]
        name = revision or _next_revision(fleet, service.name)
        fault.roll_out(name)
        told = _fill(fleet, fault, text or "{service} is rolled out to {revision}")
        fleet.rollout(service.name, name, text=told)


def reconfigure(fleet: Fleet, fault: Injection, text: str, before: str = "", after: str = "") -> Undo:
    """The services here get a flag changed and are all reloaded with it at once, processes and counters kept.

    That makes a revision, the one that ``holds: revision`` means; at the end the flag is as before. ``before``
    and ``after`` are how the flag is written.
    """
    reloaded: dict[str, tuple[str, str]] = {}
    for number in fault.here(fleet).services.tolist():
        service = fleet.spec.services[number]
        name = _next_revision(fleet, service.name)
        fault.roll_out(name)
        reloaded[service.name] = (name, fleet.pods.revisions[service.name])
        _reload(fleet, service.name, name)
        flags = {"from": before.format(sequences=service.engine.max_sequences), "to": after, "revision": name}
        where = fleet.entity(EntityKind.SERVICE, service.name, service.namespace)
        fleet.journal.say(fleet.at, Voice.CHANGE, where, "flags", _fill(fleet, fault, text), **flags)

    def restored(fleet: Fleet) -> None:
        for service, (name, old) in reloaded.items():
            _reload(fleet, service, old, only=name)

    return restored


def rollback(fleet: Fleet, fault: Injection) -> None:
    """The services here that still run the fault's revision go back to the one before."""
    for number in fault.here(fleet).services.tolist():
        service = fleet.spec.services[number]
        if any(pod.revision == fault.revision for pod in fleet.pods.of_service(service.name) if pod.exists):
            fleet.rollback(service.name)


def scale(fleet: Fleet, fault: Injection, by: int, text: str = "") -> Undo:
    """The services here are ordered ``by`` replicas more (or fewer), as far as their slots go; back at the end."""
    before = {}
    for number in fault.here(fleet).services.tolist():
        service = fleet.spec.services[number]
        before[service.name] = fleet.desired[service.name]
        _order(fleet, service.name, int(np.clip(fleet.desired[service.name] + by, 0, service.ceiling)))
        if text:
            told = _fill(fleet, fault, text)
            _change(fleet, fleet.entity(EntityKind.SERVICE, service.name, service.namespace), "scale", told)

    def back(fleet: Fleet) -> None:
        for name, wanted in before.items():
            _order(fleet, name, wanted)

    return back


_FUNCTIONS = (
    crash,
    oom_kill,
    restart_some,
    xid,
    lose_gpu,
    vanish,
    kernel_line,
    engine_line,
    kubernetes_event,
    change,
    evict,
    exporter_down,
    rollout,
    reconfigure,
    rollback,
    scale,
)


def _read(function: Callable[..., Undo | None]) -> Deed:
    arguments = list(inspect.signature(function).parameters.values())[2:]
    return Deed(
        function,
        {argument.name: str(argument.annotation) for argument in arguments},
        frozenset(argument.name for argument in arguments if argument.default is inspect.Parameter.empty),
    )


DEEDS: dict[str, Deed] = {function.__name__: _read(function) for function in _FUNCTIONS}


# --- what they share ----------------------------------------------------------------------------------


def _pods(fleet: Fleet, fault: Injection) -> list[Pod]:
    return [fleet.pods.pods[slot] for slot in fault.here(fleet).slots.tolist()]


def _running(fleet: Fleet, fault: Injection) -> Iterable[Pod]:
    """The pods here that serve."""
    return [pod for pod in _pods(fleet, fault) if pod.ready]


def _kill(fleet: Fleet, fault: Injection, pod: Pod, down_seconds: float = inf) -> None:
    """Its process dies; it can start again after ``down_seconds``, or at the fault's end."""
    fleet.crash(pod.slot, fault.why)
    fault.hurts(pod.slot)
    fault.later(fleet, down_seconds, _cure(fault, pod))


def _cure(fault: Injection, pod: Pod) -> Undo:
    slot, generation, why = pod.slot, pod.generation, fault.why

    def cure(fleet: Fleet) -> None:
        fleet.pods.cure(slot, generation, why, fleet.at)

    return cure


def _order(fleet: Fleet, service: str, wanted: int) -> None:
    Control(fleet).act("order", "scale", service, {"replicas": wanted})


def _reload(fleet: Fleet, service: str, revision: str, only: str = "") -> None:
    """The pods of a service, or those of one revision, become another revision without a restart."""
    for pod in fleet.pods.of_service(service):
        if pod.exists and only in ("", pod.revision):
            pod.revision = revision
    if only in ("", fleet.pods.revisions[service]):
        fleet.pods.revisions[service] = revision


def _next_revision(fleet: Fleet, service: str) -> str:
    """The revision after the highest one its pods have: v2 after v1."""
    known = [pod.revision for pod in fleet.pods.of_service(service) if pod.exists]
    highest = max((int(name[1:]) for name in known if name[:1] == "v" and name[1:].isdigit()), default=1)
    return f"v{highest + 1}"


def _event(fleet: Fleet, where: EntityRef, code: str, text: str) -> None:
    fleet.journal.say(fleet.at, Voice.KUBERNETES, where, code, text, type="Warning")


def _change(fleet: Fleet, where: EntityRef, code: str, text: str) -> None:
    fleet.journal.say(fleet.at, Voice.CHANGE, where, code, text)


def _subject(fleet: Fleet, pod: Pod, about: str) -> EntityRef:
    if about == "service":
        return fleet.entity(EntityKind.SERVICE, pod.service.name, pod.service.namespace)
    return fleet.entity(EntityKind.POD, pod.name, pod.service.namespace)


def _subjects(fleet: Fleet, fault: Injection, about: str) -> list[tuple[EntityRef, Pod | None, int | None]]:
    """What a line is about, with the pod or the node that fills its fields."""
    here = fault.here(fleet)
    if about == "pod":
        return [(_subject(fleet, pod, "pod"), pod, pod.node) for pod in _pods(fleet, fault)]
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


def _fill(fleet: Fleet, fault: Injection, text: str, pod: Pod | None = None, node: int | None = None) -> str:
    """A text with its fields: those of ``pod`` and ``node``, else of the first ones the fault holds."""
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
