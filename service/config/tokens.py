"""The admin token of the API: given by file, or generated once beside the store."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from outrider.errors import ConfigError
from service.config.settings import Settings, read_secret


def token_file(settings: Settings) -> Path:
    """Where the token is: ``api.token_file``, else ``admin.token`` beside the SQLite file, else ``.outrider``."""
    if settings.api.token_file is not None:
        return settings.api.token_file
    return folder_of(settings) / "admin.token"


def folder_of(settings: Settings) -> Path:
    """The folder for files beside the store."""
    return folder_beside(settings.store.url)


def flights_of(store_url: str) -> Path:
    """Where the recordings of incidents lie."""
    return folder_beside(store_url) / "flight" / "incidents"


def spool_of(settings: Settings) -> Path:
    """Where cycles wait for the store."""
    return settings.store.spool.folder or folder_of(settings) / "spool"


def folder_beside(url: str) -> Path:
    """The folder for files beside the store of that URL."""
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///")).parent
    return Path(".outrider")


def admin_token(settings: Settings) -> str:
    """Read the token, making one (readable by its owner alone) when none was configured.

    Raises ConfigError when a configured file is missing or empty.
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
        raise ConfigError(f"the token file {path} is empty", hint="put a token into it, or delete it to have one made")
    return token
