"""The metrics page of a Text Generation Inference server."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from outrider.model import Floats
from simulator.engine.counters import STEP_BOUNDS
from simulator.exporters.engines import Columns, EnginePages, View
from simulator.exporters.numbers import rust_number
from simulator.exporters.outlines import Labels, Style
from simulator.spec.fleets import ServiceSpec

MOST_IN_BATCH = 1024
LENGTH_STEPS = 100
# Mean seconds outside the model on a recorded server: validating a request, filtering a batch, decoding its tokens,
# merging two batches.
VALIDATION, FILTER, DECODE, CONCAT = 1.9e-4, 2.2e-4, 1.1e-4, 1.4e-3


class TgiPages(EnginePages):
    """Writes the page of any TGI replica.

    The page is the router's: while the model server behind it hangs, its queue keeps growing.
    """

    style: ClassVar[Style] = Style(rust_number, count_first=False, gap="\n")

    def release(self, changed: bool) -> str:
        """Returns the only known release."""
        del changed
        return "tgi"

    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """Returns the label sets, without a model label."""
        del service
        return {"base": {}}

    def ladders(self, service: ServiceSpec) -> dict[str, tuple[float, ...]]:
        """Returns ladders: durations in 35 geometric steps, lengths in a hundred equal ones up to the maximum."""
        longest = service.engine.max_model_length
        return {
            "step": STEP_BOUNDS,
            "input": tuple((longest - 1) / LENGTH_STEPS * number for number in range(1, LENGTH_STEPS + 1)),
            "total": tuple(longest / LENGTH_STEPS * number for number in range(1, LENGTH_STEPS + 1)),
            "batch": tuple(float(size) for size in range(1, MOST_IN_BATCH + 1)),
        }

    def scalars(self, view: View) -> Columns:
        """Returns gauges, counters, and histograms of operations with a constant duration."""
        capacity = float(view.service.engine.kv_blocks * view.service.engine.block_size)
        steps, prefills, received = view.count("step"), view.count("ttft"), view.received
        running, errors = view.gauge("running"), view.plain("finished_error")
        queued = np.maximum(view.in_flight - running, 0.0)
        return {
            "zero": 0.0,
            "capacity_tokens": capacity,
            "finished": view.finished,
            "received": received,
            "left": view.left,
            "http_4xx": view.plain("http_4xx"),
            "finished_error": errors,
            "overloaded": np.maximum(view.plain("http_5xx") - errors, 0.0),
            "generation_tokens": view.total("output_length"),
            "steps": steps,
            "prefills": prefills,
            "running": running,
            "waiting": np.where(view.still, queued, view.gauge("waiting")),
            "used_tokens": np.round(view.gauge("kv_used_ratio") * capacity),
            "validation": _steady(received, VALIDATION),
            "prefill_filter": _steady(prefills, FILTER),
            "decode_filter": _steady(steps, FILTER),
            "prefill_decode": _steady(prefills, DECODE),
            "decode_decode": _steady(steps, DECODE),
            "concat": _steady(prefills, CONCAT),
            # Prompts are prefilled one after another: each new batch has one request.
            "next_size": prefills[:, None] * np.ones(MOST_IN_BATCH + 3),
        }


def _steady(count: Floats, seconds: float) -> Floats:
    """Returns the histogram of ``count`` events of equal duration: buckets with +Inf, count, sum."""
    inside = [float(bound >= seconds) for bound in (*STEP_BOUNDS, np.inf)]
    return np.asarray(np.round(count[:, None] * np.array([*inside, 1.0, seconds]), 9), dtype=np.float64)
