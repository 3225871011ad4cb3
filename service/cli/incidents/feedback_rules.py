"""``outrider feedback propose``, ``apply`` and ``revert``: rule settings from verdicts, measured first."""

from __future__ import annotations

import getpass
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detectors.rules.tuning import LEAST_USELESS, LEAST_VERDICTS, Effect, Proposal, Setting
from outrider.audit import AuditEvent
from outrider.clock import SystemClock
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from outrider.vocabulary.rules import Rule
from outrider.vocabulary.units import format_duration
from service.cli.core import tables
from service.cli.core.common import NO, YES, Context, duration_of, instant_of, leaf
from service.cli.core.progress import bars
from service.incidents import rule_change, tuning
from service.wiring import detectors as wiring_detectors
from service.wiring import stores as wiring_stores

if TYPE_CHECKING:
    from service.config.settings import Settings
    from service.incidents.rule_change import RuleChange

RuleName = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.")]
Threshold = Annotated[
    float | None, typer.Option("--threshold", help="Threshold to measure instead of the proposed ones.")
]
Wait = Annotated[
    str | None, typer.Option("--wait", help="Waiting time to measure instead of the proposed ones, for example 15m.")
]
Since = Annotated[str | None, typer.Option("--since", help="Only verdicts on alerts that started since this time.")]
Really = Annotated[bool, typer.Option("--yes", help="Write the file; without this option the change is only shown.")]


def add(app: typer.Typer) -> None:
    """Registers the commands."""
    leaf(app, "propose", example="outrider feedback propose kv-cache-full -o json")(propose)
    leaf(app, "apply", example="outrider feedback apply kv-cache-full --yes")(apply)
    leaf(app, "revert", example="outrider feedback revert kv-cache-full --yes")(revert)


def propose(
    context: Context, rule: RuleName, threshold: Threshold = None, wait: Wait = None, since: Since = None
) -> int:
    """Replay a rule on stored values with stricter settings, and show which verdicts each keeps."""
    settings = context.settings()
    current = tuning.rule_named(wiring_detectors.rules(settings), rule)
    proposal, budgets = _measured(context, settings, current, threshold, wait, since)
    context.show(_json(proposal, current, budgets, context.language), lambda shown: _table(shown, context.language))
    return YES if proposal.best is not None or any(budget.proposed < budget.now for budget in budgets) else NO


def apply(
    context: Context,
    rule: RuleName,
    threshold: Threshold = None,
    wait: Wait = None,
    since: Since = None,
    yes: Really = False,
) -> int:
    """Apply the proposal to your rules file. Shows the change; --yes writes it; `revert` undoes it."""
    settings = context.settings()
    current = tuning.rule_named(wiring_detectors.rules(settings), rule)
    proposal, budgets = _measured(context, settings, current, threshold, wait, since)
    shown = _json(proposal, current, budgets, context.language)
    if proposal.best is None:
        context.show(
            {**shown, "applied": False, "diff": "", "backup": None}, lambda document: _table(document, context.language)
        )
        return NO
    change = rule_change.change_of(current, proposal.best.setting, settings.rules.files)
    best = proposal.best
    effect = f"useful {best.kept_useful} kept {best.dropped_useful} dropped, useless {best.dropped_useless} dropped"
    change = replace(change, detail={**change.detail, "effect": effect})
    shown |= _written(context, settings, change, AuditEvent.RULE_TUNED, yes=yes)
    context.show(
        shown, lambda document: f"{_table(document, context.language)}\n\n{document['diff']}\n{document['told']}"
    )
    return YES


def revert(context: Context, rule: RuleName, yes: Really = False) -> None:
    """Undo the newest change that `apply` made to a rule. Shows the change; --yes writes it."""
    settings = context.settings()
    with wiring_stores.state_reader(settings) as store:
        change = rule_change.revert_of(rule, store)
    shown = {"rule": rule, **_written(context, settings, change, AuditEvent.RULE_REVERTED, yes=yes)}
    context.show(shown, lambda document: f"{document['diff']}\n{document['told']}")


def login() -> str:
    """Login name of the user; empty in a container without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _measured(
    context: Context, settings: Settings, rule: Rule, threshold: float | None, wait: str | None, since: str | None
) -> tuple[Proposal, tuple[tuning.Budget, ...]]:
    tried = _tried(rule, threshold, wait)
    from_then: datetime | None = None if since is None else instant_of("--since", since)
    with wiring_stores.stores(settings) as (state, metrics), bars(context) as progress:
        newest = state.cycles(1)
        now = newest[0].at if newest else SystemClock().now()
        proposal = tuning.proposal_of(
            rule,
            state,
            metrics,
            settings,
            now,
            since=from_then,
            tried=tried,
            progress=lambda share: progress("replay", share),
        )
        budgets = tuning.budgets_of(rule, state, metrics, settings, now, since=from_then)
        return tuning.by_budgets(proposal, budgets) if tuning.is_statistical(rule) else proposal, budgets


def _tried(rule: Rule, threshold: float | None, wait: str | None) -> Setting | None:
    if threshold is None and wait is None:
        return None
    if threshold is not None and wait is not None:
        raise UsageError("--threshold and --wait cannot be measured together", hint="omit one of them")
    present = tuning.threshold_of(rule)
    if threshold is not None and present is None:
        raise UsageError(f"rule {rule.name} does not compare with a single number", hint="measure a --wait instead")
    longer = rule.wait if wait is None else duration_of("--wait", wait)
    return Setting(present if threshold is None else threshold, longer)


def _written(
    context: Context, settings: Settings, change: RuleChange, event: AuditEvent, *, yes: bool
) -> dict[str, Any]:
    shown: dict[str, Any] = {"applied": yes, "file": str(change.file), "diff": change.diff, "backup": None}
    if not yes:
        return shown | {"told": translate("cli.feedback_dry_run", context.language)}
    with wiring_stores.stores(settings) as (state, _):
        backup = rule_change.apply(
            change, settings.rules.files, state, by=login() or "admin", now=SystemClock().now(), event=event
        )
    key = "cli.feedback_applied" if event is AuditEvent.RULE_TUNED else "cli.feedback_reverted"
    message = translate(key, context.language, file=change.file, backup=backup, rule=change.rule)
    return shown | {"backup": str(backup), "told": message}


def _json(proposal: Proposal, rule: Rule, budgets: tuple[tuning.Budget, ...], language: Language) -> dict[str, Any]:
    return {
        "rule": proposal.rule,
        "proposed": None if proposal.best is None else _effect(proposal.best),
        "reason": proposal.reason.value,
        "said": _proposal_text(proposal, rule, language),
        "judged": proposal.judged,
        "useless": proposal.useless,
        "days": round(proposal.days, 3),
        "now": None if proposal.now is None else _effect(proposal.now),
        "candidates": [_effect(item) for item in proposal.candidates],
        "expression": proposal.expression,
        "unchecked": [
            {"fingerprint": item.fingerprint, "starts_at": serialization.instant(item.starts_at), "useful": item.useful}
            for item in proposal.unchecked
        ],
        "budgets": [
            {
                "key": item.key,
                "known": item.known,
                "now": item.now,
                "proposed": item.proposed,
                "useful": item.useful,
                "not_useful": item.useless,
                "judged": item.judged,
                "judged_not_useful": item.judged_useless,
                "enough": item.enough,
                "entities": item.entities,
                "days": round(item.days, 3),
                "useless_per_entity_day": item.useless_per_entity_day,
            }
            for item in budgets
        ],
    }


def _effect(effect: Effect) -> dict[str, Any]:
    low, high = effect.dropped_useless_interval
    return {
        "threshold": effect.setting.threshold,
        "wait_seconds": effect.setting.wait.total_seconds(),
        "kept_useful": effect.kept_useful,
        "dropped_useful": effect.dropped_useful,
        "dropped_useful_pages": effect.dropped_pages,
        "late_useful_pages": effect.late_pages,
        "kept_useless": effect.kept_useless,
        "dropped_useless": effect.dropped_useless,
        "dropped_useless_ratio_low": low,
        "dropped_useless_ratio_high": high,
        "delay_median_seconds": effect.delay_median_seconds,
        "delay_most_seconds": effect.delay_most_seconds,
        "alerts_per_day": effect.alerts_per_day,
    }


def _proposal_text(proposal: Proposal, rule: Rule, language: Language) -> str:
    setting = ""
    if proposal.best is not None:
        setting = _setting(_effect(proposal.best), tuning.threshold_of(rule), rule.wait.total_seconds(), language)
    return translate(
        f"cli.proposal_{proposal.reason.value}",
        language,
        rule=proposal.rule,
        judged=proposal.judged,
        useless=proposal.useless,
        unchecked=len(proposal.unchecked),
        least=LEAST_VERDICTS,
        least_useless=LEAST_USELESS,
        setting=setting,
    )


def _setting(shown: dict[str, Any], threshold: float | None, wait: float, language: Language) -> str:
    """Settings that differ from the current ones."""
    parts = []
    if shown["threshold"] != threshold:
        parts.append(translate("cli.setting_threshold", language, threshold=f"{shown['threshold']:g}"))
    if shown["wait_seconds"] != wait:
        parts.append(translate("cli.setting_wait", language, wait=format_duration(shown["wait_seconds"])))
    return ", ".join(parts) or translate("cli.setting_now", language)


def _table(shown: dict[str, Any], language: Language) -> str:
    lines = [shown["said"]]
    if shown["now"] is not None:
        now = shown["now"]
        rows = [
            [
                ("* " if entry == shown["proposed"] else "")
                + _setting(entry, now["threshold"], now["wait_seconds"], language),
                str(entry["kept_useful"]),
                str(entry["dropped_useful"]),
                f"{entry['dropped_useless']} / {entry['dropped_useless'] + entry['kept_useless']}",
                _delay(entry),
                f"{entry['alerts_per_day']:.2f}",
            ]
            for entry in (now, *shown["candidates"])
        ]
        names = ("setting", "kept_useful", "dropped_useful", "dropped_useless", "later", "per_day")
        lines.append(tables.table(tables.heads(language, *names), rows, empty=""))
        days, unchecked = f"{shown['days']:.1f}", len(shown["unchecked"])
        lines.append(translate("cli.feedback_measured", language, days=days, unchecked=unchecked))
    for entry in shown["budgets"]:
        fields = {**entry, "useless": entry["not_useful"], "days": f"{entry['days']:.1f}"}
        least = {"least": LEAST_VERDICTS, "least_useless": LEAST_USELESS}
        lines.append(translate("cli.budget" if entry["enough"] else "cli.budget_few", language, **fields, **least))
        if entry["enough"] and not entry["known"]:
            lines.append(translate("cli.budget_unknown", language))
    return "\n\n".join(lines)


def _delay(effect: dict[str, Any]) -> str:
    if effect["delay_median_seconds"] is None:
        return "-"
    return f"{format_duration(effect['delay_median_seconds'])}, {format_duration(effect['delay_most_seconds'])}"
