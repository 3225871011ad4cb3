"""Pictures of docs/explanation/detection/statistics.md: learnt levels, on recorded servers and recorded demand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from detection_panels import COLOURS, LIMIT, LIMIT_DASHES, TRUE, USUAL, Panel, bands, draw, grid, key
from detection_series import DAY, LOAD, SIGNAL, STEP, Judged, days, edges, plain, server, spans, told, walk
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from detectors.anomaly.drift import DriftDetector
from detectors.anomaly.level_shift import LevelShiftDetector
from detectors.anomaly.robust_z import RobustZDetector
from detectors.anomaly.seasonal import SeasonalDetector
from detectors.statistics.baseline import Baseline
from outrider.model import EntityKind, Floats
from service.evaluation import recordings

GPU = EntityKind.GPU
_FINE, _STEP_SECONDS = 600.0, 1800.0  # of the demand of taxis
_RISE = 0.3  # of the range of the last week, in each day


def _servers(data: Path | None, name: str) -> Path:
    if data is None or not (data / "data" / "servers").is_dir():
        raise SystemExit(f"{name} needs --data FOLDER with data/servers")
    return data / "data" / "servers"


def seasonal(data: Path | None) -> Figure:
    """A recorded server: a value and its usual level while it is learnt, and in a labelled incident."""
    folder = _servers(data, "seasonal")
    one = recordings.servers(folder, STEP)[0]
    times, values = one.times[: 5 * DAY], one.values[: 5 * DAY, 8:9]
    base = Baseline(["node_cpu_utilization_ratio"])
    memory = base.empty(1)
    level, scale = np.full(times.size, np.nan), np.full(times.size, np.nan)
    for place, at in enumerate(times):
        usual = base.usual(memory, float(at))
        if usual.known[0, 0]:
            level[place], scale[place] = float(usual.level[0, 0]), float(usual.scale[0, 0])
        base.learn(memory, values[place : place + 1], float(at), STEP)
    figure, (learning, judging) = plt.subplots(2, 1, figsize=(9.4, 4.4), layout="constrained")
    _band(learning, days(times.size), level, 5 * scale)
    learning.plot(days(times.size), values[:, 0], color=COLOURS[0], lw=0.6, label="value")
    learning.legend(loc="upper right", ncols=3)
    learning.set_title(f"{one.name}, metric 8, the first days: the band is wide until the time of day was seen twice")
    part = server(folder, "server-1", 11, 900, 1500)
    judged = walk(SeasonalDetector(GPU, (SIGNAL,)), part)
    shown = Panel(
        f"{part.name}: a labelled incident; by night its level is the usual one",
        {"": (days(len(judged.said)), part.values[part.first :])},
        spans(part.labels[part.first :]),
        told(judged),
        limit=(days(len(judged.said)), plain(edges(judged))),
    )
    draw(judging, shown)
    judging.set_xlabel("days")
    key(figure, [shown])
    return figure


def _band(axis: plt.Axes, at: Floats, level: Floats, reach: Floats) -> None:
    axis.fill_between(at, level - reach, level + reach, color=TRUE, lw=0, label="usual, five scales")
    axis.plot(at, level, color=LIMIT, lw=0.8, label="usual at this time of day")
    axis.margins(x=0.01)


def robust_z(data: Path | None) -> Figure:
    """How many scales a metric is off, and the limit that the budget buys from its own peaks."""
    folder = _servers(data, "robustz")
    good, odd = server(folder, "server-2", 10, 300, 1700), server(folder, "server-1", 2, 300, 1700)
    panels = []
    for part, text in ((good, ""), (odd, ": far off once a day by nature")):
        judged = walk(RobustZDetector(GPU, (SIGNAL,), LOAD), part, ("value", "usual", "scale_now", "limit"))
        known = judged.memory
        at, marked = days(len(judged.said)), spans(part.labels[part.first :])
        off = np.abs(known["value"] - known["usual"]) / known["scale_now"]
        limit = np.maximum(known["limit"], 5.0)
        panels += [
            Panel(f"{part.name}{text}", {"": (at, part.values[part.first :])}, marked, told(judged),
                  usual=(at, plain(known["usual"]))),
            Panel(f"{part.name}: scales off", {"": (at, np.minimum(off, 30.0))}, marked, told(judged),
                  limit=(at, limit), from_zero=True),
        ]  # fmt: skip
    return grid(panels, 2, "days")


def level_shift(data: Path | None) -> Figure:
    """Two labelled incidents and a step that no label knows: values, the level before, and how far it may move."""
    folder = _servers(data, "levelshift")
    panels = []
    for name, metric, begin, end, text in (
        ("server-1", 11, 960, 1400, "down, and up again: two shifts"),
        ("server-3", 6, 700, 840, "four hours of another level"),
        ("server-1", 11, 2700, 3100, "three labelled incidents in a day and a half"),
        ("server-4", 0, 2420, 2640, "spikes are no shift, half an hour may be"),
    ):
        part = server(folder, name, metric, begin, end)
        judged = walk(LevelShiftDetector(GPU, (SIGNAL,), LOAD), part, ("before", "reach", "after"))
        stands = np.array([one is not None for one in judged.said])
        before, reach, after = (np.where(stands, judged.memory[one], np.nan) for one in ("before", "reach", "after"))
        at = days(len(judged.said))
        panels.append(
            Panel(
                f"{part.name}: {text}",
                {"": (24 * at, part.values[part.first :])},
                [(24 * first, 24 * last) for first, last in spans(part.labels[part.first :])],
                [(24 * first, 24 * last) for first, last in told(judged)],
                limit=(24 * at, plain(before + np.sign(after - before) * reach)),
                usual=(24 * at, plain(before)),
            )
        )
    return grid(panels, 2, "hours")


def drift(data: Path | None) -> Figure:
    """A leak that was added to a recorded metric, and a morning that passes for one where nobody tells the load."""
    folder = _servers(data, "drift")
    bare = server(folder, "server-6", 12, 1608, 2500)
    since = np.maximum(np.arange(bare.values.size) - bare.first - DAY / 2, 0.0) / DAY
    spread = float(np.ptp(bare.values[bare.first - 7 * DAY : bare.first]))
    leaks = replace(bare, values=bare.values + since * _RISE * spread)
    judged = walk(DriftDetector(GPU, (SIGNAL,), LOAD), leaks, ("base", "reach", "level", "slope"))
    at = days(len(judged.said))
    first = Panel(
        f"{leaks.name}, with {_RISE:.0%} of its range added in each day from noon of the first",
        {"with it": (at, leaks.values[leaks.first :]), "recorded": (at, bare.values[bare.first :])},
        [(0.5, float(at[-1]))],
        told(judged),
        limit=(at, _edge(judged)),
        legend="upper left",
    )
    part = server(folder, "server-4", 10, 290, 860)
    alone = walk(DriftDetector(GPU, (SIGNAL,), LOAD), part, ("base", "reach"))
    at = days(len(alone.said))
    beside = server(folder, "server-4", 11, 290, 860)
    loaded = walk(DriftDetector(GPU, (SIGNAL,), LOAD), part, ("base", "reach"), load=beside.values)
    shown = Panel(
        f"{part.name}: a morning higher than any before, no load told"
        + ("; with metric 11 as its load nothing is said" if not told(loaded) else ""),
        {"": (at, part.values[part.first :])},
        spans(part.labels[part.first :]),
        told(alone),
        limit=(at, _edge(alone)),
    )
    return grid([first, shown], 1, "days")


def _edge(judged: Judged) -> Floats:
    """What a rise must pass, while one stands; upwards is bad for ``SIGNAL``."""
    stands = np.array([one is not None for one in judged.said])
    return np.where(stands, plain(judged.memory["base"] + judged.memory["reach"]), np.nan)


def week(data: Path | None) -> Figure:
    """Recorded demand of a city's taxis: what is expected with the days of the week, and without."""
    if data is None or not (data / "data" / "nab").is_dir():
        raise SystemExit("week needs --data FOLDER with data/nab")
    one = next(one for one in recordings.nab(data / "data" / "nab") if one.name.endswith("nyc_taxi.csv"))
    times = np.arange(one.times[0], one.times[0] + 27 * 7 * 86400.0, _FINE)
    values = np.interp(times, one.times, one.values[:, 0])
    with_week, without = (_expected(times, values, week=known) for known in (True, False))
    days_in = (times - times[0]) / 86400.0
    figure, axes = plt.subplots(3, 1, figsize=(9.4, 6.0), layout="constrained")
    told_of = (
        (
            7 * 6 + 2,
            9,
            "the seventh week: the weekend is expected, but for a leap at its midnights",
        ),
        (7 * 25 - 1, 9, "Christmas (labelled): no weekday explains a holiday"),
    )
    for axis, (begin, long, text) in zip(axes[:2], told_of, strict=True):
        shown = (days_in >= begin) & (days_in < begin + long)
        at = days_in[shown] - begin
        bands(axis, _labelled(one, times[shown][0], long), ())
        axis.plot(at, values[shown], color=COLOURS[0], lw=1.0, label="taxis in half an hour")
        axis.plot(at, with_week[shown], color=LIMIT, lw=0.9, ls=LIMIT_DASHES, label="expected, days of the week known")
        axis.plot(at, without[shown], color=USUAL, lw=0.9, label="expected by the time of day alone")
        axis.set_title(text)
        axis.set_xticks(range(long + 1), [_DAYS[(begin + day + 1) % 7] for day in range(long + 1)])
        axis.margins(x=0.01)
    axes[0].set_ylim(top=1.45 * float(np.max(values)))
    axes[0].legend(loc="upper right", ncols=3)
    weeks = np.arange(27)
    for level, colour, label in ((with_week, LIMIT, "days of the week known"), (without, USUAL, "time of day alone")):
        off = np.abs(values - level)
        share = [off[part].mean() / values[part].mean() for part in (np.floor(days_in / 7) == one for one in weeks)]
        axes[2].plot(weeks + 1, share, color=colour, marker="o", ms=3, lw=1.0, label=label)
    axes[2].set_title("mean distance from what is expected, as a share of the week's mean")
    axes[2].set_xlabel("weeks")
    axes[2].set_ylim(bottom=0)
    axes[2].legend(loc="lower right", ncols=2)
    return figure


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _labelled(one: recordings.Recording, begin: float, long: int) -> list[tuple[float, float]]:
    inside = (one.times >= begin) & (one.times < begin + 86400.0 * long)
    per_day = 86400.0 / _STEP_SECONDS
    found = spans(one.labels[inside])
    return [(first * DAY / per_day, last * DAY / per_day) for first, last in found]


def _expected(times: Floats, values: Floats, *, week: bool) -> Floats:
    """The level that is usual before each reading."""
    base = Baseline(("svc_requests_per_second",), week=week)
    memory, pool = base.empty(1), base.of_class()
    level = np.full(times.size, np.nan)
    for place, at in enumerate(times.tolist()):
        base.turn(memory, at, pool)
        usual = base.usual(memory, at)
        level[place] = float(usual.level[0, 0]) if usual.known[0, 0] else np.nan
        base.learn(memory, values[place : place + 1, None], at, _FINE)
    return level


FIGURES = {"seasonal": seasonal, "robustz": robust_z, "levelshift": level_shift, "drift": drift, "week": week}
