from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import CHAT, T0, Desk, alert, finding, gpu, replica  # type: ignore[import-not-found]

from detectors.rca import explanation, explanation_text, fault_catalogue
from detectors.rca.explanation import OwnerTeam
from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Hypothesis, Layer, Verdict
from outrider.text.i18n import LANGUAGES, texts
from outrider.vocabulary.faults import faults


def hot():
    """A hot GPU under a slow service, detected by its temperature only."""
    desk = Desk()
    seen = finding(gpu(0), "gpu-thermal-throttle", signal="hw_accel_temperature_celsius", observed=91.0)
    desk.step(30, [alert(gpu(0), "gpu-thermal-throttle"), alert(CHAT, None)], [seen])
    return explanation.explain(desk.only, desk.knowledge)


def lines(result, name, language="en"):
    return next((one.lines for one in explanation_text.sections(result, language) if one.name == name), ())


def test_the_explanation_contains_the_catalogue_entry_of_the_fault():
    result = hot()
    assert result.team is OwnerTeam.HARDWARE
    assert result.runbook == "docs/runbooks/gpu-slow.md"
    assert "hw_accel_core_clock_hertz" in result.checks
    assert [sign.signal for sign in result.unseen] == [
        "hw_accel_throttle_thermal_ratio",
        "hw_accel_core_clock_hertz",
        "engine_tpot_seconds",
        "hw_accel_power_watts",
    ]
    assert result.known


def test_each_look_alike_lists_its_signs():
    ruled_out = {one.fault: one for one in hot().alternatives}
    power = ruled_out["gpu-power-throttle"]
    assert power.confidence is None
    assert {sign.signal for sign in power.telling} == {"hw_accel_throttle_power_ratio", "hw_accel_power_limit_watts"}
    ruled_out = lines(hot(), "others")
    assert any(
        "ruled out because the throttling is thermal" in line and "power limit falls" in line for line in ruled_out
    )


def test_an_explanation_by_another_cause_is_contradicting_evidence():
    desk = Desk()
    desk.step(30, [alert(gpu(0), "gpu-lost"), alert(replica(0), "engine-dead")])
    turned = replace(desk.only, hypotheses=desk.only.hypotheses[::-1])
    result = explanation.explain(turned, desk.knowledge)
    assert result.cause is not None
    assert result.cause.fault == "engine-dead"
    assert any("GPU lost" in line for line in lines(result, "against"))
    assert not any("GPU lost" in line for line in lines(result, "for"))


def surge():
    """A surge of a service, shown by its queue; nothing is known of the KV caches of its replicas."""
    desk = Desk()
    queue = finding(CHAT, "traffic-surge", signal="svc_queue_requests", observed=538.0)
    desk.step(30, [alert(CHAT, "traffic-surge")], [queue])
    return desk


def test_a_sign_that_the_same_quantity_elsewhere_shows_is_not_missing():
    result = explanation.explain(surge().only, surge().knowledge)
    assert [sign.signal for sign in result.unseen] == ["svc_requests_per_second", "engine_kv_cache_usage_ratio"]


def test_a_missing_sign_contradicts_nothing_and_is_checked_next():
    result = explanation.explain(surge().only, surge().knowledge)
    assert lines(result, "against") == ()
    assert lines(result, "check")[1] == (
        "Expected, and not among the evidence so far: Requests per second rises, KV cache utilization rises."
    )


def test_a_sign_of_both_faults_on_whole_and_parts_distinguishes_neither():
    desk = surge()
    other = replace(desk.only.hypotheses[0], fault="engine-hung", confidence=0.2)
    both = replace(desk.only, hypotheses=(*desk.only.hypotheses[:1], other))
    (alternative, *_) = explanation.explain(both, desk.knowledge).alternatives
    assert alternative.fault == "engine-hung"
    assert "engine_requests_waiting" not in {sign.signal for sign in alternative.telling}


def scaling(status: ActionStatus) -> Action:
    return Action(
        "act-1", "plan", ActionKind.SCALE, CHAT, {}, "plan", False, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS,
        status, T0,
    )  # fmt: skip


def test_an_action_that_was_decided_is_not_only_possible():
    desk = surge()
    result = explanation.explain(desk.only, desk.knowledge, [scaling(ActionStatus.DONE)])
    assert (result.remedy, result.possible) == ((ActionKind.SCALE,), ())
    assert "Actions decided: scale (done)." in lines(result, "remedy")
    assert not any("may take" in line for line in lines(result, "remedy"))
    assert explanation_text.as_json(result, "en")["decided"] == [{"kind": "scale", "status": "done"}]


def test_a_refused_action_is_still_possible():
    desk = surge()
    result = explanation.explain(desk.only, desk.knowledge, [scaling(ActionStatus.REFUSED)])
    assert (result.decided, result.possible) == ((), (ActionKind.SCALE,))


def test_no_cause_is_reported_as_unknown():
    desk = Desk()
    desk.step(30, [alert(CHAT, None)])
    result = explanation.explain(desk.only, desk.knowledge)
    assert (result.known, result.unknown) == (False, 1.0)
    assert "Inconclusive" in explanation_text.text(result, "en")
    assert explanation_text.as_json(result, "en")["unknown_confidence"] == 1.0


def test_a_cause_less_likely_than_the_unknown_is_reported_as_unknown():
    desk = Desk()
    desk.step(30, [alert(CHAT, None), alert(gpu(0), "gpu-slow-peer")], [finding(gpu(0), "gpu-slow-peer", score=0.9)])
    weak = tuple(replace(one, confidence=one.confidence * 0.3) for one in desk.only.hypotheses)
    result = explanation.explain(replace(desk.only, hypotheses=weak), desk.knowledge)
    assert not result.known
    assert result.unknown > weak[0].confidence
    assert "Inconclusive" in " ".join(explanation_text.page_lines(result, "en"))


def test_a_fault_missing_from_the_catalogue_is_explained_partially():
    desk = Desk()
    desk.step(30, [alert(CHAT, None)])
    gone = replace(desk.only, hypotheses=(Hypothesis(CHAT, "gone", 0.9),))
    result = explanation.explain(gone, desk.knowledge)
    assert (result.checks, result.remedy, result.runbook) == ((), (), "")
    assert "gone" in explanation_text.text(result, "en")


def test_every_layer_has_an_owner():
    assert set(explanation.TEAM_OF) == set(Layer)
    assert set(explanation.TEAM_OF.values()) == set(OwnerTeam)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("fault", sorted(faults()))
def test_every_fault_is_explained_in_words_of_one_language(fault, language):
    known = fault_catalogue.load()[fault]
    desk = Desk()
    desk.step(30, [alert(CHAT, None)])
    incident = replace(desk.only, hypotheses=(Hypothesis(replica(0), fault, 0.8),), layer=known.fault.layer)
    text = explanation_text.text(explanation.explain(incident, fault_catalogue.load()), language)
    assert "{" not in text
    assert not re.search(r"\b(knowledge|incidents|words|faults)\.[a-z]", text)
    assert known.runbook in text
    assert texts(language)[f"faults.{fault}.remedy"] in text
    assert bool(re.search(r"[\u4e00-\u9fff]", text)) == (language == "zh")


def test_texts_of_the_area_have_the_same_placeholders_in_both_languages():
    def fields(text):
        return sorted(re.findall(r"{(\w+)}", text))

    ours = [key for key in texts("en") if key.startswith("knowledge.")]
    assert ours
    assert all(fields(texts("en")[key]) == fields(texts("zh")[key]) for key in ours)
