"""A model's own ``config.json``, read from a file."""

from __future__ import annotations

import json
from pathlib import Path

from outrider.errors import UsageError
from planner.performance import model_specs
from planner.performance.model_specs import ModelShape
from service.config import input_files


def shape_of(path: Path, name: str | None = None, billions: float | None = None) -> ModelShape:
    """The shape that a ``config.json`` tells; ``billions`` of parameters where it does not tell them.

    It is called by the folder it lies in unless ``name`` is given. Raises UsageError naming the file, and the line or
    the key that is wrong.
    """
    hint = "give the model's own config.json, as its publisher has it"
    text = input_files.text_of(path, hint)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg}", hint=hint) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no object", hint=hint)
    parameters = None if billions is None else billions * 1e9
    try:
        return model_specs.of_config(document, name=name or path.parent.name, parameters=parameters)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{path}: a value is of another kind than expected: {error}", hint=hint) from error
