"""Packaged scenarios are valid and can be arranged; errors in files are reported by line."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.model import EntityKind
from outrider.vocabulary.faults import faults
from simulator import scenarios
from simulator.faults import FAULTS, Truth
from simulator.faults.loader import never_a_fault
from simulator.faults.scope import scope_of
from simulator.fleet import Fleet
from simulator.scenarios import Scenario, arrange, load
from simulator.scoring.run import STORM_ENTITIES
from simulator.spec.fleets import drill_spec, standby_spec
from simulator.traffic.shapes import SHAPES
from simulator.world import World

MINUTE = timedelta(minutes=1)
START = datetime(2026, 11, 18, 12, tzinfo=UTC)
ALL = load()
MAIN_LOOKALIKES = (
    ("gpu-lost", "exporter-down"),
    ("gpu-lost", "node-lost"),
    ("gpu-slow-peer", "traffic-skew"),
    ("gpu-thermal-throttle", "gpu-power-throttle"),
    ("gpu-thermal-throttle", "traffic-surge"),
    ("pcie-degraded", "disk-slow"),
    ("ib-link-down", "network-loss"),
    ("switch-down", "ib-link-down"),
    ("node-lost", "exporter-down"),
    ("crash-loop", "bad-rollout"),
    ("engine-dead", "exporter-down"),
    ("engine-dead", "engine-starting"),
    ("engine-hung", "stale-metrics"),
    ("kv-pressure", "traffic-surge"),
    ("retry-storm", "traffic-surge"),
    ("bad-requests", "gateway-fault"),
    ("gateway-fault", "traffic-drop"),
    ("gateway-fault", "cert-or-dns"),
    ("cluster-lost", "monitor-blind"),
)


@pytest.fixture(scope="module")
def world() -> World:
    return World([Fleet(spec, seed=3, start=START) for spec in (drill_spec(), standby_spec())])


def planned(world: World, scenario: Scenario, seed: int) -> tuple[Truth, ...]:
    """Returns the ground truths of a scenario and restores the world."""
    target = world if scenario.world == "standby" else world.fleets[0]
    try:
        return arrange(target, scenario, seed)
    finally:
        for fleet in world.fleets:
            fleet.injections.clear()


def named(identity: str) -> Scenario:
    return next(scenario for scenario in ALL if scenario.id == identity)


def scenario_file(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- packaged scenarios -------------------------------------------------------------------------------


def test_there_are_enough_scenarios_of_every_type() -> None:
    events = [fault.fault for scenario in ALL for fault in scenario.faults if not FAULTS[fault.fault].negative]
    assert len(ALL) >= 80
    assert len(events) * len(scenarios.SCORING_SEEDS) >= 300
    assert sum(overlaps(scenario) for scenario in ALL) >= 15


@pytest.mark.parametrize("seed", scenarios.SCORING_SEEDS)
def test_there_are_enough_storms_for_any_seed(world: World, seed: int) -> None:
    storms = [scenario for scenario in ALL if touched(planned(world, scenario, seed)) >= STORM_ENTITIES]
    assert len(storms) >= 10
    assert sum(overlaps(scenario) for scenario in storms) >= 0.3 * len(storms)
    assert {scenario.id for scenario in ALL if scenario.storm} <= {scenario.id for scenario in storms}


def touched(truths: tuple[Truth, ...]) -> int:
    return len({entity for truth in truths if not truth.negative for entity in truth.touches})


def overlaps(scenario: Scenario) -> bool:
    real = sorted((fault for fault in scenario.faults if not FAULTS[fault.fault].negative), key=lambda one: one.after)
    return any(later.after < earlier.until for earlier, later in pairwise(real))


def test_every_fault_happens_alone_and_every_state_is_a_negative_case() -> None:
    alone = [scenario.faults[0].fault for scenario in ALL if len(scenario.faults) == 1 and not scenario.negative]
    states = Counter(fault.fault for scenario in ALL if scenario.negative for fault in scenario.faults)
    assert set(alone) == set(faults())
    assert set(states) == set(never_a_fault())
    assert min(states.values()) >= 2


def test_each_harmless_state_has_a_scenario_with_its_look_alike() -> None:
    beside = {
        (fault.fault, other.fault)
        for scenario in ALL
        for fault in scenario.faults
        for other in scenario.faults
        if not FAULTS[fault.fault].negative
    }
    for fault in ("engine-hung", "gpu-memory-leak", "traffic-drop", "prefix-cache-collapse"):
        states = [word for word in faults()[fault].confusable if word in never_a_fault()]
        assert states
        assert any((fault, state) in beside for state in states), fault


def test_the_main_lookalikes_meet_in_a_scenario() -> None:
    met = {frozenset((one.fault, other.fault)) for scenario in ALL for one, other in combinations(scenario.faults, 2)}
    assert [pair for pair in MAIN_LOOKALIKES if frozenset(pair) not in met] == []


def test_a_scenario_loses_a_cluster_with_a_standby() -> None:
    lost = [scenario for scenario in ALL if any(fault.fault == "cluster-lost" for fault in scenario.faults)]
    assert len(lost) >= 2
    assert {scenario.world for scenario in lost} == {"standby"}


def test_scoring_sees_no_seed_and_no_load_of_tuning() -> None:
    assert not set(scenarios.TUNING_SHAPES) & set(scenarios.SCORING_SHAPES)
    assert {*scenarios.TUNING_SHAPES, *scenarios.SCORING_SHAPES} <= set(SHAPES)
    assert {scenario.load for scenario in ALL} == set(scenarios.SCORING_SHAPES)
    assert not set(scenarios.SCORING_SEEDS) & set(scenarios.TUNING_SEEDS)


def test_a_full_score_fits_into_its_time() -> None:
    assert max(scenario.minutes for scenario in ALL) <= 30
    # 4 cycles per minute of 0.1 s each on 2 cores, in under 8.5 of the 10 minutes.
    assert sum(scenario.minutes for scenario in ALL) * 4 * 0.1 / 2 < 8.5 * 60


def test_the_aftermath_of_ten_outages_is_observed_for_a_quarter_of_an_hour() -> None:
    long = [scenario for scenario in ALL if scenario.watch >= timedelta(minutes=15)]
    assert len(long) >= 10
    assert all(scenario.minutes * MINUTE >= last_end(scenario) + 15 * MINUTE for scenario in long)
    followed = [scenario for scenario in long if len(scenario.faults) > 1]
    assert followed, "a new fault during the aftermath of another one"


def last_end(scenario: Scenario) -> timedelta:
    return max(fault.until for fault in scenario.faults)


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.id)
def test_it_can_be_arranged_with_well_formed_truths(world: World, scenario: Scenario) -> None:
    chosen = []
    for seed in scenarios.SCORING_SEEDS[:2]:
        truths = planned(world, scenario, seed)
        assert planned(world, scenario, seed) == truths
        assert [truth.fault for truth in truths] == [fault.fault for fault in scenario.faults]
        for truth, one in zip(truths, scenario.faults, strict=True):
            wanted = FAULTS[one.fault].kind if truth.negative else faults()[truth.fault].entity
            assert truth.entity.kind is wanted
            assert truth.entity.cluster == world.fleets[one.cluster == "standby"].spec.cluster
            assert truth.entity in truth.touches
            assert (truth.start - START, truth.end - START) == (one.after, one.until)
            assert one.until <= timedelta(minutes=scenario.minutes)
            assert truth.negative is FAULTS[truth.fault].negative
            assert truth.symptoms
        chosen.append(tuple(truth.entity for truth in truths))
    assert scenario.negative == all(truth.negative for truth in truths)


def test_another_seed_chooses_other_entities(world: World) -> None:
    scenario = named("gpu-lost")
    assert len({planned(world, scenario, seed)[0].entity for seed in range(8)}) > 3


# --- words for entities -------------------------------------------------------------------------------


def test_words_select_matching_entities(world: World) -> None:
    fleet = world.fleets[0]
    for seed in range(6):
        hung, beside = planned(world, named("hung-beside-idle"), seed)
        assert hung.entity != beside.entity
        assert set(scope_of(fleet, hung.entity).services) == set(scope_of(fleet, beside.entity).services)
        first, second = planned(world, named("two-engines-dead-of-one-service"), seed)
        assert not set(scope_of(fleet, first.entity).nodes) & set(scope_of(fleet, second.entity).nodes)
        drop = planned(world, named("drop-beside-holiday"), seed)
        assert drop[0].entity != drop[1].entity
        hot = planned(world, named("hot-then-power-limited"), seed)
        assert hot[0].entity == hot[1].entity
        assert planned(world, named("saturated-service"), seed)[0].entity.name == "chat-70b"
        assert planned(world, named("saturated-smaller-service"), seed)[0].entity.name == "code-14b"


def test_same_selects_a_dependent_if_kinds_differ(world: World, tmp_path: Path) -> None:
    text = (
        "scenarios:\n- {id: one, faults: [{fault: gpu-thermal-throttle}, {fault: engine-hung, entity: same}]}\n"
        "- {id: two, faults: [{fault: gpu-thermal-throttle}, {fault: engine-hung, entity: same-node}]}\n"
    )
    fleet = world.fleets[0]
    one, two = load([scenario_file(tmp_path, text)])
    for seed in range(4):
        gpu, replica = planned(world, one, seed)
        assert set(scope_of(fleet, gpu.entity).slots) == set(scope_of(fleet, replica.entity).slots)
        gpu, replica = planned(world, two, seed)
        assert set(scope_of(fleet, gpu.entity).nodes) == set(scope_of(fleet, replica.entity).nodes)


def test_a_name_selects_that_entity(world: World, tmp_path: Path) -> None:
    text = "scenarios:\n- {id: one, faults: [{fault: engine-hung, entity: chat-70b-3, after: 0s, lasts: 90s}]}\n"
    (scenario,) = load([scenario_file(tmp_path, text)])
    (truth,) = planned(world, scenario, 1)
    assert truth.entity.kind is EntityKind.REPLICA
    assert truth.entity.name == "chat-70b-3"
    assert (scenario.load, scenario.minutes, scenario.faults[0].until) == ("weekly", 5, timedelta(seconds=90))


# --- errors -------------------------------------------------------------------------------------------

HEAD = "# mine\nscenarios:\n  - id: one\n"
TWICE = """    faults:
    - {fault: engine-hung, entity: chat-70b-1}
    - {fault: engine-hung, entity: chat-70b-1, after: 6m}
"""


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("    faults: [{fault: gpu-lots}]\n", 4, "scenarios[0].faults[0].fault", 'did you mean "gpu-lost"'),
        ("    load: 0\n    faults: [{fault: gpu-lost}]\n", 4, "scenarios[0].load", "a zero load"),
        ("    load: weakly\n    faults: [{fault: gpu-lost}]\n", 4, "scenarios[0].load", 'did you mean "weekly"'),
        ("    load: trace\n    faults: [{fault: gpu-lost}]\n", 4, "scenarios[0].load", "unknown load shape"),
        ("    faults:\n    - {fault: gpu-lost, lasts: 3 min}\n", 5, "scenarios[0].faults[0].lasts", "no"),
        ("    faults:\n    - {fault: gpu-lost, lasts: 0s}\n", 5, "scenarios[0].faults[0].lasts", "longer than 0s"),
        ("    faults:\n    - {fault: gpu-lost, lost: 1m}\n", 5, "scenarios[0].faults[0].lost", 'did you mean "lasts"'),
        ("    watch: 2m\n    faults: [{fault: gpu-lost}]\n", 4, "scenarios[0].watch", "3m or longer"),
        ("    faults: []\n", 4, "scenarios[0].faults", "one or more faults"),
        ("    faults: [{fault: engine-idle}]\n", 4, "scenarios[0].faults", "negative: true"),
        ("    faults: [{fault: gpu-lost}]\n    negative: true\n", 5, "scenarios[0].negative", "never_a_fault"),
        ("    faults: [{fault: gpu-lost}]\n    storm: maybe\n", 5, "scenarios[0].storm", "true or false"),
        ("    faults: [{fault: gpu-lost}]\n    world: two\n", 5, "scenarios[0].world", "single or standby"),
        ("    faults:\n    - {fault: gpu-lost, cluster: standby}\n", 5, "scenarios[0].faults[0].cluster", "no standby"),
        (
            TWICE,
            6,
            "scenarios[0].faults[1].entity",
            "overlaps the one in line 5",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, text: str, line: int, key: str, message: str) -> None:
    path = scenario_file(tmp_path, HEAD + text)
    with pytest.raises(ConfigError) as caught:
        load([path])
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (str(path), line, key)
    assert message in problem.message


def test_all_mistakes_are_reported_in_order_of_lines(tmp_path: Path) -> None:
    text = "scenarios:\n- {id: One, faults: [{fault: gpu-lost}]}\n- 7\n- {id: a, faults: [{fault: no}], load: x}\n"
    with pytest.raises(ConfigError) as caught:
        load([scenario_file(tmp_path, text)])
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4, 4]


def test_ids_are_unique_and_a_file_has_scenarios(tmp_path: Path) -> None:
    twice = "scenarios:\n- {id: a, faults: [{fault: gpu-lost}]}\n- {id: a, faults: [{fault: gpu-lost}]}\n"
    with pytest.raises(ConfigError, match=r"mine\.yaml:3: scenarios\[1\]\.id: 'a' is already used"):
        load([scenario_file(tmp_path, twice)])
    for text in ("", "scenario: []\n", "scenarios: {}\n"):
        with pytest.raises(ConfigError, match="expected the key scenarios"):
            load([scenario_file(tmp_path, text)])
    with pytest.raises(ConfigError, match="does not exist"):
        load([tmp_path / "none.yaml"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{fault: engine-hung, entity: chat-7b-1}", "no replica 'chat-7b-1'"),
        ("{fault: engine-hung, entity: serving near-node}", "unknown word 'near-node'"),
        ("{fault: nvlink-degraded, entity: same-node other-node}", "no gpu that is same-node and other-node"),
    ],
)
def test_errors_found_on_a_world_are_reported_with_their_line(
    world: World, tmp_path: Path, fault: str, message: str
) -> None:
    one = "scenarios:\n- id: one\n  faults:\n  - {fault: engine-hung, entity: chat-70b-0}\n"
    (scenario,) = load([scenario_file(tmp_path, f"{one}  - {fault}\n")])
    with pytest.raises(ConfigError) as caught:
        arrange(world, scenario, 3)
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (5, "scenarios[0].faults[1].entity")
    assert message in problem.message
    assert not world.fleets[0].injections


def test_a_conflict_with_another_fault_is_reported_with_the_reason(world: World, tmp_path: Path) -> None:
    twice = "scenarios:\n- id: one\n  faults:\n  - {fault: monitor-blind}\n  - {fault: monitor-blind, after: 6m}\n"
    (scenario,) = load([scenario_file(tmp_path, twice)])
    with pytest.raises(ConfigError, match=r":5: scenarios\[0\].faults\[1\].fault: .*already has monitor-blind"):
        arrange(world, scenario, 3)


def test_a_scenario_with_a_standby_needs_a_world_of_two(world: World) -> None:
    with pytest.raises(ConfigError, match="has no standby cluster"):
        arrange(world.fleets[0], named("cluster-lost-with-a-short-standby"), 3)
    assert not world.fleets[0].injections
