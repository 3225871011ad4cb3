"""The capacity formula: ``N = qps x tokens / (batch x tokens per second) x (1 + buffer)``.

A batch is counted per replica (a TP x PP group with one scheduler) or per GPU. The formula then counts replicas or
GPUs; either way whole groups are bought. The work of a request is given as tokens (with the speed of a sequence) or as
seconds in service. By Little's law both give the number of concurrent sequences. Every input has a unit, so that an
input in another unit is refused instead of changing the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, Literal

from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import Quantity
from planner.performance.headroom import BUFFER_MOST

BatchPer = Literal["replica", "gpu"]
BufferSource = Literal["configured", "measured"]

BUFFER_LOW, BUFFER_HIGH = 0.20, 0.30
"""Below, the loss of one replica or one burst violates the SLO; above, GPUs are idle."""

BUFFER_LEAST, BUFFER_CAP = 0.05, 0.6
"""Bounds of a measured error: outside it is that of a calm week, or of a series that cannot be forecast."""

_FLOAT_NOISE = 1e-9


@dataclass(frozen=True, slots=True)
class Formula:
    """Result of the formula.

    ``units_raw`` counts ``unit`` before rounding; ``replicas`` and ``gpus`` are whole groups. ``sequences`` are the
    concurrent sequences at that load, without buffer (Little's law). ``derivation`` is the arithmetic as plain numbers
    and strings; ``lines`` prints it.
    """

    units_raw: float
    unit: BatchPer
    replicas: int
    gpus: int
    sequences: float
    derivation: Mapping[str, Any]

    def lines(self, language: Language = "en") -> tuple[str, ...]:
        """The derivation as text, one step a line."""
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
    batch: float,
    tokens: float | None = None,
    tokens_per_second: float | None = None,
    seconds: float | None = None,
    batch_per: BatchPer = "replica",
    buffer: float = 0.25,
    tp: int = 1,
    pp: int = 1,
    buffer_source: BufferSource = "configured",
) -> Formula:
    """Computes the replicas and GPUs for a load.

    ``qps``: requests per second at the peak. ``batch``: concurrent sequences per ``batch_per``. The work of a request
    is either ``tokens`` generated at ``tokens_per_second`` of one running sequence, or ``seconds`` from admission to
    the last token. ``buffer`` is a ratio; ``buffer_source`` selects the warning for an unusual one. ``tp`` x ``pp``
    GPUs make one replica. A load of zero needs zero replicas. Raises UsageError with the option's name if an input is
    not a finite number in its range, or if the work is missing or given twice.
    """
    work = {"tokens": tokens, "tokens_per_second": tokens_per_second, "seconds": seconds}
    work_inputs = {name: value for name, value in work.items() if value is not None}
    if set(work_inputs) not in ({"tokens", "tokens_per_second"}, {"seconds"}):
        raise UsageError(
            "give the work of one request: --tokens with --tokens-per-second, or --seconds in service",
            hint=_work_hint(work_inputs.keys()),
        )
    _check(qps=qps, batch=batch, buffer=buffer, tp=tp, pp=pp, **work_inputs)
    if batch_per not in ("replica", "gpu"):
        raise UsageError(f"--batch-per must be replica or gpu, not {batch_per!r}", hint="replica is the default")
    sequences, intermediate = _sequences(qps, work_inputs)
    units = sequences / Quantity.of(batch, f"sequence/{batch_per}")
    raw = units.expect(batch_per) * (1.0 + buffer)
    if not isfinite(raw):
        raise UsageError("the load is too large to compute", hint="check --qps and the work of one request")
    group = tp * pp
    replicas = whole(raw if batch_per == "replica" else raw / group)
    gpus = replicas * group
    load_over_capacity = "qps x tokens / (batch x tokens_per_second)" if seconds is None else "qps x seconds / batch"
    derivation = {
        "equation": f"{batch_per}s = {load_over_capacity} x (1 + buffer)",
        "inputs": {
            "qps": {"value": qps, "unit": "request/second"},
            **{name: {"value": value, "unit": _WORK_UNITS[name]} for name, value in work_inputs.items()},
            "batch": {"value": batch, "unit": f"sequence/{batch_per}"},
            "buffer": {"value": buffer, "unit": "ratio"},
            "tp": {"value": tp, "unit": "gpu"},
            "pp": {"value": pp, "unit": "gpu"},
        },
        **intermediate,
        "sequences": sequences.expect("sequence"),
        "units_without_buffer": raw / (1.0 + buffer),
        "units_raw": raw,
        "unit": batch_per,
        "gpus_per_replica": group,
        "replicas": replicas,
        "gpus": gpus,
        "warnings": _warnings(buffer),
        "buffer_source": buffer_source,
    }
    derivation["lines"] = list(derivation_lines(derivation))
    return Formula(raw, batch_per, replicas, gpus, sequences.expect("sequence"), derivation)


def _work_hint(work_inputs: Collection[str]) -> str:
    if "seconds" in work_inputs:
        return "give one of the two, not both: omit --seconds or the tokens"
    if work_inputs:
        (missing,) = {"tokens", "tokens_per_second"} - set(work_inputs)
        return f"give --{missing.replace('_', '-')} too"
    return "give --tokens and --tokens-per-second, or --seconds alone"


@dataclass(frozen=True, slots=True)
class Buffer:
    """The buffer in use and its source; ``measured`` is the error before it was bounded.

    ``lead_seconds`` is the lead the error was measured at: the first forecast step at or past ``wanted_seconds``. Both
    are None if unknown.
    """

    value: float
    source: BufferSource = "configured"
    measured: float | None = None
    lead_seconds: float | None = None
    wanted_seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for derivations."""
        return {
            "value": self.value,
            "source": self.source,
            "measured": self.measured,
            "lead_seconds": self.lead_seconds,
            "wanted_seconds": self.wanted_seconds,
            "bounded": self.measured is not None and not BUFFER_LEAST <= self.measured <= BUFFER_CAP,
        }


def buffer_for(measured: Mapping[float, float], lead_seconds: float, configured: float) -> Buffer:
    """Returns the forecast error at the first lead from ``lead_seconds`` on, otherwise the configured buffer.

    ``measured`` maps seconds ahead to the result of ``buffer_from_errors``. Bounded to 0.05 and 0.60.
    """
    ahead = sorted(lead for lead in measured if lead >= lead_seconds)
    if not ahead:
        return Buffer(configured)
    return bounded_buffer(measured[ahead[0]], ahead[0], lead_seconds)


def bounded_buffer(measured: float, lead_seconds: float | None = None, wanted_seconds: float | None = None) -> Buffer:
    """Returns a measured error as the buffer, bounded to 0.05 and 0.60."""
    return Buffer(min(max(measured, BUFFER_LEAST), BUFFER_CAP), "measured", measured, lead_seconds, wanted_seconds)


_WORK_UNITS = {"tokens": "token/request", "tokens_per_second": "token/second*sequence", "seconds": "second/request"}


def _sequences(qps: float, work: Mapping[str, float]) -> tuple[Quantity, dict[str, float]]:
    """Concurrent sequences without buffer, and the intermediate values for the derivation."""
    arrivals = Quantity.of(qps, "request/second")
    if "seconds" in work:
        # Little's law: concurrency is the arrival rate times the time in service; a request is a sequence
        inside = arrivals * Quantity.of(work["seconds"], "second*sequence/request")
        return inside, {}
    load = arrivals * Quantity.of(work["tokens"], _WORK_UNITS["tokens"])
    speed = Quantity.of(work["tokens_per_second"], _WORK_UNITS["tokens_per_second"])
    return load / speed, {"token_rate": load.expect("token/second")}


def whole(amount: float) -> int:
    """Rounds up to a whole number. Floating-point noise (one part in 1e9) does not add one."""
    nearest = round(amount)
    if abs(amount - nearest) <= _FLOAT_NOISE * abs(amount):
        return nearest
    return ceil(amount)


def derivation_lines(derivation: Mapping[str, Any], language: Language = "en") -> tuple[str, ...]:
    """Prints a formula's derivation, one step a line, warnings last."""
    unit, values = derivation["unit"], {name: f"{entry['value']:g}" for name, entry in derivation["inputs"].items()}
    numbers = {
        **values,
        "token_rate": f"{derivation.get('token_rate', 0.0):g}",
        "sequences": f"{derivation['sequences']:g}",
        "units": f"{derivation['units_without_buffer']:g}",
        "raw": f"{derivation['units_raw']:g}",
        "group": f"{derivation['gpus_per_replica']}",
        "replicas": f"{derivation['replicas']}",
        "gpus": f"{derivation['gpus']}",
        "unit": translate(f"plan.unit_{unit}", language),
    }
    work = ("step_little",) if "seconds" in values else ("step_load", "step_sequences")
    steps = (*work, "step_units", "step_buffer", f"step_round_{unit}")
    texts = [translate(f"plan.{step}", language, **numbers) for step in steps]
    # a measured buffer is as large as the forecast error: an unusual size is not a mistake
    kind = "_measured" if _source(derivation) == "measured" else ""
    buffer = f"{derivation['inputs']['buffer']['value']:.3g}"
    texts += [translate(f"plan.{warning}{kind}", language, buffer=buffer) for warning in derivation["warnings"]]
    return tuple(texts)


def _source(derivation: Mapping[str, Any]) -> str:
    """Source of the buffer; plans of earlier versions store it only beside the formula."""
    known: str = derivation.get("buffer_source") or (derivation.get("buffer") or {}).get("source") or "configured"
    return known


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
                raise UsageError(
                    f"{option} must be a whole number of GPUs, at least 1, not {value:g}",
                    hint=f"{option} 1 means no such groups",
                )
        elif name == "buffer" and value > BUFFER_MOST:
            raise UsageError(
                f"{option} is a ratio up to {BUFFER_MOST:g}, not {value:g}",
                hint=f"25 % is written 0.25 or 25%: did you mean {value / 100:g}?",
            )
        elif name in ("batch", "tokens_per_second"):
            if value <= 0:
                raise UsageError(f"{option} must be above 0, not {value:g}", hint="measure it: capacity calibrate")
        elif value < 0:
            raise UsageError(f"{option} must not be negative, not {value:g}", hint=f"give {option} as 0 or more")
