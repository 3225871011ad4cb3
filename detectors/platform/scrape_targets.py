"""Failed scrape targets: one exporter, a whole node, or the monitoring itself.

One entity per scrape target (kind workload, namespace ``targets``), with the topology labels ``adapter``, ``node`` and
``stands_for``. A refused connection proves that the host is reachable, so it concerns the process that should listen.
A timeout or a failed name lookup may be a fault of the monitoring. Engines without a response belong to the liveness
detector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import Flags, at_index, measure_run, newest, newest_index, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider.model import (
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    TrustVerdict,
    Window,
)
from outrider.topology import Topology

NAMESPACE = "targets"
_TRUST = SignalKey("target_trust_code")
DOWN_SCRAPES = 2  # one failed scrape is a blip
BLIND_TARGETS, BLIND_NODES = 5, 2  # faults.yaml, monitor-blind
AT_ONCE_SECONDS = 60.0  # a monitoring outage hits all targets within a few scrapes; nodes fail at different times
NODE_TARGETS = 2  # a node with a single target cannot be separated from that target
_STALE_SECONDS = 120.0  # an exporter with a one-minute device poll serves some pages twice
REFUSED = 1
REACHABLE = (0, 1, 5, 6)  # the host responded: success, refusal, HTTP error, invalid page

_DEFAULTS = {"up_seen": False, "down_since": np.nan}


@dataclass(frozen=True, slots=True)
class _Targets:
    """The targets of one window; arrays of shape (entities,). ``node`` is "" without a node."""

    entities: tuple[EntityRef, ...]
    node: tuple[str, ...]
    engine: Flags
    known: Flags
    down: Flags
    dark: Flags
    code: Floats
    since: Floats

    def rows_by_node(self) -> dict[str, list[int]]:
        """Rows of the known targets of each named node."""
        result: dict[str, list[int]] = defaultdict(list)
        for row in np.flatnonzero(self.known):
            if self.node[row]:
                result[self.node[row]].append(int(row))
        return result


class ScrapeTargetDetector(StatefulDetector):
    """exporter-down, node-lost or monitor-blind, only the widest that fits; and stale-metrics."""

    name = "targets"
    kind = EntityKind.WORKLOAD
    keys: tuple[SignalKey, ...] = (SignalKey("target_up"), SignalKey("target_failure_code"), _TRUST)
    window = timedelta(minutes=5)
    state_version = 1
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges all targets together."""
        posts = _read(window, memory, topology)
        verdicts: list[Finding | NoVerdict] = []
        hidden = np.zeros(posts.known.size, dtype=np.bool_)
        for cluster in sorted({posts.entities[row].cluster for row in np.flatnonzero(posts.dark)}):
            inside = np.array([entity.cluster == cluster for entity in posts.entities], dtype=np.bool_)
            blind = self._blind(posts, inside, now)
            verdicts.extend(blind)
            hidden |= inside & bool(blind)
        lost = self._lost_nodes(posts, memory["up_seen"], now)
        # A node lost before its cluster became invisible cannot be known to be back.
        unseen = {posts.node[row] for row in np.flatnonzero(hidden)}
        verdicts.extend(
            NoVerdict(self.name, text.entity, NoVerdictReason.NO_VALUES) if node in unseen else text
            for node, text in lost.items()
        )
        verdicts.extend(self._exporters(posts, ~hidden, set(lost), topology, now))
        verdicts.extend(self._frozen(posts, window, topology, now))
        status = window.column_status("target_up")
        ours = np.array([entity.namespace == NAMESPACE for entity in window.entities], dtype=np.bool_)
        verdicts.extend(no_verdicts(self.name, window.entities, status, ~posts.known & ours))
        return verdicts

    def _blind(self, posts: _Targets, inside: Flags, now: datetime) -> tuple[Finding, ...]:
        """The view of one cluster is gone: too many targets of too many nodes at once, or all of them."""
        dark, known = posts.dark & inside, posts.known & inside
        unreachable = _at_once(dark & ~np.isin(posts.code, REACHABLE), posts.since)
        # Engines that refuse are dead; an exporter that refuses together with all others is not.
        counted = dark & ~(posts.engine & np.isin(posts.code, REACHABLE))
        everything = bool(known.any()) and bool(dark[known].all()) and bool(counted.any())
        rows = np.flatnonzero(dark if everything else unreachable)
        nodes = {posts.node[row] or posts.entities[row].name for row in rows}
        wide = len(nodes) >= BLIND_NODES and (everything or rows.size >= BLIND_TARGETS)
        if not wide:
            return ()
        cluster = posts.entities[rows[0]].cluster
        item = evidence(
            "target_up",
            float(known.sum() - dark.sum()),
            "view_lost",
            Interval(float(known.sum()), None),
            targets=rows.size,
            nodes=len(nodes),
        )
        whole = EntityRef(cluster, EntityKind.CLUSTER, None, cluster)
        since = float(np.nanmin(posts.since[rows]))
        return (finding(self.name, whole, "monitor-blind", score=0.95, since=since, now=now, evidence_items=(item,)),)

    def _lost_nodes(self, posts: _Targets, up_seen: Flags, now: datetime) -> dict[str, Finding]:
        """Nodes whose targets are all gone, though they were present."""
        result: dict[str, Finding] = {}
        for node, rows in posts.rows_by_node().items():
            if len(rows) < NODE_TARGETS or not posts.dark[rows].all() or not up_seen[rows].any():
                continue
            # A host that refuses is up without its daemons, which is weaker evidence than no response.
            refused = bool((posts.code[rows] == REFUSED).all())
            item = evidence("target_up", 0.0, "node_dark", Interval(1.0, 1.0), targets=len(rows))
            entity = EntityRef(posts.entities[rows[0]].cluster, EntityKind.NODE, None, node)
            since = float(np.nanmin(posts.since[rows]))
            result[node] = finding(
                self.name,
                entity,
                "node-lost",
                score=0.6 if refused else 0.9,
                since=since,
                now=now,
                evidence_items=(item,),
            )
        return result

    def _exporters(
        self, posts: _Targets, judged: Flags, lost: set[str], topology: Topology, now: datetime
    ) -> tuple[Finding, ...]:
        """Single exporters that are gone while their node is still visible."""
        gone: dict[EntityRef, list[int]] = defaultdict(list)
        for row in np.flatnonzero(posts.dark & ~posts.engine & judged):
            if posts.node[row] not in lost:
                gone[_stands_at(posts.entities[row], posts.node[row], topology)].append(int(row))
        result = []
        for entity, rows in gone.items():
            names = ", ".join(sorted(posts.entities[row].name for row in rows))
            item = evidence("target_up", 0.0, "exporter_dark", Interval(1.0, 1.0), targets=names)
            since = float(np.nanmin(posts.since[rows]))
            result.append(
                finding(self.name, entity, "exporter-down", score=0.9, since=since, now=now, evidence_items=(item,))
            )
        return tuple(result)

    def _frozen(self, posts: _Targets, window: Window, topology: Topology, now: datetime) -> tuple[Finding, ...]:
        """Targets whose pages are old, or whose log lines refer to another time."""
        trust = window.column(_TRUST)
        frozen, stale = (trust == verdict.code for verdict in (TrustVerdict.FROZEN, TrustVerdict.STALE))
        run = measure_run(~np.isnan(trust), frozen | stale, window.times)
        verdict = newest(window, trust)
        lasting = (verdict == TrustVerdict.STALE.code) & (run.seconds >= _STALE_SECONDS)
        still = posts.known & ~posts.down & ((verdict == TrustVerdict.FROZEN.code) | lasting)
        places: dict[EntityRef, list[int]] = defaultdict(list)
        for row in np.flatnonzero(still):
            places[_stands_at(posts.entities[row], posts.node[row], topology)].append(int(row))
        result = []
        for entity, rows in places.items():
            names = ", ".join(sorted(posts.entities[row].name for row in rows))
            text, code = ("page_of_another_time" if lasting[rows].all() else "page_frozen"), float(verdict[rows[0]])
            item = evidence("target_trust_code", code, text, Interval(0.0, 0.0), targets=names)
            since = float(min(window.times[run.start[row]] for row in rows))
            result.append(
                finding(self.name, entity, "stale-metrics", score=0.9, since=since, now=now, evidence_items=(item,))
            )
        return tuple(result)


def _read(window: Window, memory: Arrays, topology: Topology) -> _Targets:
    answers = window.column("target_up")
    ours = np.array([entity.namespace == NAMESPACE for entity in window.entities], dtype=np.bool_)
    value = newest(window, answers)
    known = ~np.isnan(value) & ours
    down = known & (value < 0.5)
    seen = ~np.isnan(answers)
    run = measure_run(seen, np.nan_to_num(answers, nan=1.0) < 0.5, window.times)
    memory["up_seen"] = memory["up_seen"] | (np.nan_to_num(answers) >= 0.5).any(axis=1)
    started = np.where(run.scrapes > 0, window.times[run.start], np.nan)
    memory["down_since"] = np.where(down, np.fmin(memory["down_since"], started), np.nan)
    code = at_index(window.column("target_failure_code"), newest_index(seen))
    return _Targets(
        entities=window.entities,
        node=tuple(topology.label(entity, "node") for entity in window.entities),
        engine=np.array([_is_engine(entity, topology) for entity in window.entities], dtype=np.bool_),
        known=known,
        down=down,
        dark=down & (run.scrapes >= DOWN_SCRAPES),
        code=np.where(down & (code == 0), np.nan, code),
        since=memory["down_since"],
    )


def _at_once(gone: Flags, since: Floats) -> Flags:
    """The largest group of failures within ``AT_ONCE_SECONDS``; the latest of equal ones."""
    begun = np.sort(since[gone])
    if begun.size == 0:
        return gone
    counts = np.searchsorted(begun, begun + AT_ONCE_SECONDS, side="right") - np.arange(begun.size)
    first = begun[begun.size - 1 - np.argmax(counts[::-1])]
    result: Flags = gone & (since >= first) & (since <= first + AT_ONCE_SECONDS)
    return result


def _is_engine(entity: EntityRef, topology: Topology) -> bool:
    """True for targets that stand for a replica, of any engine."""
    return stands_for(entity, topology).kind is EntityKind.REPLICA


def _stands_at(entity: EntityRef, node: str, topology: Topology) -> EntityRef:
    """The entity of an exporter's failure: its node, else what it stands for, else the target itself."""
    if node:
        return EntityRef(entity.cluster, EntityKind.NODE, None, node)
    return stands_for(entity, topology)


def stands_for(entity: EntityRef, topology: Topology) -> EntityRef:
    """The entity of the label ``stands_for``; the target itself without that label."""
    try:
        return EntityRef.from_key(topology.label(entity, "stands_for"))
    except ValueError:
        return entity
