"""Command line that starts the dashboard."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from dashboards.components.palette import theme


def command(
    api_url: str,
    port: int = 8501,
    host: str = "127.0.0.1",
    *,
    language: str | None = None,
    token_file: Path | None = None,
) -> list[str]:
    """Returns the Streamlit command: headless, without usage statistics, on loopback unless ``host`` is given.

    With ``token_file`` anyone who can open the dashboard may acknowledge and approve. Without it each viewer enters
    the admin token once a session. ``language`` None follows the browser.
    """
    script = str(resources.files("dashboards").joinpath("app.py"))
    options: dict[str, Any] = {
        "server.headless": True,
        "server.address": host,
        "server.port": port,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": False,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        "logger.hideWelcomeMessage": True,
        **_theme_options(),
    }
    flags = [f"--{name}={_flag_value(value)}" for name, value in options.items()]
    script_arguments = ["--api-url", api_url]
    script_arguments += ["--language", language] if language else []
    script_arguments += ["--token-file", str(token_file)] if token_file else []
    return [sys.executable, "-m", "streamlit", "run", script, *flags, "--", *script_arguments]


def _theme_options() -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in theme().items():
        if isinstance(value, dict):
            options |= {f"theme.{name}.{key}": color for key, color in value.items()}
        else:
            options[f"theme.{name}"] = value
    return options


def _flag_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, list) else str(value)
