"""``outrider alerts`` and ``outrider incidents``: read them, act on them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import AlertState, EntityRef
from outrider.ports import StateReader
from outrider.text.i18n import Language, translate
from service.cli.core import client, tables
from service.cli.core.common import ON_A_TERMINAL, Context, duration_of, leaf
from service.wiring import stores as wiring_stores

alerts_app = typer.Typer(help="Read alerts and act on them.", no_args_is_help=ON_A_TERMINAL)
incidents_app = typer.Typer(help="Read incidents and their story.", no_args_is_help=ON_A_TERMINAL)

Fingerprint = Annotated[str, typer.Argument(help="fingerprint of the alert")]
IncidentId = Annotated[str, typer.Argument(help="id of the incident")]


@leaf(alerts_app, "list", example="outrider alerts list --state firing -o json")
def list_alerts(
    context: Context,
    state: Annotated[AlertState | None, typer.Option("--state", help="only these")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="at most so many")] = 200,
) -> None:
    """List alerts, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.alerts(states=[state] if state else None, limit=limit)
    context.show(
        [serialization.alert(alert, context.language) for alert in found],
        lambda shown: tables.alerts(shown, context.language),
    )


@leaf(alerts_app, "show", example="outrider alerts show 3f2a91c0 -o json")
def show_alert(context: Context, fingerprint: Fingerprint) -> None:
    """Show one alert."""
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.alert(fingerprint)
    if found is None:
        raise UsageError(f"no alert has the fingerprint {fingerprint!r}", hint="outrider alerts list shows them")
    context.show(serialization.alert(found, context.language))


@leaf(alerts_app, "ack", example="outrider alerts ack inc-20261121T0805-3f2a")
def acknowledge(
    context: Context,
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="id of the incident, or fingerprint of an alert of it")
    ],
) -> None:
    """Say "I am on it": the incident's messages are not repeated any more."""
    with wiring_stores.state_reader(context.settings()) as store:
        incident = _incident_of(store, identifier)
    context.show(client.write(context, "POST", f"/incidents/{quote(incident, safe='')}/ack"))


@leaf(alerts_app, "resolve", example="outrider alerts resolve 3f2a91c0")
def resolve(context: Context, fingerprint: Fingerprint) -> None:
    """Resolve an alert by hand."""
    context.show(client.write(context, "POST", f"/alerts/{quote(fingerprint, safe='')}/resolve"))


@leaf(alerts_app, "silence", example="outrider alerts silence --rule ttft-p99 --for 2h --comment 'load test'")
def silence(
    context: Context,
    rule: Annotated[str | None, typer.Option("--rule", help="only this rule")] = None,
    entity: Annotated[str | None, typer.Option("--entity", help="only this one: cluster/kind/namespace/name")] = None,
    duration: Annotated[str, typer.Option("--for", help="how long, such as 2h")] = "1h",
    comment: Annotated[str, typer.Option("--comment", help="why")] = "",
) -> None:
    """Mute alerts for a while; they still fire and are still recorded."""
    if rule is None and entity is None:
        raise UsageError("a silence needs --rule or --entity", hint="a silence of everything is not offered")
    body: dict[str, Any] = {
        "rule": rule,
        "duration_seconds": duration_of("--for", duration).total_seconds(),
        "comment": comment,
    }
    if entity is not None:
        body["entity"] = _entity(entity)
    context.show(client.write(context, "POST", "/silences", body))


@leaf(alerts_app, "unsilence", example="outrider alerts unsilence 7c1d")
def unsilence(context: Context, silence_id: Annotated[str, typer.Argument(help="id of the silence")]) -> None:
    """End a silence."""
    context.show(client.write(context, "DELETE", f"/silences/{quote(silence_id, safe='')}"))


@leaf(incidents_app, "list", example="outrider incidents list --open -o json")
def list_incidents(
    context: Context,
    open_only: Annotated[bool, typer.Option("--open", help="only open ones")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="at most so many")] = 100,
) -> None:
    """List incidents, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.incidents(open_only=open_only, limit=limit)
    context.show(
        [serialization.incident(incident, context.language) for incident in found],
        lambda shown: tables.incidents(shown, context.language),
    )


@leaf(incidents_app, "show", example="outrider incidents show inc-20261121T0805-3f2a -o json")
def show_incident(context: Context, incident: IncidentId) -> None:
    """Show one incident with the evidence of its suspected cause; those of all hypotheses with -o json."""
    context.show(_story(context, incident), lambda story: _told(story, context.language))


@leaf(incidents_app, "timeline", example="outrider incidents timeline inc-20261121T0805-3f2a")
def timeline(context: Context, incident: IncidentId) -> None:
    """Tell the story of one incident, oldest line first."""
    lines = _story(context, incident)["timeline"]
    context.show(lines, lambda shown: "\n".join(f"{line['at']}  {line['text']}" for line in shown))


def _story(context: Context, incident: str) -> dict[str, Any]:
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.incident(incident)
    if found is None:
        raise UsageError(f"no incident has the id {incident!r}", hint="outrider incidents list shows them")
    return serialization.incident_story(found, context.language)


def _told(story: dict[str, Any], language: Language) -> str:
    """The incident, its summary, and what speaks for its suspected cause."""
    from dashboards.components.format import observation  # noqa: PLC0415 - only this table needs it

    first = story["hypotheses"][0] if story["hypotheses"] else None
    lines = [observation(each, language) for each in first["evidence"]] if first else []
    parts = [tables.incidents([story], language), story["summary"]]
    if lines:
        parts.append("\n".join([translate("notify.line.evidence", language), *(f"- {line}" for line in lines)]))
    elif first:
        parts.append(translate("cli.no_evidence", language))
    return "\n\n".join(parts)


def _incident_of(store: StateReader, identifier: str) -> str:
    """The incident of that id, else the one that holds the alert of that fingerprint. Raises UsageError."""
    if store.incident(identifier) is not None:
        return identifier
    alert = store.alert(identifier)
    if alert is None:
        raise UsageError(
            f"no incident has the id {identifier!r}, and no alert that fingerprint",
            hint="outrider incidents list and outrider alerts list show them",
        )
    if alert.incident is None:
        raise UsageError(
            f"alert {identifier!r} belongs to no incident, so there is nothing to acknowledge",
            hint="outrider alerts resolve or outrider alerts silence may be what you want",
        )
    return alert.incident


def _entity(text: str) -> dict[str, Any]:
    try:
        return serialization.entity(EntityRef.from_key(text))
    except ValueError as error:
        raise UsageError(f"{text!r} is not an entity", hint="write it as cluster/kind/namespace/name") from error
