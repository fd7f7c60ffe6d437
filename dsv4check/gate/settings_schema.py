"""The shape of the configuration file, as pydantic models: ``docs/config.schema.json`` is made from them.

Imported only where there is a configuration to read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

Text = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
Globs = Annotated[list[Text], Field(min_length=1)]
Path = Annotated[
    Globs,
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "pattern": r"\S"},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1, "pattern": r"\S"}},
            ]
        }
    ),
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def _key(name: str) -> str:
    return name.replace("_", "-")


class Table(BaseModel):
    """A table of the file: keys are spelled with dashes, and no key is there for nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=_key)


class FactKeys(Table):
    """What launches are checked with, where their files do not say it."""

    vllm: Text | None = Field(None, description="vLLM version, as for --vllm")
    gpu: Text | None = Field(None, description="GPU name, as for --gpu")
    gpus: Count | None = Field(None, description="GPUs of one node")
    nodes: Count | None = Field(None, description="Number of nodes")
    gpu_memory_gib: float | None = Field(None, gt=0, allow_inf_nan=False, description="Memory of one GPU")
    model: Text | None = Field(None, description="The model of launches that name a path which does not say it")
    model_config_path: Text | None = Field(
        None, alias="model-config", description="config.json of the model, from this file's folder"
    )
    packages: dict[Text, Text] | None = Field(None, description="Versions of packages beside vLLM")
    env: dict[Text, str | int | bool] | None = Field(None, description="Environment of the server")


class LaunchTable(FactKeys):
    """Facts of the launches in some files; they win over those at the top, and later tables over earlier ones."""

    path: Path = Field(description="Globs from this file's folder")
    skip: Text | None = Field(None, description="Why launches in these files are not checked")


class IgnoreTable(Table):
    """Findings that do not count."""

    path: Path = Field(description="Globs from this file's folder")
    rules: list[Text] = Field(min_length=1, description="Ids or names of rules")
    reason: Text
    launch: Text | None = Field(None, description="Part of the launch's name; without it every launch of the files")


class SettingsTable(FactKeys):
    """`.dsv4check.toml`, or the table `tool.dsv4check` of pyproject.toml."""

    fail_on: Literal["error", "warning", "note", "never"] | None = Field(
        None, description="The least severity that fails the gate"
    )
    strict: bool = Field(False, description="What could not be checked fails the gate, too")
    exclude: list[Text] = Field(default_factory=list, description="Globs of files that are not looked at")
    baseline: Text | None = Field(None, description="File of known findings, from this file's folder")
    rules: Text | None = Field(None, description="Folder of rules of your own, from this file's folder")
    launch: list[LaunchTable] = Field(default_factory=list)
    ignore: list[IgnoreTable] = Field(default_factory=list)


TABLES: dict[str, type[Table]] = {"": SettingsTable, "launch": LaunchTable, "ignore": IgnoreTable}
"""The models by the key of their tables; the top level has none."""


def known_keys(table: str) -> list[str]:
    """Keys of a table, as they are spelled in the file."""
    return sorted(item.alias or name for name, item in TABLES[table].model_fields.items())


def config_json_schema() -> dict[str, Any]:
    """The JSON schema of the configuration file."""
    schema = SettingsTable.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
