from __future__ import annotations

import numpy as np
import pytest

from detectors.engine.invalid_output_source import UNKNOWN, source

SCRAPES, REPLICAS = 24, 6


@pytest.fixture
def answered():
    return np.random.default_rng(7).poisson(30.0, (REPLICAS, SCRAPES)).astype(float)


def invalid(answered, shares, seed=1):
    """Ratio of invalid answers per scrape if each replica returns its own ratio of them."""
    random = np.random.default_rng(seed)
    spoilt = random.binomial(np.nan_to_num(answered).astype(int), np.array(shares)[:, None]).sum(axis=0)
    return spoilt / np.nansum(answered, axis=0)


@pytest.mark.parametrize("ill", range(REPLICAS))
def test_the_replica_correlated_with_invalid_output_is_the_source(answered, ill):
    shares = np.zeros(REPLICAS)
    shares[ill] = 0.7
    result = source(invalid(answered, shares), answered)
    assert result.replica == ill
    assert not result.evenly
    assert result.share == pytest.approx(0.7, abs=0.1)


def test_invalid_output_of_all_replicas_has_no_single_source(answered):
    result = source(invalid(answered, [0.3] * REPLICAS), answered)
    assert result.replica is None
    assert result.evenly


def test_an_idle_period_of_a_replica_identifies_the_source(answered):
    answered[2, 10:] = 0.0
    result = source(invalid(answered, [0.0, 0.0, 0.2, 0.0, 0.0, 0.0]), answered)
    assert result.replica == 2


@pytest.mark.parametrize("seed", range(20))
def test_chance_correlation_names_no_replica(seed):
    random = np.random.default_rng(seed)
    few = random.poisson(8.0, (REPLICAS, SCRAPES)).astype(float)
    assert source(invalid(few, [0.05] * REPLICAS, seed), few).replica is None


def test_even_routing_gives_no_verdict():
    steady = np.full((REPLICAS, SCRAPES), 30.0)
    assert source(np.full(SCRAPES, 0.1), steady) == UNKNOWN


def test_more_invalid_answers_than_a_replica_returned_have_another_source(answered):
    result = source(3.0 * answered[0] / answered.sum(axis=0), answered)
    assert result.replica is None


@pytest.mark.parametrize("known", [0, 7])
def test_a_few_scrapes_give_no_verdict(answered, known):
    ratio = invalid(answered, [0.7, 0.0, 0.0, 0.0, 0.0, 0.0])
    ratio[known:] = np.nan
    assert source(ratio, answered) == UNKNOWN


def test_one_replica_alone_is_not_separated_from_its_service(answered):
    assert source(invalid(answered[:1], [0.5]), answered[:1]) == UNKNOWN


def test_unknown_values_drop_only_their_scrapes(answered):
    ratio = invalid(answered, [0.0, 0.8, 0.0, 0.0, 0.0, 0.0])
    ratio[::4] = np.nan
    answered[:, 1] = np.nan
    assert source(ratio, answered).replica == 1
