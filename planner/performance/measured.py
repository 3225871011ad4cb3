"""Step times of a replica from load tests: the terms of the data sheets, scaled to a measured point.

A load test gives one point: at ``batch`` sequences a sequence gets ``v`` tokens per second, so a step takes 1 / v. By
data sheets it would take (base + k n) / (1 - λ P prompt) with λ = n v / L requests per second of P prompt tokens
(``queueing``). One factor f on every term makes the two equal:

    1 / v = f (base + k n) / (1 - λ P f prompt)        f = (1 / v) / (base + k n + (1 / v) λ P prompt)

The proportions of the terms stay those of the data sheets. Other group sizes on the same type and its slices use the
same factor; another GPU type does not.
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
"""Methods whose published weights have 4 bits unless the name has others."""


def step_times(
    shape: ModelShape,
    spec: GpuSpec,
    setup: Setup,
    work: Work,
    tests: Sequence[Calibration] = (),
    language: Language = "en",
) -> StepTimes:
    """Step times from the nearest test on this GPU type (same group, else the next in size), or from data sheets.

    ``tests`` are of this model, the newest first. The test's prompts are assumed to be those of ``work``.
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
    return replace(scale(prior, ratio), source=source)


def scale(prior: StepTimes, ratio: float) -> StepTimes:
    """Scales every term of step times; the time before the scheduler stays."""
    return replace(prior, **{name: getattr(prior, name) * ratio for name in ("base", "sequence", "context", "prompt")})


def factor(prior: StepTimes, test: Calibration, work: Work) -> float:
    """Factor that scales data-sheet step times to a test: a step at its batch then takes the measured time."""
    step = 1.0 / test.tokens_per_second_per_sequence
    rate = test.batch / step / test.tokens_per_request
    prompts = rate * work.prompt * (1.0 - work.cached_ratio) * prior.prompt
    return step / (prior.decode(test.batch, work.context) + step * prompts)


def matching_tests(tests: Sequence[Calibration], name: str, bits: float = 16.0) -> list[Calibration]:
    """Tests of a model by its name, the newest first: ``meta-llama/Llama-3.1-8B-Instruct`` is Llama-3.1-8B.

    A name with the bits of its weights (``-AWQ``, ``-FP8``, ``-w8a8``) matches only the same bits: its step times would
    scale data sheets of other weights. A name without bits matches any.
    """
    wanted = _plain(name)
    matching = [
        test
        for test in tests
        if (_plain(test.model) == wanted or _plain(test.model).startswith(f"{wanted}-"))
        and bits_of(test.model) in (None, bits)
    ]
    return sorted(matching, key=lambda test: test.measured_at.timestamp() if test.measured_at else 0.0, reverse=True)


def bits_of(name: str) -> float | None:
    """Bits of a model's weights in its name, None without; for a method alone its usual 4."""
    words = _WORDS.split(_plain(name))
    numbers = [float(next(filter(None, match.groups()))) for word in words if (match := _BITS.fullmatch(word))]
    valid = [bits for bits in numbers if LEAST_BITS <= bits <= MOST_BITS]
    return valid[0] if valid else (4.0 if _FOUR_BITS.intersection(words) else None)


def nearest(spec: GpuSpec, setup: Setup, tests: Sequence[Calibration]) -> Calibration | None:
    """The test that the step times of a group are taken from; None if only data sheets apply.

    A slice uses a test on itself, otherwise on its whole device: the kernels and the silicon are the same.
    """
    for name in filter(None, (spec.name, spec.whole)):
        same_type = [test for test in tests if _type_of(test) == name]
        if same_type:
            return min(same_type, key=lambda test: _far(test, setup))
    return None


def _group(setup: Setup) -> str:
    return f"TP {setup.tp}" + (f" PP {setup.pp}" if setup.pp > 1 else "")


def _far(test: Calibration, setup: Setup) -> float:
    """Distance between two groups; 0 for the same."""
    return abs(log(test.tensor_parallel / setup.tp)) + abs(log(test.pipeline_parallel / setup.pp))


def _type_of(test: Calibration) -> str:
    spec = known_gpu(test.gpu_type)
    return "" if spec is None else spec.name


def _plain(name: str) -> str:
    return name.rsplit("/", 1)[-1].lower()
