"""The part of the configuration that names an explainer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Le
from pydantic import Field

from service.config.settings_base import Duration, Section


class ExplainerSettings(Section):
    """A language model that retells incidents to readers; nothing depends on what it says."""

    url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="OpenAI-compatible address, such as http://10.0.0.5:8000/v1; without it there is no explainer",
    )
    model: str = Field("", description="model to ask for, as the endpoint names it")
    key_file: Path | None = Field(None, description="file with the key, read at each question")
    timeout: Annotated[Duration, Gt(timedelta(0)), Le(timedelta(minutes=2))] = Field(
        timedelta(seconds=12), description="whole time an answer may take; the reader waits, nothing else does"
    )
