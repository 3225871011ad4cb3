"""The metrics page of a Triton server that runs one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from outrider.model import Floats
from simulator.cluster.pods import Pod
from simulator.engine.counters import HISTOGRAMS
from simulator.exporters.engines import Columns, EnginePages, View
from simulator.exporters.ladders import quantiles
from simulator.exporters.numbers import cpp_number
from simulator.exporters.outlines import Labels, Style
from simulator.fleet import Fleet
from simulator.spec.fleets import ServiceSpec

INPUT_MICROSECONDS, OUTPUT_MICROSECONDS = 209.0, 20.0  # per request for input and output tensors, from a recording
PINNED_BYTES = 268435456.0  # the pool's default size
_MICRO = 1e6
_MEBI = 1048576.0
_QUANTILES = {"5": 0.5, "9": 0.9, "95": 0.95, "99": 0.99, "999": 0.999}


class TritonPages(EnginePages):
    """Writes the page of any Triton replica, including the devices of its pod.

    Requests wait in the server's core, not in the model: while the model hangs, the pending count keeps growing.
    Summaries have the quantiles of requests that ended since the previous page, NaN without any.
    """

    style: ClassVar[Style] = Style(cpp_number, sums_first=True)

    def __init__(self) -> None:
        super().__init__()
        self._energy: dict[str, tuple[Floats, Floats]] = {}

    def release(self, changed: bool) -> str:
        """Returns the file of the release without failure reasons, or that of 2026."""
        return "triton_now" if changed else "triton"

    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """Returns the label sets: model and version, and an empty one for server metrics."""
        return {"base": {"model": service.engine.model, "version": "1"}, "none": {}}

    def rows(self, fleet: Fleet, pod: Pod) -> dict[str, Sequence[Labels]]:
        """Returns the labels of the pod's devices."""
        return {"gpu": [{"gpu_uuid": fleet.gpu_uuid(gpu)} for gpu in pod.gpus]}

    def scalars(self, view: View) -> Columns:
        """Returns gauges and counters of the model, its devices and its host."""
        finished, left, errors = view.finished, view.left, view.plain("finished_error")
        spent, inferred = view.total("e2e") * _MICRO, view.total("inference") * _MICRO
        own = finished * (INPUT_MICROSECONDS + OUTPUT_MICROSECONDS)
        return {
            "zero": 0.0,
            "finished": finished,
            "left": left,
            "finished_error": errors,
            "failed": left + errors,
            "request_us": np.round(spent + own),
            "queue_us": np.round(view.total("queue") * _MICRO),
            "input_us": finished * INPUT_MICROSECONDS,
            "infer_us": np.round(inferred),
            "output_us": finished * OUTPUT_MICROSECONDS,
            "pending": np.maximum(view.in_flight - view.gauge("running"), 0.0),
            "startup_seconds": np.round(view.startup_seconds, 6),
            "pinned_bytes": PINNED_BYTES,
            **self._summaries(view),
            **self._devices(view),
            **_host(view),
        }

    def _summaries(self, view: View) -> dict[str, Floats]:
        result: dict[str, Floats] = {}
        for name, source in (("request", "e2e"), ("queue", "queue_fine"), ("infer", "inference")):
            ended = view.grown(f"{name} summary", view.buckets(source))
            values = quantiles(ended, HISTOGRAMS[source], tuple(_QUANTILES.values()))
            result |= {f"{name}_q{label}": np.round(values[:, at] * _MICRO) for at, label in enumerate(_QUANTILES)}
        nothing = np.isnan(result["request_q5"])
        for name, constant in (("input", INPUT_MICROSECONDS), ("output", OUTPUT_MICROSECONDS)):
            result |= {f"{name}_q{label}": np.where(nothing, np.nan, constant) for label in _QUANTILES}
        return result

    def _devices(self, view: View) -> dict[str, Floats]:
        """Returns device values, shape (slots, devices); values of slots without devices are unused."""
        gpus, width = view.fleet.gpus, view.service.tensor_parallel
        pods = [view.fleet.pods.pods[slot] for slot in view.slots.tolist()]
        at = np.array([pod.gpus if len(pod.gpus) == width else (0,) * width for pod in pods])
        joules, ready = gpus.energy_millijoules[at] / 1e3, view.ready_at
        begun, since = self._energy.get(view.service.name, (joules, np.full(ready.shape, -1.0)))
        # Energy counts from the start of the server, or from the first page if it started earlier.
        begun = np.where((since == ready)[:, None], begun, joules)
        self._energy[view.service.name] = (begun, ready)
        return {
            "gpu_joules": np.round(joules - begun, 3),
            "gpu_utilization": np.round(gpus.utilization[at], 2),
            "gpu_memory_total": gpus.memory[at] * _MEBI,
            "gpu_memory_used": np.round(gpus.memory_used[at]) * _MEBI,
            "gpu_watts": np.round(gpus.power[at], 3),
            "gpu_limit_watts": gpus.limit[at] * view.fleet.effects.gpus.power_limit_ratio[at],
        }


def _host(view: View) -> dict[str, Floats]:
    nodes = view.fleet.nodes
    at = np.array([view.fleet.pods.pods[slot].node or 0 for slot in view.slots.tolist()])
    total = nodes.memory_bytes[at]
    return {
        "cpu_busy_ratio": np.round(nodes.cpu_busy_ratio[at], 6),
        "memory_total": total,
        "memory_used": np.round(total * (1.0 - nodes.memory_available_ratio[at])),
    }
