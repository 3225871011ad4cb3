"""Drills on private platforms: injected faults are detected, reported and remediated."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.fleet import rival_detectors
from outrider.errors import UsageError
from outrider.model import EntityKind
from outrider.vocabulary.faults import faults
from service.drills import commands, dataset, runner, scenario_choice
from service.drills.private_platform import PrivatePlatform, open_platform
from service.drills.recording import RecordedRun, Recorder
from simulator import scenarios
from simulator.engine.counters import TTFT_BOUNDS
from simulator.fleet import Fleet
from simulator.scenarios import PlannedFault, Scenario
from simulator.spec.fleets import drill_spec
from simulator.traffic.arrivals import load_of
from simulator.traffic.shapes import Load
from simulator.world import World

MINUTE = timedelta(minutes=1)
LATE_SECONDS = 2.5  # TTFT
MIN_DIFFERENCE = 0.15  # share of the rate, or of the shifted traffic


def short(*names: str, lasts: timedelta = 4 * MINUTE) -> Scenario:
    return Scenario("short", tuple(PlannedFault(name, MINUTE, lasts) for name in names))


@pytest.fixture(scope="module")
def hung() -> tuple[runner.Run, RecordedRun]:
    recorder = Recorder()
    run = runner.run(runner.Job(short("engine-hung"), 7), recorder=recorder)
    return run, recorder.recorded()


@pytest.mark.slow
def test_a_hung_engine_is_detected_named_notified_and_remediated(hung) -> None:
    result = commands.result(short("engine-hung"), hung[0], 7)
    assert set(result) >= {
        *("fault", "seed", "detected", "detect_seconds", "named_entity_correct", "named_fault_correct"),
        *("notified", "remediated", "recover_seconds", "pages", "false_pages"),
    }
    assert result["detected"]
    assert result["named_entity_correct"]
    assert result["named_fault_correct"]
    assert result["notified"]
    assert result["remediated"]
    assert result["false_pages"] == 0
    assert 0 < result["detect_seconds"] <= 90


@pytest.mark.slow
def test_the_input_of_the_platform_never_contains_the_fault(hung) -> None:
    _, recorded = hung
    events = json.dumps([[event.code, *map(str, event.attributes.values())] for event in recorded.events])
    assert not any(fault in events for fault in faults())
    for matrix in recorded.matrices.values():
        assert not any(fault in entity.name for entity in matrix.entities for fault in faults())


@pytest.mark.slow
def test_a_negative_scenario_passes_without_a_page() -> None:
    scenario = Scenario("quiet", (PlannedFault("engine-idle", MINUTE, 4 * MINUTE),), negative=True)
    result = commands.result(scenario, runner.run(runner.Job(scenario, 7)), 7)
    assert result["negative"]
    assert (result["passed"], result["pages"], result["notified"]) == (True, 0, False)
    assert result["truth"]["fault"] is None


@pytest.mark.slow
def test_an_interrupted_drill_restores_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[World] = []

    def spy(world: World, **more: object) -> PrivatePlatform:
        worlds.append(world)
        return open_platform(world, **more)  # type: ignore[arg-type]

    def interrupted(share: float) -> None:
        if share > 0.4:
            assert worlds[0].home.injections
            raise KeyboardInterrupt

    monkeypatch.setattr(runner, "open_platform", spy)
    with pytest.raises(KeyboardInterrupt):
        runner.run(runner.Job(short("gpu-thermal-throttle"), 7), interrupted)
    fleet = worlds[0].home
    assert not fleet.injections
    for table in fleet.effects.tables().values():
        for effects, neutral in table.NEUTRAL.items():
            assert (getattr(table, effects) == neutral).all(), effects


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(hung) -> None:
    again = runner.run(runner.Job(short("engine-hung"), 7))
    first = hung[0]
    assert [fault.entity for fault in again.injected] == [fault.entity for fault in first.injected]
    assert [(incident.opened_at, incident.hypotheses) for incident in again.incidents] == [
        (incident.opened_at, incident.hypotheses) for incident in first.incidents
    ]


def test_an_unknown_name_is_an_error_with_close_matches() -> None:
    assert scenario_choice.find("gpu-lost").faults[0].fault == "gpu-lost"
    assert scenario_choice.find("gpu-lost", "bursty").load == "bursty"
    with pytest.raises(UsageError, match="gpu-lots") as refused:
        scenario_choice.find("gpu-lots")
    assert "gpu-lost" in refused.value.hint
    with pytest.raises(UsageError, match="no load shape") as refused:
        scenario_choice.find("gpu-lost", "weakly")
    assert "weekly" in refused.value.hint


def test_hints_have_no_duplicates_and_the_number_of_scenarios() -> None:
    with pytest.raises(UsageError) as refused:
        scenario_choice.find("gpu-lots")
    named = refused.value.hint.removeprefix("did you mean ").removesuffix("?").split(" or ")
    assert len(set(named)) == len(named)
    with pytest.raises(UsageError) as refused:
        scenario_choice.find("zzzzzzzzzz")
    assert refused.value.hint == f"outrider drill list shows all {len(commands.list_scenarios())}"
    with pytest.raises(UsageError) as refused:
        scenario_choice.find("gpu-lost", "zzzzzzzzzz")
    assert all(shape in refused.value.hint for shape in scenarios.SCORING_SHAPES)
    for zero in ("0", "0.0"):
        with pytest.raises(UsageError, match="a load of zero"):
            scenario_choice.find("gpu-lost", zero)


def test_a_repeated_scenario_runs_once() -> None:
    assert [scenario.id for scenario in scenario_choice.select(["gpu-lost", "engine-hung", "gpu-lost"])] == [
        "gpu-lost",
        "engine-hung",
    ]


def test_every_fault_has_a_drill() -> None:
    names = {row["id"] for row in commands.list_scenarios()}
    assert len(names) >= 80
    for fault in faults():
        assert scenario_choice.find(fault).faults[0].fault == fault
    for row in commands.list_scenarios():
        assert set(row) >= {"id", "faults", "negative"}


def test_the_load_of_a_scenario_reaches_the_fleet() -> None:
    (spec,) = runner.specs_of(Scenario("s", (PlannedFault("gpu-lost", MINUTE, MINUTE),), load="bursty"), 11)
    assert {service.traffic.shape for service in spec.services} == {"bursty"}
    assert {service.traffic.event_at for service in spec.services} == {runner.start_of(11).timestamp() + 120}


def loads(shape: str, seed: int, minutes: int) -> list[Load]:
    """Returns the load of each service during a drill."""
    (spec,) = runner.specs_of(Scenario("s", (PlannedFault("gpu-lost", MINUTE, MINUTE),), load=shape), seed)
    times = runner.start_of(seed).timestamp() + np.arange(0, minutes * 60, 15.0)
    return [load_of(service, times, seed) for service in spec.services]


def apart(one: Load, other: Load) -> float:
    """Largest difference of two loads: in rate, or in the share of the mix."""
    rate = np.abs(one.rate / other.rate - 1).max()
    return float(max(rate, np.abs(one.shift - other.shift).max()))


@pytest.mark.parametrize("seed", scenarios.SCORING_SEEDS)
def test_no_scenario_has_a_load_shape_of_tuning(seed: int) -> None:
    for shape, minutes in {(scenario.load, scenario.minutes) for scenario in scenario_choice.scenarios()}:
        scored = loads(shape, seed, minutes)
        for tuned in scenarios.TUNING_SHAPES:
            most = max(apart(*pair) for pair in zip(scored, loads(tuned, seed, minutes), strict=True))
            assert most >= MIN_DIFFERENCE, (shape, minutes, tuned)


@pytest.mark.slow
@pytest.mark.parametrize("shape", scenarios.SCORING_SHAPES)
def test_a_fleet_without_a_fault_serves_the_load_of_a_drill(shape: str) -> None:
    seed = max(scenarios.SCORING_SEEDS, key=lambda seed: sum(load.rate.max() for load in loads("diurnal", seed, 1)))
    (spec,) = runner.specs_of(Scenario("s", (PlannedFault("gpu-lost", MINUTE, MINUTE),), load=shape), seed)
    fleet = Fleet(spec, seed=seed, start=runner.start_of(seed))
    before = fleet.bank.counters.buckets["ttft"].sum(axis=0).copy()
    fleet.step(15 * MINUTE)
    answered = fleet.bank.counters.buckets["ttft"].sum(axis=0) - before
    late = answered[np.searchsorted(TTFT_BOUNDS, LATE_SECONDS) + 1 :].sum() / answered.sum()
    assert late < 0.01
    assert fleet.traffic.edge.answered_5xx.sum() == 0


def worst_late_ratio(scenario: Scenario, seed: int) -> float:
    """Returns the highest share of late first tokens in five minutes of a scenario, over all services."""
    (spec,) = runner.specs_of(scenario, seed)
    fleet = Fleet(spec, seed=seed, start=runner.start_of(seed))
    world = World([fleet])
    scenarios.arrange(world, scenario, seed)
    total, late = [], []
    for _ in range(scenario.minutes):
        world.step(MINUTE)
        buckets = fleet.bank.counters.buckets["ttft"]
        of_service = [buckets[fleet.pods.service_of_slot == number] for number in range(len(spec.services))]
        total.append([slots.sum() for slots in of_service])
        late.append([slots[:, np.searchsorted(TTFT_BOUNDS, LATE_SECONDS) + 1 :].sum() for slots in of_service])
    world.restore()
    answered, lates = (np.asarray(counts[5:]) - np.asarray(counts[:-5]) for counts in (total, late))
    return float((lates / np.maximum(answered, 1)).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["idle-replica-of-the-smaller-service", "saturated-service", "scaled-in", "counters-begin-anew"]
)
def test_nobody_waits_too_long_in_a_negative_scenario_at_the_peak_of_the_day(name: str) -> None:
    seed = max(scenarios.TUNING_SEEDS, key=lambda seed: sum(load.rate.max() for load in loads("diurnal", seed, 1)))
    scenario = scenario_choice.find(name)
    assert scenario.negative
    assert worst_late_ratio(scenario, seed) < 0.01


def test_drills_start_on_weekdays_and_weekends() -> None:
    days = [runner.start_of(seed).weekday() for seed in scenarios.SCORING_SEEDS]
    assert any(day >= 5 for day in days)
    assert any(day < 5 for day in days)


def test_a_data_set_contains_signals_truth_and_scoring_rules(tmp_path, hung) -> None:
    run, recorded = hung
    folder = tmp_path / "set"
    with dataset.filling(folder):
        dataset.write_quiet(folder, recorded)
        dataset.write_scenario(folder, run, recorded)
        index = dataset.write_index(folder, [short("engine-hung")], [run], 7)
    assert index["scenarios"] == 1
    assert {file.name for file in (folder / "quiet").iterdir()} >= {"replica.parquet", "events.jsonl"}
    assert not (folder / "quiet" / "truth.json").exists()
    table = pq.read_table(folder / "short" / "replica.parquet")
    assert {"at", "entity", "engine_generation_tokens_total"} <= set(table.column_names)
    replicas = recorded.matrices[EntityKind.REPLICA]
    assert table.num_rows == len(replicas.times) * len(replicas.entities)
    truth = json.loads((folder / "short" / "truth.json").read_text())
    assert truth["faults"][0]["fault"] == "engine-hung"
    assert truth["faults"][0]["key"] in truth["faults"][0]["path"]
    readme = (folder / "README.md").read_text()
    assert "CC BY 4.0" in readme
    assert "`quiet/`" in readme
    assert "$" not in readme
    with pytest.raises(UsageError, match="not empty"), dataset.filling(folder):
        pass
    assert (folder / "README.md").exists()


def test_an_interrupted_export_leaves_an_empty_folder(tmp_path: Path, hung) -> None:
    def interrupted() -> None:
        with dataset.filling(tmp_path / "set"):
            dataset.write_quiet(tmp_path / "set", hung[1])
            (tmp_path / "set" / "README.md").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "set").iterdir()) == []


@pytest.mark.slow
def test_the_result_of_a_run_with_a_negative_state_describes_the_fault() -> None:
    planned = PlannedFault("traffic-holiday", timedelta(0), 4 * MINUTE), PlannedFault("engine-dead", MINUTE, 3 * MINUTE)
    scenario = Scenario("mixed", planned)
    result = commands.result(scenario, runner.run(runner.Job(scenario, 7)), 7)
    assert (result["fault"], result["truth"]["fault"]) == ("engine-dead", "engine-dead")
    assert result["truth"]["others"] == []


def test_a_score_reports_a_tuning_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "run_all", lambda *_, **more: [])
    for seed, tuned in ((scenarios.TUNING_SEEDS[0], True), (scenarios.SCORING_SEEDS[0], False)):
        result = commands.score_all(seed=seed, only=None, workers=1, progress=lambda *_: None)
        assert (result["seed"], result["tuning_seed"]) == (seed, tuned)


@pytest.mark.slow
def test_a_storm_touches_many_entities(hung) -> None:
    assert not hung[0].storm
    scenario = Scenario(
        "wide", (PlannedFault("gateway-fault", MINUTE, MINUTE), PlannedFault("engine-saturated", MINUTE, MINUTE))
    )
    assert not runner.run(runner.Job(scenario, 7)).storm
    scenario = replace(
        scenario, faults=(scenario.faults[0], PlannedFault("gateway-fault", MINUTE, MINUTE, "other-service"))
    )
    assert runner.run(runner.Job(scenario, 7)).storm


@pytest.mark.slow
def test_compared_detectors_open_their_own_incidents(hung) -> None:
    quiet = runner.quiet_run(7)
    opened = {name: rival_detectors.incidents(name, hung[1], quiet) for name in rival_detectors.RIVALS}
    assert set(opened) == {
        "static thresholds",
        "z-score per metric",
        "pooled isolation forest",
        "shipped Prometheus rules",
    }
    assert opened["z-score per metric"]
    assert not rival_detectors.incidents("static thresholds", quiet, quiet)


def test_tuning_and_scoring_share_no_seed_or_load_shape() -> None:
    assert not set(scenarios.SCORING_SEEDS) & set(scenarios.TUNING_SEEDS)
    assert not set(scenarios.TUNING_SHAPES) & {scenario.load for scenario in scenario_choice.scenarios()}


def test_a_drill_fleet_has_free_gpus_for_repair() -> None:
    fleet = Fleet(drill_spec(), seed=1)
    assert fleet.pods.free_gpus().sum() >= max(service.tensor_parallel for service in fleet.spec.services)
