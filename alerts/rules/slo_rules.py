"""SLOs as alert rules: one rule per SLO, with the priority from the burn rate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from outrider.vocabulary.rules import Rule
from outrider.vocabulary.slo import Slo

CLEAR = timedelta(minutes=2)


def rules_of(slos: Sequence[Slo]) -> tuple[Rule, ...]:
    """One rule per SLO. Its alert escalates with a faster burn and ends when the short window is normal."""
    return tuple(
        Rule(
            name=slo.rule,
            kind=slo.kind,
            detectors=(slo.detector,),
            clear=CLEAR,
            routes=slo.routes,
            service_level=True,
            default_action_text="alerts.slo-burn.action",
            runbook="docs/runbooks/slo-burn.md",
        )
        for slo in slos
    )
