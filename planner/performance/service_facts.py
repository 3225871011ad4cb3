"""What is promised of a service, and what is known of it beside its calibration."""

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
        """Refuse promises that mean nothing."""
        if not (isfinite(self.seconds) and self.seconds > 0 and 0 < self.quantile < 1):
            raise UsageError(
                f"a promise of {self.seconds:g} s for {self.quantile:g} of requests",
                hint="give seconds above 0 and a share between 0 and 1",
            )

    @property
    def slo(self) -> Slo:
        """As the queueing model takes it."""
        return Slo(**{self.sli: self.seconds}, quantile=self.quantile)

    @property
    def pool(self) -> str:
        """The pool whose business it is, where replicas do one of both only."""
        return PREFILL if self.sli == "ttft" else DECODE


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What is known of a service beside its calibration; None where it is not.

    ``model`` is what engines call it, ``shape`` what that is (``no_shape``: why it is not known). ``prompt`` is tokens
    of a prompt, ``cached_ratio`` the share of them that the prefix cache holds, ``kv_tokens`` the KV cache of a
    replica as its page tells, ``sequences`` the engine's own limit. ``pool``: the one of both that its replicas do, ""
    for both. ``as_run``: prompts are those of the running service, so that what runs at once there has room; not of a
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
