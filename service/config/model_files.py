"""Model shapes from ``config.json`` files."""

from __future__ import annotations

import json
from pathlib import Path

from outrider.errors import UsageError
from planner.performance import model_specs
from planner.performance.model_specs import ModelShape
from service.config import input_files


def shape_of(path: Path, name: str | None = None, billions: float | None = None) -> ModelShape:
    """Returns the shape of a model from its ``config.json``. ``billions`` of parameters are for files without a number.

    The name defaults to the folder name. Raises UsageError with the file, and the invalid line or key.
    """
    hint = "use the config.json that the model's publisher provides"
    text = input_files.text_of(path, hint)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not valid JSON: {error.msg}", hint=hint) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a JSON object", hint=hint)
    parameters = None if billions is None else billions * 1e9
    try:
        return model_specs.of_config(document, name=name or path.parent.name, parameters=parameters)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{path}: a value has an unexpected type: {error}", hint=hint) from error
