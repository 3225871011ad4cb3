"""What a viewer's session knows: language, palette, token, and where the API is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import streamlit as st

from dashboards.client import ApiAwayError, ApiError, Client
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.components.palette import Palette, palette
from outrider.text.i18n import LANGUAGES, Language

REFRESH_EVERY = timedelta(seconds=10)
_NAMES: dict[Language, str] = {"en": "English", "zh": "中文"}


@dataclass(frozen=True, slots=True)
class Options:
    """How the dashboard was started."""

    api_url: str
    language: str | None
    token_file: Path | None


@dataclass(frozen=True, slots=True)
class Viewer:
    """Everything a page is handed."""

    client: Client
    language: Language
    palette: Palette

    @property
    def may_change(self) -> bool:
        """True once the admin token is known."""
        return bool(self.client.token)

    def say(self, key: str, **arguments: object) -> str:
        """A text of the dashboard in the viewer's language."""
        return fmt.say(key, self.language, **arguments)


@cache
def options() -> Options:
    """Read from the arguments after ``--``, else from ``$OUTRIDER_API_URL``."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--api-url", default=os.environ.get("OUTRIDER_API_URL", "http://127.0.0.1:8600"))
    parser.add_argument("--language", default=None)
    parser.add_argument("--token-file", type=Path, default=None)
    known, _ = parser.parse_known_args(sys.argv[1:])
    return Options(known.api_url, known.language, known.token_file)


def viewer() -> Viewer:
    """The viewer of this run of the script."""
    language = _language()
    theme = st.context.theme.type or "light"
    return Viewer(Client(options().api_url, language, _token()), language, palette(theme))


def controls(who: Viewer) -> None:
    """Language, and the token that lets a person acknowledge and approve."""
    with st.container(key="o-controls", horizontal=True, gap="small"):
        if options().token_file is None:
            with st.popover(who.say("token.unlocked" if who.may_change else "token.locked"), width="content"):
                st.text_input(
                    who.say("token.label"), type="password", key="token", help=who.say("token.help"), autocomplete="off"
                )
                if st.session_state.get("token") and not who.may_change:
                    st.error(who.say("token.wrong"))
        st.segmented_control(
            who.say("language"),
            LANGUAGES,
            format_func=lambda language: _NAMES[language],
            default=who.language,
            required=True,
            key="language",
            label_visibility="collapsed",
        )


def refreshed(who: Viewer, body: Callable[[Viewer], None]) -> None:
    """Draw ``body`` now and every few seconds. When the API is away one card says so."""

    @st.fragment(run_every=REFRESH_EVERY)
    def draw() -> None:
        try:
            body(who)
        except ApiAwayError as error:
            st.html(html.note(who.say("away.message"), f"{who.say('away.hint')} ({error.message})", away=True))
        except ApiError as error:
            st.html(html.note(error.message, error.hint, away=True))

    draw()


def _language() -> Language:
    chosen = st.session_state.get("language") or st.query_params.get("lang") or options().language
    wanted = chosen or (st.context.locale or "en")
    return "zh" if wanted.lower().startswith("zh") else "en"


def _accepted(token: str) -> bool:
    """Whether the API takes the token; asked once for each that is typed."""
    if st.session_state.get("token_asked") != token:
        try:
            Client(options().api_url, _language(), token).post("/session")
        except ApiAwayError:
            return False  # asked again at the next run
        except ApiError:
            st.session_state["token_taken"] = False
        else:
            st.session_state["token_taken"] = True
        st.session_state["token_asked"] = token
    return bool(st.session_state["token_taken"])


def _token() -> str:
    path = options().token_file
    if path is None:
        typed = str(st.session_state.get("token", "")).strip()
        return typed if typed and _accepted(typed) else ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
