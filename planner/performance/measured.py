"""Step times of a replica from load tests: the data sheets' terms, all brought to what one test measured.

A load test gives one point: at ``batch`` sequences a sequence gets ``v`` tokens a second, so a step takes 1 / v. By
data sheets it would take (base + k n) / (1 - λ P prompt) with λ = n v / L requests a second of P prompt tokens
(``queueing``). One factor f on every term makes the two equal:

    1 / v = f (base + k n) / (1 - λ P f prompt)        f = (1 / v) / (base + k n + (1 / v) λ P prompt)

What data sheets say of the shares of the terms stays. Another group size on the same type and its slices take the
factor over; another type of GPU does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import log

from outrider.clock import rfc3339
from outrider.model import Calibration
from outrider.text.i18n import Language, translate
from planner.performance import roofline
from planner.performance.gpu_catalog import GpuSpec, gpu, known_gpu
from planner.performance.memory_fit import LEAST_BITS, MOST_BITS, Setup
from planner.performance.model_specs import ModelShape
from planner.performance.queueing import StepTimes, Work

_WORDS = re.compile(r"[-_:]|(?<!\d)\.|\.(?!\d)")  # 1.58bit is one word
_BITS = re.compile(r"(?:(?:u?int|mxfp|nvfp|b?fp|float|bf|nf|q|iq)(4|8|16|3|5|6|2)|w(\d+)a\d+|(\d+)bit)")
_FOUR_BITS = frozenset({"awq", "gptq", "bnb", "autoround", "hqq"})
"""Methods whose published weights have 4 bits unless the name tells others."""


def step_times(
    shape: ModelShape,
    spec: GpuSpec,
    setup: Setup,
    work: Work,
    tests: Sequence[Calibration] = (),
    language: Language = "en",
) -> StepTimes:
    """Those of the nearest test on this GPU type (the same group, else the next in size), else of data sheets.

    ``tests`` are of this model, the newest first. The test's prompts are taken to be as ``work`` has them.
    """
    prior = roofline.step_times(shape, spec, setup)
    test = nearest(spec, setup, tests)
    if test is None:
        return replace(prior, source=roofline.source_in(language, setup.tp))
    there = replace(setup, tp=test.tensor_parallel, pp=test.pipeline_parallel)
    tested = gpu(test.gpu_type)
    ratio = factor(roofline.step_times(shape, tested, there), test, work)
    source = translate(
        "capacity.source_measured",
        language,
        tool=test.source,
        service=test.service.name,
        at="-" if test.measured_at is None else rfc3339(test.measured_at),
        group=_group(there),
        speed=f"{test.tokens_per_second_per_sequence:.4g}",
        batch=f"{test.batch:.4g}",
        factor=f"{ratio:.2f}",
    )
    if (there.tp, there.pp) != (setup.tp, setup.pp) or tested.name != spec.name:
        group = spec.name if spec.whole else _group(setup)
        source += translate("capacity.source_taken_over", language, group=group)
    return replace(scaled(prior, ratio), source=source)


def scaled(prior: StepTimes, ratio: float) -> StepTimes:
    """Step times with every term so many times as long; what passes before the scheduler stays."""
    return replace(prior, **{name: getattr(prior, name) * ratio for name in ("base", "sequence", "context", "prompt")})


def factor(prior: StepTimes, test: Calibration, work: Work) -> float:
    """What brings data sheets' step times to a test: at its batch a step then takes what it took (see above)."""
    step = 1.0 / test.tokens_per_second_per_sequence
    rate = test.batch / step / test.tokens_per_request
    prompts = rate * work.prompt * (1.0 - work.cached_ratio) * prior.prompt
    return step / (prior.decode(test.batch, work.context) + step * prompts)


def of_model(tests: Sequence[Calibration], name: str, bits: float = 16.0) -> list[Calibration]:
    """The tests of a model by its name, the newest first: ``meta-llama/Llama-3.1-8B-Instruct`` is Llama-3.1-8B.

    A name that tells the bits of its weights (``-AWQ``, ``-FP8``, ``-w8a8``) is of questions with as many alone: its
    step times would scale data sheets of other weights. One that tells none is of any.
    """
    wanted = _plain(name)
    found = [
        one
        for one in tests
        if (_plain(one.model) == wanted or _plain(one.model).startswith(f"{wanted}-"))
        and bits_of(one.model) in (None, bits)
    ]
    return sorted(found, key=lambda one: one.measured_at.timestamp() if one.measured_at else 0.0, reverse=True)


def bits_of(name: str) -> float | None:
    """The bits of a model's weights that its name tells, None where it tells none; of a method alone, its usual 4."""
    words = _WORDS.split(_plain(name))
    said = [float(next(filter(None, found.groups()))) for word in words if (found := _BITS.fullmatch(word))]
    told = [bits for bits in said if LEAST_BITS <= bits <= MOST_BITS]
    return told[0] if told else (4.0 if _FOUR_BITS.intersection(words) else None)


def nearest(spec: GpuSpec, setup: Setup, tests: Sequence[Calibration]) -> Calibration | None:
    """The test that step times of a group are taken from; None where data sheets alone speak.

    A slice takes one on itself, else on its whole device: the same kernels on the same silicon.
    """
    for name in filter(None, (spec.name, spec.whole)):
        same_type = [test for test in tests if _type_of(test) == name]
        if same_type:
            return min(same_type, key=lambda one: _far(one, setup))
    return None


def _group(setup: Setup) -> str:
    return f"TP {setup.tp}" + (f" PP {setup.pp}" if setup.pp > 1 else "")


def _far(test: Calibration, setup: Setup) -> float:
    """How unlike two groups are; 0 for the same."""
    return abs(log(test.tensor_parallel / setup.tp)) + abs(log(test.pipeline_parallel / setup.pp))


def _type_of(test: Calibration) -> str:
    spec = known_gpu(test.gpu_type)
    return "" if spec is None else spec.name


def _plain(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()
