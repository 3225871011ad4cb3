"""Hard faults of nodes and their ports: missing GPUs, links or switches down, nodes that are not ready.

A node whose pages all fail belongs to ``targets``; here the pages respond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.base.condition_durations import measure_run, newest, no_verdicts
from detectors.base.findings import evidence, finding, fingerprint
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.hardware.xid import xid_findings
from outrider.model import (
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    Priority,
    SignalKey,
    TimeRange,
    Window,
)
from outrider.topology import Topology

LASTING_SCRAPES = 2
EVENT_HOLD = timedelta(minutes=10)
SWITCH_NODES = 2  # faults.yaml, switch-down: links of several nodes of one rack
SWITCH_SHARE = 0.5  # share of the nodes behind it; less means single links
TOGETHER_SECONDS = 60.0  # links behind one switch are seen down within a few scrapes


class NodeFaultDetector(StatefulDetector):
    """gpu-lost by count, XIDs with only a node, and a node that is not ready."""

    name = "node-faults"
    kind = EntityKind.NODE
    keys: tuple[SignalKey, ...] = (
        SignalKey("node_ready"),
        SignalKey("hw_accel_present"),
        SignalKey("node_accel_capacity"),
    )
    window = timedelta(minutes=10)
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {"most": 0.0}

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges every node on its newest scrapes."""
        shown = np.nan_to_num(window.column("hw_accel_present"))
        memory["most"] = np.maximum(memory["most"], shown.max(axis=1, initial=0.0))
        verdicts: list[Finding | NoVerdict] = []
        verdicts.extend(self._short_of_accelerators(window, memory["most"], now))
        verdicts.extend(self._not_ready(window, now))
        verdicts.extend(xid_findings(self.name, window.events, topology, now, EVENT_HOLD))
        return verdicts

    def _short_of_accelerators(self, window: Window, most: Floats, now: datetime) -> list[Finding]:
        """Fewer accelerators than the kubelet counts, if the missing one was never seen.

        The accelerators' own detector names one that was seen; this one can only name the node.
        """
        shown = window.column("hw_accel_present")
        capacity = newest(window, window.column("node_accel_capacity"))
        run = measure_run(~np.isnan(shown), shown < capacity[:, None], window.times)
        present = newest(window, shown)
        short = (run.scrapes >= LASTING_SCRAPES) & (present < capacity) & (most <= present)
        findings = []
        for row in np.flatnonzero(short):
            node = window.entities[row]
            count, expected = float(present[row]), float(capacity[row])
            item = evidence(
                "hw_accel_present",
                count,
                "accelerators_short",
                Interval(expected, expected),
                present=count,
                capacity=expected,
            )
            since = float(window.times[run.start[row]])
            findings.append(
                finding(self.name, node, "gpu-lost", score=0.7, since=since, now=now, evidence_items=(item,))
            )
        return findings

    def _not_ready(self, window: Window, now: datetime) -> list[Finding]:
        """A node whose kubelet reports not ready: an anomaly without a fault."""
        ready = window.column("node_ready")
        run = measure_run(~np.isnan(ready), ready == 0, window.times)
        rows = np.flatnonzero((run.scrapes >= LASTING_SCRAPES) & (newest(window, ready) == 0))
        return [
            Finding(
                detector=self.name,
                entity=window.entities[row],
                signals=("node_ready",),
                severity=Priority.P2,
                score=0.9,
                observed=0.0,
                expected=Interval(1.0, 1.0),
                window=_range(float(window.times[run.start[row]]), now),
                evidence=(evidence("node_ready", 0.0, "node_not_ready", Interval(1.0, 1.0)),),
                fingerprint=fingerprint(self.name, window.entities[row], "node_ready"),
            )
            for row in rows
        ]


class PortFaultDetector(StatefulDetector):
    """A scale-out port that went down: ib-link-down of its node, or switch-down for a rack."""

    name = "port-faults"
    kind = EntityKind.PORT
    keys: tuple[SignalKey, ...] = (SignalKey("hw_link_up"),)
    window = timedelta(minutes=10)
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {"up_seen": False}

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding per switch and per node with ports down; a port that was never up is not cabled."""
        link = window.column("hw_link_up")
        memory["up_seen"] = memory["up_seen"] | (link == 1).any(axis=1)
        value = newest(window, link)
        run = measure_run(~np.isnan(link), link == 0, window.times)
        down = memory["up_seen"] & (value == 0) & (run.scrapes >= LASTING_SCRAPES)
        ports: dict[EntityRef, list[int]] = {}
        for row in np.flatnonzero(down):
            ports.setdefault(_node_of(window.entities[row], topology), []).append(int(row))
        began = {node: float(window.times[run.start[rows]].min()) for node, rows in ports.items()}
        wired = {_node_of(window.entities[row], topology) for row in np.flatnonzero(~np.isnan(value))}
        verdicts: list[Finding | NoVerdict] = []
        for switch, nodes in _behind_one_switch(began, wired, topology).items():
            names = ", ".join(sorted(node.name for node in nodes))
            item = evidence("hw_link_up", 0.0, "links_down_together", Interval(1.0, 1.0), nodes=names)
            since = min(began[node] for node in nodes)
            verdicts.append(
                finding(self.name, switch, "switch-down", score=0.95, since=since, now=now, evidence_items=(item,))
            )
            ports = {node: rows for node, rows in ports.items() if node not in nodes}
        for node, rows in ports.items():
            names = ", ".join(sorted(window.entities[row].name for row in rows))
            item = evidence("hw_link_up", 0.0, "link_down", Interval(1.0, 1.0), ports=names)
            verdicts.append(
                finding(self.name, node, "ib-link-down", score=0.9, since=began[node], now=now, evidence_items=(item,))
            )
        quiet = no_verdicts(self.name, window.entities, window.column_status("hw_link_up"), np.isnan(value))
        return (*verdicts, *quiet)


def _behind_one_switch(
    began: Mapping[EntityRef, float], wired: AbstractSet[EntityRef], topology: Topology
) -> dict[EntityRef, list[EntityRef]]:
    """Nodes whose links went down together with most others behind the same switch.

    ``began`` is when each node's first link went down, ``wired`` are all nodes with a visible port.
    """
    behind: dict[EntityRef, list[EntityRef]] = {}
    for node in sorted(began, key=lambda node: node.key):
        for switch in topology.below(node, EntityKind.SWITCH):
            behind.setdefault(switch, []).append(node)
    result = {}
    for switch, nodes in behind.items():
        middle = float(np.median([began[node] for node in nodes]))
        together = [node for node in nodes if abs(began[node] - middle) <= TOGETHER_SECONDS]
        all_there = [node for node in topology.above(switch, EntityKind.NODE) if node in wired]
        if len(together) >= SWITCH_NODES and len(together) >= SWITCH_SHARE * len(all_there):
            result[switch] = together
    return result


def _node_of(port: EntityRef, topology: Topology) -> EntityRef:
    """The port's node by topology or by its label; the port itself if neither is known."""
    nodes = [
        entity for entity in (*topology.rests_on(port), *topology.holds_up(port)) if entity.kind is EntityKind.NODE
    ]
    if nodes:
        return nodes[0]
    name = topology.label(port, "node")
    return EntityRef(port.cluster, EntityKind.NODE, None, name) if name else port


def _range(since: float, now: datetime) -> TimeRange:
    return TimeRange(min(datetime.fromtimestamp(since, tz=now.tzinfo), now), now)
