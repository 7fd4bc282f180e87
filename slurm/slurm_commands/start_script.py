"""Write the script that a cell starts: environment, folder, files of the output, then the script.

It runs in the shell of the cell or of the image. Its files are inputs of the task, below
CELLRUN_ROOT for a plain process and below / in a container.
"""

import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence

from slurm_commands.arrays import TaskArray
from slurm_commands.options import Refused
from slurm_commands.request import BatchRequest

FOLDER = "/slurm"
COMMAND = ["sh", "-c", f'. "${{CELLRUN_ROOT:-}}{FOLDER}/start"']
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set anew for each job, by its shell, or by Cellrun, whose variables also contain the token.
_NOT_EXPORTED = re.compile(r"SLURM_.*|SBATCH_.*|CELLRUN_.*|_|PWD|OLDPWD|SHLVL")
_PATTERN = re.compile(r"%(.)", re.DOTALL)
# `timeout` of coreutils and busybox ends with this status when the limit has passed.
TIMEOUT_STATUS = 124
KILL_SECONDS = 30


def build_environment(request: BatchRequest, environ: Mapping[str, str]) -> str:
    """Return the exports of --export as lines of a shell script. Raise Refused."""
    # The submitter's PATH and HOME have no meaning in a container.
    usual = "NONE" if request.image else "ALL"
    exported: dict[str, str] = {}
    parts = (request.export or usual).split(",")
    if "NONE" in parts and len(parts) > 1:
        raise Refused(f"--export={request.export}: NONE excludes all others")
    for part in parts:
        name, found, value = part.partition("=")
        if part == "ALL":
            exported = {
                name: value
                for name, value in environ.items()
                if _NAME.fullmatch(name) and not _NOT_EXPORTED.fullmatch(name)
            } | exported
        elif part == "NONE":
            pass
        elif not _NAME.fullmatch(name):
            raise Refused(f"--export={request.export}: {name!r} is not a name of a variable")
        elif name.startswith("CELLRUN_"):
            raise Refused(f"--export={request.export}: names with CELLRUN_ are reserved")
        elif found or name in environ:
            exported[name] = value if found else environ[name]
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exported.items())


def build_start_script(request: BatchRequest) -> str:
    """Return the script that ends as the program of the task. Raise Refused."""
    lines = [f'root="${{CELLRUN_ROOT:-}}{FOLDER}"', '. "$root/environment"']
    if request.array:
        lines += _array_lines(request.array)
    else:
        lines += ["export SLURM_JOB_ID=$CELLRUN_JOB_ID"]
    lines += [f"export {name}={value}" for name, value in _variables(request)]
    lines += ['[ "$CELLRUN_ATTEMPT_NUMBER" -le 1 ] ||'
              " export SLURM_RESTART_COUNT=$((CELLRUN_ATTEMPT_NUMBER - 1))"]  # fmt: skip
    lines += [f"cd {shlex.quote(request.chdir)} || exit 1"]
    lines += list(_redirections(request))
    interpreter = [shlex.quote(word) for word in request.script.interpreter()]
    words = [shlex.quote(word) for word in request.script.words]
    lines += [" ".join(["exec", *_limit(request), *interpreter, '"$root/script"', *words])]
    return "\n".join(lines) + "\n"


def lead_seconds(request: BatchRequest) -> int:
    """Return how long before the limit a program gets its signal."""
    return request.signal[1] if request.signal else 0


def compile_pattern(pattern: str, request: BatchRequest) -> str:
    """Return a file name with %j %J %A %a %x %% as a word of a shell script. Raise Refused."""
    values = {
        "j": '"$SLURM_JOB_ID"',
        "J": '"$SLURM_JOB_ID"',
        "A": '"$CELLRUN_JOB_ID"',
        "a": '"$SLURM_ARRAY_TASK_ID"' if request.array else "4294967294",
        "x": shlex.quote(request.name),
        "%": "%",
    }
    word, end = "", 0
    for found in _PATTERN.finditer(pattern):
        if found[1] not in values:
            raise Refused(f"{found[0]} in {pattern!r} is not supported: use %j, %A, %a or %x")
        word += _quoted(pattern[end : found.start()]) + values[found[1]]
        end = found.end()
    return word + _quoted(pattern[end:])


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""


def _redirections(request: BatchRequest) -> Iterator[str]:
    if request.output is None:
        return
    # A later attempt appends, so that the output of the first is kept.
    yield '[ "$CELLRUN_ATTEMPT_NUMBER" -le 1 ] && mode=new || mode=append'
    for number, pattern in ((1, request.output), (2, request.error)):
        if pattern is None:
            continue
        file = compile_pattern(pattern, request)
        yield f'[ "$mode" = append ] || : >{file} || exit 1'
        yield f"exec {number}>>{file} || exit 1"
    if request.error is None:
        yield "exec 2>&1"
    yield "exec </dev/null"


def _array_lines(array: TaskArray) -> Iterator[str]:
    """Yield the lines that map the position of a task to its index in the array."""
    start = 0
    yield "position=$CELLRUN_TASK_INDEX"
    for number, segment in enumerate(array.segments):
        word = "if" if number == 0 else "elif"
        index = f"{segment.first} + (position - {start}) * {segment.step}"
        yield f'{word} [ "$position" -lt {start + segment.count} ]; then index=$(({index}))'
        start += segment.count
    yield "fi"
    yield "export SLURM_ARRAY_JOB_ID=$CELLRUN_JOB_ID SLURM_ARRAY_TASK_ID=$index"
    yield "export SLURM_JOB_ID=${CELLRUN_JOB_ID}_$index"
    yield f"export SLURM_ARRAY_TASK_COUNT={array.count} SLURM_ARRAY_TASK_STEP={array.step}"
    yield f"export SLURM_ARRAY_TASK_MIN={array.first} SLURM_ARRAY_TASK_MAX={array.last}"


def _variables(request: BatchRequest) -> Iterator[tuple[str, str]]:
    yield "SLURM_JOBID", "$SLURM_JOB_ID"
    yield "SLURM_JOB_NAME", shlex.quote(request.name)
    yield "SLURM_JOB_NODELIST", '"$CELLRUN_CELL"'
    yield "SLURM_NODELIST", '"$CELLRUN_CELL"'
    yield "SLURMD_NODENAME", '"$CELLRUN_CELL"'
    yield "SLURM_JOB_PARTITION", shlex.quote(request.pool or "default")
    yield "SLURM_JOB_ACCOUNT", shlex.quote(request.project or "default")
    yield "SLURM_SUBMIT_DIR", shlex.quote(request.submit_dir)
    yield "SLURM_SUBMIT_HOST", shlex.quote(socket.gethostname())
    yield "SLURM_CLUSTER_NAME", "cellrun"
    yield "SLURM_CPUS_PER_TASK", str(request.cpus)
    yield "SLURM_CPUS_ON_NODE", str(request.cpus)
    yield "SLURM_JOB_CPUS_PER_NODE", str(request.cpus)
    yield "SLURM_MEM_PER_NODE", str(request.mib)
    if request.gpus:
        yield "SLURM_GPUS", str(request.gpus)
    for name in ("NTASKS", "NPROCS", "NNODES", "JOB_NUM_NODES", "TASKS_PER_NODE"):
        yield f"SLURM_{name}", "1"
    for name in ("PROCID", "LOCALID", "NODEID"):
        yield f"SLURM_{name}", "0"


def _limit(request: BatchRequest) -> Sequence[str]:
    """Return the words that limit the time of an array task.

    The limit of Cellrun would end the other tasks of the job, too.
    """
    if request.array is None or request.seconds is None:
        return ()
    name, lead = request.signal or ("TERM", 0)
    grace = lead or KILL_SECONDS
    return ("timeout", "-s", name, "-k", str(grace), str(request.seconds - lead))
