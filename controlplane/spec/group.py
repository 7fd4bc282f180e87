"""Fields of a task group, with limits and defaults."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from controlplane.spec.fields import (
    MAX_COUNT,
    MAX_SECONDS,
    MIN_SECONDS,
    Address,
    EnvName,
    FilePath,
    Folder,
    Image,
    Model,
    Name,
    SharedMemory,
    TargetPath,
    UserName,
)
from controlplane.spec.files import (
    MAX_MOUNTS,
    MAX_OUTPUTS,
    MAX_SECRETS,
    Capability,
    Mount,
    Output,
    Secret,
    SecretName,
    Tmpfs,
)
from controlplane.spec.parts import (
    MAX_RETRY_RULES,
    Cache,
    GroupDependency,
    Input,
    Resources,
    Retries,
    RetryRuleSpec,
)
from controlplane.spec.placing import Constraints, PlacementTags
from controlplane.spec.services import HealthCheck, Limit, Ports

MAX_WORDS = 1_000
MAX_ENV = 500
MAX_INPUTS = 64
MAX_GRACE_SECONDS = 3_600

Words = Annotated[list[str], Field(max_length=MAX_WORDS)]


def _parse_exclusive(value: object) -> object:
    if isinstance(value, bool) or value == "strict":
        return value
    raise ValueError("must be true, false or strict")


Exclusive = Annotated[
    bool | Literal["strict"],
    PlainValidator(_parse_exclusive),
    WithJsonSchema({"enum": [False, True, "strict"]}),
]
StopSignal = Literal["TERM", "INT", "QUIT", "HUP", "KILL", "USR1", "USR2"]


class Defaults(Model):
    """Fields of a group that a job may also have, as defaults of its groups."""

    retries: Retries | None = Field(
        default=None, description="A group overrides single limits of the job."
    )
    retry_permanent: bool = Field(
        default=False,
        description="Retry permanent failures, too, within `retries.failure`: no such image, user"
        " or command.",
    )
    constraints: Constraints = Field(
        default=[], description="On labels of cells. Those of a group replace those of its job."
    )
    placement_tags: PlacementTags = Field(
        default=[], description="All required tags of a cell, and only tags that the cell has."
    )
    delivery: Literal["at_least_once", "at_most_once"] = Field(
        default="at_least_once",
        description="at_most_once: no retry once a container may have existed.",
    )
    exclusive: Exclusive = Field(
        default=False,
        description="Never two concurrent attempts of a task, even across a network partition.",
    )
    cache: Cache = Cache()


class GroupFields(Defaults):
    """Fields of a group that a job with one group may have at the top."""

    replicas: int = Field(
        default=1, ge=1, le=MAX_COUNT, description="At most 10000 tasks in a job."
    )
    min_available: int | None = Field(
        None,
        ge=0,
        le=MAX_COUNT,
        description="How many must succeed; default: replicas, unless the job alone has a minimum.",
    )
    task_type: Name = Field(
        default="container",
        description="container, process, or the name of a runner that is installed on cells.",
    )
    image: Image | None = None
    command: Words = Field(default=[], description="Empty: the image's own.")
    entrypoint: Words | None = None
    workdir: Folder | None = None
    user: UserName | None = None
    env: dict[EnvName, str] = Field(default={}, max_length=MAX_ENV)
    secrets: list[Secret] = Field(default=[], max_length=MAX_SECRETS)
    resources: Resources = Resources()
    on_exit: list[RetryRuleSpec] = Field(
        default=[],
        max_length=MAX_RETRY_RULES,
        description="Retry rules: the first that matches a failed attempt decides on a retry.",
    )
    inputs: list[Input] = Field(default=[], max_length=MAX_INPUTS)
    outputs: list[Output] = Field(default=[], max_length=MAX_OUTPUTS)
    checkpoint_path: TargetPath | None = Field(
        default=None, description="A folder that is carried over from one attempt to the next."
    )
    output_base: Address | None = Field(
        default=None,
        description="URL prefix of stored outputs; default: the control plane's store.",
    )
    result_file: FilePath | None = "/out/result"
    stdin: FilePath | None = Field(
        default=None, description="The file of an input that is the program's standard input."
    )
    stdout: FilePath | None = Field(
        default=None,
        description="The file to which the program's standard output is written at its end.",
    )
    stderr: FilePath | None = Field(
        default=None,
        description="The file to which the program's standard error is written at its end.",
    )
    timeout_seconds: float | None = Field(
        None,
        ge=MIN_SECONDS,
        le=MAX_SECONDS,
        description="Of each attempt, from the start of its program.",
    )
    stop_grace_seconds: float = Field(default=10.0, ge=0, le=MAX_GRACE_SECONDS)
    stop_signal: StopSignal = "TERM"
    ports: Ports = Field(
        default=[], description="Names; each is published at a port of the cell's host."
    )
    pull_policy: Literal["always", "if_not_present", "never"] = "if_not_present"
    registry_secret: SecretName | None = Field(
        default=None, description="A secret with a login to the image's registry."
    )
    network: Literal["none", "default", "gang"] | None = Field(
        default=None,
        description="Default: gang for containers of a coscheduled job, else default.",
    )
    mounts: list[Mount] = Field(default=[], max_length=MAX_MOUNTS)
    max_pids: int = Field(default=1024, ge=1, le=MAX_COUNT)
    shm: SharedMemory = 64
    tmpfs: list[Tmpfs] = Field(default=[], max_length=MAX_MOUNTS)
    read_only: bool = False
    privileged: bool = Field(default=False, description="Only in a pool that allows it.")
    capabilities: list[Capability] = Field(
        default=[], max_length=64, description="Added to the small set that every container has."
    )
    health_check: HealthCheck | None = Field(
        default=None, description="Of kind inference: a task is RUNNING once the check passed."
    )
    idle_timeout_seconds: Limit | None = Field(
        default=None,
        description="Of kind interactive: maximum time without CPU usage, output and traffic.",
    )
    lifetime_seconds: Limit | None = Field(
        default=None, description="Of kind interactive: of each attempt, from RUNNING."
    )


class TaskGroupSpec(GroupFields):
    """One group of a job."""

    name: Name
    depends_on: list[GroupDependency] = Field(default=[], max_length=100)

    def dependencies(self) -> list[GroupDependency]:
        """Return its dependencies, with implicit ones (until succeeded) on groups of inputs."""
        explicit = {item.group for item in self.depends_on}
        sources = dict.fromkeys(item.from_.group for item in self.inputs if item.from_)
        implicit = [GroupDependency(group=name) for name in sources if name not in explicit]
        return [*self.depends_on, *implicit]
