"""``outrider feedback``: verdicts on alerts, and the precision of rules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.documents import serialization
from outrider.documents.summaries import word
from outrider.errors import UsageError
from outrider.records.feedback import INCIDENT_ID, Usefulness, by_rule
from outrider.text.i18n import translate
from service.cli.core import client, tables
from service.cli.core.common import ON_A_TERMINAL, Context, instant_of, leaf
from service.cli.incidents import feedback_rules
from service.engine import fleet_state
from service.incidents import tuning
from service.wiring import detectors as wiring_detectors
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Record verdicts on alerts and tune rules with them.", no_args_is_help=ON_A_TERMINAL)
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only verdicts given since this time, for example 2026-11-01T00:00Z.")
]


@leaf(app, "give", example="outrider feedback give 3f2a91c0 wrong_cause --cause gpu-lost --comment 'the card was out'")
def give(
    context: Context,
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="Fingerprint of the alert, or incident id for all its alerts.")
    ],
    verdict: Annotated[
        Usefulness, typer.Argument(help="Verdict; wrong_cause: a real fault, but on another entity or of another kind.")
    ],
    cause: Annotated[str | None, typer.Option("--cause", help="Fault id of the right cause, with wrong_cause.")] = None,
    comment: Annotated[str, typer.Option("--comment", help="Comment for others.")] = "",
    starts_at: Annotated[
        str | None, typer.Option("--starts-at", help="Start of the firing period. Default: the newest one.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Your name. Default: the login name.")] = None,
) -> None:
    """Record a verdict on an alert or incident, through the API of a running platform.

    A second verdict of the same person replaces the first.
    """
    with wiring_stores.state_reader(context.settings()) as store:
        incident = store.incident(identifier)
        if incident is None and identifier.startswith(INCIDENT_ID) and not store.spells(identifier):
            raise UsageError(f"no incident has the id {identifier!r}", hint="list them with outrider incidents list")
    body: dict[str, Any] = {
        "verdict": verdict.value,
        "cause": cause,
        "comment": comment,
        "by": by or feedback_rules.login(),
    }
    if incident is not None and starts_at is not None:
        raise UsageError("--starts-at applies to alerts, not to incidents", hint="omit --starts-at")
    if starts_at is not None:
        body["starts_at"] = serialization.instant(instant_of("--starts-at", starts_at))
    path = f"/{'alerts' if incident is None else 'incidents'}/{quote(identifier, safe='')}/feedback"
    grows = incident is not None and incident.resolved_at is None
    context.show(client.write(context, "POST", path, body), lambda shown: _given(shown, context, grows=grows))


@leaf(app, "list", example="outrider feedback list --rule kv-cache-full -o json")
def list_feedback(
    context: Context,
    rule: Annotated[str | None, typer.Option("--rule", help="Only verdicts on this rule.")] = None,
    incident: Annotated[
        str | None, typer.Option("--incident", help="Only verdicts on alerts of this incident.")
    ] = None,
    since: Since = None,
    limit: Limit = 200,
) -> None:
    """List verdicts, newest first."""
    settings = context.settings()
    with wiring_stores.state_reader(settings) as store:
        verdicts = store.feedback(rule=rule, incident=incident, since=_instant(since), limit=limit)
        # A rule or an incident that is gone keeps its verdicts.
        if rule is not None and not store.feedback(rule=rule, limit=1):
            tuning.rule_named(wiring_detectors.rules(settings), rule)
        missing = incident is not None and store.incident(incident) is None
        if missing and not store.feedback(incident=incident, limit=1):
            raise UsageError(f"no incident has the id {incident!r}", hint="list them with outrider incidents list")
    empty = "no_feedback" if rule is incident is since is None else "no_such_feedback"
    context.show(
        [serialization.feedback(verdict) for verdict in verdicts], lambda shown: _verdicts(shown, context, empty)
    )


@leaf(app, "precision", example="outrider feedback precision --since 2026-11-01T00:00Z -o json")
def precision(context: Context, since: Since = None) -> None:
    """Show the share of justified alerts per rule, with its 95 % interval."""
    with wiring_stores.state_reader(context.settings()) as store:
        rules = by_rule(store.feedback(since=_instant(since), limit=fleet_state.UNLIMITED))
    headings = tables.heads(context.language, "rule", "judged", "useful", "wrong_cause", "not_useful", "precision")
    context.show(
        [serialization.precision(rule) for rule in rules],
        lambda shown: tables.table(
            headings,
            [
                [
                    row["rule"],
                    *(str(row[name]) for name in ("judged", "useful", "wrong_cause", "not_useful")),
                    f"{row['precision']:.0%} ({row['low']:.0%} - {row['high']:.0%})",
                ]
                for row in shown
            ],
            empty=translate("cli.no_feedback" if since is None else "cli.no_such_feedback", context.language),
        ),
    )


feedback_rules.add(app)


def _given(shown: dict[str, Any], context: Context, *, grows: bool) -> str:
    alerts, changed = len(shown["feedback"]), shown["changed"]
    text = "feedback_same" if not changed else "feedback_given" if changed == alerts else "feedback_given_some"
    summary = translate(f"cli.{text}", context.language, changed=changed, alerts=alerts)
    later = "\n" + translate("cli.feedback_open", context.language) if grows else ""
    return f"{_verdicts(shown['feedback'], context)}\n{summary}{later}"


def _verdicts(shown: list[dict[str, Any]], context: Context, empty: str = "no_feedback") -> str:
    language = context.language
    headings = tables.heads(language, "at", "rule", "entity", "verdict", "right_cause", "comment", "by", "fingerprint")
    rows = [
        [
            row["at"],
            row["rule"],
            tables.short_entity(row["entity"], language),
            word("usefulness", row["verdict"], language),
            row["cause"] or "",
            row["comment"],
            row["by"],
            row["fingerprint"],
        ]
        for row in shown
    ]
    return tables.table(headings, rows, empty=translate(f"cli.{empty}", language))


def _instant(since: str | None) -> datetime | None:
    return None if since is None else instant_of("--since", since)
