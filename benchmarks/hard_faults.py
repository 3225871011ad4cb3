"""Hard faults by rule: XID, uncorrectable memory error, GPU lost, link down, scrape failed; with look-alikes.

Fleets of ``NODES`` nodes with eight devices run in cycles of 15 s. Their real exposition pages and kernel log lines are
parsed and normalised, and the hard-fault detectors run on them.

A fault is *recalled* if a finding names its class and entity in the first or second cycle that shows it. A new finding
is *right* if its entity has a fault of that class or of a related one, such as XID 48 with an uncorrectable error.
Otherwise it is false. Findings that stay open are not counted again.

The peer is a set of common static rules on the same values: the last-XID gauge is not 0, an error counter rose, a
device's series are missing, a port is not active, ``up`` is 0.

``OUTRIDER_QUICK=1`` runs one small fleet; ``OUTRIDER_HARD_SEEDS=1,2`` sets other seeds than the scored ones.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, print_progress, quick, result
from benchmarks.hard_fault_fleet import INTERVAL, Class, Source, Story, Truth, fleet_of
from detectors.hardware.gpu_faults import GpuFaultDetector
from detectors.platform.node_faults import NodeFaultDetector, PortFaultDetector
from detectors.platform.scrape_targets import ScrapeTargetDetector
from outrider import log
from outrider.model import EntityKind, EntityRef
from outrider.ports import Collected
from outrider.topology import Topology
from service.engine.detector_memory import Detection

TARGET, WITHIN_CYCLES = 0.99, 2
SEEDS, NODES, CYCLES, EVERY, SETTLE = (11, 12, 13), 48, 600, 2, 10
SORTS = {
    "gpu-xid-hardware": Class.XID,
    "gpu-ecc-uncorrectable": Class.DBE,
    "gpu-lost": Class.GONE,
    "ib-link-down": Class.LINK,
    "switch-down": Class.LINK,
    "exporter-down": Class.SCRAPE,
    "node-lost": Class.SCRAPE,
    "monitor-blind": Class.SCRAPE,
}
HELD_CYCLES = 42  # an event keeps its finding open for ten minutes
ClassFindings = set[tuple[EntityRef, Class]]


@dataclass(slots=True)
class Score:
    """Result of one method of detection."""

    recalled: list[tuple[Truth, int | None]] = field(default_factory=list)
    right: int = 0
    false: list[tuple[int, EntityRef, Class]] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """Share of the faults found within ``WITHIN_CYCLES``."""
        return sum(late is not None for _, late in self.recalled) / max(1, len(self.recalled))

    @property
    def precision(self) -> float:
        """Share of the findings that were right."""
        return self.right / max(1, self.right + len(self.false))


class StaticRules:
    """The rules of common dashboards; their only state is the set of known devices."""

    def __init__(self) -> None:
        self._devices: set[EntityRef] = set()

    def detect(self, collected: Collected, topology: Topology) -> ClassFindings:
        """Returns the findings of this cycle."""
        findings: ClassFindings = set()
        for name, sort, fires in (
            ("hw_accel_fault_code", Class.XID, lambda value: value > 0),
            ("hw_accel_ecc_uncorrectable_total", Class.DBE, lambda value: value > 0),
            ("hw_link_up", Class.LINK, lambda value: value == 0),
            ("target_up", Class.SCRAPE, lambda value: value == 0),
        ):
            for entity, value in _values(collected, name):
                if fires(value):
                    findings.add((_about(entity, topology), sort))
        shown = {entity for entity, value in _values(collected, "hw_accel_temperature_celsius") if not np.isnan(value)}
        self._devices |= shown
        answering = {node for entity in shown for node in _nodes(entity, topology)}
        missing = {entity for entity in self._devices - shown if answering.intersection(_nodes(entity, topology))}
        return findings | {(entity, Class.GONE) for entity in missing}


def _values(collected: Collected, name: str) -> Iterable[tuple[EntityRef, float]]:
    for batch in collected.batches:
        for column, key in enumerate(batch.keys):
            if key.name == name:
                yield from zip(batch.entities, batch.values[:, column].tolist(), strict=True)


def _nodes(entity: EntityRef, topology: Topology) -> list[EntityRef]:
    return [one for one in (*topology.rests_on(entity), *topology.holds_up(entity)) if one.kind is EntityKind.NODE]


def _about(entity: EntityRef, topology: Topology) -> EntityRef:
    """Returns the node of a port or exporter, else the entity itself."""
    if entity.kind not in (EntityKind.PORT, EntityKind.WORKLOAD):
        return entity
    label = topology.label(entity, "node")
    return EntityRef(entity.cluster, EntityKind.NODE, None, label) if label else (*_nodes(entity, topology), entity)[0]


def live(seed: int, nodes: int, cycles: int) -> tuple[dict[str, list[ClassFindings]], Story]:
    """Returns the findings of each method per cycle from the last one without events on, and the ground truth."""
    source = Source(fleet_of(seed, nodes))
    story, rules = Story(source, seed, EVERY), StaticRules()
    watchers = (GpuFaultDetector(), NodeFaultDetector(), PortFaultDetector(), ScrapeTargetDetector())
    detection = Detection(watchers, INTERVAL)
    findings: dict[str, list[ClassFindings]] = {"outrider": [], "static rules": []}
    for number in range(cycles + SETTLE):
        if number >= SETTLE:
            story.advance()
        source.fleet.step(INTERVAL)
        collected, topology = source.collect()
        detected = detection.run(source.fleet.now, collected, topology).findings
        fired = rules.detect(collected, topology)
        if number >= SETTLE - 1:
            findings["outrider"].append({(one.entity, SORTS[one.fault]) for one in detected if one.fault in SORTS})
            findings["static rules"].append(fired)
    return findings, story


def score(findings: Sequence[ClassFindings], truths: Sequence[Truth], into: Score) -> None:
    """Adds the findings of one fleet. Cycle 0 is before the first event."""
    cycles = dict(enumerate(findings))
    for truth in truths:
        if truth.shown + WITHIN_CYCLES > len(cycles):
            continue
        late = next(
            (
                after
                for after in range(WITHIN_CYCLES)
                if any((entity, truth.sort) in cycles[truth.shown + after] for entity in truth.entities)
            ),
            None,
        )
        into.recalled.append((truth, late))
    at: dict[EntityRef, list[Truth]] = {}
    for truth in truths:
        for entity in truth.entities:
            at.setdefault(entity, []).append(truth)
    before = cycles.pop(0)
    for number, current in cycles.items():
        for entity, sort in sorted(current - before, key=str):
            if any(_fits(truth, sort, number) for truth in at.get(entity, ())):
                into.right += 1
            else:
                into.false.append((number, entity, sort))
        before = current


def _fits(truth: Truth, sort: Class, number: int) -> bool:
    return sort in (truth.sort, *truth.beside) and truth.shown <= number <= truth.over + HELD_CYCLES


def run() -> list[Result]:
    """Returns recall within two scrapes and precision, with misses, false findings and the static rules."""
    log.configure(level="critical")
    wanted = os.environ.get("OUTRIDER_HARD_SEEDS")
    seeds = tuple(int(seed) for seed in wanted.split(",")) if wanted else SEEDS
    seeds, nodes, cycles = (seeds[:1], 16, 60) if quick() else (seeds, NODES, CYCLES)
    scores = {"outrider": Score(), "static rules": Score()}
    done: Counter[str] = Counter()
    for seed in seeds:
        findings, story = live(seed, nodes, cycles)
        done.update(story.done)
        for name, total in scores.items():
            score(findings[name], story.truths, total)
        print_progress(f"hard_faults: seed {seed} done")
    ours, theirs = scores["outrider"], scores["static rules"]
    ran = {"seeds": list(seeds), "nodes": nodes, "rounds": cycles, "within_scrapes": WITHIN_CYCLES}
    return [
        _line(
            "recall", ours.recall, theirs.recall, faults=len(ours.recalled), by_fault=_by_fault(ours.recalled), **ran
        ),
        _line(
            "precision", ours.precision, theirs.precision, reported=ours.right + len(ours.false),
            false=_counted(ours.false), peer_false=_counted(theirs.false), happenings=dict(sorted(done.items())), **ran,
        ),
    ]  # fmt: skip


def _line(figure: str, ours: float, theirs: float, **more: object) -> Result:
    ratio = ours / theirs if theirs else None
    return result(f"hard_faults_{figure}", ours, "ratio", TARGET, ours >= TARGET, "static rules", theirs, ratio, **more)


def _by_fault(recalled: Sequence[tuple[Truth, int | None]]) -> Mapping[str, str]:
    """Returns recalled and injected faults by name, with the recall at the first scrape."""
    by_name: dict[str, list[int | None]] = {}
    for truth, late in recalled:
        by_name.setdefault(truth.title, []).append(late)
    return {
        title: f"{sum(one is not None for one in lates)} of {len(lates)}, {lates.count(0)} at the first scrape"
        for title, lates in sorted(by_name.items())
    }


def _counted(false: Iterable[tuple[int, EntityRef, Class]]) -> Mapping[str, int]:
    return dict(Counter(sort.value for _, _, sort in false).most_common())


if __name__ == "__main__":
    main(run)
