"""The small HTML pages of buttons: the question, the answer, the reason of a refusal. No script, no external file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from html import escape
from urllib.parse import quote

from outrider.documents.summaries import incident_summary
from outrider.errors import UsageError
from outrider.model import ButtonAction, ButtonClaim, Incident
from outrider.text.i18n import Language, translate

_STYLE = """
:root{color-scheme:light dark;--card:#fff;--back:#f4f5f7;--text:#17202a;--muted:#5b6673;--line:#d9dee4;--accent:#1f6feb}
@media(prefers-color-scheme:dark){:root{--card:#171c22;--back:#0e1216;--text:#e6eaef;--muted:#9aa6b2;--line:#2c343d}}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{width:min(34rem,100% - 2rem);box-sizing:border-box;margin:8vh auto;padding:1.5rem;
background:var(--card);border:1px solid var(--line);border-radius:10px}
h1{font-size:1.3rem;margin:0 0 .75rem}
ul{padding-left:1.2rem;margin:.5rem 0 1rem}
p{margin:.5rem 0}
label{display:block;margin:1rem 0 .25rem}
.muted{color:var(--muted);font-size:.9rem}
input,select,button{font:inherit;padding:.6rem .8rem;border-radius:8px;border:1px solid var(--line);width:100%;
box-sizing:border-box;background:var(--card);color:var(--text)}
button{margin-top:1.25rem;background:var(--accent);border-color:var(--accent);color:#fff;font-weight:600;cursor:pointer}
a{color:var(--accent)}
"""
_MOST_INCIDENTS = 10


class RefusedPressError(UsageError):
    """A press that changes nothing. ``reason`` is that of the audit and the end of the id of its text."""

    def __init__(self, reason: str, status: int, **arguments: str) -> None:
        """``status`` is that of the response, ``arguments`` are those of the text."""
        super().__init__(f"The button was refused: {reason}.")
        self.reason = reason
        self.status = status
        self.arguments = arguments


@dataclass(frozen=True, slots=True)
class Subject:
    """What a button is about, for people. Times are in ``zone``."""

    claim: ButtonClaim
    incidents: tuple[Incident, ...]
    language: Language
    zone: tzinfo = UTC

    @property
    def name(self) -> str:
        """The name of the button."""
        return _text(f"act.{self.claim.action}", self.language)

    @property
    def lines(self) -> list[str]:
        """One line for each incident, or the id of the action."""
        if self.claim.action is ButtonAction.APPROVE:
            return [_text("action", self.language, action=self.claim.subject)]
        shown = [
            f"[{incident.priority}] {incident_summary(incident, self.language, zone=self.zone)}"
            for incident in self.incidents[:_MOST_INCIDENTS]
        ]
        more = len(self.incidents) - _MOST_INCIDENTS
        return [*shown, _text("more", self.language, count=more)] if more > 0 else shown


def question(subject: Subject, people: Sequence[str], language: Language) -> str:
    """What the button would do, with the field for a name if the message did not go to one person alone."""
    recipient = subject.claim.recipient
    parts = [f"<h1>{escape(subject.name)}</h1>", _list(subject.lines)]
    form = [f'<p class="muted">{escape(_text("as", language, name=recipient))}</p>'] if recipient else []
    if not recipient:
        form = [f'<label for="name">{escape(_text("name", language))}</label>', _name_field(people, language)]
    form.append(f'<button type="submit">{escape(subject.name)}</button>')
    parts.append(f'<form method="post" action="">{"".join(form)}</form>')
    parts.append(f'<p class="muted">{escape(_text("once", language))}</p>')
    return _page(subject.name, parts, language)


def answer(subject: Subject, by: str, dashboard_url: str, language: Language) -> str:
    """What the button did."""
    done = _text(f"done.{subject.claim.action}", language, name=by)
    parts = [f"<h1>{escape(done)}</h1>", _list(subject.lines)]
    if subject.incidents:
        parts.append(_link(dashboard_url, subject.incidents[0].id, language))
    return _page(done, parts, language)


def refusal(error: RefusedPressError, dashboard_url: str, language: Language) -> str:
    """Why the button does nothing."""
    text, hint = _text(f"refused.{error.reason}", language, **error.arguments), _text("hint", language)
    parts = [f"<h1>{escape(text)}</h1>", f'<p class="muted">{escape(hint)}</p>', _link(dashboard_url, "", language)]
    return _page(text, parts, language)


def _name_field(people: Sequence[str], language: Language) -> str:
    if not people:
        return '<input id="name" name="name" required maxlength="64" autocomplete="name">'
    options = "".join(f'<option value="{escape(name, quote=True)}">{escape(name)}</option>' for name in people)
    choose = escape(_text("choose", language))
    return f'<select id="name" name="name" required><option value="">{choose}</option>{options}</select>'


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _link(dashboard_url: str, incident: str, language: Language) -> str:
    if not dashboard_url:
        return ""
    path = f"/incident?incident={quote(incident, safe='')}" if incident else "/incident"
    url = escape(dashboard_url.rstrip("/") + path, quote=True)
    return f'<p><a href="{url}">{escape(_text("open", language))}</a></p>'


def _page(title: str, parts: Sequence[str], language: Language) -> str:
    return (
        f'<!doctype html><html lang="{language}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} - Outrider</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>"
    )


def _text(key: str, language: Language, **arguments: object) -> str:
    return translate(f"buttons.{key}", language, **arguments)
