"""The admin token of the API: from a file, or generated once next to the store."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from outrider.errors import ConfigError
from service.config.settings import Settings, read_secret


def token_file(settings: Settings) -> Path:
    """Returns ``api.token_file``, else ``admin.token`` next to the SQLite file, else in ``.outrider``."""
    if settings.api.token_file is not None:
        return settings.api.token_file
    return folder_of(settings) / "admin.token"


def folder_of(settings: Settings) -> Path:
    """Returns the folder for files next to the store."""
    return folder_beside(settings.store.url)


def flights_of(store_url: str) -> Path:
    """Returns the folder of incident recordings."""
    return folder_beside(store_url) / "flight" / "incidents"


def spool_of(settings: Settings) -> Path:
    """Returns the folder of buffered cycles."""
    return settings.store.spool.folder or folder_of(settings) / "spool"


def folder_beside(url: str) -> Path:
    """Returns the folder for files next to the store of that URL."""
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///")).parent
    return Path(".outrider")


def admin_token(settings: Settings) -> str:
    """Reads the token. Generates one, readable by its owner only, if none is configured.

    Raises ConfigError if a configured file is missing or empty.
    """
    path = token_file(settings)
    if settings.api.token_file is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(secrets.token_urlsafe(32))
    token = read_secret(path)
    if not token:
        raise ConfigError(f"the token file {path} is empty", hint="write a token to it, or delete it to generate one")
    return token
