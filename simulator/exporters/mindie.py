"""The metrics page of a MindIE server on Ascend devices."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simulator.exporters.engines import Columns, EnginePages, View
from simulator.exporters.numbers import cpp_number
from simulator.exporters.outlines import Labels, Style
from simulator.spec.fleets import ServiceSpec


class MindiePages(EnginePages):
    """Writes the page of any MindIE replica. Failure and cache-hit ratios are since the start."""

    style: ClassVar[Style] = Style(cpp_number, sums_first=True)

    def release(self, changed: bool) -> str:
        """Returns the only known release."""
        del changed
        return "mindie"

    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """Returns the label set: only the model."""
        return {"base": {"model_name": service.engine.model}}

    def scalars(self, view: View) -> Columns:
        """Returns gauges and plain counters."""
        prompt, cached, output = (view.plain(name) for name in ("prompt_tokens", "cached_tokens", "generation_tokens"))
        failed, received = view.plain("http_4xx") + view.plain("http_5xx") + view.left, view.received
        return {
            "zero": 0.0,
            "received": received,
            "finished": view.finished,
            "failed": failed,
            "failed_ratio": np.round(failed / np.maximum(received, 1.0), 6),
            "prompt_tokens": prompt,
            "generation_tokens": output,
            "prompt_rate": np.round(view.per_second("prompt", prompt), 4),
            "generation_rate": np.round(view.per_second("generation", output), 4),
            "preemptions": view.plain("preemptions"),
            "running": view.gauge("running"),
            "waiting": view.gauge("waiting"),
            "kv_used_ratio": np.round(view.gauge("kv_used_ratio"), 6),
            "hit_ratio": np.round(cached / np.maximum(prompt, 1.0), 6),
        }
