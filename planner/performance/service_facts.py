"""SLO objectives of a service, and facts about it beside its calibration."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from outrider.errors import UsageError
from planner.performance.model_specs import ModelShape
from planner.performance.queueing import Slo

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True, slots=True)
class Objective:
    """``quantile`` of requests get their first token (ttft), or each further one (tpot), within ``seconds``."""

    sli: Literal["ttft", "tpot"]
    seconds: float
    quantile: float = 0.95
    name: str = ""

    def __post_init__(self) -> None:
        """Refuses meaningless objectives."""
        if not (isfinite(self.seconds) and self.seconds > 0 and 0 < self.quantile < 1):
            raise UsageError(
                f"invalid objective: {self.seconds:g} s for {self.quantile:g} of requests",
                hint="give seconds above 0 and a share between 0 and 1",
            )

    @property
    def slo(self) -> Slo:
        """The objective as an input of the queueing model."""
        return Slo(**{self.sli: self.seconds}, quantile=self.quantile)

    @property
    def pool(self) -> str:
        """The pool responsible for it, if prefill and decode are separate."""
        return PREFILL if self.sli == "ttft" else DECODE


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Facts about a service beside its calibration; None if unknown.

    ``model`` is the served model name, ``shape`` its shape (else ``no_shape`` is the reason). ``prompt`` is tokens of a
    prompt, ``cached_ratio`` the share of them in the prefix cache. ``kv_tokens`` is the KV cache of a replica from its
    metrics page, ``sequences`` the engine's own limit. ``pool`` is the role of its replicas, "" for both. ``as_run`` is
    True if prompts are those of the running service, so that the concurrent sequences had room; False for a what-if
    question.
    """

    objectives: tuple[Objective, ...] = ()
    model: str = ""
    shape: ModelShape | None = None
    no_shape: str = ""
    prompt: float | None = None
    cached_ratio: float = 0.0
    kv_tokens: float | None = None
    sequences: int | None = None
    bits: float = 16.0
    pool: str = ""
    as_run: bool = True
