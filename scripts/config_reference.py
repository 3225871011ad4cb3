"""Write docs/reference/configuration.md from service/config/settings.py; with --check, say whether it is up to date."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from generated import write_or_check
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outrider.vocabulary.units import format_duration
from service.config.settings import ChannelSettings, Settings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "configuration.md"
HEAD = """\
# Configuration

One YAML file: `--config FILE`, else `$OUTRIDER_CONFIG`, else `./outrider.yaml`, else the defaults below. No
key is required, unknown keys are refused with their line. `${NAME}` is replaced from the environment; a key
that ends in `_file` names a file whose content is the secret. `outrider config init` writes a commented
file, `outrider config check FILE` validates one; after SIGHUP `outrider serve` reads it anew.

This page is written by `scripts/config_reference.py`.
"""


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section with its dotted path, the root first."""
    yield path, model
    for name, field in model.model_fields.items():
        inner, mark = _model_in(field.annotation)
        if inner is not None:
            yield from sections(inner, f"{path}.{name}{mark}" if path else f"{name}{mark}")


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    origin = typing.get_origin(annotation)
    for inner in typing.get_args(annotation):
        found, _ = _model_in(inner)
        if found is not None:
            return found, {list: "[]", dict: ".NAME"}.get(origin, "")
    return None, ""


def kind(annotation: Any) -> str:
    """A type as people say it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(one) for one in inner if one is not type(None))
    if origin is typing.Annotated:
        return kind(inner[0])
    if origin is list:
        return f"list of {kind(inner[0])}"
    if origin is dict:
        return f"mapping of {kind(inner[1])}"
    names = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
        timedelta: "duration",
        Path: "path",
    }
    return names.get(annotation, "section" if _model_in(annotation)[0] else getattr(annotation, "__name__", "text"))


def default(field: FieldInfo) -> str:
    """The default as it would stand in the file."""
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return ""
    if value is None:
        return "none"
    if isinstance(value, timedelta):
        return f"`{format_duration(value).replace(' ', '')}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "`[]`" if value == [] else "`{}`" if value == {} else f"`{value}`"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for path, model in sections(Settings):
        heading = f"`{path}`" if path else "The file"
        lines += [
            f"## {heading}",
            "",
            (model.__doc__ or "").strip(),
            "",
            "| key | value | default | what |",
            "|---|---|---|---|",
        ]
        for name, field in model.model_fields.items():
            what = (field.description or "").replace("|", "\\|")
            lines.append(f"| `{name}` | {kind(field.annotation)} | {default(field)} | {what} |")
        if model is ChannelSettings:
            lines += [
                "",
                "Further keys are those of the sender: `url` or `url_file`, `secret_file`, `host`, `sender`, `to` ...",
            ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
