"""``/detectors``: rollout stage of each detector, NoVerdict reasons, and withheld findings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter

from outrider.documents import serialization
from outrider.documents.summaries import word
from outrider.model import DetectorStatus, ShadowFinding, Stage
from outrider.text.i18n import Language
from service.api.context import Ctx, Lang

router = APIRouter(tags=["detectors"])


@router.get("/detectors")
def detectors(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Every detector with its stage, since when and why. Empty before the first cycle."""
    detector_statuses = ctx.state.detector_statuses()
    counted = Counter(status.stage for status in detector_statuses)
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "by_stage": {stage.value: counted.get(stage, 0) for stage in Stage},
        "detectors": [_json(status, lang) for status in detector_statuses],
    }


def _json(status: DetectorStatus, lang: Language) -> dict[str, Any]:
    rate = status.rate
    return {
        "detector": status.detector,
        "kind": status.kind.value,
        "stage": status.stage.value,
        "reason": status.reason.value,
        "reason_text": word("stage_reason", status.reason, lang),
        "since": serialization.instant(status.since),
        "entities": status.entities,
        "findings": status.findings,
        "silent": {reason.value: count for reason, count in sorted(status.silent.items())},
        "everyone_silent": status.everyone_silent.value if status.everyone_silent else None,
        "learnt_seconds": status.learnt_seconds,
        "needed_seconds": status.needed_seconds,
        "alarms_per_entity_day": {"budget": rate.budget, "realised": rate.realised, "factor": rate.factor}
        if rate
        else None,
        "shadowed": [_shadow_finding(finding) for finding in status.shadowed],
    }


def _shadow_finding(finding: ShadowFinding) -> dict[str, Any]:
    return {
        "entity": serialization.entity(finding.entity),
        "signals": list(finding.signals),
        "since": serialization.instant(finding.since),
    }
