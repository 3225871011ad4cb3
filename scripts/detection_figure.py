"""Draws the figures of docs/explanation/detection: signals, injected fault, findings and limits.

Usage: python scripts/detection_figure.py [--out FOLDER] [NAME ...]

``detection_figures.yaml`` lists the figures. A figure comes from recordings of tests/recordings or from faults of the
simulated fleet. The same input gives the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import yaml
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording import reader
from detectors.platform.scrape_targets import NAMESPACE
from detectors.registry import DETECTORS
from detectors.rules.burn_rate import compile_slos
from outrider.model import EntityKind, EntityRef, Finding, SignalKey
from outrider.ports import Collected, Detector
from outrider.topology import Topology
from outrider.vocabulary import catalog
from outrider.vocabulary.slo import Slo
from service.drills.simulated_source import FleetSource
from service.engine.detector_memory import Detection
from service.ops import replay
from simulator.faults.registry import inject
from simulator.fleet import Fleet
from simulator.spec.fleets import drill_spec
from simulator.world import World

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "recordings"
STEP = timedelta(seconds=15)
START = datetime(2026, 5, 4, 9, tzinfo=UTC)
SEED = 3
STYLE = {
    "font.size": 8, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "outrider", "legend.frameon": False,
    "legend.fontsize": 7, "lines.linewidth": 1.2, "font.family": "sans-serif", "path.simplify_threshold": 0.3,
}  # fmt: skip
TRUTH, FINDING, LIMIT = "#e3e5e8", "#f3b58f", "#c2410c"
COLORS = ("#30506e", "#2a8c6f", "#8a5fa8", "#b08b2e")
Values = NDArray[np.float64]
Series = tuple[Values, Values]  # minutes, values
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the simulated fleet. ``at`` and ``minutes`` are minutes; None lets the seed choose the entity."""

    id: str
    at: float
    minutes: float
    entity: str | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of signals by label; ``signal:0.9`` is a quantile of the last minute.

    ``findings`` are faults or detectors; ``fault`` is the injected one, whose entity is drawn. ``entity`` selects
    another one. ``over`` folds the entities of the fault (see ``_FOLDS``). ``truth`` marks a recording. ``limit``
    is a number, or the detector or fault whose expected range is drawn.
    """

    title: str
    signals: Mapping[str, str]
    fault: str = ""
    findings: tuple[str, ...] = ()
    truth: tuple[Span, ...] = ()
    entity: str = ""
    over: str = ""
    limit: float | str | None = None
    scale: float = 1.0
    log: bool = False
    from_zero: bool = False
    shown: Span | None = None  # minutes
    recording: str = ""  # overrides the source of the figure


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels of the simulated fleet with ``faults`` over ``minutes``, or of recordings."""

    columns: int
    panels: tuple[Panel, ...]
    faults: tuple[Fault, ...] = ()
    minutes: float = 0.0
    detectors: tuple[str, ...] = ()


@dataclass(slots=True)
class History:
    """Values, histogram counts and findings by minute, and the injected faults with entity and time span."""

    values: dict[tuple[EntityRef, str], list[tuple[float, float]]] = field(default_factory=dict)
    buckets: dict[tuple[EntityRef, str], list[tuple[float, Values]]] = field(default_factory=dict)
    findings: list[tuple[float, Finding]] = field(default_factory=list)
    truths: dict[str, tuple[EntityRef, Span]] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    step_minutes: float = 0.25

    def take(self, minute: float, at: datetime, collected: Collected, detection: Detection) -> None:
        """Adds one collected cycle and its findings."""
        for batch in collected.batches:
            buckets: dict[str, list[int]] = {}
            for column, key in enumerate(batch.keys):
                if key.bucket is None:
                    for entity, value in zip(batch.entities, batch.values[:, column].tolist(), strict=True):
                        self.values.setdefault((entity, key.name), []).append((minute, value))
                elif key.bucket >= 0:
                    buckets.setdefault(key.name, []).append(column)
            for name, columns in buckets.items():
                for entity, row in zip(batch.entities, batch.values[:, columns], strict=True):
                    self.buckets.setdefault((entity, name), []).append((minute, row))
        self.findings += [(minute, finding) for finding in detection.run(at, collected, self.topology).findings]

    def of_entity(self, entity: EntityRef, signal: str) -> Series:
        """Returns a signal of an entity; if several pages report it, the last finite value counts."""
        name, _, quantile = signal.partition(":")
        if quantile:
            return _quantiles(self.buckets[entity, name], catalog.signal(name).bounds, float(quantile))
        merged: dict[float, float] = {}
        for minute, value in self.values[entity, name]:
            merged[minute] = merged[minute] if np.isfinite(merged.get(minute, np.nan)) else value
        return np.array(list(merged)), np.array(list(merged.values()))

    def series(self, panel: Panel, signal: str) -> Series:
        """Returns the signal of the panel's entity, or folded over the entities near its fault."""
        name, _, quantile = signal.partition(":")
        known = [entity for entity, key in (self.buckets if quantile else self.values) if key == name]
        if panel.entity:
            chosen = [entity for entity in known if entity.name == panel.entity]
        elif panel.fault and panel.fault in self.truths:
            cause = self.truths[panel.fault][0]
            if panel.over == "sum":  # scrape targets of the node or the whole cluster
                whole = cause.kind is EntityKind.CLUSTER
                own = [entity for entity in known if entity.namespace == NAMESPACE]
                chosen = [one for one in own if whole or self.topology.label(one, "node") == cause.name]
            else:
                chosen = [entity for entity in self._near(cause) if entity in known]
        else:
            chosen = known
        chosen = chosen or known
        if not chosen:
            raise SystemExit(f"{panel.title}: no entity has {signal}")
        if not panel.over:
            return self.of_entity(chosen[0], signal)
        rows = [self.of_entity(entity, signal) for entity in chosen]
        if panel.over == "widest":
            return max(rows, key=lambda row: float(np.nanmax(row[1]) - np.nanmin(row[1])))
        times = rows[0][0]
        return times, _FOLDS[panel.over](np.stack([np.interp(times, *row) for row in rows]))

    def _near(self, entity: EntityRef) -> list[EntityRef]:
        """Returns the entity, then its dependents and dependencies, nearest first."""
        topology = self.topology
        return [*dict.fromkeys([entity, *topology.holds_up(entity), *topology.rests_on(entity),
                                *topology.affected_by(entity)])]  # fmt: skip

    def spans(self, names: Iterable[str]) -> list[Span]:
        """Returns time spans with a finding of one of these faults or detectors."""
        known = set(names)
        spans: list[Span] = []
        for minute in sorted({at for at, one in self.findings if known & {one.fault, one.detector}}):
            if spans and minute - spans[-1][1] <= 1.6 * self.step_minutes:
                spans[-1] = (spans[-1][0], minute + self.step_minutes)
            else:
                spans.append((minute, minute + self.step_minutes))
        return spans

    def expected(self, names: Iterable[str]) -> Series:
        """Returns the bound of the expected range in the first evidence of these findings, by minute."""
        known, bounds = set(names), dict[float, float]()
        for minute, one in self.findings:
            if known & {one.fault, one.detector}:
                expected = one.evidence[0].expected if one.evidence else None
                bound = None if expected is None else expected.high if expected.high is not None else expected.low
                bounds.setdefault(minute, np.nan if bound is None else bound)
        return np.array(list(bounds)), np.array(list(bounds.values()))


_FOLDS = {
    "sum": lambda rows: np.nansum(rows, axis=0),
    "max": lambda rows: np.nanmax(rows, axis=0),
    "median": lambda rows: np.nanmedian(rows, axis=0),
}


def _quantiles(rows: Sequence[tuple[float, Values]], bounds: Sequence[float], share: float) -> Series:
    """Returns the upper bound of the bucket with the quantile of the last minute; NaN without events."""
    times = np.array([minute for minute, _ in rows])
    counts = np.nan_to_num(np.stack([row for _, row in rows]))
    upper, result = np.array([*bounds, np.nan]), np.full(times.size, np.nan)
    for index, minute in enumerate(times):
        last = counts[(times > minute - 1.0) & (times <= minute)].sum(axis=0)
        if last.sum() >= 1:
            result[index] = upper[: last.size][int(np.searchsorted(np.cumsum(last), share * last.sum()))]
    return times, result


def of_recording(name: str) -> History:
    """Runs all detectors and an SLO (99.5 % of TTFT within 1 s) on a recording at its own times."""
    recorded = replay.load(RECORDINGS / name, "vllm")
    manager = ScrapeManager([track.target for track in recorded.tracks])
    bounds = catalog.signal("svc_ttft_seconds").bounds
    keys = tuple(SignalKey("svc_ttft_seconds", bucket=index) for index in range(len(bounds) + 1))
    slo = Slo("first-token", 0.995, bad=keys[sum(bound <= 1.0 for bound in bounds) :], total=keys)
    watchers: list[Detector] = [*(make() for make in DETECTORS.values()), *compile_slos([slo])]
    detection, history = Detection(watchers, recorded.step), History(step_minutes=recorded.step / timedelta(minutes=1))
    start: datetime | None = None
    for group in replay.group_cycles(reader.merged(recorded.tracks), recorded.step):
        at = group[-1].at
        start = start or at
        collected = manager.absorb(group, at)
        history.topology = collected.topology
        history.take((at - start) / timedelta(minutes=1), at, collected, detection)
    return history


def of_fleet(figure: Figure) -> History:
    """Runs the figure's detectors on the simulated fleet with its faults."""
    fleet = Fleet(drill_spec(), seed=SEED, start=START)
    source, history = FleetSource(World([fleet])), History()
    detection = Detection([DETECTORS[name]() for name in figure.detectors], STEP)
    waiting = list(figure.faults)
    for number in range(round(figure.minutes * 4)):
        minute = number / 4
        for fault in [fault for fault in waiting if fault.at <= minute]:
            waiting.remove(fault)
            truth = inject(fleet, fault.id, fault.entity, duration=timedelta(minutes=fault.minutes), seed=SEED)
            history.truths[fault.id] = (truth.entity, (minute, minute + fault.minutes))
        fleet.step(STEP)
        collected = source.collect_now(fleet.now)
        history.topology = collected.topology
        history.take(minute + 0.25, fleet.now, collected, detection)
    return history


def draw(axis: Axes, panel: Panel, history: History) -> None:
    """Draws one panel: ground truth in gray over the full height, findings in orange at the bottom."""
    truth = [*panel.truth] + ([history.truths[panel.fault][1]] if panel.fault in history.truths else [])
    findings = history.spans(panel.findings or (panel.fault,))
    for spans, color, height in ((truth, TRUTH, 1.0), (findings, FINDING, 0.12)):
        for begin, end in spans:
            axis.axvspan(begin, end, 0.0, height, color=color, lw=0.8 if color == FINDING else 0, zorder=0)
    for (label, signal), color in zip(panel.signals.items(), COLORS, strict=False):
        times, values = history.series(panel, signal)
        axis.plot(times, panel.scale * values, color=color, label=label)
    if isinstance(panel.limit, str):
        times, values = history.expected([panel.limit])
        axis.plot(times, panel.scale * values, color=LIMIT, lw=0.9, ls=(0, (4, 2)))
    elif panel.limit is not None:
        axis.axhline(panel.limit, color=LIMIT, lw=0.9, ls=(0, (4, 2)))
    if panel.log:
        axis.set_yscale("symlog")
    if panel.log or panel.from_zero:
        axis.set_ylim(bottom=0)
    axis.set_title(panel.title)
    axis.margins(x=0.01)
    if panel.shown is not None:
        axis.set_xlim(*panel.shown)
    if len(panel.signals) > 1:
        axis.legend()


def save(name: str, figure: Figure, folder: Path, histories: dict[str, History]) -> None:
    """Draws all panels of a figure into ``NAME.svg``; recordings are read once."""
    fleet = of_fleet(figure) if figure.faults else None
    rows = -(-len(figure.panels) // figure.columns)
    size = (9.4, 1.75 * rows + 0.5)
    sheet, axes = plt.subplots(rows, figure.columns, figsize=size, squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, figure.panels, strict=True):
        if fleet is None and panel.recording not in histories:
            histories[panel.recording] = of_recording(panel.recording)
        draw(axis, panel, fleet or histories[panel.recording])
    for axis in axes[-1]:
        axis.set_xlabel("minutes")
    legend: dict[str, Rectangle | Line2D] = {"finding": Rectangle((0, 0), 1, 1, color=FINDING)}
    if fleet is not None or any(panel.truth for panel in figure.panels):
        legend = {"ground truth": Rectangle((0, 0), 1, 1, color=TRUTH), **legend}
    if any(panel.limit is not None for panel in figure.panels):
        legend["limit"] = Line2D([], [], color=LIMIT, lw=0.9, ls=(0, (4, 2)))
    sheet.legend(list(legend.values()), list(legend), loc="outside upper right", ncols=len(legend))
    sheet.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(sheet)


def read(path: Path) -> dict[str, Figure]:
    """Returns the figures of a YAML file by name."""

    def panel(row: dict[str, Any]) -> Panel:
        signals = row["signals"]
        return Panel(**{**row, "signals": {"": signals} if isinstance(signals, str) else signals})

    return {
        name: Figure(
            **{
                **row,
                "panels": tuple(panel(one) for one in row["panels"]),
                "faults": tuple(Fault(**one) for one in row.get("faults", ())),
            }
        )
        for name, row in yaml.safe_load(path.read_text(encoding="utf-8")).items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the named figures, or all."""
    figures = read(Path(__file__).with_name("detection_figures.yaml"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*figures, []], help=", ".join(figures))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "detection")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    histories: dict[str, History] = {}
    for name in options.names or list(figures):
        with mpl.rc_context(STYLE):
            save(name, figures[name], options.out, histories)
        print(f"{name}.svg", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
