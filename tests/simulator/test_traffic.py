from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from simulator.spec import default_spec
from simulator.traffic import Surge, Traffic, rates

SPEC = default_spec()
CHAT = SPEC.service("chat-70b")
WEDNESDAY = datetime(2026, 11, 18, tzinfo=UTC).timestamp()
DAY = WEDNESDAY + np.arange(0, 86400, 300.0)


def test_a_day_has_its_peak_in_the_afternoon_and_stays_inside_capacity() -> None:
    found = rates(CHAT, DAY, 7)
    hour = (DAY[np.argmax(found)] % 86400) / 3600
    assert 11 < hour < 18
    assert 0.55 < found.max() / CHAT.capacity_per_second() < 0.8
    assert found.min() < 0.5 * found.max()


def test_weekends_are_quieter() -> None:
    saturday = DAY + 3 * 86400
    assert rates(CHAT, saturday, 7).mean() < 0.9 * rates(CHAT, DAY, 7).mean()


def test_rates_are_a_function_of_seed_and_time_alone() -> None:
    assert np.array_equal(rates(CHAT, DAY, 7), rates(CHAT, DAY, 7))
    assert np.array_equal(rates(CHAT, DAY[100:101], 7), rates(CHAT, DAY, 7)[100:101])
    assert not np.array_equal(rates(CHAT, DAY, 7), rates(CHAT, DAY, 8))


def test_noise_is_slow() -> None:
    minutes = WEDNESDAY + 43200 + np.arange(0, 3600, 60.0)
    found = rates(CHAT, minutes, 7)
    assert np.abs(np.diff(found) / found[:-1]).max() < 0.02


def test_arrivals_follow_the_rate() -> None:
    traffic = Traffic(SPEC, 1)
    wanted = np.array([40.0, 10.0])
    drawn = [traffic.draw(WEDNESDAY + second, 1.0, wanted) for second in range(200)]
    counts = np.sum([np.bincount(arrivals.service, minlength=2) for arrivals in drawn], axis=0) / 200
    assert np.allclose(counts, wanted, rtol=0.1)
    for arrivals in drawn[:20]:
        assert (np.diff(arrivals.at) >= 0).all()
        assert (arrivals.computed >= 1).all()
        assert (arrivals.computed <= arrivals.prompt).all()
    prompts = np.concatenate([arrivals.prompt[arrivals.service == 0] for arrivals in drawn])
    assert abs(prompts.mean() / CHAT.lengths.prompt_mean - 1) < 0.1


def test_no_load_is_no_arrivals() -> None:
    assert len(Traffic(SPEC, 1).draw(WEDNESDAY, 1.0, np.zeros(2))) == 0


def test_a_surge_ramps_up_and_down() -> None:
    surge = Surge("chat-70b", 100.0, 700.0, 3.0, 60.0)
    assert surge.at(np.array([99.0, 130.0, 400.0, 670.0, 701.0])).tolist() == [1.0, 2.0, 3.0, 2.0, 1.0]
