"""Read what a submission requests: options of the command line and `#SBATCH` lines."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_commands.arrays import TaskArray, read_array
from slurm_commands.options import Option, OptionTable, Refused
from slurm_commands.values import (
    read_constraints,
    read_count,
    read_dependencies,
    read_gpus,
    read_mib,
    read_seconds,
    read_signal,
    require_one,
)

# Options of sbatch and srun. `#SBATCH` lines take the same, except --wrap and --parsable.
SHARED_OPTIONS = (
    Option("job-name", "J"),
    Option("output", "o"),
    Option("error", "e"),
    Option("partition", "p"),
    Option("account", "A"),
    Option("ntasks", "n"),
    Option("ntasks-per-node"),
    Option("nodes", "N"),
    Option("cpus-per-task", "c"),
    Option("mem"),
    Option("mem-per-cpu"),
    Option("time", "t"),
    Option("gres"),
    Option("gpus", "G"),
    Option("chdir", "D"),
    Option("export"),
    Option("comment"),
    Option("constraint", "C"),
    Option("container"),
    Option("dependency", "d"),
)
BATCH_OPTIONS = OptionTable(
    (
        *SHARED_OPTIONS,
        Option("array", "a"),
        Option("requeue", takes_value=False),
        Option("no-requeue", takes_value=False),
        Option("signal"),
        Option("wrap"),
        Option("parsable", takes_value=False),
    )
)
_ONLY_ON_THE_COMMAND_LINE = ("wrap", "parsable")
_DEFAULT_SHELL = "/bin/sh"
# Slurm's DefMemPerCPU: the memory of a job without --mem. A plain process is limited by its address
# space, of which interpreters with threads reserve hundreds of MiB.
MEMORY_VARIABLE, USUAL_MIB_PER_CPU = "CELLRUN_SLURM_MEM_PER_CPU", 1024


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A script with its name, and the words of its command line after its name."""

    name: str
    text: str
    words: tuple[str, ...] = ()

    def interpreter(self) -> list[str]:
        """Return the words of the first line, as the system would split them. Raise Refused."""
        first = self.text.partition("\n")[0]
        if not first.startswith("#!"):
            raise Refused(
                f"{self.name} is not a script: its first line must be #! with an interpreter"
            )
        words = first[2:].strip().split(None, 1)
        if not words:
            raise Refused(f"{self.name}: its first line names no interpreter")
        return words

    def option_words(self) -> Iterator[str]:
        """Yield the words of all `#SBATCH` lines before the first command. Raise Refused."""
        for line in self.text.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                return
            if line.startswith(("#PBS", "#BSUB")):
                raise Refused(f"{self.name}: lines with {line.split()[0]} are not supported")
            if line.startswith("#SBATCH") and line[7:8].isspace():
                try:
                    yield from shlex.split(line[7:], comments=True)
                except ValueError as fault:
                    raise Refused(f"{self.name}: {line!r}: {str(fault).lower()}") from None


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A job as requested, with defaults for omitted options."""

    script: BatchScript
    name: str
    chdir: str
    output: str | None
    error: str | None = None
    pool: str | None = None
    project: str | None = None
    cpus: int = 1
    mib: int = USUAL_MIB_PER_CPU
    seconds: int | None = None
    gpus: int = 0
    export: str | None = None
    comment: str = ""
    image: str | None = None
    is_requeued: bool = True
    signal: tuple[str, int] | None = None
    array: TaskArray | None = None
    depends_on: Sequence[Mapping[str, Any]] = ()
    constraints: Sequence[Mapping[str, Any]] = ()
    submit_dir: str = field(default_factory=os.getcwd)


def read_request(
    words: Sequence[str], read_stdin: Any, environ: Mapping[str, str] = os.environ
) -> tuple[BatchRequest, bool]:
    """Return the request of a command line of sbatch, and whether --parsable is set.

    `read_stdin` returns the script if none is named. Raise Refused.
    """
    for name in sorted(environ):
        if name.startswith("SBATCH_"):
            raise Refused(f"{name} is set: variables with options are not supported")
    given, rest = BATCH_OPTIONS.parse(words)
    script = _read_script(given, rest, read_stdin)
    lines, superfluous = BATCH_OPTIONS.parse(list(script.option_words()))
    if superfluous:
        raise Refused(f"{script.name}: {superfluous[0]!r} in a line with #SBATCH is not an option")
    for name in _ONLY_ON_THE_COMMAND_LINE:
        if name in lines:
            raise Refused(f"{script.name}: --{name} is an option of the command line only")
    # Of --requeue and --no-requeue the one of the command line applies.
    if {"requeue", "no-requeue"} & set(given):
        lines = {name: lines[name] for name in lines if "requeue" not in name}
    request = request_of(lines | given, script, environ)
    script.interpreter()
    return request, "parsable" in given


def request_of(
    options: Mapping[str, str], script: BatchScript, environ: Mapping[str, str] = os.environ
) -> BatchRequest:
    """Return the request of these options for a script. Raise Refused."""
    for name in ("ntasks", "ntasks-per-node", "nodes"):
        if name in options:
            require_one(options[name], f"--{name}")
    if "requeue" in options and "no-requeue" in options:
        raise Refused("--requeue and --no-requeue exclude each other")
    cpus = read_count(options.get("cpus-per-task", "1"), "--cpus-per-task")
    seconds = read_seconds(options["time"]) if "time" in options else None
    chdir = os.path.abspath(options.get("chdir", "."))
    array = read_array(options["array"]) if "array" in options else None
    usual_output = "slurm-%A_%a.out" if array else "slurm-%j.out"
    return BatchRequest(
        script=script,
        name=options.get("job-name") or script.name,
        chdir=chdir,
        output=options.get("output", usual_output),
        error=options.get("error"),
        pool=options.get("partition"),
        project=options.get("account"),
        cpus=cpus,
        mib=_read_memory(options, cpus, environ),
        seconds=seconds,
        gpus=_read_gpus(options),
        export=options.get("export"),
        comment=options.get("comment", ""),
        image=options.get("container"),
        is_requeued="no-requeue" not in options,
        signal=_read_signal(options, seconds),
        array=array,
        depends_on=read_dependencies(options["dependency"]) if "dependency" in options else (),
        constraints=read_constraints(options["constraint"]) if "constraint" in options else (),
    )


def _read_script(given: Mapping[str, str], rest: Sequence[str], read_stdin: Any) -> BatchScript:
    if "wrap" in given:
        if rest:
            raise Refused("--wrap: not together with a script")
        return BatchScript("wrap", f"#!{_DEFAULT_SHELL}\n{given['wrap']}\n")
    if not rest:
        return BatchScript("sbatch", read_stdin())
    path, *words = rest
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as fault:
        raise Refused(f"{path}: {(fault.strerror or 'cannot be read').lower()}") from None
    except UnicodeDecodeError:
        raise Refused(f"{path}: is not a script in UTF-8") from None
    return BatchScript(Path(path).name, text, tuple(words))


def _read_memory(options: Mapping[str, str], cpus: int, environ: Mapping[str, str]) -> int:
    if "mem" in options and "mem-per-cpu" in options:
        raise Refused("--mem and --mem-per-cpu exclude each other")
    if "mem" in options:
        return read_mib(options["mem"], "--mem")
    if "mem-per-cpu" in options:
        return read_mib(options["mem-per-cpu"], "--mem-per-cpu") * cpus
    usual = environ.get(MEMORY_VARIABLE)
    return cpus * (read_mib(usual, MEMORY_VARIABLE) if usual else USUAL_MIB_PER_CPU)


def _read_gpus(options: Mapping[str, str]) -> int:
    if "gres" in options and "gpus" in options:
        raise Refused("--gres and --gpus exclude each other")
    if "gres" in options:
        return read_gpus(options["gres"], "--gres")
    return read_gpus(options.get("gpus", "0"), "--gpus")


def _read_signal(options: Mapping[str, str], seconds: int | None) -> tuple[str, int] | None:
    if "signal" not in options:
        return None
    name, lead = read_signal(options["signal"])
    if seconds is None:
        return None  # as in Slurm: without a time limit there is no signal
    if lead >= seconds:
        raise Refused(f"--signal={options['signal']}: is not before the end of --time")
    return name, lead
