"""Validation of the fields of a job against each other; each fault has its place."""

import json
from collections.abc import Iterable, Iterator

from controlplane.contract.artifacts import CHECKPOINT, INDEX, MANIFEST
from controlplane.spec.faults import Finding, Place
from controlplane.spec.fields import is_artifact_name
from controlplane.spec.files import Output
from controlplane.spec.group import GroupFields, TaskGroupSpec
from controlplane.spec.job import JobSpec
from controlplane.spec.parts import (
    GROWABLE_REASONS,
    INCREASED,
    GroupResult,
    IncreaseLimits,
    ResourceIncrease,
    Resources,
    RetryRuleSpec,
)
from controlplane.spec.placing import check_constraints, check_resources, check_tags
from controlplane.spec.quantities import Increase, format_cpu, format_mib
from controlplane.spec.services import check_services

# An order contains the definition of a group and has at most 64 KiB.
MAX_DEFINITION_BYTES = 32 * 1024

_DEFINITION_FIELDS = ("image", "command", "entrypoint", "workdir", "user", "env", "result_file")
_STREAMS = ("stdout", "stderr")
_ALL_STREAMS = ("stdin", *_STREAMS)
# Fields that are rejected for plain processes, which would ignore them.
_CONTAINER_ONLY = (
    "image",
    "entrypoint",
    "user",
    "pull_policy",
    "registry_secret",
    "network",
    "max_pids",
    "shm",
    "read_only",
    "mounts",
    "tmpfs",
    "privileged",
    "capabilities",
)
_CONTAINER_DEFAULTS = tuple((it, GroupFields.model_fields[it].default) for it in _CONTAINER_ONLY)
_PROCESS_ONLY = ("health_check", "idle_timeout_seconds", "ports", "stdin", "stdout", "stderr")


def find_faults(job: JobSpec) -> Iterator[Finding]:
    """Yield the faults of fields of `job` that contradict each other."""
    names = [group.name for group in job.groups]
    for position, group in enumerate(job.groups):
        place: Place = ("groups", position)
        if group.name in names[:position]:
            yield (*place, "name"), f"{group.name} is also the name of another group"
        for finding in _rules_of_group(job, group):
            yield (*place, *finding[0]), finding[1]
    yield from check_constraints(job.constraints)
    yield from check_tags(job.placement_tags)
    yield from _check_minimum(job)
    if job.group_by is not None and not job.coscheduled:
        yield ("group_by",), "is only valid for a coscheduled job"
    yield from _check_concurrency(job)
    yield from _check_references(job)
    yield from _check_cycles(job)
    yield from _check_addresses(job)


def _rules_of_group(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    yield from _check_task_type(job, group)
    yield from _check_env(group)
    yield from _check_inputs(job, group)
    yield from _check_dependencies(job, group)
    yield from check_resources(group.resources)
    yield from check_constraints(group.constraints)
    yield from check_tags(group.placement_tags)
    yield from check_services(group.ports, group.health_check, group.network)
    yield from _check_size(group)
    if group.min_available is not None and group.min_available > group.replicas:
        yield ("min_available",), f"must be at most replicas, which is {group.replicas}"
    if job.runs_at_most_once(group) and job.retries_of(group).failure > 0:
        yield ("retries", "failure"), "must be 0 with delivery at_most_once"
    yield from _check_retry_rules(job, group)
    if job.coscheduled and group.dependencies():
        text = "groups of a coscheduled job start together: they cannot wait for each other"
        yield ("depends_on",), text
    if group.network == "gang" and not job.coscheduled:
        yield ("network",), "gang is only valid for a coscheduled job"
    yield from _check_cache(job, group)
    yield from _check_files(group)
    yield from _check_streams(group)


def _check_retry_rules(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield retry rules that could never have an effect."""
    if group.on_exit and job.kind == "inference":
        yield ("on_exit",), "is not supported for a job of kind inference, which is restarted"
        return
    for position, rule in enumerate(group.on_exit):
        place: Place = ("on_exit", position, "do")
        if rule.do == "retry" and job.runs_at_most_once(group):
            yield place, "must be fail with delivery at_most_once"
        elif rule.do == "retry" and job.retries_of(group).failure == 0:
            yield place, "retries within retries.failure, which is 0: set it to at least 1"
        for finding in _check_growth(job, group, rule):
            yield ("on_exit", position, *finding[0]), finding[1]


def _check_growth(job: JobSpec, group: TaskGroupSpec, rule: RetryRuleSpec) -> Iterator[Finding]:
    """Yield increases of resources by a retry rule that have no effect or cannot be carried out."""
    place: Place = ("resources",)
    if rule.resources is None:
        if rule.max_resources is not None:
            yield ("max_resources",), "has no effect: the rule has no resources"
        return
    if rule.do == "fail":
        yield place, "has no effect with do: fail"
    elif job.coscheduled:
        yield place, "is not supported for a coscheduled job: its tasks are placed together"
    elif rule.reason is not None and rule.reason not in GROWABLE_REASONS:
        *others, last = GROWABLE_REASONS
        yield (
            place,
            f"does not help against {rule.reason}: the reason must be {', '.join(others)} or"
            f" {last}",
        )
    else:
        yield from _check_amounts(group.resources, rule.resources, rule.max_resources)


def _check_amounts(
    own: Resources, increase: ResourceIncrease, limits: IncreaseLimits | None
) -> Iterator[Finding]:
    """Yield increases that increase nothing, and maxima without effect."""
    for name in INCREASED:
        render = format_cpu if name == "cpu" else format_mib
        amount, most = getattr(own, name), limits and getattr(limits, name)
        wanted: Increase | None = getattr(increase, name)
        too_low = f"must be more than resources.{name}, which is {render(amount)}"
        place: Place = ("max_resources", name)
        if wanted is None:
            if most is not None:
                yield place, f"has no effect: resources of the rule has no {name}"
        elif wanted.amount is not None:
            if wanted.amount <= amount:
                yield ("resources", name), too_low
            if most is not None:
                yield place, "has no effect on an amount: only factors have a maximum"
        elif not amount:
            text = f"increases resources.{name}, which is 0: use an amount, or request {name}"
            yield ("resources", name), text
        elif most is not None and most <= amount:
            yield place, too_low


def _check_cache(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield why results of the group cannot be those of an identical task."""
    if not job.cache_of(group).enabled:
        return
    place: Place = ("cache", "enabled")
    if job.coscheduled:
        yield place, "is not supported for a coscheduled job: its tasks start together"
    if job.kind in ("interactive", "inference"):
        yield place, f"is not supported for a job of kind {job.kind}, which has no result"
    if group.output_base is not None:
        yield place, "is not supported with output_base: others may change the outputs there"
    if any(output.url is not None for output in group.outputs):
        yield place, "is not supported with the url of an output: others may change the file there"


def _check_task_type(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    if group.task_type == "container":
        if group.image is None:
            yield ("image",), "is required for task_type container"
        return
    if group.task_type != "process":
        yield from _check_runner(job, group)
        return
    if not group.command:
        yield ("command",), "is required for task_type process"
    for name, default in _CONTAINER_DEFAULTS:
        # For a process, `default` is the host's network.
        is_host_network = name == "network" and group.network == "default"
        if getattr(group, name) != default and not is_host_network:
            yield (name,), "is not supported for task_type process"


def _check_runner(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield fields that require a process on the cell, which a task of a runner does not have."""
    for name in _PROCESS_ONLY:
        if getattr(group, name):
            yield (name,), f"is not supported for task_type {group.task_type}"
    if job.exclusive_of(group):
        yield ("exclusive",), f"is not supported for task_type {group.task_type}"


def _check_env(group: TaskGroupSpec) -> Iterator[Finding]:
    for name in group.env:
        if name.startswith("CELLRUN_"):
            yield ("env", name), "names that begin with CELLRUN_ are set by Cellrun"


def _check_inputs(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    groups = {other.name: other for other in job.groups}
    used_paths: list[str] = []
    for position, item in enumerate(group.inputs):
        place: Place = ("inputs", position)
        path = item.path.rstrip("/")
        if sum(source is not None for source in (item.content, item.from_, item.url)) != 1:
            yield place, "must have either content, url or from"
        elif item.from_ is None and item.path.endswith("/"):
            yield (*place, "path"), "must be the path of a file, without '/' at its end"
        if any(_overlap(path, other) for other in used_paths):
            yield (*place, "path"), "overlaps the path of another input"
        used_paths.append(path)
        if item.from_ is not None:
            yield from _check_source(group, groups.get(item.from_.group), item.from_, place)


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _check_source(
    group: TaskGroupSpec, source: TaskGroupSpec | None, reference: GroupResult, place: Place
) -> Iterator[Finding]:
    name = reference.group
    place = (*place, "from", "group")
    if source is None:
        yield place, f"{name} is not a group of this job"
    elif reference.output is not None:
        if reference.output not in [item.artifact_name() for item in source.outputs]:
            yield (*place[:-1], "output"), f"group {name} has no output {reference.output}"
    elif source.result_file is None:
        yield place, f"group {name} has no result_file"
    if any(item.group == name and item.until == "started" for item in group.depends_on):
        what = "results" if reference.output is None else "outputs"
        yield place, f"group {name} has no {what} yet when it has started: use until succeeded"


def _check_dependencies(job: JobSpec, group: TaskGroupSpec) -> Iterator[Finding]:
    names = {other.name for other in job.groups}
    seen: set[str] = set()
    for position, item in enumerate(group.depends_on):
        place: Place = ("depends_on", position, "group")
        if item.group not in names:
            yield place, f"{item.group} is not a group of this job"
        if item.group in seen:
            yield place, f"{item.group} is named twice"
        seen.add(item.group)


def _check_size(group: TaskGroupSpec) -> Iterator[Finding]:
    parts: dict[str, object] = {name: getattr(group, name) for name in _DEFINITION_FIELDS}
    parts["inputs"] = [item.path for item in group.inputs]
    parts["outputs"] = [
        (item.path, item.name, item.path_prefix, item.url) for item in group.outputs
    ]
    if group.health_check is not None:
        parts["health_check"] = group.health_check.command
    # Encoded twice, like the payload of an order.
    size = len(json.dumps(json.dumps(list(parts.values()))))
    if size > MAX_DEFINITION_BYTES:
        largest = max(parts, key=lambda name: len(json.dumps(parts[name])))
        yield (
            (largest,),
            f"makes the group's definition {size} bytes long; at most {MAX_DEFINITION_BYTES} are"
            " allowed: send long texts as content of inputs",
        )


def _check_minimum(job: JobSpec) -> Iterator[Finding]:
    if job.min_available is None:
        return
    low, high = sum(job.minima()), job.total_replicas()
    if all(group.min_available is None for group in job.groups):
        if job.min_available > high:
            yield ("min_available",), f"must be at most {high}, all replicas"
    elif not low <= job.min_available <= high:
        yield (
            ("min_available",),
            f"must be at least {low}, the sum of the groups', and at most {high}, all replicas",
        )


def _check_concurrency(job: JobSpec) -> Iterator[Finding]:
    """Yield the limits of the key that a gang exceeds by itself, so that it could never start."""
    rule = job.concurrency
    if rule is None or not job.coscheduled:
        return
    text = f"must be at least {job.minimum()}: so many tasks of the gang start together"
    if rule.limit is not None and rule.limit < job.minimum():
        yield ("concurrency", "limit"), text
    if rule.starts is not None and rule.starts.count < job.minimum():
        yield ("concurrency", "starts", "count"), text


def _check_references(job: JobSpec) -> Iterator[Finding]:
    seen: set[tuple[object, str]] = set()
    for position, item in enumerate(job.depends_on):
        if (item.job, item.until) in seen:
            yield ("depends_on", position, "job"), f"{item.job} is named twice"
        seen.add((item.job, item.until))
        if job.guid is not None and item.job == job.guid:
            yield ("depends_on", position, "job"), "is the job itself"
    if job.guid is not None and job.parent == job.guid:
        yield ("parent",), "is the job itself"


def _check_cycles(job: JobSpec) -> Iterator[Finding]:
    dependencies = {g.name: {d.group for d in g.dependencies()} for g in job.groups}
    if not any(dependencies.values()):
        return  # the usual case
    names = set(dependencies)
    while ready := {
        name
        for name, required in dependencies.items()
        if not (required & names) & set(dependencies)
    }:
        dependencies = {
            name: required for name, required in dependencies.items() if name not in ready
        }
    if not dependencies:
        return
    cycle = _find_cycle(dependencies)
    position = [group.name for group in job.groups].index(cycle[0])
    text = "is a cycle: " + " needs ".join([*cycle, cycle[0]])
    yield ("groups", position, "depends_on"), text


def _find_cycle(dependencies: dict[str, set[str]]) -> list[str]:
    """Return one cycle; every group of `dependencies` depends on another one of them."""
    path = [min(dependencies)]
    while True:
        successor = min(dependencies[path[-1]] & set(dependencies))
        if successor in path:
            return path[path.index(successor) :]
        path.append(successor)


def _check_files(group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield faults of names and paths of outputs, secrets and other files."""
    names: list[str] = []
    for position, output in enumerate(group.outputs):
        name = output.artifact_name()
        place: Place = ("outputs", position, "name")
        if name in (CHECKPOINT, MANIFEST):
            yield place, f"{name} is a name of Cellrun's own files"
        elif name in names:
            yield place, f"{name} is named twice"
        elif any(f"{name}/".startswith(f"{n}/") or f"{n}/".startswith(f"{name}/") for n in names):
            yield place, f"{name} lies in another output, or contains it"
        elif output.name is None and not is_artifact_name(name):
            yield place, f"{name!r} cannot be the name of an artifact: give it one"
        names.append(name)
        yield from _check_output(group, output, ("outputs", position))
    variables: list[str] = []
    for position, secret in enumerate(group.secrets):
        if secret.env is not None and secret.env in variables:
            yield ("secrets", position, "env"), f"{secret.env} is set twice"
        if secret.env is not None and secret.env.startswith("CELLRUN_"):
            yield ("secrets", position, "env"), "names that begin with CELLRUN_ are set by Cellrun"
        variables.append(secret.env or "")
    yield from _check_paths(group)


def _check_output(group: TaskGroupSpec, output: Output, place: Place) -> Iterator[Finding]:
    """Yield faults of the prefix and the address of an output."""
    prefix, folder = output.path_prefix, output.fixed_path()
    if prefix is not None and not output.has_wildcards():
        yield (*place, "path_prefix"), "is only valid for a path with wildcards"
    elif prefix is not None and not (_is_same(folder, prefix) or _lies_below(folder, prefix)):
        yield (*place, "path_prefix"), f"must be {folder}, or a folder that contains it"
    if output.url is None:
        return
    if group.replicas > 1 and INDEX not in output.url:
        text = f"must contain {INDEX}: all {group.replicas} tasks would write to the same address"
        yield (*place, "url"), text
    if output.url.endswith("/") and not output.is_folder():
        text = "ends with '/' like a folder's, but path has neither wildcards nor '/' at its end"
        yield (*place, "url"), text


def _check_addresses(job: JobSpec) -> Iterator[Finding]:
    """Yield addresses of single files that are also the address of another output of the job."""
    used: dict[str, bool] = {}
    for position, group in enumerate(job.groups):
        for number, output in enumerate(group.outputs):
            url = (output.url or "").rstrip("/")
            if url in used and not (used[url] and output.is_folder()):
                place = ("groups", position, "outputs", number, "url")
                yield place, "is also the address of another output"
            if url:
                used[url] = used.get(url, True) and output.is_folder()


def _check_streams(group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield faults of the files of standard input, output and error."""
    if not any(getattr(group, name) for name in _ALL_STREAMS):
        return  # the usual case
    files = {item.path for item in group.inputs if item.from_ is None}
    folders = [item.path for item in group.inputs if item.from_ is not None]
    stdin = group.stdin
    if stdin and stdin not in files and not any(_lies_below(stdin, one) for one in folders):
        yield ("stdin",), "must be the path of one of the inputs"
    if group.stdout is not None and group.stdout == group.stderr:
        yield ("stderr",), "must differ from stdout"
    others = [item.path for item in group.inputs] + [item.path for item in group.tmpfs]
    others += [item.target for item in group.mounts]
    others += [item.path for item in group.secrets if item.path]
    for name in _STREAMS:
        path = getattr(group, name)
        for other in others if path is not None else ():
            if _overlap(path, other.rstrip("/")):
                yield (name,), f"overlaps {other}, a path of an input, secret, mount or tmpfs"
        left = [(item.fixed_path(), item.is_folder()) for item in group.outputs]
        left += [(group.checkpoint_path or "", True), (group.result_file or "", False)]
        left += [(getattr(group, other) or "", False) for other in _STREAMS]
        for other, is_folder in left if path is not None else ():
            if _lies_below(other, path) or (is_folder and _is_same(other, path)):
                yield (name,), f"must be a file, but {other} needs it as a folder"


def _check_paths(group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield paths that are used twice, or that a mount would hide or a tmpfs would lose."""
    if not (group.secrets or group.mounts or group.tmpfs):
        return  # the usual case; paths of inputs were compared with each other
    inputs = _paths("inputs", "path", (item.path for item in group.inputs))
    secrets = _paths("secrets", "path", (item.path or "" for item in group.secrets))
    outputs = _paths("outputs", "path", (item.fixed_path() for item in group.outputs))
    tmpfs = _paths("tmpfs", "path", (item.path for item in group.tmpfs))
    mounts = _paths("mounts", "target", (item.target for item in group.mounts))
    checkpoint: list[Finding] = [(("checkpoint_path",), group.checkpoint_path or "")]
    result: list[Finding] = [(("result_file",), group.result_file or "")]
    used_paths = [path.rstrip("/") for _, path in inputs]
    for place, path in (*secrets, *mounts, *tmpfs):
        if path and path.rstrip("/") in used_paths:
            yield place, "is also the path of another input, secret, mount or tmpfs"
        used_paths += [path.rstrip("/")] if path else []
    for _, target in mounts:
        for place, path in (*inputs, *secrets, *tmpfs, *mounts, *checkpoint):
            if _lies_below(path, target) or (
                place == ("checkpoint_path",) and _is_same(path, target)
            ):
                yield place, f"lies in the mount at {target}, which has only files of the host"
    for _, folder in tmpfs:
        for place, path in inputs:
            if _lies_below(path, folder):
                yield place, f"lies in the tmpfs at {folder}, which is empty at the start"
        for place, path in (*outputs, *checkpoint, *result):
            if _is_same(path, folder) or _lies_below(path, folder):
                yield place, f"lies in the tmpfs at {folder}, which is deleted at the end"


def _paths(field: str, name: str, paths: Iterable[str]) -> list[Finding]:
    return [((field, position, name), path) for position, path in enumerate(paths)]


def _lies_below(path: str, folder: str) -> bool:
    return path.rstrip("/").startswith(folder.rstrip("/") + "/")


def _is_same(path: str, folder: str) -> bool:
    return path.rstrip("/") == folder.rstrip("/")
