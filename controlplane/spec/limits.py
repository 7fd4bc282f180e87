"""Limits of quotas, with the resource names of jobs or of cells; tokens and limits of pools."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
    model_validator,
)

from controlplane.spec import quantities
from controlplane.spec.fields import MAX_COUNT, Model
from controlplane.spec.files import MAX_OUTPUTS
from controlplane.spec.group import MAX_GRACE_SECONDS
from controlplane.spec.job import MAX_TTL_SECONDS
from controlplane.spec.parts import RESOURCE_NAME
from controlplane.spec.services import MAX_CHECK_SECONDS, MAX_PORTS

# The largest integer that every JSON parser reads exactly.
MAX_LIMIT = (1 << 53) - 1
MAX_NAMES = 64
# The maximum of the setting CELLRUN_MAX_ARTIFACT_MIB.
MAX_ARTIFACT_MIB = 1_000_000_000
# Reserved names: cpu, memory and disk, with their units of placement, and gpu.
OWN_NAMES = frozenset({"cpu", "cpu_millis", "memory", "memory_mib", "disk", "disk_mib", "gpu"})

_NAME = re.compile(RESOURCE_NAME.strip("^$"), re.ASCII)


def _cores(value: object) -> int | None:
    if value is None:
        return None
    # A limit may be 0, unlike the request of a task.
    return 0 if str(value) in ("0", "0.0") else quantities.parse_cpu(value)


def _mebibytes(value: object) -> int | None:
    return None if value is None else quantities.parse_disk(value)


def _bytes(value: object) -> int | None:
    return None if value is None else quantities.parse_bytes(value)


def _quantity(example: str) -> Any:
    anything = [{"type": "string"}, {"type": "number"}, {"type": "null"}]
    return WithJsonSchema({"anyOf": anything, "examples": [example]})


Cores = Annotated[int | None, BeforeValidator(_cores), _quantity("0.5")]
Bytes = Annotated[int | None, BeforeValidator(_mebibytes), _quantity("64Gi")]
StoredBytes = Annotated[int | None, BeforeValidator(_bytes), _quantity("50Gi")]
Number = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class LimitedResources(Model):
    """Maximum of each resource; null and missing names are unlimited.

    Memory and disk are given either as in a job (`memory: 64Gi`) or as in a cell (`memory_mib:
    65536`). Other names are named resources of cells or tokens of pools, as whole numbers.
    """

    cpu: Cores = Field(default=None, description="Cores; 0.5 or 500m.")
    memory: Bytes = Field(default=None, description="64Gi; a bare number is bytes.")
    memory_mib: Number | None = None
    disk: Bytes = Field(default=None, description="100Gi; a bare number is bytes.")
    disk_mib: Number | None = None
    gpu: Number | None = None
    __pydantic_extra__: dict[str, Number | None] = Field(init=False)

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one, other in (("memory", "memory_mib"), ("disk", "disk_mib")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"has {one} twice: use either {one} or {other}")
        check_names(self.__pydantic_extra__ or {})
        return self

    def amounts(self) -> dict[str, int]:
        """Return amounts for placement: cpu_millis, memory_mib, disk_mib, gpu and named ones."""
        amounts = {
            "cpu_millis": self.cpu,
            "memory_mib": self.memory if self.memory is not None else self.memory_mib,
            "disk_mib": self.disk if self.disk is not None else self.disk_mib,
            "gpu": self.gpu,
            **(self.__pydantic_extra__ or {}),
        }
        return {name: amount for name, amount in amounts.items() if amount is not None}


class JobLimits(Model):
    """Limits of a pool for the values of its jobs. Omitted ones have their defaults."""

    max_pids: int = Field(
        default=16_384,
        ge=1,
        le=MAX_COUNT,
        description="Maximum of `max_pids`; half of the process numbers of a small host.",
    )
    max_ttl_seconds: int = Field(
        default=90 * 86_400,
        ge=0,
        le=MAX_TTL_SECONDS,
        description="Maximum of `ttl_seconds_after_finished`; 90 days.",
    )
    max_retries: int = Field(
        default=1_000, ge=0, le=MAX_COUNT, description="Maximum of each of `retries`."
    )
    max_grace_seconds: float = Field(
        default=float(MAX_GRACE_SECONDS),
        ge=0,
        le=MAX_GRACE_SECONDS,
        description="Maximum of `stop_grace_seconds`.",
    )
    min_check_interval_seconds: float = Field(
        default=1.0,
        ge=0.1,
        le=MAX_CHECK_SECONDS,
        description="Minimum of `interval_seconds` of a health check, which runs a program outside"
        " the limits of the task.",
    )
    always_pull: bool = Field(
        default=False,
        description="Whether containers have `pull_policy: always`, so that the registry checks for"
        " each attempt whether its login may use the image.",
    )
    default_disk_mib: int = Field(
        default=10_240,
        ge=0,
        le=quantities.MAX_MIB,
        description="Maximum disk use of a task that requests no `disk`, in MiB; 10 GiB. It"
        " reserves nothing on the cell; 0: no limit.",
    )
    max_ports: int = Field(
        default=MAX_PORTS,
        ge=0,
        le=MAX_PORTS,
        description="Maximum number of `ports` of a task; 0: none.",
    )
    max_shm_mib: int = Field(
        default=65_536,
        ge=1,
        le=quantities.MAX_MIB,
        description="Maximum of `shm`, in MiB; 64 GiB.",
    )
    max_outputs: int = Field(
        default=MAX_OUTPUTS,
        ge=0,
        le=MAX_OUTPUTS,
        description="Maximum number of `outputs`; 0: none.",
    )
    max_artifact_mib: int = Field(
        default=MAX_ARTIFACT_MIB,
        ge=1,
        le=MAX_ARTIFACT_MIB,
        description="Maximum total size of one attempt's artifacts in the control plane's store, in"
        " MiB. CELLRUN_MAX_ARTIFACT_MIB also applies.",
    )


class Tokens(RootModel[dict[str, Number]]):
    """Tokens of a pool: the maximum of each name that may be held at once."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_names(self.root)
        return self


def check_names(names: Iterable[str]) -> None:
    """Check names of named resources or tokens. Raise ValueError with the first fault."""
    for fault in _faults(list(names)):
        raise ValueError(fault)


def _faults(names: list[str]) -> Iterator[str]:
    if len(names) > MAX_NAMES:
        yield f"must have at most {MAX_NAMES} names, not {len(names)}"
    for name in names:
        if name in OWN_NAMES:
            yield f"{name} is a reserved name{': use cpu' if name == 'cpu_millis' else ''}"
        elif not _NAME.fullmatch(name):
            yield f"{name[:100]!r}: a name must match {RESOURCE_NAME}"


def written(amounts: Mapping[str, int]) -> dict[str, str | int]:
    """Convert amounts of placement to the format of jobs: {"cpu": "4", "memory": "64Gi"}."""
    shown: dict[str, str | int] = {}
    for name in in_order(amounts):
        if name == "cpu_millis":
            shown["cpu"] = quantities.format_cpu(amounts[name])
        elif name in ("memory_mib", "disk_mib"):
            shown[name.removesuffix("_mib")] = quantities.format_mib(amounts[name])
        else:
            shown[name] = amounts[name]
    return shown


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of resources for display: cpu, memory, disk, gpu, then the others by name."""
    found = set(names)
    first = [name for name in ("cpu_millis", "memory_mib", "disk_mib", "gpu") if name in found]
    return [*first, *sorted(found - {*first})]
