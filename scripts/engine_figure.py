"""Draws docs/images/engine-model.svg: recorded loads and their replays through the engine model.

Usage: python scripts/engine_figure.py RECORDINGS_FOLDER [OUT.svg]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fleet.recorded.loads import SMALL_LLAMA, read_all
from benchmarks.fleet.recorded.reading import Recording
from benchmarks.fleet.recorded.replaying import Replay, replay
from outrider.model import Floats

WIDE, HIGH, GAP, LEFT, TOP = 400, 130, 70, 60, 62
STYLE = 'font-family="Helvetica, Arial, sans-serif" fill="#30343a"'
RECORDED, REPLAYED = "#8a8f98", "#c2410c"
TTFT_TICKS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
TITLES = {
    "b_steady": "steady, 1.1 requests/s",
    "c_ramp": "ramp, 0.5 to 2.6 to 0.4 requests/s",
    "d_longburst": "short requests and bursts of long prompts",
    "f_prefix": "shared prefixes, 1.8 requests/s",
}


class Panel:
    """A panel with its axes; ``across`` and ``up`` are (from, to) of the x and y axis."""

    def __init__(self, x: float, y: float, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.x, self.y, self.across, self.up = x, y, across, up
        self.parts = [f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#c9ccd1"/>']

    def to_drawing(self, across: Floats, up: Floats) -> tuple[Floats, Floats]:
        """Returns the points in drawing coordinates."""
        (left, right), (low, high) = self.across, self.up
        return (
            self.x + (across - left) / (right - left) * WIDE,
            self.y + HIGH - (up - low) / (high - low) * HIGH,
        )

    def line(self, across: Floats, up: Floats, color: str, width: float) -> None:
        """Draws a curve, clipped to the frame."""
        x, y = self.to_drawing(np.clip(across, *self.across), np.clip(up, *self.up))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>')

    def ticks(self, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]]) -> None:
        """Labels the axes."""
        for value, text in across:
            x = float(self.to_drawing(np.array([value]), np.array([self.up[0]]))[0][0])
            self.parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.y}" y2="{self.y + HIGH}" stroke="#eceef0"/>')
            self.parts.append(_text(x, self.y + HIGH + 14, text, "middle"))
        for value, text in up:
            y = float(self.to_drawing(np.array([self.across[0]]), np.array([value]))[1][0])
            self.parts.append(f'<line x1="{self.x}" x2="{self.x + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eceef0"/>')
            self.parts.append(_text(self.x - 6, y + 4, text, "end"))


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">{text}</text>'
    )


def in_flight(recording: Recording, replay: Replay, x: float, y: float) -> Panel:
    """Draws running and waiting requests over time."""
    recorded = recording.series["running"] + recording.series["waiting"]
    replayed = replay.series["running"][:, 0] + replay.series["waiting"][:, 0]
    minutes = (recording.scraped_at - recording.at[0]) / 60
    top = float(max(recorded.max(), replayed.max())) * 1.08
    panel = Panel(x, y, (0.0, float(minutes[-1])), (0.0, top))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if top / step <= 5)
    panel.ticks(
        [(minute, f"{minute}") for minute in range(int(minutes[-1]) + 1)],
        [(count, f"{count}") for count in range(0, int(top) + 1, step)],
    )
    panel.line(minutes, recorded, RECORDED, 3.2)
    panel.line(minutes, replayed, REPLAYED, 1.3)
    return panel


def first_token(recording: Recording, replay: Replay, x: float, y: float) -> Panel:
    """Draws the cumulative distribution of TTFT on a logarithmic axis."""
    replayed, recorded = np.sort(replay.ttft[0]), np.sort(recording.ttft)
    ticks = [tick for tick in TTFT_TICKS if recorded[0] / 3 < tick < recorded[-1] * 3]
    ends = (np.log10(min(replayed[0], recorded[0]) * 0.9), np.log10(max(replayed[-1], recorded[-1]) * 1.1))
    panel = Panel(x, y, (float(ends[0]), float(ends[1])), (0.0, 1.0))
    shown = [(float(np.log10(tick)), f"{tick:g}") for tick in ticks if ends[0] <= np.log10(tick) <= ends[1]]
    panel.ticks(shown, [(share, f"{share * 100:.0f} %") for share in (0.0, 0.5, 0.95)])
    share = (np.arange(recorded.size) + 1) / recorded.size
    panel.line(np.log10(recorded), share, RECORDED, 3.2)
    panel.line(np.log10(replayed), share, REPLAYED, 1.3)
    return panel


def draw(recordings: Sequence[Recording]) -> str:
    """Draws the whole figure."""
    second = LEFT + WIDE + GAP
    wide, high = second + WIDE + 24, TOP + len(recordings) * (HIGH + 58) - 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" {STYLE}>',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
        *_key(LEFT, 20, RECORDED, 3.2, "recorded"),
        *_key(LEFT + 110, 20, REPLAYED, 1.8, "replayed"),
    ]
    for row, recording in enumerate(recordings):
        y = TOP + row * (HIGH + 58)
        result = replay(recording, [SMALL_LLAMA])
        parts.append(_text(LEFT, y - 8, f"{TITLES[recording.name]}: running + waiting", weight="bold"))
        parts.append(_text(second, y - 8, "cumulative share of requests by TTFT", weight="bold"))
        parts += [*in_flight(recording, result, LEFT, y).parts, *first_token(recording, result, second, y).parts]
        parts.append(_text(LEFT + WIDE, y + HIGH + 28, "minutes", "end"))
        parts.append(_text(second + WIDE, y + HIGH + 28, "TTFT in seconds", "end"))
    return "\n".join([*parts, "</svg>", ""])


def _key(x: float, y: float, color: str, width: float, text: str) -> list[str]:
    line = f'<line x1="{x}" x2="{x + 28}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="{width}"/>'
    return [line, _text(x + 36, y + 4, text)]


def main() -> int:
    """Writes the figure."""
    if len(sys.argv) < 2:
        print("usage: python scripts/engine_figure.py RECORDINGS_FOLDER [OUT.svg]", file=sys.stderr)
        return 2
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images/engine-model.svg")
    out.write_text(draw(read_all(Path(sys.argv[1]))), encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
