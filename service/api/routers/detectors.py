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
    standings = ctx.state.standings()
    counted = Counter(standing.stage for standing in standings)
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "by_stage": {stage.value: counted.get(stage, 0) for stage in Stage},
        "detectors": [_json(standing, lang) for standing in standings],
    }


def _json(standing: DetectorStanding, lang: Language) -> dict[str, Any]:
    rate = standing.rate
    return {
        "detector": standing.detector,
        "kind": standing.kind.value,
        "stage": standing.stage.value,
        "reason": standing.reason.value,
        "reason_text": word("stage_reason", standing.reason, lang),
        "since": serialization.instant(standing.since),
        "entities": standing.entities,
        "findings": standing.findings,
        "silent": {reason.value: count for reason, count in sorted(standing.silent.items())},
        "everyone_silent": standing.everyone_silent.value if standing.everyone_silent else None,
        "learnt_seconds": standing.learnt_seconds,
        "needed_seconds": standing.needed_seconds,
        "alarms_per_entity_day": {"budget": rate.budget, "realised": rate.realised, "factor": rate.factor}
        if rate
        else None,
        "shadowed": [_shadow_finding(finding) for finding in standing.shadowed],
    }


def _shadow_finding(finding: ShadowFinding) -> dict[str, Any]:
    return {
        "entity": serialization.entity(finding.entity),
        "signals": list(finding.signals),
        "since": serialization.instant(finding.since),
    }
