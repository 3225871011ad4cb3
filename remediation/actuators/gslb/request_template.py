"""Request templates: texts with placeholders, and JSON of any depth."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

PLACEHOLDERS = ("id", "service", "namespace", "cluster", "share", "percent")
Values = Mapping[str, str | float | int]


def filled(template: Any, values: Values) -> Any:
    """Returns the template with its placeholders replaced. A text that is one placeholder keeps the value's type."""
    if isinstance(template, Mapping):
        return {filled_text(str(key), values): filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    whole = template[1:-1] if template[:1] == "{" and template[-1:] == "}" else ""
    return values[whole] if whole in values else filled_text(template, values)


def filled_text(template: str, values: Values) -> str:
    """Returns a text with its placeholders replaced; ``{{`` and ``}}`` are braces."""
    return template.format(**values)


def problem(template: Any) -> str:
    """Returns what is wrong with the placeholders of a template, empty if nothing is."""
    if isinstance(template, Mapping):
        return next((text for item in template.items() for part in item if (text := problem(part))), "")
    if isinstance(template, list):
        return next((text for part in template if (text := problem(part))), "")
    if not isinstance(template, str):
        return ""
    try:
        fields = [(name, spec, how) for _, name, spec, how in Formatter().parse(template) if name is not None]
    except ValueError as error:
        return f"{error}; write {{{{ and }}}} for braces"
    for name, spec, how in fields:
        if name not in PLACEHOLDERS or spec or how:
            return f"unknown placeholder {{{name}}}; valid: {', '.join(PLACEHOLDERS)}"
    return ""
