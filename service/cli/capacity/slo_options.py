"""Options of ``capacity plan`` and ``explain`` that replace the SLO and the model of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.errors import UsageError
from service.cli.capacity.model_options import (
    WIDTHS,
    ConfigOption,
    ModelOption,
    ParametersOption,
    TpotOption,
    TtftOption,
    shape_of,
    slo_of,
)
from service.cli.core.amounts import amount, one_of

if TYPE_CHECKING:
    from service.planning.slo_inputs import PlanOverrides

ServiceOption = Annotated[str | None, typer.Option("--service", help="Plan this service only. Default: all services.")]
QuantileOption = Annotated[
    float | None, amount("--quantile", "ratio", "Share of requests that --ttft and --tpot apply to; default 0.95")
]
PromptOption = Annotated[float | None, amount("--prompt", "token/request", "Prompt length; default: as measured")]
CachedOption = Annotated[
    float | None, amount("--cached", "ratio", "Share of prompt tokens found in the prefix cache; default: as measured")
]
WeightBitsOption = Annotated[
    float | None, one_of("--bits", "Bits per weight; default: from the model name, else 16", WIDTHS)
]
LimitOption = Annotated[
    int | None,
    typer.Option("--max-sequences", help="Maximum number of sequences of the engine. Default: the batch size.", min=1),
]
_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Service, SLO and model of one call, in place of the configuration. None: option not given."""

    service: ServiceOption = None
    ttft: TtftOption = None
    tpot: TpotOption = None
    quantile: QuantileOption = None
    model: ModelOption = None
    config_json: ConfigOption = None
    parameters: ParametersOption = None
    prompt: PromptOption = None
    cached: CachedOption = None
    bits: WeightBitsOption = None
    max_sequences: LimitOption = None

    def overrides(self) -> PlanOverrides:
        """Overrides for the plan. Raises UsageError that names the invalid option."""
        from planner.performance.service_facts import Objective  # noqa: PLC0415 - numpy, not needed by --help
        from service.planning.slo_inputs import PlanOverrides  # noqa: PLC0415

        self._checked()
        quantile = _QUANTILE if self.quantile is None else self.quantile
        objectives: list[Objective] = []
        if self.ttft is not None:
            objectives.append(Objective("ttft", self.ttft, quantile, "--ttft"))
        if self.tpot is not None:
            objectives.append(Objective("tpot", self.tpot, quantile, "--tpot"))
        named = self.model is not None or self.config_json is not None
        shape = shape_of(self.model, self.config_json, self.parameters) if named else None
        return PlanOverrides(tuple(objectives), shape, self.prompt, self.cached, self.max_sequences, self.bits)

    def _checked(self) -> None:
        slo_of(self.ttft, self.tpot)
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise UsageError(
                f"--quantile is a share between 0 and 1, not {self.quantile:g}", hint="write 95 % as 0.95 or 95%"
            )
        if self.quantile is not None and self.ttft is None and self.tpot is None:
            raise UsageError("--quantile requires --ttft or --tpot", hint="give --ttft or --tpot, or configure an SLO")
        if self.prompt is not None and not 1 <= self.prompt < float("inf"):
            raise UsageError(
                f"--prompt must be at least one token, not {self.prompt:g}",
                hint="give the number of tokens of a prompt",
            )
        if self.cached is not None and not 0 <= self.cached < 1:
            raise UsageError(f"--cached is a share below 1, not {self.cached:g}", hint="write 30 % as 0.3 or 30%")
        service_options = {
            "--model": self.model, "--config-json": self.config_json, "--prompt": self.prompt,
            "--cached": self.cached, "--bits": self.bits, "--max-sequences": self.max_sequences,
        }  # fmt: skip
        given = [option for option, value in service_options.items() if value is not None]
        if given and self.service is None:
            raise UsageError(f"{given[0]} applies to one service", hint="name the service with --service")
