"""Session of a viewer: language, palette, token, and address of the API."""

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

from dashboards.client import ApiError, ApiUnreachableError, Client
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.components.palette import Palette, palette
from outrider.text.i18n import LANGUAGES, Language

REFRESH_EVERY = timedelta(seconds=10)
_NAMES: dict[Language, str] = {"en": "English", "zh": "中文"}


@dataclass(frozen=True, slots=True)
class Options:
    """Start options of the dashboard."""

    api_url: str
    language: str | None
    token_file: Path | None


@dataclass(frozen=True, slots=True)
class Viewer:
    """Context of every dashboard page."""

    client: Client
    language: Language
    palette: Palette

    @property
    def may_change(self) -> bool:
        """True if the admin token is known."""
        return bool(self.client.token)

    def localize(self, key: str, **arguments: object) -> str:
        """Returns a text of the dashboard in the viewer's language."""
        return fmt.localize(key, self.language, **arguments)


@cache
def options() -> Options:
    """Reads the arguments after ``--``, otherwise ``$OUTRIDER_API_URL``."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--api-url", default=os.environ.get("OUTRIDER_API_URL", "http://127.0.0.1:8600"))
    parser.add_argument("--language", default=None)
    parser.add_argument("--token-file", type=Path, default=None)
    arguments, _ = parser.parse_known_args(sys.argv[1:])
    return Options(arguments.api_url, arguments.language, arguments.token_file)


def viewer() -> Viewer:
    """Returns the viewer of this run of the script."""
    language = _language()
    theme = st.context.theme.type or "light"
    return Viewer(Client(options().api_url, language, _token(), _person()), language, palette(theme))


def controls(viewer: Viewer) -> None:
    """Draws the language switch, and the fields for the token that allows changes and for the viewer's name."""
    with st.container(key="o-controls", horizontal=True, gap="small"):
        name = "token.unlocked" if viewer.may_change else "token.locked"
        with st.popover(viewer.localize(name), width="content"):
            if options().token_file is None:
                st.text_input(
                    viewer.localize("token.label"),
                    type="password",
                    key="token",
                    help=viewer.localize("token.help"),
                    autocomplete="off",
                )
                if st.session_state.get("token") and not viewer.may_change:
                    st.error(viewer.localize("token.wrong"))
            st.text_input(
                viewer.localize("token.name"),
                key="person",
                help=viewer.localize("token.name_help"),
                max_chars=64,
            )
        st.segmented_control(
            viewer.localize("language"),
            LANGUAGES,
            format_func=lambda language: _NAMES[language],
            default=viewer.language,
            required=True,
            key="language",
            label_visibility="collapsed",
        )


def refreshed(viewer: Viewer, body: Callable[[Viewer], None]) -> None:
    """Draws ``body`` now and every few seconds. If the API is unreachable, a card reports it."""

    @st.fragment(run_every=REFRESH_EVERY)
    def draw() -> None:
        try:
            body(viewer)
        except ApiUnreachableError as error:
            hint = f"{viewer.localize('away.hint')} ({error.message})"
            st.html(html.note(viewer.localize("away.message"), hint, away=True))
        except ApiError as error:
            st.html(html.note(error.message, error.hint, away=True))

    draw()


def _language() -> Language:
    chosen = st.session_state.get("language") or st.query_params.get("lang") or options().language
    locale = chosen or (st.context.locale or "en")
    return "zh" if locale.lower().startswith("zh") else "en"


def _accepted(token: str) -> bool:
    """True if the API accepts the token; each typed token is checked once."""
    if st.session_state.get("token_checked") != token:
        try:
            Client(options().api_url, _language(), token).post("/session")
        except ApiUnreachableError:
            return False  # checked again at the next run
        except ApiError:
            st.session_state["token_taken"] = False
        else:
            st.session_state["token_taken"] = True
        st.session_state["token_checked"] = token
    return bool(st.session_state["token_taken"])


def _person() -> str:
    return str(st.session_state.get("person", "")).strip()


def _token() -> str:
    path = options().token_file
    if path is None:
        typed = str(st.session_state.get("token", "")).strip()
        return typed if typed and _accepted(typed) else ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
