"""The capacity formula: ``N = qps x tokens / (batch x tokens per second) x (1 + buffer)``.

A batch may be counted per replica (a TP x PP group with one scheduler) or per GPU; the formula then
counts replicas or GPUs, and either way whole groups are bought. The work of a request may be told as
tokens (with the speed of a sequence) or as seconds in service: by Little's law both give the sequences
running at once. Every input carries its unit, so that an input given in another unit is refused
instead of changing the answer.
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
"""A measured error outside is that of a calm week, or of a series that nobody can forecast: it is cut to these."""

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
    """Count replicas and GPUs for a load.

    ``qps`` requests per second at the peak; ``batch`` sequences running at once per ``batch_per``; the work
    of a request either as ``tokens`` generated with ``tokens_per_second`` of one running sequence, or as
    ``seconds`` from admission to the last token; ``buffer`` as a ratio, ``buffer_source`` whether it was measured,
    for what is said where it is unusual; ``tp`` x ``pp`` GPUs make one replica. A load of zero needs zero
    replicas. Raises UsageError naming the option when an input is not
    a finite number in its range, or the work is told twice or not at all.
    """
    work = {"tokens": tokens, "tokens_per_second": tokens_per_second, "seconds": seconds}
    given = {name: value for name, value in work.items() if value is not None}
    if set(given) not in ({"tokens", "tokens_per_second"}, {"seconds"}):
        raise UsageError(
            "the work of one request is --tokens with --tokens-per-second, or --seconds in service",
            hint=_work_hint(given.keys()),
        )
    _check(qps=qps, batch=batch, buffer=buffer, tp=tp, pp=pp, **given)
    if batch_per not in ("replica", "gpu"):
        raise UsageError(f"--batch-per must be replica or gpu, not {batch_per!r}", hint="replica is the default")
    sequences, middle = _sequences(qps, given)
    units = sequences / Quantity.of(batch, f"sequence/{batch_per}")
    raw = units.expect(batch_per) * (1.0 + buffer)
    if not isfinite(raw):
        raise UsageError("the load is too large to count", hint="check --qps and the work of one request")
    group = tp * pp
    replicas = whole(raw if batch_per == "replica" else raw / group)
    gpus = replicas * group
    told = "qps x tokens / (batch x tokens_per_second)" if seconds is None else "qps x seconds / batch"
    derivation = {
        "equation": f"{batch_per}s = {told} x (1 + buffer)",
        "inputs": {
            "qps": {"value": qps, "unit": "request/second"},
            **{name: {"value": value, "unit": _WORK_UNITS[name]} for name, value in given.items()},
            "batch": {"value": batch, "unit": f"sequence/{batch_per}"},
            "buffer": {"value": buffer, "unit": "ratio"},
            "tp": {"value": tp, "unit": "gpu"},
            "pp": {"value": pp, "unit": "gpu"},
        },
        **middle,
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


def _work_hint(given: Collection[str]) -> str:
    if "seconds" in given:
        return "give one of the two readings, not both: leave --seconds out, or the tokens"
    if given:
        (missing,) = {"tokens", "tokens_per_second"} - set(given)
        return f"give --{missing.replace('_', '-')} too"
    return "give --tokens and --tokens-per-second, or --seconds alone"


@dataclass(frozen=True, slots=True)
class Buffer:
    """The buffer that is counted with and where it came from; ``measured`` is the error before it was bounded.

    ``lead_seconds`` is how far ahead that error was measured: the first step of the forecast that reaches over
    ``wanted_seconds``, which are asked for. Both are None where nobody tells.
    """

    value: float
    source: BufferSource = "configured"
    measured: float | None = None
    lead_seconds: float | None = None
    wanted_seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For derivations."""
        return {
            "value": self.value,
            "source": self.source,
            "measured": self.measured,
            "lead_seconds": self.lead_seconds,
            "wanted_seconds": self.wanted_seconds,
            "bounded": self.measured is not None and not BUFFER_LEAST <= self.measured <= BUFFER_CAP,
        }


def buffer_for(measured: Mapping[float, float], lead_seconds: float, configured: float) -> Buffer:
    """The measured error of the forecast at the first lead from ``lead_seconds`` on, else what was configured.

    ``measured`` maps seconds ahead to what ``buffer_from_errors`` returns there. Bounded to .05 and .60.
    """
    ahead = sorted(each for each in measured if each >= lead_seconds)
    if not ahead:
        return Buffer(configured)
    return bounded(measured[ahead[0]], ahead[0], lead_seconds)


def bounded(measured: float, lead_seconds: float | None = None, wanted_seconds: float | None = None) -> Buffer:
    """A measured error as the buffer: within .05 and .60."""
    return Buffer(min(max(measured, BUFFER_LEAST), BUFFER_CAP), "measured", measured, lead_seconds, wanted_seconds)


_WORK_UNITS = {"tokens": "token/request", "tokens_per_second": "token/second*sequence", "seconds": "second/request"}


def _sequences(qps: float, work: Mapping[str, float]) -> tuple[Quantity, dict[str, float]]:
    """Sequences running at once without buffer, and what stands between, for the derivation."""
    arrivals = Quantity.of(qps, "request/second")
    if "seconds" in work:
        # Little's law: what is inside is the rate of arrival times the time spent inside; a request is a sequence
        inside = arrivals * Quantity.of(work["seconds"], "second*sequence/request")
        return inside, {}
    load = arrivals * Quantity.of(work["tokens"], _WORK_UNITS["tokens"])
    speed = Quantity.of(work["tokens_per_second"], _WORK_UNITS["tokens_per_second"])
    return load / speed, {"token_rate": load.expect("token/second")}


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
    # a measured buffer is as large as the forecast errs: nothing is wrong with it for being unusual
    kind = "_measured" if _source(derivation) == "measured" else ""
    buffer = f"{derivation['inputs']['buffer']['value']:.3g}"
    texts += [translate(f"plan.{warning}{kind}", language, buffer=buffer) for warning in derivation["warnings"]]
    return tuple(texts)


def _source(derivation: Mapping[str, Any]) -> str:
    """Of the buffer; plans of earlier versions tell it beside the formula alone."""
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
                    f"{option} must be a whole number of GPUs from 1 up, not {value:g}",
                    hint=f"{option} 1 is without such groups",
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
