"""What the pictures of detection share: one panel of signals, limits, truth and verdicts, and a grid of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from detection_lives import Life, Series, near
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

ROOT = Path(__file__).resolve().parent.parent
STYLE = {
    "font.size": 8, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "outrider", "legend.frameon": False,
    "legend.fontsize": 7, "lines.linewidth": 1.2, "font.family": "sans-serif", "path.simplify_threshold": 0.3,
}  # fmt: skip
TRUE, FOUND, COLOURS = "#e3e5e8", "#f3b58f", ("#30506e", "#2a8c6f", "#8a5fa8", "#b08b2e")
LIMIT, USUAL = "#c2410c", "#8a8f98"
LIMIT_DASHES, USUAL_DASHES = (0, (4, 2)), (0, (1, 1))
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One little plot: lines by label, what was true (grey), what was said (orange), a limit, what is usual."""

    title: str
    lines: Mapping[str, Series]
    true: Sequence[Span] = ()
    found: Sequence[Span] = ()
    limit: float | Series | None = None
    usual: Series | None = None
    marks: Mapping[float, str] = field(default_factory=dict)  # an instant, and what happened then
    log: bool = False
    legend: str = "best"
    from_zero: bool = False
    shown: Span | None = None  # of the axis of time


def grid(panels: Sequence[Panel], columns: int, unit: str = "minutes") -> Figure:
    """Panels side by side, the legend of the bands once."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9.4, 1.75 * rows + 0.5), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        draw(axis, panel)
    for axis in axes[-1]:
        axis.set_xlabel(unit)
    key(figure, panels)
    return figure


def draw(axis: Axes, panel: Panel) -> None:
    """One panel."""
    bands(axis, panel.true, panel.found)
    for (label, (times, values)), colour in zip(panel.lines.items(), COLOURS, strict=False):
        axis.plot(times, values, color=colour, label=label)
    if panel.usual is not None:
        axis.plot(*panel.usual, color=USUAL, lw=1.2, ls=USUAL_DASHES)
    if isinstance(panel.limit, tuple):
        axis.plot(*panel.limit, color=LIMIT, lw=0.9, ls=LIMIT_DASHES)
    elif panel.limit is not None:
        axis.axhline(panel.limit, color=LIMIT, lw=0.9, ls=LIMIT_DASHES)
    if panel.log:
        axis.set_yscale("symlog")
    if panel.log or panel.from_zero:
        axis.set_ylim(bottom=0)
    for at, text in panel.marks.items():
        axis.axvline(at, color=USUAL, lw=0.8)
        axis.annotate(text, (at, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -8), textcoords="offset points",
                      fontsize=7, color="#555a61")  # fmt: skip
    axis.set_title(panel.title)
    axis.margins(x=0.01)
    if panel.shown is not None:
        axis.set_xlim(*panel.shown)
    if len(panel.lines) > 1:
        axis.legend(loc=panel.legend)


def bands(axis: Axes, true: Sequence[Span], found: Sequence[Span]) -> None:
    """What was true over the whole height, what was said at the foot."""
    for spans, colour, high in ((true, TRUE, 1.0), (found, FOUND, 0.12)):
        for begin, end in spans:
            axis.axvspan(begin, end, 0.0, high, color=colour, lw=0.8 if colour == FOUND else 0, zorder=0)


def key(figure: Figure, panels: Sequence[Panel]) -> None:
    """What grey, orange and the dashes are, as far as the picture has them."""
    shown: dict[str, Rectangle | Line2D] = {}
    if any(panel.true for panel in panels):
        shown["true"] = Rectangle((0, 0), 1, 1, color=TRUE)
    if any(panel.found for panel in panels):
        shown["found"] = Rectangle((0, 0), 1, 1, color=FOUND)
    if any(panel.limit is not None for panel in panels):
        shown["limit"] = Line2D([], [], color=LIMIT, lw=0.9, ls=LIMIT_DASHES)
    if any(panel.usual is not None for panel in panels):
        shown["usual"] = Line2D([], [], color=USUAL, lw=1.2, ls=USUAL_DASHES)
    if shown:
        figure.legend(list(shown.values()), list(shown), loc="outside upper right", ncols=len(shown))


def struck(life: Life, title: str, fault: str, signal: str, *others: str, scale: float = 1.0) -> Panel:
    """The signals of whom a fault struck, when it was at work, and when it was named."""
    entity, span = life.truths[fault]
    about = near(life, entity)
    lines = {}
    for name in (signal, *others):
        times, values = life.series(name, about)
        lines[name.split(":")[0] if others else ""] = (times, scale * np.asarray(values))
    return Panel(title, lines, [span], life.spans(fault))
