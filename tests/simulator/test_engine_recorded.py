"""The engine model against recorded vLLM loads: a trimmed recording of this repository, and all if available."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fleet.recorded.errors import errors, smoothed
from benchmarks.fleet.recorded.fitting import FITTED, distances, fit
from benchmarks.fleet.recorded.loads import GUESS, LOADS, SMALL_LLAMA, read_all
from benchmarks.fleet.recorded.reading import Recording, read
from benchmarks.fleet.recorded.replaying import pace, replay
from outrider.errors import UsageError

HERE = Path(__file__).parents[1] / "recordings"
DATA = Path(os.environ.get("OUTRIDER_DATA", "../shared")) / "recordings/vllm-0.32.0"
BOUND = 0.15


@pytest.fixture(scope="module")
def ramp() -> Recording:
    return read(HERE, "c_ramp")


@pytest.mark.parametrize(
    "load", [load for load in LOADS if load.name in ("c_ramp", "f_prefix")], ids=lambda one: one.name
)
def test_a_recorded_load_is_reproduced(load: object) -> None:
    recording = read(HERE, load.name, load.parts, load.prefixes)  # type: ignore[attr-defined]
    result = replay(recording, [SMALL_LLAMA])
    for unseen in (False, True):
        for error in errors(recording, result, unseen=unseen):
            if error.judged:
                assert error.ratio is not None
                assert abs(error.ratio) <= BOUND, error
    assert np.isfinite(result.e2e).all()


def test_the_queue_of_an_overload_rises_and_falls_as_recorded(ramp: Recording) -> None:
    result = replay(ramp, [SMALL_LLAMA])
    recorded, replayed = ramp.series["waiting"], result.series["waiting"][:, 0]
    assert recorded.max() == 199.0
    assert replayed.max() == pytest.approx(199.0, rel=0.05)
    assert np.abs(smoothed(recorded) - smoothed(replayed)).mean() < 0.04 * recorded.mean()
    preemptions = ramp.series["preemptions"]
    assert result.preemptions[0] == pytest.approx(preemptions[-1] - preemptions[0], rel=0.2)


def test_a_wrong_model_has_larger_errors_than_a_fitted_one(ramp: Recording) -> None:
    slow = replace(SMALL_LLAMA, step_seconds=SMALL_LLAMA.step_seconds * 1.2)
    near, far = distances([ramp], [SMALL_LLAMA, slow])
    assert far > 1.5 * near
    waiting = next(error for error in errors(ramp, replay(ramp, [slow])) if error.quantity == "waiting")
    assert waiting.ratio is not None
    assert waiting.ratio > BOUND


def synthetic(recording: Recording, **changed: float) -> tuple[Recording, dict[str, float]]:
    """Returns the recording with the latencies of a known engine."""
    truth = replace(GUESS, **changed)  # type: ignore[arg-type]
    result = replay(recording, [truth])
    series = {name: values[:, 0] for name, values in result.series.items()}
    return replace(recording, ttft=result.ttft[0], e2e=result.e2e[0], series=series), changed


@pytest.mark.slow
def test_a_fit_recovers_the_step_times_from_latencies() -> None:
    prefixed = read(HERE, "f_prefix", prefixes={"prefix0": 1024, "prefix1": 1024})
    recording, truth = synthetic(prefixed, step_seconds=0.026, front_seconds=0.018)
    result = fit([recording], GUESS, models=30, rounds=8)
    before, after = distances([recording], [GUESS, result])
    assert after < before / 4
    for name, value in truth.items():
        assert getattr(result, name) == pytest.approx(value, rel=0.15), name
    untouched = set(GUESS.__dataclass_fields__) - set(FITTED)
    assert all(getattr(result, name) == getattr(GUESS, name) for name in untouched)


@pytest.mark.slow
def test_the_pace_of_a_disturbed_host_is_estimated_from_its_page(ramp: Recording) -> None:
    paces = np.where((ramp.scraped_at - ramp.scraped_at[0]) // 100 % 2 == 0, 1.0, 1.5)
    result = replay(ramp, [SMALL_LLAMA], paces)
    series = {name: values[:, 0] for name, values in result.series.items()}
    read_off = pace(replace(ramp, series=series), SMALL_LLAMA)
    inside = np.abs((ramp.scraped_at - ramp.scraped_at[0]) % 100 - 50) < 35
    busy = inside & (series["running"] >= 4)
    assert np.median(np.abs(read_off[busy] / paces[busy] - 1.0)) < 0.05


def test_reading_returns_the_recorded_values(ramp: Recording) -> None:
    assert (ramp.at.size, ramp.scraped_at.size) == (681, 120)
    assert (ramp.block_size, ramp.blocks) == (128, 39)
    assert (np.diff(ramp.at) >= 0).all()
    assert not ramp.cached.any()
    prefixed = read(HERE, "f_prefix", prefixes={"prefix0": 1024, "prefix1": 1000})
    assert set(prefixed.common) == {1024.0, 896.0}  # whole blocks
    assert np.count_nonzero(prefixed.cached == 0) == 4  # two prefixes at two endpoints, each computed once
    assert ramp.shown(ramp.at[0] + np.array([0.0, 59.0, 60.0, 119.0, 120.0])).tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_missing_and_invalid_recordings_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing.requests.csv"):
        read(tmp_path, "nothing")
    rows = "kind,endpoint,start,ttft_s,e2e_s,prompt_tokens,output_tokens,status\n"
    (tmp_path / "bad.requests.csv").write_text(rows + "long,/v1,1.0,,,,,400\n")
    with pytest.raises(UsageError, match="no request reached the scheduler"):
        read(tmp_path, "bad")
    (tmp_path / "bad.requests.csv").write_text(rows + "a,/v1,1.0,0.1,0.2,5,6,200\n")
    with pytest.raises(UsageError, match=r"bad.metrics.jsonl.gz"):
        read(tmp_path, "bad")
    with gzip.open(tmp_path / "bad.metrics.jsonl.gz", "wt") as lines:
        lines.write('{"t": 1.0, "text": "vllm:num_requests_running 0.0\\n"}\n')
    with pytest.raises(UsageError, match="no page with KV-cache settings"):
        read(tmp_path, "bad")


@pytest.mark.skipif(not DATA.is_dir(), reason="no recordings here")
def test_all_recorded_loads_are_reproduced() -> None:
    for recording in read_all(DATA):
        result = replay(recording, [SMALL_LLAMA])
        for error in errors(recording, result):
            # Half of the steady load's slowest responses came while its host was busy with other work.
            bound = 0.2 if (recording.name, error.quantity) == ("b_steady", "ttft_p95") else BOUND
            assert not error.judged or abs(error.ratio or 0.0) <= bound, error
