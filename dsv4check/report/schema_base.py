"""What all records of the published schemas have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """One JSON object of a report."""

    # Additions keep the schema version, so readers must tolerate keys they do not know.
    model_config = ConfigDict(extra="allow")
