"""``/detectors``: rollout stage of each detector, NoVerdict reasons, and withheld findings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter

from outrider.documents import serialization
from outrider.documents.summaries import word
from outrider.model import DetectorStanding, ShadowFinding, Stage
from outrider.text.i18n import Language
from service.api.context import Ctx, Lang

router = APIRouter(tags=["detectors"])


@router.get("/detectors")
def detectors(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Every detector with its stage, since when and why. Empty before the first cycle."""
    found = ctx.state.standings()
    counted = Counter(one.stage for one in found)
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "by_stage": {stage.value: counted.get(stage, 0) for stage in Stage},
        "detectors": [_json(one, lang) for one in found],
    }


def _json(one: DetectorStanding, lang: Language) -> dict[str, Any]:
    rate = one.rate
    return {
        "detector": one.detector,
        "kind": one.kind.value,
        "stage": one.stage.value,
        "reason": one.reason.value,
        "reason_text": word("stage_reason", one.reason, lang),
        "since": serialization.instant(one.since),
        "entities": one.entities,
        "findings": one.findings,
        "silent": {reason.value: count for reason, count in sorted(one.silent.items())},
        "everyone_silent": one.everyone_silent.value if one.everyone_silent else None,
        "learnt_seconds": one.learnt_seconds,
        "needed_seconds": one.needed_seconds,
        "alarms_per_entity_day": {"budget": rate.budget, "realised": rate.realised, "factor": rate.factor}
        if rate
        else None,
        "shadowed": [_held(each) for each in one.shadowed],
    }


def _held(one: ShadowFinding) -> dict[str, Any]:
    return {
        "entity": serialization.entity(one.entity),
        "signals": list(one.signals),
        "since": serialization.instant(one.since),
    }
