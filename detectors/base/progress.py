"""Masks over a window of replicas: which ones respond, make progress, or have queued work.

Every mask has shape (entities, times). A cell without a value is False in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detectors.base.condition_durations import Flags, previous_index
from outrider.model import CellStatus, Floats, Window, signal_keys

# Growth of any of these proves that the scheduler runs. Requests answered by the HTTP server are not
# among them: rejections (4xx, 5xx) do not need the scheduler.
PROGRESS = (
    "engine_generation_tokens_total",
    "engine_iterations_total",
    "engine_requests_finished_total",
    "engine_prompt_tokens_total",
)
REPLICA_KEYS = signal_keys(
    "engine_up",
    "target_failure_code",
    "engine_health_ok",
    "engine_sleep_state",
    "engine_requests_running",
    "engine_requests_waiting",
    "engine_inflight_requests",
    "engine_open_files",
    "engine_http_requests_total",
    "engine_http_failed_total",
    "engine_requests_failed_total",
    *PROGRESS,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Masks over one window.

    ``seen``: the page was scraped and the outcome is known. ``up``: it responded. ``moved``: a progress counter grew.
    ``restarted``: counters were reset, or the page returned after refused connections. ``asleep``: the engine reports
    sleep. ``still``: up and awake, counters known, none grew. ``judged``: the cell shows progress or its absence.
    ``busy``: the scheduler holds requests. ``inflight``: requests in flight at the HTTP server (NaN unknown).
    """

    seen: Flags
    up: Flags
    moved: Flags
    restarted: Flags
    asleep: Flags
    still: Flags
    judged: Flags
    busy: Flags
    inflight: Floats


def read(window: Window) -> Progress:
    """Builds the masks of a window with ``REPLICA_KEYS``; missing columns count as unknown."""
    answers = window.column("engine_up")
    seen = ~np.isnan(answers)
    up = seen & (np.nan_to_num(answers) >= 0.5)
    moved = np.zeros(seen.shape, dtype=np.bool_)
    known = np.zeros(seen.shape, dtype=np.bool_)
    reset = np.zeros(seen.shape, dtype=np.bool_)
    for name in PROGRESS:
        delta = window.column(name)
        restarted = window.column_status(name) == CellStatus.RESET
        reset |= restarted
        # The first value of a counter after a restart is neither progress nor a stall.
        known |= ~np.isnan(delta) & ~restarted
        moved |= (np.nan_to_num(delta) > 0) & ~restarted
    asleep = up & (window.column("engine_sleep_state") == 0)
    still = up & known & ~moved & ~reset & ~asleep
    judged = seen & (known | reset | asleep | ~up)
    waiting = np.nan_to_num(window.column("engine_requests_waiting"))
    running = np.nan_to_num(window.column("engine_requests_running"))
    busy = up & (waiting + running > 0)
    return Progress(
        seen=seen,
        up=up,
        moved=moved & up,
        restarted=reset | _came_back(seen, up),
        asleep=asleep,
        still=still,
        judged=judged,
        busy=busy,
        inflight=window.column("engine_inflight_requests"),
    )


def _came_back(seen: Flags, up: Flags) -> Flags:
    """True if a page responds again after a seen failure."""
    if seen.shape[1] == 0:
        return seen.copy()
    before = previous_index(seen)
    was_up = np.take_along_axis(up, np.maximum(before, 0), axis=1)
    return up & (before >= 0) & ~was_up


def row_median(values: Floats, where: Flags, otherwise: Floats) -> Floats:
    """The median of each row over the cells ``where``; ``otherwise`` for rows without any."""
    chosen = np.where(where, values, np.nan)
    some = ~np.isnan(chosen).all(axis=1) if chosen.shape[1] else np.zeros(chosen.shape[0], dtype=np.bool_)
    result = otherwise.astype(np.float64).copy()
    if some.any():
        result[some] = np.nanmedian(chosen[some], axis=1)
    return result
