"""The admin token of the API and the key of buttons: from files, or generated once next to the store."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from outrider.errors import ConfigError
from service.config.settings import Settings, read_secret

SHORTEST_KEY = 16  # characters of the key of buttons


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
        _generate(path)
    token = read_secret(path)
    if not token:
        raise ConfigError(f"the token file {path} is empty", hint="write a token to it, or delete it to generate one")
    return token


def button_key_file(settings: Settings) -> Path:
    """Returns ``oncall.buttons.key_file``, else ``button.key`` where the admin token is generated.

    It is not next to a configured token, whose folder may be read-only.
    """
    return settings.oncall.buttons.key_file or folder_of(settings) / "button.key"


def button_key(settings: Settings) -> str:
    """Reads the key of buttons. Generates one, readable by its owner only, if none is configured.

    Returns an empty key if people cannot reach the API. Raises ConfigError if the file cannot be read or its key is
    too short.
    """
    if settings.api.public_url is None:
        return ""
    path = button_key_file(settings)
    if settings.oncall.buttons.key_file is None:
        _generate(path)
    key = read_secret(path)
    if len(key) < SHORTEST_KEY:
        raise ConfigError(
            f"the key of buttons in {path} has fewer than {SHORTEST_KEY} characters",
            hint="write a random one: openssl rand -base64 32",
        )
    return key


def _generate(path: Path) -> None:
    """Writes a random secret unless the file exists. It appears complete: other processes may start at the same time.

    Raises ConfigError if the folder cannot be written to.
    """
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(secrets.token_urlsafe(32))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            Path(draft).unlink()
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="make its folder writable") from error
