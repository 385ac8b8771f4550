"""What the parts of a study file have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no changes after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True)
