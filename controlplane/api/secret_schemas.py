"""Define the documents of secrets. Validation errors never repeat a value of the body."""

import base64
import binascii
from datetime import datetime
from typing import Annotated

from pydantic import Field, model_validator

from controlplane.api.schemas import ResponseModel
from controlplane.contract.messages.launch_context import Registry
from controlplane.domain.jobs.secrets import MAX_VALUE_BYTES, registry_value
from controlplane.spec.fields import Model

_BASE64_CHARS = (MAX_VALUE_BYTES + 2) // 3 * 4
_Text = Annotated[str, Field(max_length=MAX_VALUE_BYTES)]
_Login = Annotated[str, Field(min_length=1, max_length=MAX_VALUE_BYTES // 4)]


class RegistryLogin(Model):
    """Credentials for a registry of images."""

    username: _Login
    password: _Login = Field(repr=False)


class SecretRequest(Model):
    """A secret's new value, in one of three ways; at most 64 KiB."""

    value: _Text | None = Field(default=None, description="As text.", repr=False)
    value_base64: Annotated[str, Field(max_length=_BASE64_CHARS)] | None = Field(
        default=None, description="Any bytes, in base64.", repr=False
    )
    registry: RegistryLogin | None = Field(
        default=None, description="A login, for `registry_secret`.", repr=False
    )

    @model_validator(mode="after")
    def _check(self) -> "SecretRequest":
        given = [self.value, self.value_base64, self.registry]
        if len([item for item in given if item is not None]) != 1:
            raise ValueError("must have one of value, value_base64 and registry")
        if len(self.content()) > MAX_VALUE_BYTES:
            raise ValueError(f"the value has more than {MAX_VALUE_BYTES} bytes")
        return self

    def content(self) -> bytes:
        """The bytes that are meant. Raises ValueError."""
        if self.value is not None:
            return self.value.encode()
        if self.registry is not None:
            return registry_value(Registry(self.registry.username, self.registry.password))
        try:
            return base64.b64decode((self.value_base64 or "").encode("ascii"), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("value_base64 is not base64") from None


class StoredSecret(ResponseModel):
    """A secret without its value, which is never shown."""

    name: str
    domain: str
    project: str
    size: int = Field(description="Bytes of the value.")
    version: int = Field(description="How often it was written.")
    written_by: str | None
    created_at: datetime
    updated_at: datetime = Field(description="When it was last written.")
