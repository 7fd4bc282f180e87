"""Define the bodies of operators' requests, with the same error texts as jobs."""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from controlplane.api.schemas import MAX_REASON
from controlplane.commands.cells.enrolment import EnrolmentChange
from controlplane.contract.images import DOCKER_HUB
from controlplane.contract.messages.launch_context import Registry
from controlplane.domain.convergence.policy import DRAIN_SECONDS
from controlplane.domain.jobs.secrets import MAX_VALUE_BYTES, registry_value
from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS
from controlplane.domain.roles import (
    DEFAULT_DAYS,
    MAX_DAYS,
    MAX_OPERATOR_DAYS,
    MAX_TOKEN_NAME,
    MAX_TOKEN_PROJECTS,
    TOKEN_NAME,
)
from controlplane.spec.fields import (
    MAX_COUNT,
    MAX_SECONDS,
    Folder,
    Model,
    Name,
    RegistryServer,
)
from controlplane.spec.files import Capability
from controlplane.spec.limits import JobLimits, LimitedResources, StoredBytes, Tokens
from controlplane.spec.placing import FixedTags, NodeLabels

ProjectName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}/[a-z0-9][a-z0-9._-]{0,62}$")
]
_PluginName = Annotated[str, Field(min_length=1, max_length=63)]
_Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Text = Annotated[str, Field(max_length=MAX_VALUE_BYTES)]
_Login = Annotated[str, Field(min_length=1, max_length=MAX_VALUE_BYTES // 4)]
_BASE64_CHARS = (MAX_VALUE_BYTES + 2) // 3 * 4


class CellOrderRequest(Model):
    """The reason of an order about a cell, which its state and the audit log show."""

    reason: str = Field(default="", max_length=MAX_REASON)


class DrainRequest(CellOrderRequest):
    """The reason and the deadline of a drain."""

    deadline_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=DRAIN_SECONDS,
        description="Seconds until attempts that still run are stopped and their tasks requeued,"
        " free of charge. Null: never.",
    )


class TokenRequest(Model):
    """A token to create."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_TOKEN_NAME, pattern=TOKEN_NAME)] = (
        Field(
            description="Identifies the token in lists and in the audit log; unique for the user."
        )
    )
    user: Annotated[str, Field(min_length=1, max_length=150)] | None = Field(
        default=None,
        description="Owner of the token; default: the caller. Operators can name any user, managers"
        " a service account of their project.",
    )
    role: Literal["viewer", "submitter", "manager", "operator"] = Field(
        default="submitter",
        description="The most that it permits: the roles of its user on projects limit it too.",
    )
    projects: (
        Annotated[list[ProjectName], Field(min_length=1, max_length=MAX_TOKEN_PROJECTS)] | None
    ) = Field(
        default=None,
        description="Projects, as domain/project, that it is limited to. Null: all projects of its"
        " user. The role operator cannot be limited.",
    )
    expires_in_days: Annotated[int, Field(ge=1, le=MAX_OPERATOR_DAYS)] = Field(
        default=DEFAULT_DAYS,
        description=f"At most {MAX_DAYS}; operators may grant more.",
    )


class UserRequest(Model):
    """A user."""

    name: Annotated[str, Field(max_length=150)] | None = Field(
        default=None, description="As in the URL; optional."
    )
    active: bool = Field(
        default=True, description="Whether the user's tokens and logins are accepted."
    )


class ProjectRequest(Model):
    """A project."""

    archived: bool | None = Field(
        default=None,
        description="Whether it accepts no new jobs and secrets. Null: as it is; of a new project,"
        " false.",
    )


class MemberRequest(Model):
    """The role of a user or group."""

    role: Literal["viewer", "submitter", "manager"] = Field(
        description="viewer: read work and its output; submitter: and submit jobs, cancel, retry"
        " and delete own work, use secrets; manager: and any work, secrets, members, service"
        " accounts and their tokens.",
    )


class ServiceAccountRequest(Model):
    """The role of a service account on its project."""

    role: Literal["viewer", "submitter", "manager"] = Field(
        default="submitter", description="As that of a member."
    )


class CellRequest(Model):
    """What operators fix of a cell. Omitted fields keep their values."""

    name: Name | None = Field(default=None, description="As in the URL; optional.")
    pool: Name | None = Field(default=None, description="Its pool. Null: the present one.")
    node_labels: NodeLabels | None = Field(
        default=None, description="Replaces all labels below node/. Null: the present ones."
    )
    max_capacity: LimitedResources | None = Field(
        default=None,
        description="Replaces the maximum of all resources; those without one are not limited."
        " Null: the present ones.",
    )
    fixed_tags: FixedTags | None = Field(
        default=None,
        description="Its tags: a is required, b? optional. Only *: those that the cell reports."
        " Null: the present ones.",
    )

    def change(self) -> EnrolmentChange:
        """Return the change."""
        ceiling = None if self.max_capacity is None else self.max_capacity.amounts()
        labels = None if self.node_labels is None else self.node_labels.root
        tags = None if self.fixed_tags is None else self.fixed_tags.root
        return EnrolmentChange(self.pool, labels, ceiling, tags)


class AllowedMount(Model):
    """A path on the hosts of the cells that tasks may mount, with everything below it."""

    path: Folder
    read_only: bool = True


class PoolRequest(Model):
    """The policy of a pool. Omitted fields keep their values; in a new pool, their defaults."""

    name: Name | None = Field(default=None, description="As in the URL; optional.")
    sequencer: _PluginName = "fifo"
    selector: _PluginName = "dispersed"
    validators: list[_PluginName] = Field(default=list(DEFAULT_VALIDATORS), max_length=64)
    strict_fifo: bool = False
    preemption: bool = True
    pending_timeout_seconds: _Seconds | None = None
    pull_timeout_seconds: _Seconds = 1800
    create_timeout_seconds: _Seconds = 300
    max_building_per_cell: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = Field(
        default=8, description="Null: no limit."
    )
    starvation_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=300, description="Null: no capacity is reserved."
    )
    mass_loss: Literal["hold", "proceed"] = Field(
        default="hold",
        description="When more than half of the cells become silent at once: hold (declare no cell"
        " lost until the cells report again or an operator confirms the loss), or proceed after one"
        " more lease.",
    )
    tokens: Tokens = Tokens({})
    allowed_mounts: list[AllowedMount] = Field(
        default=[],
        max_length=64,
        description="Paths on the hosts of the cells that tasks may mount.",
    )
    cells_may_join: bool = Field(
        default=False,
        description="Whether a cell may move itself into the pool when it registers; otherwise only"
        " operators move cells.",
    )
    privileged_allowed: bool = Field(
        default=False,
        description="Whether tasks may be privileged, and may have any capability of the kernel.",
    )
    exec_allowed: bool = Field(
        default=True,
        description="Whether users may run programs inside running tasks (`cellrun exec`).",
    )
    allowed_capabilities: list[Capability] = Field(
        default=[],
        max_length=64,
        description="Capabilities, such as NET_RAW, that tasks may have although not privileged.",
    )
    input_networks: list[Annotated[str, Field(max_length=43)]] = Field(
        default=[],
        max_length=64,
        description="Networks, such as 10.1.0.0/16, from which inputs of tasks may be fetched"
        " although they are not public. A cell may replace them.",
    )
    job_limits: JobLimits = Field(
        default=JobLimits(), description="Limits for the values of jobs, as a whole."
    )
    loss_held_at: Any = Field(default=None, description="As in the response; ignored.")

    def changes(self) -> dict[str, Any]:
        """Return the fields in the body, as columns of the row."""
        return self.model_dump(exclude_unset=True, exclude={"name", "loss_held_at"})


class QuotaRequest(Model):
    """Limits over all pools. Omitted fields keep their values; null means no limit."""

    kind: str | None = Field(default=None, description="As in the URL; optional.")
    name: str | None = Field(default=None, description="As in the URL; optional.")
    resources: LimitedResources | None = Field(
        default=None, description="Replaces all limits of resources."
    )
    running_tasks: _Count | None = None
    running_jobs: _Count | None = None
    pending_tasks: _Count | None = None
    stored_bytes: StoredBytes = Field(
        default=None, description="Of a project or default quota of projects: 5368709120 or 5Gi."
    )
    weight: float | None = Field(default=1.0, ge=0.001, le=MAX_COUNT)
    highest_band: Literal["production", "interactive", "batch"] | None = Field(
        default=None,
        description="The highest band of new jobs; null: interactive, and production for a domain.",
    )
    is_default: Any = Field(default=None, description="As in the response; ignored.")
    usage: Any = Field(default=None, description="As in the response; ignored.")

    def changes(self) -> dict[str, Any]:
        """Return the fields in the body, as columns of the row."""
        found = {name: getattr(self, name) for name in self.model_fields_set}
        for name in ("kind", "name", "is_default", "usage"):
            found.pop(name, None)
        if "resources" in found:
            found["resources"] = {} if self.resources is None else self.resources.amounts()
        if "weight" in found and self.weight is None:
            found["weight"] = 1.0
        if "highest_band" in found:
            found["highest_band"] = self.highest_band or ""
        return found


class RegistryLogin(Model):
    """Credentials for one image registry, which no other registry receives."""

    server: RegistryServer = Field(
        default=DOCKER_HUB,
        description="Host and optional port of the registry, as in the names of its images.",
    )
    username: _Login
    password: _Login = Field(repr=False)

    def login(self) -> Registry:
        """Return the login as cells get it."""
        return Registry(self.username, self.password, self.server)


class SecretRequest(Model):
    """The new value of a secret, in exactly one of three fields; at most 64 KiB."""

    value: _Text | None = Field(default=None, description="The value as text.", repr=False)
    value_base64: Annotated[str, Field(max_length=_BASE64_CHARS)] | None = Field(
        default=None, description="The value as bytes in base64.", repr=False
    )
    registry: RegistryLogin | None = Field(
        default=None, description="A registry login, for `registry_secret` of a job.", repr=False
    )

    @model_validator(mode="after")
    def _check(self) -> "SecretRequest":
        given = [self.value, self.value_base64, self.registry]
        if len([item for item in given if item is not None]) != 1:
            raise ValueError("must have exactly one of value, value_base64 and registry")
        if len(self.content()) > MAX_VALUE_BYTES:
            raise ValueError(f"the value has more than {MAX_VALUE_BYTES} bytes")
        return self

    def content(self) -> bytes:
        """Return the value as bytes. Raise ValueError."""
        if self.value is not None:
            return self.value.encode()
        if self.registry is not None:
            return registry_value(self.registry.login())
        try:
            return base64.b64decode((self.value_base64 or "").encode("ascii"), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("value_base64 is not base64") from None
