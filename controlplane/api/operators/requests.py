"""Define the bodies of operators' requests, with the faults and texts of a job's fields."""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from controlplane.contract.messages.launch_context import Registry
from controlplane.domain.convergence.policy import DRAIN_SECONDS
from controlplane.domain.jobs.secrets import MAX_VALUE_BYTES, registry_value
from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS
from controlplane.spec.fields import MAX_COUNT, MAX_SECONDS, Folder, Model, Name
from controlplane.spec.limits import LimitedResources, Tokens

_PluginName = Annotated[str, Field(min_length=1, max_length=63)]
_Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Text = Annotated[str, Field(max_length=MAX_VALUE_BYTES)]
_Login = Annotated[str, Field(min_length=1, max_length=MAX_VALUE_BYTES // 4)]
_BASE64_CHARS = (MAX_VALUE_BYTES + 2) // 3 * 4


class DrainRequest(Model):
    """How a cell is drained."""

    deadline_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=DRAIN_SECONDS,
        description="What still runs there then is moved elsewhere, free of charge. Null: never.",
    )


class AllowedMount(Model):
    """A file or folder of the cells' hosts that tasks may mount, with all below it."""

    path: Folder
    read_only: bool = True


class PoolRequest(Model):
    """What a pool shall be; what is left out stays as it is, and has its default in a new pool."""

    name: Name | None = Field(default=None, description="As in the address, if it is given.")
    sequencer: _PluginName = "fifo"
    selector: _PluginName = "dispersed"
    validators: list[_PluginName] = Field(default=list(DEFAULT_VALIDATORS), max_length=64)
    strict_fifo: bool = False
    preemption: bool = True
    pending_timeout_seconds: _Seconds | None = None
    pull_timeout_seconds: _Seconds = 1800
    create_timeout_seconds: _Seconds = 300
    max_building_per_cell: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = Field(
        default=8, description="Null: any number."
    )
    starvation_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=300, description="Null: no capacity is reserved."
    )
    mass_loss: Literal["hold", "proceed"] = Field(
        default="hold",
        description="When more than half of its cells fall silent at once: hold them until they are"
        " back or an operator confirms, or proceed after one more lease.",
    )
    tokens: Tokens = Tokens({})
    allowed_mounts: list[AllowedMount] = Field(
        default=[], max_length=64, description="What of a cell's host tasks may mount."
    )
    privileged_allowed: bool = Field(
        default=False, description="Whether tasks may be privileged, or have any capability."
    )
    loss_held_at: Any = Field(default=None, description="As in the response; ignored.")

    def changes(self) -> dict[str, Any]:
        """The fields that stand in the body, as the row has them."""
        return self.model_dump(exclude_unset=True, exclude={"name", "loss_held_at"})


class QuotaRequest(Model):
    """What someone may have at once; what is left out stays as it is, null is no limit."""

    kind: str | None = Field(default=None, description="As in the address, if it is given.")
    name: str | None = Field(default=None, description="As in the address, if it is given.")
    resources: LimitedResources | None = Field(default=None, description="As a whole.")
    running_tasks: _Count | None = None
    running_jobs: _Count | None = None
    pending_tasks: _Count | None = None
    weight: float | None = Field(default=1.0, ge=0.001, le=MAX_COUNT)
    usage: Any = Field(default=None, description="As in the response; ignored.")

    def changes(self) -> dict[str, Any]:
        """The fields that stand in the body, as the row has them."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        for name in ("kind", "name", "usage"):
            found.pop(name, None)
        if "resources" in found:
            found["resources"] = {} if self.resources is None else self.resources.amounts()
        if "weight" in found and self.weight is None:
            found["weight"] = 1.0
        return found


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
