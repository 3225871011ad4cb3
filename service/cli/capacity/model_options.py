"""Options of the sizing commands: the model and its SLO."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from service.cli.core.amounts import amount, one_of

ModelOption = Annotated[str | None, typer.Option("--model", help="Known model, for example Llama-3.1-70B.")]
ConfigOption = Annotated[Path | None, typer.Option("--config-json", help="Path of the model's own config.json.")]
ParametersOption = Annotated[
    float | None,
    typer.Option("--parameters", help="Parameters in billions, if config.json does not state them.", min=0.0),
]
WIDTHS = (16.0, 8.0, 4.0)
BitsOption = Annotated[float, one_of("--bits", "Bits per weight", WIDTHS)]
KvBitsOption = Annotated[float, one_of("--kv-bits", "Bits per value in the KV cache", WIDTHS)]
UtilisationOption = Annotated[float, amount("--utilisation", "ratio", "Share of GPU memory that the engine may use")]
SequencesOption = Annotated[
    int, typer.Option("--max-sequences", help="Maximum number of sequences of the engine.", min=1)
]
TtftOption = Annotated[float | None, amount("--ttft", "second", "TTFT objective", doubted_from=60.0)]
TpotOption = Annotated[float | None, amount("--tpot", "second", "TPOT objective", doubted_from=5.0)]


def slo_of(ttft: float | None, tpot: float | None) -> Any:
    """SLO from the two options. An option that is not given sets no objective."""
    from planner.performance.queueing import Slo  # noqa: PLC0415 - numpy, not needed by --help

    for option, value in (("--ttft", ttft), ("--tpot", tpot)):
        if value is not None and value <= 0:
            raise UsageError(
                f"{option} must be above 0, not {value:g}", hint="omit the option if there is no such objective"
            )
    return Slo(inf if ttft is None else ttft, inf if tpot is None else tpot)


def shape_of(model: str | None, config: Path | None, parameters: float | None) -> Any:
    """Model named by the options. Raises UsageError if none is given or it cannot be read."""
    from planner.performance import model_specs  # noqa: PLC0415

    if config is None:
        if model is None:
            raise UsageError("no model given", hint=f"give --config-json, or --model: {', '.join(model_specs.known())}")
        return model_specs.model(model)
    from service.config import model_files  # noqa: PLC0415

    return model_files.shape_of(config, model, parameters)
