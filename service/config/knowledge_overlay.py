"""The fault catalog of this site: the packaged catalog with the configured folder on top."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from detectors.rca import fault_catalogue
from detectors.rca.fault_catalogue import Knowledge
from outrider.errors import ConfigError, ConfigProblem
from outrider.text import yaml_file
from service.config.runbook_links import of_knowledge

KEY = ("knowledge", "folder")


def of(folder: Path | None, runbooks_url: str | None = None) -> Knowledge:
    """Returns the catalog with the files of a folder on top, and links to runbooks.

    Raises ConfigError with file, line and key of errors.
    """
    loaded = fault_catalogue.load() if folder is None else fault_catalogue.load_with(_texts(folder))
    return of_knowledge(loaded, runbooks_url)


def folder_problems(folder: Path | None, document: yaml_file.Document) -> tuple[ConfigProblem, ...]:
    """Checks the configured folder and its files."""
    try:
        of(folder)
    except ConfigError as error:
        return error.problems or (document.problem(KEY, error.message),)
    return ()


def _texts(folder: Path) -> Mapping[str, str]:
    hint = "set knowledge.folder to a folder with *.yaml files"
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".yaml" and path.is_file())
        texts = {str(path): path.read_text(encoding="utf-8") for path in paths}
    except OSError as error:
        raise ConfigError(f"{error.filename or folder} cannot be read: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"a file of {folder} is not valid UTF-8: {error}", hint="encode it as UTF-8") from error
    if not texts:
        raise ConfigError(f"the folder {folder} contains no *.yaml file", hint=hint)
    return texts
