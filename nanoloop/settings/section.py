"""A table of the settings file, and the kinds of values that several tables have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nanoloop.settings.keys import Unit

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Unit("seconds")]
Messages = Annotated[int, Field(ge=1), Unit("messages")]
Folder = Annotated[Path, Field(strict=False), AfterValidator(Path.expanduser)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )
