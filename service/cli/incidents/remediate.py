"""``outrider remediate``: list, plan, request, approve, reject, restore, pause, resume, reset, audit."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.documents import serialization
from outrider.documents.summaries import word
from outrider.errors import UsageError
from outrider.ports import StateReader
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_duration
from service.cli.core import client, tables
from service.cli.core.client import Person
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.incidents import incident_actions, repair_story
from service.incidents.remediation_preview import RemediationPreview, held_document, ladder_document, step_document
from service.wiring import remediation as wiring_remediation
from service.wiring import stores as wiring_stores

app = typer.Typer(help="List, approve and reject actions; pause remediation.", no_args_is_help=ON_A_TERMINAL)

Fault = Annotated[str | None, typer.Option("--fault", help="Fault id of the vocabulary, for example gpu-lost.")]
Entity = Annotated[
    str | None, typer.Option("--entity", help="Faulty entity: its name, kind/name or cluster/kind/namespace/name.")
]
ActionId = Annotated[str, typer.Argument(help="Action id.")]
ServiceName = Annotated[
    str, typer.Argument(help="Degraded service: its name, namespace/name or cluster/service/namespace/name.")
]
IncidentId = Annotated[
    str | None, typer.Option("--incident", help="Incident id: show only its decisions, as sentences.", metavar="ID")
]
_ALL = 1_000_000
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")]


@leaf(app, "list", example="outrider remediate list -o json")
def list_actions(context: Context, limit: Limit = 200) -> None:
    """List actions, newest first, including refused ones with the reason."""
    with wiring_stores.state_reader(context.settings()) as store:
        selected = store.actions(limit=limit)
    context.show(
        [serialization.action(action, context.language) for action in selected],
        lambda shown: tables.actions(shown, context.language),
    )


@leaf(app, "plan", example="outrider remediate plan --fault gpu-lost --entity node-3 -o json")
def plan(context: Context, fault: Fault = None, entity: Entity = None) -> None:
    """Show the steps for open incidents, or for a named fault, with each guard's answer and the exact requests."""
    if (fault is None) != (entity is None):
        raise UsageError("--fault and --entity belong together", hint="outrider remediate plan --fault F --entity E")
    settings = context.settings()
    with wiring_stores.stores(settings) as (state, metrics):
        preview = RemediationPreview(
            state,
            metrics,
            wiring_remediation.actuator(settings),
            wiring_remediation.policy(settings),
            wiring_remediation.playbooks(settings),
            settings.collect.interval,
            procedures=wiring_remediation.procedures(settings),
            killed=wiring_remediation.kill_switch(settings).is_on(),
        )
        planned = preview.of_fault(fault, entity) if fault and entity else preview.of_open_incidents()
    context.show(
        [
            serialization.planned_action(row.action, row.guards, row.requests, row.error, context.language)
            | held_document(row)
            | step_document(row.step, row.missing)
            | ladder_document(row.ladder)
            for row in planned
        ],
        lambda shown: _steps(shown, context.language),
    )


def _steps(shown: list[dict[str, Any]], language: Language) -> str:
    """Each action with the answers of its guards, the conditions of its step and its requests."""
    if not shown:
        return translate("cli.no_steps", language)
    blocks = []
    for row in shown:
        lines = [tables.actions([_headline(row)], language)]
        lines += _guards(row["guards"], language)
        lines += _conditions(row, language)
        lines += _ladder(row["ladder"], language)
        for request in row["requests"]:
            lines += [f"  {request['method']} {request['url']}", f"    {json.dumps(request['body'])}"]
        if row["error"]:
            lines.append(f"  {row['error']}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _headline(row: dict[str, Any]) -> dict[str, Any]:
    """The row of an action. What the guards allow is still held while a precondition or a threshold is not met."""
    return row if row["held"] is None else row | {"decision": "held", "reason": row["held"]}


def _guards(answers: list[dict[str, Any]], language: Language) -> list[str]:
    """The answer of each guard with what it compared; those that object first."""
    ordered = sorted(answers, key=lambda answer: answer["verdict"] == "allowed")
    return [f"  {_guard(answer, language)}" for answer in ordered]


def _guard(answer: dict[str, Any], language: Language) -> str:
    about = answer["compared"] or answer["detail"]
    if answer["verdict"] != "allowed" and about:
        about = translate("cli.guard_compared", language, compared=about)
    reason = word("decision_reason", answer["reason"], language)
    key = f"cli.guard_{answer['verdict']}"
    return translate(key, language, guard=answer["name"], reason=reason, compared=about)


def _conditions(row: dict[str, Any], language: Language) -> list[str]:
    """Preconditions and the check of a step."""
    lines = [
        translate(
            "cli.step_missing" if check == row["missing"] else "cli.step_requires",
            language,
            check=_name(check, language),
        )
        for check in row["require"]
    ]
    if row["verify"]:
        after = format_duration(row["timeout_seconds"])
        lines.append(translate("cli.step_verifies", language, check=_name(row["verify"], language), after=after))
    return [f"  {line}" for line in lines]


def _ladder(shown: dict[str, Any] | None, language: Language) -> list[str]:
    """The present level of a service, the next one with its thresholds, and what keeps it away."""
    if shown is None:
        return []
    lines = [translate("cli.ladder_present", language, level=_level(shown, language))]
    following = shown["next"]
    if following is not None:
        time = format_duration(following["enter_for_seconds"])
        lines.append(translate("cli.ladder_next", language, level=_level(following, language), time=time))
        lines += [f"  {_threshold(threshold, language)}" for threshold in following["thresholds"]]
        lines += [f"  {word('ladder_obstacle', name, language)}" for name in following["obstacles"]]
    return [f"  {line}" for line in lines]


def _level(shown: dict[str, Any], language: Language) -> str:
    return f"{shown['level']} ({word('degrade_level', shown['name'], language)})"


def _threshold(threshold: dict[str, Any], language: Language) -> str:
    key = "cli.ladder_reached" if threshold["reached"] else "cli.ladder_not_reached"
    value = "-" if threshold["value"] is None else f"{threshold['value']:.2f}"
    name = word("ladder_indicator", threshold["indicator"], language)
    return translate(key, language, indicator=name, value=value, limit=f"{threshold['limit']:g}")


def _name(check: str, language: Language) -> str:
    name, _, value = check.partition(" ")
    return f"{word('condition', name, language)} {value}".strip()


@leaf(app, "approve", example="outrider remediate approve act-3f2a91c0")
def approve(context: Context, action: ActionId, person: Person = "") -> None:
    """Approve a waiting action. Kinds of ``remediation.two_person`` need two people."""
    _show_action(context, _write(context, f"/actions/{quote(action, safe='')}/approve", person))


@leaf(app, "reject", example="outrider remediate reject act-3f2a91c0")
def reject(context: Context, action: ActionId, person: Person = "") -> None:
    """Reject a waiting action."""
    _show_action(context, _write(context, f"/actions/{quote(action, safe='')}/reject", person))


@leaf(app, "request", example="outrider remediate request act-3f2a91c0")
def request(context: Context, action: ActionId, person: Person = "") -> None:
    """Request approval of a recommended action, or of one whose request expired."""
    _show_action(context, _write(context, f"/actions/{quote(action, safe='')}/request", person))


@leaf(app, "restore", example="outrider remediate restore chat-70b --as ann")
def restore(context: Context, service: ServiceName, person: Person = "") -> None:
    """End the degrade level of a service. Its open incident degrades the service no more."""
    _show_action(context, _write(context, f"/remediation/services/{quote(service, safe='')}/restore", person))


@leaf(app, "pause", example="outrider remediate pause")
def pause(context: Context, person: Person = "") -> None:
    """Pause all actions until ``resume``, undo included; detection and notifications continue."""
    context.show(_write(context, "/remediation/pause", person))


@leaf(app, "resume", example="outrider remediate resume")
def resume(context: Context, person: Person = "") -> None:
    """Resume actions after ``pause``. The kill-switch file and an open breaker still hold them."""
    context.show(_write(context, "/remediation/resume", person))


@leaf(app, "reset", example="outrider remediate reset --as ann")
def reset(context: Context, person: Person = "") -> None:
    """Close the breaker, which opens when remediation does not help."""
    context.show(_write(context, "/remediation/breaker/reset", person))


@leaf(app, "status", example="outrider remediate status -o json")
def status(context: Context) -> None:
    """Show whether a pause, the kill switch or the breaker holds remediation."""
    settings = context.settings()
    switch = wiring_remediation.kill_switch(settings)
    with wiring_stores.state_reader(settings) as store:
        shown = {
            "paused": store.paused(),
            "kill_switch": {"file": str(switch.file) if switch.file else None, "on": switch.is_on()},
            "breaker": serialization.breaker(store.breaker()),
            "autonomy": settings.remediation.autonomy,
            "dry_run": settings.remediation.dry_run,
        }
    context.show(shown, lambda found: _status(found, context.language))


def _status(shown: dict[str, Any], language: Language) -> str:
    lines = [
        translate("cli.remediation_level", language, level=shown["autonomy"]),
        translate("cli.remediation_dry_run", language) if shown["dry_run"] else "",
        translate("cli.remediation_paused", language) if shown["paused"] else "",
    ]
    if shown["kill_switch"]["on"]:
        lines.append(translate("cli.remediation_killed", language, file=shown["kill_switch"]["file"]))
    if shown["breaker"]["open"]:
        counts = {name: shown["breaker"][name] for name in ("opened_at", "unsuccessful", "performed")}
        lines.append(translate("cli.remediation_breaker", language, **counts))
    return "\n".join(filter(None, lines))


@leaf(app, "audit", example="outrider remediate audit --limit 50 -o json")
def audit(context: Context, limit: Limit = 200, incident: IncidentId = None) -> None:
    """Show the audit log of decisions, newest first; of one incident as a story, oldest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        if incident is not None:
            rows = _story(store, incident, context.language)
        else:
            rows = [serialization.audit(record) for record in store.audit(limit=limit)]
    shown_as = tables.audit if incident is None else tables.story
    context.show(rows, lambda shown: shown_as(shown, context.language))


def _story(store: StateReader, incident_id: str, language: Language) -> list[dict[str, Any]]:
    """Every record of one incident, with its sentence. Raises UsageError for an unknown id."""
    incident = store.incident(incident_id)
    if incident is None:
        raise UsageError(f"no incident has the id {incident_id!r}", hint="outrider incidents list shows them")
    actions = incident_actions.of_incident(store, incident, store.topology())
    by_id, records = {action.id: action for action in actions}, store.audit(limit=_ALL)
    return [
        {**serialization.audit(record), "text": repair_story.sentence(record, by_id, language, incident_id)}
        for record in repair_story.of_incident(records, actions, incident_id)
    ]


def _show_action(context: Context, action: dict[str, Any]) -> None:
    context.show(action, lambda shown: tables.actions([shown], context.language))


def _write(context: Context, path: str, person: str) -> Any:
    return client.write(context, "POST", path, user=client.person_or_user(person))
