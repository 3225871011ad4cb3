"""The language model that writes narratives."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le
from pydantic import Field

from service.config.settings_base import Duration, Section


class ExplainerSettings(Section):
    """A language model that rewrites explanations for readers. Nothing depends on its output."""

    url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Base URL of an OpenAI-compatible API, for example http://10.0.0.5:8000/v1. Empty: no narratives.",
    )
    model: str = Field("", description="Model name.")
    key_file: Path | None = Field(None, description="File with the API key, read at each request.")
    timeout: Annotated[Duration, Gt(timedelta(0)), Le(timedelta(minutes=2))] = Field(
        timedelta(seconds=12), description="Deadline of a response. Only the reader waits for it."
    )
