from __future__ import annotations

import importlib.util
import os

import pytest

from outrider.errors import UsageError
from service.planning.fanout import fan_out


def square(value: int) -> tuple[int, int]:
    return value * value, os.getpid()


def fails(value: int) -> int:
    raise ValueError(f"no square of {value}")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_have_the_order_of_the_inputs(workers):
    seen = []
    results = fan_out(square, range(7), workers=workers, progress=lambda done, of: seen.append((done, of)))
    assert [value for value, _ in results] == [0, 1, 4, 9, 16, 25, 36]
    assert seen == [(done, 7) for done in range(1, 8)]
    assert (os.getpid() in {process for _, process in results}) is (workers == 1)


@pytest.mark.slow
def test_the_first_error_ends_the_run():
    with pytest.raises(ValueError, match="no square"):
        fan_out(fails, [1, 2], workers=2)


def test_no_inputs_give_no_results():
    assert fan_out(square, [], workers=2) == []


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="tests the error without Ray")
def test_a_missing_ray_is_reported():
    with pytest.raises(UsageError, match="not installed"):
        fan_out(square, [1, 2], ray_address="local")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="missing: ray (the extra [ray])")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_local_ray_gives_the_same_results():
    seen = []
    results = fan_out(square, range(5), ray_address="local", progress=lambda done, of: seen.append((done, of)))
    assert [value for value, _ in results] == [0, 1, 4, 9, 16]
    assert os.getpid() not in {process for _, process in results}
    assert seen[-1] == (5, 5)
