"""The capacity formula: ``N = qps x tokens / (batch x tokens per second) x (1 + buffer)``.

A batch may be counted per replica (a TP x PP group with one scheduler) or per GPU; the formula then
counts replicas or GPUs, and either way whole groups are bought. Every input carries its unit, so that
an input given in another unit is refused instead of changing the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, Literal

from outrider.errors import UsageError
from outrider.i18n import Language, translate
from outrider.units import Quantity

BatchPer = Literal["replica", "gpu"]

BUFFER_LOW, BUFFER_HIGH = 0.20, 0.30
"""Below, one lost replica or one burst breaks the promise; above, GPUs stand idle."""

_FLOAT_NOISE = 1e-9


@dataclass(frozen=True, slots=True)
class Formula:
    """The answer of the formula.

    ``units_raw`` counts ``unit`` before rounding; ``replicas`` and ``gpus`` are whole groups.
    ``sequences`` are the sequences running at once at that load, without buffer (Little's law).
    ``derivation`` is the arithmetic as plain numbers and strings; ``lines`` prints it.
    """

    units_raw: float
    unit: BatchPer
    replicas: int
    gpus: int
    sequences: float
    derivation: Mapping[str, Any]

    def lines(self, language: Language = "en") -> tuple[str, ...]:
        """The derivation as people read it, one step a line."""
        return derivation_lines(self.derivation, language)

    def as_dict(self) -> dict[str, Any]:
        """The keys of ``outrider capacity formula -o json``."""
        return {
            "units_raw": self.units_raw,
            "unit": self.unit,
            "replicas": self.replicas,
            "gpus": self.gpus,
            "sequences": self.sequences,
            "derivation": dict(self.derivation),
        }


def formula(
    *,
    qps: float,
    tokens: float,
    batch: float,
    tokens_per_second: float,
    batch_per: BatchPer = "replica",
    buffer: float = 0.25,
    tp: int = 1,
    pp: int = 1,
) -> Formula:
    """Count replicas and GPUs for a load.

    ``qps`` requests per second at the peak; ``tokens`` generated per request; ``batch`` sequences
    running at once per ``batch_per``; ``tokens_per_second`` of one running sequence; ``buffer`` as a
    ratio; ``tp`` x ``pp`` GPUs make one replica. A load of zero needs zero replicas. Raises UsageError
    naming the option when an input is not a finite number in its range.
    """
    _check(qps=qps, tokens=tokens, batch=batch, tokens_per_second=tokens_per_second, buffer=buffer, tp=tp, pp=pp)
    if batch_per not in ("replica", "gpu"):
        raise UsageError(f"--batch-per must be replica or gpu, not {batch_per!r}", hint="replica is the default")
    load = Quantity.of(qps, "request/second") * Quantity.of(tokens, "token/request")
    sequences = load / Quantity.of(tokens_per_second, "token/second*sequence")
    units = sequences / Quantity.of(batch, f"sequence/{batch_per}")
    raw = units.expect(batch_per) * (1.0 + buffer)
    if not isfinite(raw):
        raise UsageError("the load is too large to count", hint="check --qps, --tokens and --tokens-per-second")
    group = tp * pp
    replicas = whole(raw if batch_per == "replica" else raw / group)
    gpus = replicas * group
    derivation = {
        "equation": f"{batch_per}s = qps x tokens / (batch x tokens_per_second) x (1 + buffer)",
        "inputs": {
            "qps": {"value": qps, "unit": "request/second"},
            "tokens": {"value": tokens, "unit": "token/request"},
            "batch": {"value": batch, "unit": f"sequence/{batch_per}"},
            "tokens_per_second": {"value": tokens_per_second, "unit": "token/second*sequence"},
            "buffer": {"value": buffer, "unit": "ratio"},
            "tp": {"value": tp, "unit": "gpu"},
            "pp": {"value": pp, "unit": "gpu"},
        },
        "token_rate": load.expect("token/second"),
        "sequences": sequences.expect("sequence"),
        "units_without_buffer": raw / (1.0 + buffer),
        "units_raw": raw,
        "unit": batch_per,
        "gpus_per_replica": group,
        "replicas": replicas,
        "gpus": gpus,
        "warnings": _warnings(buffer),
    }
    derivation["lines"] = list(derivation_lines(derivation))
    return Formula(raw, batch_per, replicas, gpus, sequences.expect("sequence"), derivation)


def whole(amount: float) -> int:
    """The next whole number. Noise of floating point (one part in 1e9) does not buy another one."""
    nearest = round(amount)
    if abs(amount - nearest) <= _FLOAT_NOISE * abs(amount):
        return nearest
    return ceil(amount)


def derivation_lines(derivation: Mapping[str, Any], language: Language = "en") -> tuple[str, ...]:
    """Print a formula's derivation, one step a line, warnings last."""
    unit, values = derivation["unit"], {name: f"{entry['value']:g}" for name, entry in derivation["inputs"].items()}
    numbers = {
        **values,
        "token_rate": f"{derivation['token_rate']:g}",
        "sequences": f"{derivation['sequences']:g}",
        "units": f"{derivation['units_without_buffer']:g}",
        "raw": f"{derivation['units_raw']:g}",
        "group": f"{derivation['gpus_per_replica']}",
        "replicas": f"{derivation['replicas']}",
        "gpus": f"{derivation['gpus']}",
        "unit": translate(f"plan.unit_{unit}", language),
    }
    steps = ("step_load", "step_sequences", "step_units", "step_buffer", f"step_round_{unit}")
    texts = [translate(f"plan.{step}", language, **numbers) for step in steps]
    texts += [translate(f"plan.{warning}", language, buffer=values["buffer"]) for warning in derivation["warnings"]]
    return tuple(texts)


def _warnings(buffer: float) -> Sequence[str]:
    if buffer < BUFFER_LOW:
        return ["buffer_low"]
    return ["buffer_high"] if buffer > BUFFER_HIGH else []


def _check(**inputs: float) -> None:
    for name, value in inputs.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise UsageError(f"{option} must be a finite number, not {value!r}", hint=f"give {option} as a number")
        if name in ("tp", "pp"):
            if value < 1 or value != int(value):
                raise UsageError(f"{option} must be a whole number of GPUs from 1 up, not {value:g}", hint="1 is none")
        elif name in ("batch", "tokens_per_second"):
            if value <= 0:
                raise UsageError(f"{option} must be above 0, not {value:g}", hint="measure it: capacity calibrate")
        elif value < 0:
            raise UsageError(f"{option} must not be negative, not {value:g}", hint=f"give {option} as 0 or more")
