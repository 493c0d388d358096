"""How every settings table is read: frozen, and no key that means nothing is let through."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A table of a scenario file: immutable, hashable, unknown keys and lax types refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
