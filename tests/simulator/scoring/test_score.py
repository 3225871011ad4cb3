"""The score follows its published rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outrider.model import EntityKind, EntityRef, Priority
from outrider.vocabulary.faults import faults
from simulator.scoring.calibration import answers_of
from simulator.scoring.run import InjectedFault, Run, ScoredAction, ScoredIncident
from simulator.scoring.score import GRACE, drill_result, has_remedy, poisson_upper95, score, verdicts

START = datetime(2026, 11, 18, 10, tzinfo=UTC)
REPLICA = EntityRef("c", EntityKind.REPLICA, "serving", "chat-0")
OTHER = EntityRef("c", EntityKind.REPLICA, "serving", "chat-1")
SERVICE = EntityRef("c", EntityKind.SERVICE, "serving", "chat")


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def fault(
    name: str = "engine-hung", entity: EntityRef = REPLICA, start: float = 5, end: float = 15, **more
) -> InjectedFault:
    return InjectedFault(name, entity, at(start), at(end), frozenset({entity, SERVICE}), **more)


def incident(
    number: int,
    minutes: float,
    *named,
    entities=(REPLICA,),
    priority=Priority.P1,
    paged=True,
    called=False,
    notified=True,
    until=None,
    confidences=(),
):
    return ScoredIncident(
        id=f"i{number}",
        opened_at=at(minutes),
        resolved_at=None if until is None else at(until),
        priority=priority,
        hypotheses=tuple(named),
        entities=frozenset(entities),
        paged_at=at(minutes) if paged else None,
        notified_at=at(minutes) if notified else None,
        confidences=tuple(confidences),
        called_at=at(minutes) if called else None,
    )


def run(injected=(), incidents=(), **more) -> Run:
    values = {"scenario": "s", "start": at(0), "end": at(20), "targets": 36, "alerts": 10} | more
    return Run(injected=tuple(injected), incidents=tuple(incidents), **values)


@pytest.mark.parametrize(("minutes", "detected"), [(4.9, False), (5, True), (15, True), (17, True), (17.1, False)])
def test_an_incident_counts_from_the_start_to_two_minutes_after_the_end(minutes: float, detected: bool) -> None:
    (verdict,) = verdicts(run([fault()], [incident(1, minutes)]))
    assert (verdict.incident is not None) is detected


def test_an_incident_off_the_path_detects_nothing_and_is_a_false_page() -> None:
    seen = score([run([fault()], [incident(1, 6, entities=(OTHER,))])])
    assert seen["recall"] == 0
    assert seen["precision"] == 0
    assert seen["false_pages"] == 1
    assert seen["distinct_incidents_lost"] == 1


def test_one_incident_matches_one_fault_earliest_first() -> None:
    both = [fault(start=5), fault("kv-pressure", start=6)]
    one = score([run(both, [incident(1, 7)])])
    assert one["recall"] == 0.5
    assert one["by_fault"]["engine-hung"]["detected"] == 1
    assert one["distinct_incidents_lost"] == 1
    two = score([run(both, [incident(2, 8), incident(1, 7)])])
    assert two["recall"] == 1
    assert two["median_delay_seconds"] == 120


def test_precision_counts_only_notified_incidents_and_recall_any() -> None:
    seen = score(
        [run([fault()], [incident(1, 6, priority=Priority.P3, paged=False), incident(2, 9, entities=(OTHER,))])]
    )
    assert seen["recall"] == 1
    assert seen["precision"] == 0


def test_runs_of_several_seeds_are_pooled_despite_equal_incident_ids() -> None:
    right, wrong = run([fault()], [incident(1, 6)]), run([fault()], [incident(1, 6, entities=(OTHER,))])
    pooled = score([right, wrong])
    assert (pooled["events"], pooled["recall"], pooled["precision"], pooled["false_pages"]) == (2, 0.5, 0.5, 1)


def test_naming_needs_the_entity_and_the_fault_together() -> None:
    named = [(REPLICA, "engine-dead"), (OTHER, "engine-hung"), (REPLICA, "engine-hung")]
    seen = score([run([fault()], [incident(1, 6, *named)])])
    assert seen["ac1"] == 0
    assert seen["ac3"] == 1
    assert seen["by_fault"]["engine-hung"]["named_instead"] == {"engine-dead": 1}
    below_three = [(OTHER, "engine-hung"), *named]
    assert score([run([fault()], [incident(1, 6, *below_three)])])["ac3"] == 0


def test_abstaining_on_a_negative_allows_p3() -> None:
    quiet = run(negative=True)
    murmur = run(negative=True, incidents=[incident(1, 6, priority=Priority.P3, paged=False)])
    loud = run(negative=True, incidents=[incident(1, 6, priority=Priority.P2, paged=False)])
    assert score([quiet, murmur, loud])["right_abstention"] == pytest.approx(2 / 3)


def test_folding_counts_storms_only() -> None:
    storm = run([fault()], [incident(1, 6)], storm=True, alerts=50)
    calm = run([fault()], [incident(1, 6)], alerts=1)
    assert score([storm, calm])["folding_ratio"] == pytest.approx(0.98)
    assert score([calm])["folding_ratio"] is None


def test_a_false_incident_named_in_the_page_of_a_true_one_is_a_false_page() -> None:
    joined = incident(2, 6, entities=(OTHER,), paged=False, called=True)
    seen = score([run([fault()], [incident(1, 6), joined])])
    assert (seen["false_pages"], seen["false_pages_by_call"]) == (1, 0)
    assert seen["false_pages_per_target_day_upper95"] == pytest.approx(4.744 / seen["target_days"], rel=1e-3)
    silent = incident(2, 6, entities=(OTHER,), paged=False)
    assert score([run([fault()], [incident(1, 6), silent])])["false_pages"] == 0


@pytest.mark.parametrize(
    ("second", "pages", "incidents"),
    [
        (incident(2, 18, entities=(SERVICE,)), 1, 1),
        (incident(2, 18, entities=(SERVICE,), paged=False, called=True), 1, 1),
        (incident(2, 18, entities=(SERVICE,), priority=Priority.P2, paged=False), 0, 1),
        (incident(2, 18, entities=(SERVICE,), priority=Priority.P3, paged=False), 0, 0),
        (incident(2, 4, entities=(SERVICE,)), 0, 0),  # before the fault
        (incident(2, 18, entities=(OTHER,)), 0, 0),  # off its path
    ],
)
def test_a_second_page_is_about_an_outage_that_has_one(second, pages, incidents) -> None:
    seen = score([run([fault()], [incident(1, 6), second])])
    assert (seen["second_pages"], seen["second_incidents"]) == (pages, incidents)


def test_other_replicas_of_an_affected_service_are_part_of_its_outage() -> None:
    injected = fault(rings=(frozenset({REPLICA}), frozenset({REPLICA, SERVICE}), frozenset({OTHER})))
    assert score([run([injected], [incident(1, 6), incident(2, 18, entities=(OTHER,))])])["second_pages"] == 1


def test_the_page_of_another_fault_is_no_second_page() -> None:
    both = [fault(), fault("engine-dead", OTHER, start=16, end=19)]
    seen = score([run(both, [incident(1, 6), incident(2, 17, entities=(OTHER, SERVICE))])])
    assert (seen["recall"], seen["second_pages"]) == (1, 0)


def test_a_fault_that_lasts_beyond_the_run_has_no_aftermath() -> None:
    assert score([run([fault(end=30)], [incident(1, 6), incident(2, 18)])])["second_pages"] == 0


def test_folding_counts_pages_and_the_incidents_they_name() -> None:
    joined = [incident(number, 6, paged=False, called=True) for number in (2, 3)]
    seen = score([run([fault()], [incident(1, 6), *joined], storm=True, alerts=50)])
    assert (seen["folding_ratio"], seen["folding_ratio_by_incident"]) == pytest.approx((0.98, 0.94))
    assert (seen["by_storm"]["s"]["pages"], seen["by_storm"]["s"]["incidents_paged"]) == (1, 3)


def test_a_repair_needs_an_action_before_the_recovery_and_five_minutes() -> None:
    act = ScoredAction("i1", "restart_pod", REPLICA, at(6))
    for recovered, acted, repaired in (
        (at(9), (act,), 1.0),
        (at(11), (act,), 0.0),
        (at(5.5), (act,), 0.0),
        (at(9), (), 0.0),
        (None, (act,), 0.0),
        (at(9), (ScoredAction("other", "restart_pod", OTHER, at(6)),), 0.0),
    ):
        seen = score([run([fault(recovered_at=recovered)], [incident(1, 6)], acted=acted)])
        assert seen["remediated_ratio"] == repaired, (recovered, acted)


def test_faults_for_people_are_not_counted_as_repairs() -> None:
    assert score([run([fault("clock-skew")], [incident(1, 6)])])["remediated_ratio"] is None
    assert not has_remedy("gpu-ecc-storm")
    assert has_remedy("engine-dead")
    assert sum(has_remedy(name) for name in faults()) > 20


def test_no_runs_have_no_ratios() -> None:
    empty = score([])
    assert empty["scenarios"] == empty["events"] == empty["false_pages"] == 0
    for share in ("precision", "recall", "ac1", "right_abstention", "false_pages_per_target_day_upper95"):
        assert empty[share] is None


@pytest.mark.parametrize(("count", "bound"), [(0, 2.996), (1, 4.744), (3, 7.754), (10, 16.962), (11_829, 12_010)])
def test_the_poisson_bound_is_that_of_the_tables(count: int, bound: float) -> None:
    assert poisson_upper95(count) == pytest.approx(bound, rel=2e-4)


def test_target_days_and_their_bound() -> None:
    seen = score([run(), run()])
    assert seen["target_days"] == pytest.approx(2 * 36 * 20 / 1440)
    assert seen["false_pages_per_target_day_upper95"] == pytest.approx(2.996, abs=0.01)


def test_a_drill_passes_if_detected_named_and_remediated() -> None:
    named = [(REPLICA, "engine-hung")]
    good = run(
        [fault(recovered_at=at(8))],
        [incident(1, 6, *named)],
        acted=(ScoredAction("i1", "shift_traffic", REPLICA, at(6)),),
    )
    result = drill_result(good, 7, {})
    assert (result.passed, result.detect_seconds, result.recover_seconds, result.pages) == (True, 60, 180, 1)
    unrepaired = drill_result(run([fault()], [incident(1, 6, *named)]), 7, {})
    assert not unrepaired.passed
    misnamed = drill_result(run([fault()], [incident(1, 6, (REPLICA, "engine-dead"))]), 7, {})
    assert (misnamed.passed, misnamed.named_entity_correct, misnamed.named_fault_correct) == (False, True, False)


def test_a_drill_of_several_faults_passes_if_each_fault_does() -> None:
    first, second = fault("clock-skew"), fault("disk-slow", OTHER, start=7)
    results = incident(1, 6, (REPLICA, "clock-skew"))
    result = drill_result(run([second, first], [results]), 7, {})
    assert (result.fault, result.detected, result.passed) == ("clock-skew", True, False)
    other = incident(2, 8, (OTHER, "slow-start"), entities=(OTHER,))
    assert not drill_result(run([first, second], [results, other]), 7, {}).passed
    other = incident(2, 8, (OTHER, "bad-requests"), entities=(OTHER,))
    second = fault("bad-requests", OTHER, start=7)
    assert drill_result(run([first, second], [results, other]), 7, {}).passed


def test_a_message_of_any_priority_notifies() -> None:
    quiet = incident(1, 6, priority=Priority.P3, paged=False)
    result = drill_result(run([fault()], [quiet]), 7, {})
    assert (result.notified, result.pages) == (True, 0)
    unsent = incident(1, 6, priority=Priority.P3, paged=False, notified=False)
    assert not drill_result(run([fault()], [unsent]), 7, {}).notified


def test_confidences_are_compared_with_the_ground_truth() -> None:
    right, wrong = (REPLICA, "engine-hung"), (REPLICA, "engine-dead")
    seen = score([
        run([fault()], [incident(1, 6, right, confidences=(0.9,))]),
        run([fault()], [incident(1, 6, wrong, right, confidences=(0.6, 0.3))]),
        run([], [incident(1, 6, right, confidences=(0.65,))]),
        run([fault()], [incident(1, 6)]),
    ])  # fmt: skip
    assert [(row["from"], row["answers"], row["confidence"], row["right"]) for row in seen["reliability"]] == [
        (0.6, 2, 0.625, 0.0),
        (0.9, 1, 0.9, 1.0),
    ]
    assert seen["calibration_error"] == pytest.approx((2 * 0.625 + 0.1) / 3)


def test_a_cause_named_before_its_fault_began_was_wrong() -> None:
    (answer,) = answers_of(
        [run([fault(start=5)], [incident(1, 4, (REPLICA, "engine-hung"), confidences=(0.9,))])], GRACE
    )
    assert answer.right is None
    assert not answer.first_right


def test_without_confidences_calibration_is_empty() -> None:
    seen = score([run([fault()], [incident(1, 6, (REPLICA, "engine-hung"))])])
    assert (seen["calibration_error"], seen["reliability"]) == (None, [])


@pytest.mark.parametrize("fault", ["client-aborts", "storage-slow", "kpi-drop", "traffic-drop"])
def test_an_instruction_for_a_person_is_not_an_automatic_remedy(fault):
    assert not has_remedy(fault)
    assert has_remedy("gpu-lost")


def repaired_with(act: ScoredAction, **more) -> Run:
    """A hung engine that recovers after three minutes, and one action."""
    known = {"recovered_at": at(8), "repaired_by": frozenset({"shift_traffic", "restart_pod", "cordon"})} | more
    return run([fault(**known)], [incident(1, 6)], acted=(act,))


@pytest.mark.parametrize(
    ("act", "created", "ratio"),
    [
        (ScoredAction("i1", "shift_traffic", REPLICA, at(6)), None, 1.0),
        (ScoredAction("i1", "rollback", SERVICE, at(6)), None, 0.0),  # not in the playbook of the fault
        (ScoredAction("i1", "restart_pod", OTHER, at(6)), None, 0.0),  # not on its path
        (ScoredAction("i1", "restart_pod", REPLICA, at(4)), None, 0.0),  # before the fault
        (ScoredAction("i1", "cordon", REPLICA, at(6)), None, 0.0),  # a cordon ends no impact
        (ScoredAction("i1", "restart_pod", REPLICA, at(6)), at(6), 1.0),
        (ScoredAction("i1", "cordon", REPLICA, at(6)), at(7), 1.0),  # the new pod was kept off the node
        (ScoredAction("i1", "restart_pod", REPLICA, at(7)), at(6), 0.0),  # the pod was starting already
        (ScoredAction("i1", "shift_traffic", REPLICA, at(6)), at(7), 0.0),  # a shift starts no pod
    ],
)
def test_only_an_action_that_can_have_ended_the_fault_earns_something(act, created, ratio) -> None:
    seen = score([repaired_with(act, pod_created_at=created)])
    assert seen["remediated_ratio"] == seen["remediated_ratio_of_endable"] == ratio
    assert seen["remedied_by"] == ({act.kind: 1} if ratio else {})


def surge_that_ended(*acts: ScoredAction, newest: datetime | None = None) -> Run:
    """A surge whose queue is gone after three minutes."""
    kinds = frozenset({"scale", "degrade_service"})
    ended = fault("traffic-surge", SERVICE, recovered_at=at(8), repaired_by=kinds, newest_pod_at=newest)
    return run([ended], [incident(1, 6, entities=(SERVICE,))], acted=acts)


def test_a_scale_out_earns_something_only_by_a_replica_that_served() -> None:
    scaled = ScoredAction("i1", "scale", SERVICE, at(6))
    assert score([surge_that_ended(scaled)])["remediated_ratio"] == 0.0
    assert score([surge_that_ended(scaled, newest=at(5))])["remediated_ratio"] == 0.0, "it served before the scale-out"
    assert score([surge_that_ended(scaled, newest=at(6))])["remediated_ratio"] == 1.0


def test_a_degrade_level_that_ended_a_queue_earns_the_repair() -> None:
    shed, scaled = (ScoredAction("i1", kind, SERVICE, at(6)) for kind in ("degrade_service", "scale"))
    seen = score([surge_that_ended(shed, scaled)])
    assert (seen["remediated_ratio"], seen["remedied_by"]) == (1.0, {"degrade_service": 1})


def test_faults_beyond_repair_are_listed_with_their_reason() -> None:
    seen = score([run([fault("retry-storm", SERVICE)], [incident(1, 6, entities=(SERVICE,))])])
    assert (seen["remediated_ratio"], seen["remediated_ratio_of_endable"]) == (0.0, None)
    assert seen["beyond_repair"]["retry-storm"]["events"] == 1
    assert seen["beyond_repair"]["retry-storm"]["reason"]


def test_an_event_without_impact_cannot_be_ended() -> None:
    seen = score([run([fault("psu-or-fan-failed", harmed=False)], [incident(1, 6)])])
    assert seen["remediated_ratio_of_endable"] is None
    assert seen["beyond_repair"]["psu-or-fan-failed"]["events"] == 1


def test_actions_on_healthy_parts_are_harmful_beside_look_alikes() -> None:
    taken = ScoredAction("i1", "restart_pod", OTHER, at(6), takes_capacity=True)
    undone = ScoredAction("i1", "uncordon", OTHER, at(6))
    own = ScoredAction("i1", "restart_pod", REPLICA, at(6), takes_capacity=True)
    negative = score([run(acted=(taken, undone), negative=True)])
    assert (negative["harmful_actions"], negative["actions_off_path"]) == (1, 1)
    beside = score([run([fault()], [incident(1, 6)], acted=(taken, own), lookalike=True)])
    assert (beside["harmful_actions"], beside["actions_off_path"]) == (1, 1)
    alone = score([run([fault()], [incident(1, 6)], acted=(taken, own))])
    assert (alone["harmful_actions"], alone["actions_off_path"]) == (0, 1)
