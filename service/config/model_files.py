"""Model shapes from ``config.json`` files."""

from __future__ import annotations

import json
from pathlib import Path

from outrider.errors import UsageError
from planner.performance import model_specs
from planner.performance.model_specs import ModelShape
from service.config import input_files


def shape_of(path: Path, name: str | None = None, billions: float | None = None) -> ModelShape:
    """Shape of a model from its ``config.json``; ``billions`` of parameters if the file does not state them.

    The name defaults to the folder name. Raises UsageError that names the file, and the wrong line or key.
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
