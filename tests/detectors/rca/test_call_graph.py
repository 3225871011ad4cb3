from __future__ import annotations

import numpy as np
import pytest

from detectors.rca.call_excess import Calls, Symptom, quantile
from detectors.rca.call_graph import CallGraph, Ranking, rank
from outrider.model import NoVerdict, NoVerdictReason

# web calls cart and search; both call db through a proxy, cart also calls mail. Nobody calls batch.
WEB, CART, SEARCH, PROXY, DB, MAIL, BATCH = range(7)
SHOP = CallGraph.of(
    7, [(WEB, CART), (WEB, SEARCH), (CART, PROXY), (SEARCH, PROXY), (PROXY, DB), (CART, MAIL), (BATCH, DB)]
)
REQUESTS = np.array([200.0, 60, 140, 200, 260, 20, 60])
LATENCY = np.array([0.20, 0.12, 0.08, 0.03, 0.025, 0.04, 0.3])


def quiet(steps=200, seed=1, noise=0.03):
    """A window without a fault: noise on counts and latency, and 0.1 % failed requests."""
    random = np.random.default_rng(seed)
    requests = random.poisson(REQUESTS[:, None], (REQUESTS.size, steps)).astype(float)
    latency = LATENCY[:, None] * np.exp(random.normal(0, noise, requests.shape))
    failed = random.binomial(requests.astype(int), 0.001)
    return Calls(requests, latency, 1.0 - failed / np.maximum(requests, 1))


def slower(calls, **extra):
    """The window with seconds added to the latency of services, by name."""
    latency = calls.latency_seconds.copy()
    for name, seconds in extra.items():
        latency[globals()[name]] += seconds
    return Calls(calls.requests, latency, calls.success_ratio)


def failing(calls, **shares):
    success = calls.success_ratio.copy()
    for name, share in shares.items():
        success[globals()[name]] -= share
    return Calls(calls.requests, calls.latency_seconds, success)


def order(ranking):
    assert isinstance(ranking, Ranking)
    return [suspect.entity for suspect in ranking.suspects]


def test_a_slow_service_is_named_before_its_callers():
    # db +0.1 s: 26 s a step, of which web's requests wait 20 s
    incident = slower(quiet(4, seed=2), DB=0.1, PROXY=0.1, CART=0.1, SEARCH=0.1, WEB=0.1, BATCH=0.1)
    ranking = rank(SHOP, quiet(), incident, WEB, Symptom.LATENCY)
    assert order(ranking)[0] == DB
    assert ranking.suspects[0].confidence > 0.5
    assert ranking.observed == pytest.approx(80, rel=0.2)
    assert ranking.observed > 5 * ranking.usual
    assert BATCH not in order(ranking)  # it waits for db too, but has no callers


def test_the_confidences_are_shares_of_one():
    incident = slower(quiet(4, seed=3), SEARCH=0.2, WEB=0.14)
    suspects = rank(SHOP, quiet(), incident, WEB, Symptom.LATENCY).suspects
    assert [one.entity for one in suspects][:2] == [SEARCH, WEB]
    assert sum(one.confidence for one in suspects) == pytest.approx(1.0, abs=1e-4)
    assert [one.confidence for one in suspects] == sorted((one.confidence for one in suspects), reverse=True)


def test_latency_of_the_target_itself_names_the_target():
    ranking = rank(SHOP, quiet(), slower(quiet(4, seed=4), WEB=0.3), WEB, Symptom.LATENCY)
    assert order(ranking)[0] == WEB
    assert ranking.suspects[0].confidence > 0.8


def test_failures_are_followed_to_the_service_that_fails_first_in_the_chain():
    incident = failing(quiet(4, seed=5), DB=0.2, PROXY=0.2, CART=0.2, SEARCH=0.2, WEB=0.2)
    ranking = rank(SHOP, quiet(), incident, WEB, Symptom.FAILURES)
    assert order(ranking)[0] == DB


def test_a_proxy_that_sees_few_of_the_calls_does_not_outrank_the_service_behind_it():
    graph = CallGraph.of(3, [(0, 1), (0, 2)])  # 1 is a load balancer in front of 2: no noise, a tenth of the calls
    requests = np.repeat([[300.0], [30.0], [300.0]], 50, axis=1)
    latency = np.repeat([[0.2], [0.0501], [0.05]], 50, axis=1)
    latency[2] *= np.exp(np.random.default_rng(0).normal(0, 0.3, 50))
    normal = Calls(requests, latency, np.ones_like(requests))
    slow = latency[:, :4] + np.array([[0.3], [0.3], [0.3]])
    ranking = rank(graph, normal, Calls(requests[:, :4], slow, np.ones((3, 4))), 0, Symptom.LATENCY)
    assert order(ranking)[0] == 2


def behind_a_balancer(graph, share_behind):
    """0 calls 2 through the load balancer 1, and 2 calls 3. Only a share of 2's calls is traced."""
    requests = np.array([[300.0], [270.0], [300.0 * share_behind], [300.0 * share_behind]]).repeat(50, axis=1)
    latency = np.array([[0.2], [0.051], [0.05], [0.01]]).repeat(50, axis=1)
    normal = Calls(requests, latency, np.ones_like(requests))
    slow = latency[:, :4] + np.array([[0.27], [0.3], [0.3], [0.0]])
    incident = Calls(requests[:, :4], slow, np.ones((4, 4)))
    return rank(graph, normal, incident, 0, Symptom.LATENCY)


def test_a_leaf_that_mirrors_a_traced_service_beside_it_is_taken_for_its_proxy():
    graph = CallGraph.of(4, [(0, 1), (0, 2), (2, 3)])
    assert order(behind_a_balancer(graph, share_behind=0.1))[:2] == [2, 1]


def test_a_caller_of_a_slow_leaf_is_not_taken_for_its_backend():
    graph = CallGraph.of(4, [(0, 1), (0, 2), (2, 3), (3, 1)])
    assert order(behind_a_balancer(graph, share_behind=0.1))[0] == 1


def test_two_causes_both_come_before_the_target():
    # cart fails a third of its calls, search a seventh: twenty failures a step of either
    incident = failing(quiet(6, seed=6), CART=1 / 3, SEARCH=1 / 7, WEB=0.2)
    assert set(order(rank(SHOP, quiet(), incident, WEB, Symptom.FAILURES))[:2]) == {CART, SEARCH}


def test_slow_callees_explain_failures_of_their_caller():
    # web gives up on search: 30 failures a step, while search's calls wait 0.5 s longer
    incident = failing(slower(quiet(4, seed=7), SEARCH=0.5), WEB=0.15)
    assert order(rank(SHOP, quiet(), incident, WEB, Symptom.FAILURES))[0] == SEARCH


def test_failing_callees_explain_latency_of_their_caller():
    incident = slower(failing(quiet(4, seed=8), MAIL=0.9), CART=0.3)
    assert order(rank(SHOP, quiet(), incident, CART, Symptom.LATENCY))[0] == MAIL


def test_missing_requests_are_followed_to_the_callers():
    calls = quiet(4, seed=9)
    requests = calls.requests.copy()
    requests[[WEB, SEARCH, PROXY, DB]] *= 0.4
    incident = Calls(requests, calls.latency_seconds, calls.success_ratio)
    assert order(rank(SHOP, quiet(), incident, DB, Symptom.REQUESTS))[0] == WEB


def test_a_service_that_stops_calling_is_named_by_its_failures():
    calls = failing(quiet(4, seed=10), CART=1.0)
    requests = calls.requests.copy()
    requests[MAIL] = 0.0  # cart fails before it sends any mail
    incident = Calls(requests, calls.latency_seconds, calls.success_ratio)
    assert order(rank(SHOP, quiet(), incident, MAIL, Symptom.REQUESTS))[0] == CART


def test_failures_of_a_newly_called_dependency_name_the_caller():
    normal = quiet()
    for values in (normal.latency_seconds, normal.success_ratio):
        values[MAIL] = np.nan
    normal.requests[MAIL] = 0.0
    incident = failing(quiet(4, seed=11), MAIL=0.99, CART=0.3, WEB=0.09)
    assert order(rank(SHOP, normal, incident, WEB, Symptom.FAILURES))[0] == CART


def test_a_cycle_of_calls_ends():
    ring = CallGraph.of(4, [(0, 1), (1, 2), (2, 1), (2, 3), (3, 0)])
    requests = np.full((4, 30), 100.0)
    normal = Calls(requests, np.full((4, 30), 0.1), np.ones((4, 30)))
    incident = Calls(requests[:, :3], np.full((4, 3), 0.6), np.ones((4, 3)))
    ranking = rank(ring, normal, incident, 0, Symptom.LATENCY)
    assert sum(suspect.confidence for suspect in ranking.suspects) == pytest.approx(1.0, abs=1e-3)


def test_a_missing_link_leaves_the_cause_second():
    without = CallGraph.of(7, [(WEB, CART), (WEB, SEARCH), (CART, PROXY), (SEARCH, PROXY), (CART, MAIL)])
    incident = slower(quiet(4, seed=12), DB=0.1, PROXY=0.1, CART=0.1, SEARCH=0.1, WEB=0.1)
    assert order(rank(without, quiet(), incident, WEB, Symptom.LATENCY))[:2] == [PROXY, DB]


def test_callers_off_the_path_are_not_unlinked_causes():
    incident = slower(quiet(4, seed=13), SEARCH=0.5, WEB=0.35)
    caller_of_search = CallGraph.of(7, [(WEB, SEARCH), (BATCH, SEARCH)])
    slow_batch = slower(incident, BATCH=0.5)
    assert BATCH not in order(rank(caller_of_search, quiet(), slow_batch, WEB, Symptom.LATENCY))


def test_unknown_values_cost_only_their_own_steps():
    incident = slower(quiet(6, seed=14), DB=0.1, PROXY=0.1, CART=0.1, SEARCH=0.1, WEB=0.1)
    incident.latency_seconds[DB, ::2] = np.nan
    incident.latency_seconds[SEARCH, 1] = np.inf
    incident.requests[PROXY, 3] = np.nan
    normal = quiet()
    normal.latency_seconds[:, ::7] = np.nan
    assert order(rank(SHOP, normal, incident, WEB, Symptom.LATENCY))[0] == DB


def test_a_level_that_had_moved_before_is_not_part_of_the_incident():
    moved = slower(quiet(6, seed=15), MAIL=2.0)  # long before; mail's 20 calls a step wait 40 s more
    incident = slower(moved, SEARCH=0.3, CART=0.3, WEB=0.25)
    before = slower(quiet(2, seed=16), MAIL=2.0)
    with_before = rank(SHOP, quiet(), incident, WEB, Symptom.LATENCY, before)
    without = rank(SHOP, quiet(), incident, WEB, Symptom.LATENCY)
    share = {name: {one.entity: one.confidence for one in ranking.suspects}.get(MAIL, 0.0)
             for name, ranking in (("with", with_before), ("without", without))}  # fmt: skip
    assert share["without"] > 0.05 > share["with"]


def test_an_incident_that_had_begun_before_is_not_subtracted():
    incident = slower(quiet(4, seed=17), SEARCH=0.5, WEB=0.35)
    assert order(rank(SHOP, quiet(), incident, WEB, Symptom.LATENCY, before=incident))[0] == SEARCH


def test_lower_latency_than_the_baseline_is_not_a_fault():
    ranking = rank(SHOP, quiet(), slower(quiet(4, seed=18), WEB=-0.1), WEB, Symptom.LATENCY)
    assert ranking == Ranking((), 0.0, ranking.usual)


def test_constant_series_and_one_entity():
    alone = CallGraph.of(1, [])
    flat = np.full((1, 10), 5.0)
    normal = Calls(flat, flat, np.ones((1, 10)))
    assert rank(alone, normal, normal, 0, Symptom.LATENCY) == Ranking((), 0.0, 0.0)
    slow = Calls(flat, flat + 1, np.ones((1, 10)))
    ranking = rank(alone, normal, slow, 0, Symptom.LATENCY)
    assert (order(ranking), ranking.observed) == ([0], 50.0)
    assert ranking.suspects[0].confidence == pytest.approx(1.0)


def test_missing_values_or_baseline_give_no_verdict():
    normal, incident = quiet(), quiet(3, seed=19)
    blind = Calls(incident.requests, np.full_like(incident.requests, np.nan), incident.success_ratio)
    never = Calls(np.zeros_like(normal.requests), normal.latency_seconds, normal.success_ratio)
    none = Calls(*(np.zeros((7, 0)) for _ in range(3)))
    assert rank(SHOP, normal, blind, WEB, Symptom.LATENCY) == NoVerdict("callgraph", None, NoVerdictReason.NO_VALUES)
    assert rank(SHOP, normal, none, WEB, Symptom.LATENCY) == NoVerdict("callgraph", None, NoVerdictReason.NO_VALUES)
    for without in (never, none):
        verdict = rank(SHOP, without, incident, WEB, Symptom.LATENCY)
        assert verdict == NoVerdict("callgraph", None, NoVerdictReason.NO_EXPECTATION)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_counts_in_another_unit_change_no_confidence(unit):
    def counted(calls):
        return Calls(calls.requests * unit, calls.latency_seconds, calls.success_ratio)

    incident = slower(quiet(4, seed=20), SEARCH=0.2, WEB=0.14)
    usual = rank(SHOP, quiet(), incident, WEB, Symptom.LATENCY)
    other = rank(SHOP, counted(quiet()), counted(incident), WEB, Symptom.LATENCY)
    assert order(other) == order(usual)
    for one, same in zip(other.suspects, usual.suspects, strict=True):
        assert one.confidence == pytest.approx(same.confidence)


def test_mismatched_windows_and_unknown_entities_are_rejected():
    with pytest.raises(ValueError, match="7 entities"):
        rank(SHOP, quiet(), Calls(*(np.ones((3, 4)) for _ in range(3))), WEB, Symptom.LATENCY)
    with pytest.raises(ValueError, match="7 entities"):
        rank(SHOP, quiet(), quiet(4), 7, Symptom.LATENCY)
    with pytest.raises(ValueError, match="entity 3 of 3"):
        CallGraph.of(3, [(0, 3)])
    with pytest.raises(ValueError, match="the same shape"):
        Calls(np.ones((3, 4)), np.ones((3, 5)), np.ones((3, 4)))


def test_self_calls_and_duplicates_are_dropped():
    graph = CallGraph.of(3, [(0, 0), (0, 1), (0, 1), (1, 2)])
    assert list(zip(graph.caller.tolist(), graph.callee.tolist(), strict=True)) == [(0, 1), (1, 2)]


def test_quantiles_of_known_values_only():
    values = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan] * 4, [5.0, np.nan, np.nan, np.nan]])
    assert quantile(values, 0.5).tolist()[0] == 2.0
    assert np.isnan(quantile(values, 0.5)[1])
    assert quantile(values, 0.9)[2] == 5.0
    assert quantile(values, 0.25)[0] == 1.5
