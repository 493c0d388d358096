"""How every settings table is read: frozen, no key that means nothing is let through, complaints in one line."""

from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pearl_sim.errors import InputError

Count: TypeAlias = Annotated[int, Field(ge=1, le=10**9)]
"""How many of something; far from the end of 64 bits, so that sums and tables of it are, too."""


class Settings(BaseModel):
    """A table of a settings file: immutable, hashable; unknown keys and lax types are refused."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        unknown = [key for key in given if key not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; the keys here are {', '.join(cls.model_fields)}")
        return given

    @classmethod
    def read(cls, where: object, given: dict[str, Any]) -> Self:
        """Return the validated settings; InputError says which key of `where` is wrong and what would be right."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise InputError(where, _explain(error, given)) from None


def _explain(error: ValidationError, given: dict[str, Any]) -> str:
    """Return pydantic's first complaint as 'key = value: what would be right'."""
    first = error.errors()[0]
    kind, message, found = first["type"], first["msg"].removeprefix("Value error, "), first["input"]
    message = (
        message.replace("Input should be", "must be")
        .replace("Field required", "is missing")
        .replace("Tuple should have", "must have")
        .replace("valid tuple", "list")
    )
    # pydantic's location also names the member of a union that it tried; only what is in the file is a key.
    path: list[str] = []
    node: Any = given
    part: Any
    for part in first["loc"]:
        if (isinstance(node, dict) and part in node) or (isinstance(node, list) and isinstance(part, int)):
            node = node[part]
            path.append(str(part))
    if kind == "missing":
        path.append(str(first["loc"][-1]))
    if kind.startswith("union_tag"):
        context = first["ctx"]
        path.append(context["discriminator"].strip("'"))
        expected = context.get("expected_tags", "")
        found, message = context.get("tag"), f"must be one of {expected}" if expected else "is missing"
    key = ".".join(path)
    if kind.startswith("union_tag_invalid") or not (kind == "missing" or isinstance(found, BaseModel | dict | None)):
        return f"{key} = {found!r}: {message}"
    return f"{key}: {message}" if key else message
