"""A fleet with hardware faults and look-alikes, published as exposition pages and kernel logs, cycle by cycle.

Detectors only receive the pages, the kernel log lines and the target list. A ground truth (``Truth``) has the class of
the fault (``Class``), its accepted entities, and the first cycle whose pages show it. Every node has one event at a
time, and a pause before the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import numpy as np

from collectors.events.deduplication import EventDeduplicator
from collectors.events.unresolved_event import EntityResolver, UnresolvedEvent
from collectors.logs.kernel_file import KernelLogChunk
from collectors.logs.kernel_log import SOURCE, NodeLog
from collectors.logs.patterns import packaged
from collectors.mapping import target as configured
from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.clock import from_unix
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef
from outrider.ports import Collected
from outrider.topology import Topology
from simulator.exporters.responses import Answer, Status
from simulator.exporters.targets import Pages, SimulatedTarget, targets
from simulator.faults.registry import inject
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.servers.kernel_log import KernelLogs
from simulator.spec.fleets import FleetSpec, PoolSpec, TrafficSpec, default_spec

INTERVAL = timedelta(seconds=15)
START = datetime(2026, 11, 16, 9, tzinfo=UTC)
REST_CYCLES = 50  # longer than an event keeps its finding open (40 cycles)
ADAPTERS = ("vllm", "dcgm", "node_exporter", "kube_state_metrics")
# NVIDIA's XID catalog: codes that require a reset or more, codes of an application, codes to ignore.
HARDWARE_XIDS = (46, 48, 62, 64, 74, 94, 95, 109, 110, 119, 120, 136, 140, 143)
APPLICATION_XIDS = (13, 31, 43, 45)
IGNORED_XIDS = (37, 38, 63, 66, 137)
_DBE = re.compile(rb"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL\{[^\n]*\n")
_FAILED = {
    Status.REFUSED: (CollectReason.REFUSED, "refuses connections"),
    Status.TIMEOUT: (CollectReason.TIMEOUT, "did not answer in time"),
}


class Class(StrEnum):
    """The five classes of hard faults."""

    XID = "xid"
    DBE = "uncorrectable memory error"
    GONE = "GPU gone"
    LINK = "link down"
    SCRAPE = "scrape gone"


@dataclass(frozen=True, slots=True)
class Truth:
    """A hard fault. ``shown`` is the first cycle whose pages or log lines show it; ``over`` the first without it.

    ``entities`` are its accepted entities; ``beside`` are fault classes that are also right at that time.
    """

    title: str
    sort: Class
    entities: frozenset[EntityRef]
    shown: int
    over: int
    beside: frozenset[Class] = frozenset()


@dataclass(slots=True)
class Wire:
    """Faults of the connection between fleet and collector in this cycle."""

    failing: dict[str, CollectReason] = field(default_factory=dict)  # by target name
    unlisted: set[int] = field(default_factory=set)  # nodes that discovery no longer lists
    edits: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)


def fleet_of(seed: int, nodes: int) -> Fleet:
    """Returns nodes with eight devices each, and one small service on some of them."""
    known = default_spec()
    service = replace(
        known.services[0], replicas=4, ceiling=6, traffic=TrafficSpec(shape="steady", peak_ratio=0.2), tenants=()
    )
    pool = PoolSpec("hard", known.pools[0].gpu_type, nodes)
    spec = FleetSpec(f"hard-{seed}", (pool,), (service,), slice_seconds=15.0, tick_seconds=15.0)
    fleet = Fleet(spec, seed=seed, start=START)
    random = np.random.default_rng([seed, 1])
    old = random.random(fleet.gpus.size)
    fleet.gpus.xid[old < 0.08] = 79  # the gauge still shows an old event
    fleet.gpus.ecc_uncorrectable[old > 0.92] = 3.0
    return fleet


class Source:
    """Collects from the fleet: real exposition pages, parsed and normalised, and real kernel log lines."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.wire = fleet, Wire()
        self._pages, self._kernel, self._deduplicator = Pages(fleet), KernelLogs(fleet), EventDeduplicator()
        self._collector = ScrapeManager([])
        self._logs = [NodeLog(fleet.entity(EntityKind.NODE, name)) for name in fleet.nodes.names]
        self._known: dict[str, tuple[SimulatedTarget, Target]] = {}

    def collect(self) -> tuple[Collected, Topology]:
        """Collects one cycle."""
        at = self.fleet.now
        listed = [target for target in targets(self.fleet, ADAPTERS) if target.node not in self.wire.unlisted]
        known = [self._target(one) for one in listed]
        if tuple(known) != self._collector.targets:
            self._collector.set_targets(known)
        collected = self._collector.absorb(
            [self._scrape(one, target, at) for one, target in zip(listed, known, strict=True)], at
        )
        topology = self._collector.topology(at)
        logged = EntityResolver(topology).events(
            [line for node in range(len(self._logs)) for line in self._lines(node)]
        )
        return replace(collected, events=self._deduplicator.without((*logged, *collected.events))), topology

    def _lines(self, node: int) -> list[UnresolvedEvent]:
        log = self._logs[node]
        text = self._kernel.text(node, log.newest)
        part = KernelLogChunk(text, self._kernel.boot_id(node), from_unix(self._kernel.boot_time(node)))
        return log.new_events(text, part, self.fleet.now, packaged(SOURCE)) if text else []

    def _target(self, simulated: SimulatedTarget) -> Target:
        known = self._known.get(simulated.name)
        if known is None or known[0] != simulated:
            document = simulated.as_config(f"http://fleet.invalid{simulated.path}")
            (target,) = configured.targets_of(self.fleet.spec.cluster, [document])
            known = self._known[simulated.name] = (simulated, target)
        return known[1]

    def _scrape(self, simulated: SimulatedTarget, target: Target, at: datetime) -> Scrape:
        answer = self._pages.answer(simulated)
        if simulated.name in self.wire.failing:
            answer = Answer(Status.TIMEOUT, None, 0.0)
        body, error = answer.body, None
        if body is None:
            reason, message = _FAILED.get(answer.status, (CollectReason.HTTP_STATUS, f"answered {answer.status}"))
            reason = self.wire.failing.get(simulated.name, reason)
            error = CollectError(f"{target.name}: {target.url} {message}", reason=reason)
        elif simulated.name in self.wire.edits:
            body = self.wire.edits[simulated.name](body)
        return Scrape(target, at, body, error, answer.seconds, answer.health, answer.load, target.probe)


class Story:
    """Random events on the fleet, cycle by cycle. ``truths`` grows with them."""

    def __init__(self, source: Source, seed: int, every: int) -> None:
        """Starts an event every ``every`` cycles, alternating between a fault and a look-alike."""
        self._source, self._fleet, self._every = source, source.fleet, every
        self._random = np.random.default_rng([seed, 2])
        self._free = np.zeros(self._fleet.nodes.size, dtype=np.int64)
        self._later: list[tuple[int, Callable[[], None]]] = []
        self.cycle, self.truths = 0, list[Truth]()
        self.done: dict[str, int] = {}
        self._faults = (
            self._xid, self._xid_on_page, self._xid_twice, self._dbe, self._dbe_with_xid, self._gone,
            self._gone_with_xid, self._board_gone, self._link, self._exporter_refuses, self._exporter_silent,
            self._node_gone,
        )  # fmt: skip
        self._distractors = (
            self._application_xid, self._ignored_xid, self._exporter_restarts, self._driver_reloads, self._one_timeout,
            self._node_timeout, self._lines_missing, self._drained, self._board_replaced, self._port_flaps,
            self._scaled_in, self._cleanup_after_application,
        )  # fmt: skip

    def advance(self) -> None:
        """Starts the next cycle: ends expired events and starts due ones."""
        self.cycle += 1
        due = [action for at, action in self._later if at <= self.cycle]
        self._later = [(at, action) for at, action in self._later if at > self.cycle]
        for action in due:
            action()
        if self.cycle % self._every == 0:
            turn = self.cycle // self._every
            actions = self._faults if turn % 2 else self._distractors
            action = actions[turn // 2 % len(actions)]
            node = self._idle_node()
            if node is not None:
                action(node)
                name = action.__name__.strip("_").replace("_", " ")
                self.done[name] = self.done.get(name, 0) + 1

    # --- faults ---------------------------------------------------------------------------------------

    def _xid(self, node: int) -> None:
        gpu, code = self._gpu(node), int(self._random.choice(HARDWARE_XIDS))
        self._log_xid(gpu, code)
        self._truth("xid in the kernel log", Class.XID, {self._device(gpu)}, 8, Class.DBE)

    def _xid_on_page(self, node: int) -> None:
        gpu = self._gpu(node)
        others = [code for code in HARDWARE_XIDS if code != self._fleet.gpus.xid[gpu]]
        self._fleet.gpus.xid[gpu] = int(self._random.choice(others))
        self._truth("xid on the page alone", Class.XID, {self._device(gpu)}, 8, Class.DBE)

    def _xid_twice(self, node: int) -> None:
        gpu, code = self._gpu(node), int(self._random.choice(HARDWARE_XIDS))
        self._fleet.gpus.xid[gpu] = code  # old events: one line for each
        self._log_xid(gpu, code)
        self._truth("the same xid again", Class.XID, {self._device(gpu)}, 8, Class.DBE)

    def _dbe(self, node: int) -> None:
        gpu = self._gpu(node)
        self._fleet.gpus.ecc_uncorrectable[gpu] += int(self._random.integers(1, 4))
        self._truth("uncorrectable errors counted", Class.DBE, {self._device(gpu)}, 8)

    def _dbe_with_xid(self, node: int) -> None:
        gpu = self._gpu(node)
        self._fleet.gpus.ecc_uncorrectable[gpu] += 1
        self._log_xid(gpu, 48)
        self._truth("uncorrectable errors with XID 48", Class.DBE, {self._device(gpu)}, 8, Class.XID)

    def _gone(self, node: int) -> None:
        gpu = self._gpu(node)
        self._hide([gpu])
        self._truth("a device leaves the page", Class.GONE, {self._device(gpu), self._node(node)}, 8)

    def _gone_with_xid(self, node: int) -> None:
        gpu = self._gpu(node)
        self._log_xid(gpu, 79)
        self._after(2, lambda: self._hide([gpu]))
        self._truth("a device off the bus", Class.GONE, {self._device(gpu), self._node(node)}, 10, Class.XID)

    def _board_gone(self, node: int) -> None:
        gpus = np.flatnonzero(self._fleet.gpus.node == node).tolist()[:4]
        self._hide(gpus)
        for gpu in gpus:
            self._truth("half a board leaves the page", Class.GONE, {self._device(gpu)}, 8)

    def _link(self, node: int) -> None:
        self._inject("ib-link-down", node, 8)
        ports = {self._node(node), *self._switches(node)}
        self._truth("a port down", Class.LINK, ports, 8)

    def _exporter_refuses(self, node: int) -> None:
        self._refuse(self._exporter(node), 8)
        self._truth("an exporter refuses", Class.SCRAPE, {self._node(node)}, 8)

    def _exporter_silent(self, node: int) -> None:
        self._time_out([self._exporter(node)], 8)
        self._truth("an exporter does not answer", Class.SCRAPE, {self._node(node)}, 8)

    def _node_gone(self, node: int) -> None:
        self._inject("node-lost", node, 8)
        self._truth("a node does not answer", Class.SCRAPE, {self._node(node)}, 8)

    # --- look-alikes ----------------------------------------------------------------------------------

    def _application_xid(self, node: int) -> None:
        self._log_xid(self._gpu(node), int(self._random.choice(APPLICATION_XIDS)))

    def _ignored_xid(self, node: int) -> None:
        self._log_xid(self._gpu(node), int(self._random.choice(IGNORED_XIDS)))

    def _cleanup_after_application(self, node: int) -> None:
        gpu = self._gpu(node)
        self._log_xid(gpu, 31)
        self._log_xid(gpu, 45)

    def _exporter_restarts(self, node: int) -> None:
        self._refuse(f"dcgm-{self._name(node)}", 1)

    def _driver_reloads(self, node: int) -> None:
        mine = self._fleet.gpus.node == node
        self._fleet.gpus.reload(mine)
        self._fleet.gpus.ecc_uncorrectable[mine] = 0.0  # the volatile counter starts when the driver loads
        self._refuse(f"dcgm-{self._name(node)}", 1)

    def _one_timeout(self, node: int) -> None:
        self._time_out([self._exporter(node)], 1)

    def _node_timeout(self, node: int) -> None:
        self._time_out([f"dcgm-{self._name(node)}", self._name(node)], 1)

    def _lines_missing(self, node: int) -> None:
        name = f"dcgm-{self._name(node)}"
        self._source.wire.edits[name] = lambda body: _DBE.sub(b"", body)
        self._after(2, lambda: self._source.wire.edits.pop(name, None))

    def _drained(self, node: int) -> None:
        self._fleet.pods.cordoned[node] = True
        self._after(2, lambda: self._source.wire.unlisted.add(node))
        self._after(20, lambda: self._listed_again(node))

    def _board_replaced(self, node: int) -> None:
        old = self._fleet.gpu_uuid(self._gpu(node))
        new = f"{old[:-6]}{int(self._random.integers(16**6)):06x}"
        self._fleet.pods.cordoned[node] = True
        self._source.wire.unlisted.add(node)
        name = f"dcgm-{self._name(node)}"

        def back() -> None:
            self._source.wire.edits[name] = lambda body: body.replace(old.encode(), new.encode())
            self._listed_again(node)

        self._after(12, back)
        self._free[node] = 10**9  # it keeps its new board

    def _port_flaps(self, node: int) -> None:
        self._inject("ib-link-down", node, 1)

    def _scaled_in(self, node: int) -> None:
        del node
        service = self._fleet.spec.services[0].name
        self._fleet.scale(service, 3)
        self._after(20, lambda: void(self._fleet.scale(service, 4)))

    # --- helpers --------------------------------------------------------------------------------------

    def _idle_node(self) -> int | None:
        free = np.flatnonzero(self._free <= self.cycle)
        if not free.size:
            return None
        node = int(self._random.choice(free))
        self._free[node] = self.cycle + REST_CYCLES + 24
        return node

    def _gpu(self, node: int) -> int:
        return int(self._random.choice(np.flatnonzero(self._fleet.gpus.node == node)))

    def _name(self, node: int) -> str:
        return self._fleet.nodes.names[node]

    def _exporter(self, node: int) -> str:
        return (f"dcgm-{self._name(node)}", self._name(node))[int(self._random.integers(2))]

    def _device(self, gpu: int) -> EntityRef:
        return self._fleet.entity(EntityKind.GPU, self._fleet.gpu_uuid(gpu))

    def _node(self, node: int) -> EntityRef:
        return self._fleet.entity(EntityKind.NODE, self._name(node))

    def _switches(self, node: int) -> set[EntityRef]:
        return {self._fleet.entity(EntityKind.SWITCH, self._fleet.nodes.switch[node])}

    def _truth(self, title: str, sort: Class, entities: set[EntityRef], cycles: int, *beside: Class) -> None:
        over = self.cycle + cycles
        self.truths.append(Truth(title, sort, frozenset(entities), self.cycle, over, frozenset(beside)))

    def _after(self, cycles: int, action: Callable[[], object]) -> None:
        self._later.append((self.cycle + cycles, lambda: void(action())))

    def _log_xid(self, gpu: int, code: int) -> None:
        fleet = self._fleet
        fleet.journal.write(
            fleet.at, JournalSource.KERNEL, self._device(gpu), "xid", f"pid='<unknown>', {code}", xid=str(code)
        )
        fleet.gpus.xid[gpu] = code

    def _hide(self, gpus: list[int]) -> None:
        visible = self._fleet.gpus.visible
        visible[gpus] = False
        self._after(8, lambda: visible.__setitem__(gpus, True))

    def _inject(self, fault: str, node: int, cycles: int) -> None:
        inject(self._fleet, fault, self._name(node), duration=cycles * INTERVAL, seed=self.cycle)

    def _refuse(self, name: str, cycles: int) -> None:
        self._fleet.exporters_down.add(name)
        self._after(cycles, lambda: self._fleet.exporters_down.discard(name))

    def _time_out(self, names: list[str], cycles: int) -> None:
        failing = self._source.wire.failing
        failing.update(dict.fromkeys(names, CollectReason.TIMEOUT))
        self._after(cycles, lambda: [failing.pop(name, None) for name in names])

    def _listed_again(self, node: int) -> None:
        self._fleet.pods.cordoned[node] = False
        self._source.wire.unlisted.discard(node)


def void(_: object) -> None:
    """Discards the result of an action."""
