"""The parts of a job and of its groups: resources, inputs, dependencies, retries."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from controlplane.spec import quantities
from controlplane.spec.fields import (
    MAX_COUNT,
    Address,
    ArtifactName,
    CacheKey,
    CacheVersion,
    CallbackUrl,
    ConcurrencyKey,
    Cpu,
    Disk,
    Memory,
    Model,
    Name,
    Sha256,
    TargetPath,
    is_guid,
)

DEFAULT_CPU_MILLIS = 500
DEFAULT_MEMORY_MIB = 128


def _parse_reference(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 63:
        return value
    if isinstance(value, str) and is_guid(value):
        return value
    raise ValueError("must be the number or the guid of a job")


JobReference = Annotated[
    int | str,
    PlainValidator(_parse_reference),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
]
"""A job by its id or guid."""

Until = Literal["started", "succeeded", "finished"]


MAX_NAMED = 16
RESOURCE_NAME = r"^[a-z][a-z0-9_.-]{0,62}$"
Pieces = Annotated[int, Field(ge=1, le=MAX_COUNT)]


def _name_pattern(schema: dict[str, Any]) -> None:
    schema["propertyNames"] = {"pattern": RESOURCE_NAME}


class Resources(Model):
    """Resources of each task, which are also its limits.

    Other names are named resources of cells or tokens of the pool, as whole numbers.
    """

    cpu: Cpu = Field(default=DEFAULT_CPU_MILLIS, description="Cores; 0.5 or 500m.")
    memory: Memory = Field(
        default=DEFAULT_MEMORY_MIB, description="64Mi, 1Gi; a bare number is bytes."
    )
    disk: Disk = Field(default=0, description="Reserved on the cell; 0 reserves none.")
    gpu: int = Field(default=0, ge=0, le=MAX_COUNT, description="Whole devices.")
    __pydantic_extra__: dict[str, Pieces] = Field(init=False)

    model_config = ConfigDict(extra="allow", json_schema_extra=_name_pattern)

    def named(self) -> dict[str, int]:
        """Return named resources of cells and tokens of the pool, by name."""
        return self.__pydantic_extra__ or {}

    def amounts(self) -> dict[str, int]:
        """Return non-zero amounts for placement: cpu_millis, memory_mib, disk_mib, gpu, named."""
        amounts = {
            "cpu_millis": self.cpu,
            "memory_mib": self.memory,
            "disk_mib": self.disk,
            "gpu": self.gpu,
            **self.named(),
        }
        return {name: amount for name, amount in amounts.items() if amount}


class Retries(Model):
    """Number of retries, by reason (Iris: 0 and 100; Flyte: 3)."""

    failure: int = Field(default=0, ge=0, le=MAX_COUNT, description="The program failed.")
    preemption: int = Field(
        default=100, ge=0, le=MAX_COUNT, description="Evicted, or the cell was lost."
    )
    system: int = Field(
        default=3, ge=0, le=MAX_COUNT, description="Consecutive failures of engine or registry."
    )


MAX_RETRY_RULES = 16
MAX_EXIT_CODES = 64

RuledReason = Literal[
    "exit_status",
    "out_of_memory",
    "image_error",
    "command_error",
    "user_error",
    "input_corrupt",
    "system_failure",
    "build_timeout",
]
GROWABLE_REASONS = ("exit_status", "out_of_memory", "user_error")
"""Reasons of a rule that increases resources: the program failed, so that more may help it."""
_SHORT_REASONS = {"oom": "out_of_memory"}


def _whole_reason(value: Any) -> Any:
    return _SHORT_REASONS.get(value, value) if isinstance(value, str) else value


def _check_codes(codes: list[int]) -> list[int]:
    repeated = [code for place, code in enumerate(codes) if code in codes[:place]]
    if repeated:
        raise ValueError(f"has {repeated[0]} twice")
    return codes


ExitCodes = Annotated[
    list[Annotated[int, Field(ge=1, le=255)]],
    Field(min_length=1, max_length=MAX_EXIT_CODES),
    AfterValidator(_check_codes),
]


def _increase(
    parse: Callable[[object], int], render: Callable[[int], str], example: str
) -> tuple[Any, ...]:
    """Return annotations of an increase of a quantity that `parse` reads and `render` writes."""
    quantity = f'"{example}"'
    return (
        PlainValidator(lambda value: quantities.parse_increase(value, parse, example=quantity)),
        PlainSerializer(lambda value: quantities.format_increase(value, render), return_type=str),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "number"}], "examples": ["2x", example]}
        ),
    )


_Increase = quantities.Increase
CpuIncrease = Annotated[_Increase, *_increase(quantities.parse_cpu, quantities.format_cpu, "2")]
MemoryIncrease = Annotated[
    _Increase, *_increase(quantities.parse_memory, quantities.format_mib, "64Mi")
]
DiskIncrease = Annotated[
    _Increase, *_increase(quantities.parse_disk, quantities.format_mib, "100Mi")
]

INCREASED = ("cpu", "memory", "disk")
"""Resources that a retry rule may increase, by their names in jobs."""


class _GrowthFields(Model):
    """Fields of resources that a retry rule may increase."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        names = [name for name in values if name not in INCREASED]
        if names:
            raise ValueError(f"{names[0]} cannot be increased: only cpu, memory and disk can")
        if all(value is None for value in values.values()):
            raise ValueError("must have cpu, memory or disk")
        return values


class ResourceIncrease(_GrowthFields):
    """How a retry rule increases resources: by a factor ("2x"), or to an amount ("4Gi")."""

    cpu: CpuIncrease | None = None
    memory: MemoryIncrease | None = None
    disk: DiskIncrease | None = None


class IncreaseLimits(_GrowthFields):
    """Amounts at which the growth by factors ends."""

    cpu: Cpu | None = None
    memory: Memory | None = None
    disk: Disk | None = None


class RetryRuleSpec(Model):
    """A rule about failed attempts: it applies if exit code and reason are as in the rule."""

    codes: ExitCodes | None = Field(default=None, description="Exit codes; absent: any end.")
    reason: Annotated[
        RuledReason | None,
        BeforeValidator(_whole_reason),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "enum": [*get_args(RuledReason), *_SHORT_REASONS]},
                    {"type": "null"},
                ]
            }
        ),
    ] = Field(default=None, description="Reason of the end; absent: any. oom is out_of_memory.")
    do: Literal["retry", "fail"] = Field(
        description="retry: within retries.failure, also if the failure is permanent. fail: no"
        " further attempt."
    )
    resources: ResourceIncrease | None = Field(
        default=None,
        description="Of a rule that retries: increases the request for the next attempts.",
    )
    max_resources: IncreaseLimits | None = Field(
        default=None, description="Amounts at which the growth by factors ends; absent: none."
    )

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        if self.codes is None and self.reason is None:
            raise ValueError("must have codes, reason or both")
        return self


class GroupResult(Model):
    """Files of another group's succeeded tasks: either their results or one of their outputs."""

    group: Name
    result: Literal[True] | None = None
    output: ArtifactName | None = None

    @model_validator(mode="after")
    def _check(self) -> "GroupResult":
        if (self.result is None) == (self.output is None):
            raise ValueError("must have either result or output")
        return self


class Input(Model):
    """A text, a downloaded file, or a folder that is placed at `path` before the start.

    The folder contains another group's results, in files named by task index, or an output of each
    of its tasks, in folders named by task index. The group waits until the other one has succeeded,
    unless `depends_on` has another condition.
    """

    path: TargetPath
    content: str | None = None
    from_: GroupResult | None = Field(default=None, alias="from")
    url: Address | None = Field(
        default=None, description="http, https, or a file system of the cell: s3, file…"
    )
    sha256: Sha256 | None = Field(default=None, description="Of the content of url.")


class GroupDependency(Model):
    """Dependency on a group of the same job."""

    group: Name
    until: Until = "succeeded"


class JobDependency(Model):
    """Dependency on another job of the same project."""

    job: JobReference
    until: Until = "succeeded"


class Cache(Model):
    """Use of the results of identical tasks."""

    enabled: bool = Field(
        default=False,
        description="Take result and outputs of an identical task that succeeded, if there is one.",
    )
    serialize: bool = Field(
        default=False, description="Of identical tasks only one runs at a time; the others wait."
    )
    version: CacheVersion = Field(
        default="1", description="Part of the key. A new version uses no earlier entry."
    )
    key: CacheKey | None = Field(
        default=None,
        description="Default: derived from image, command, environment, inputs and outputs.",
    )
    scope: Literal["project", "domain"] = Field(
        default="project", description="Sharing of entries: the project, or the whole domain."
    )
    overwrite: bool = Field(
        default=False, description="Run in any case, and replace the entry of the key."
    )

    @model_validator(mode="after")
    def _check_enabled(self) -> Self:
        fields = type(self).model_fields
        unused = [name for name in fields if getattr(self, name) != fields[name].default]
        if not self.enabled and unused:
            raise ValueError(f"{unused[0]} has no effect unless enabled is true")
        return self


MAX_LIMIT_OF_KEY = 100_000
MAX_STARTS = 10_000
MAX_START_SECONDS = 3_600


class StartRateSpec(Model):
    """A rate of starts."""

    count: int = Field(ge=1, le=MAX_STARTS, description="How many attempts may be created")
    per_seconds: int = Field(ge=1, le=MAX_START_SECONDS, description="in any span of this length.")


class ConcurrencySpec(Model):
    """A limit that all jobs of the project with the same key share."""

    key: ConcurrencyKey = Field(description="Any text; it needs no configuration.")
    limit: int | None = Field(
        default=None,
        ge=1,
        le=MAX_LIMIT_OF_KEY,
        description="How many tasks with the key may be on cells when a task of this job starts.",
    )
    starts: StartRateSpec | None = Field(
        default=None, description="Rate at which tasks with the key start, retries included."
    )
    on_conflict: Literal["wait", "reject", "replace"] = Field(
        default="wait",
        description="While open tasks of other jobs use the limit up: wait, refuse this job, or"
        " cancel your oldest jobs with the key.",
    )

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.limit is None and self.starts is None:
            raise ValueError("must have limit, starts or both")
        if self.limit is None and self.on_conflict != "wait":
            raise ValueError(f"on_conflict {self.on_conflict} has no effect without limit")
        return self


class Callback(Model):
    """Callback after the end of each task or of the job."""

    url: CallbackUrl | None = Field(
        default=None,
        description="http or https; receives signed POST requests until it returns 2xx.",
    )
    on: Literal["task", "job"] = Field(
        default="task",
        description="Send for the end of each task, or for the job once it has settled.",
    )
