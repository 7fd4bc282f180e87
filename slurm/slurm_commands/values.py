"""Read values of Slurm's options: times, memory, devices, dependencies, signals, constraints."""

import re
from typing import Any

from slurm_commands.options import Refused

_TIMES = (
    re.compile(r"(?P<minutes>\d+)"),
    re.compile(r"(?P<minutes>\d+):(?P<seconds>\d+)"),
    re.compile(r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"),
    re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?"),
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_KIB = {"K": 1, "": 1024, "M": 1024, "G": 1024**2, "T": 1024**3}
_UNTIL = {"afterok": "succeeded", "afterany": "finished", "after": "started"}
_SIGNAL = re.compile(r"(?P<scope>[BR]*):?(?P<name>[A-Z0-9]+)(@(?P<seconds>\d+))?", re.IGNORECASE)
SIGNALS = ("TERM", "INT", "QUIT", "HUP", "KILL", "USR1", "USR2")
_NUMBERS = {
    "1": "HUP",
    "2": "INT",
    "3": "QUIT",
    "9": "KILL",
    "10": "USR1",
    "12": "USR2",
    "15": "TERM",
}
_USUAL_LEAD_SECONDS = 60
_FEATURE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]*)(?:=([A-Za-z0-9._/-]+))?")


def read_seconds(text: str, option: str = "--time") -> int | None:
    """Return a time limit in seconds; None without a limit. Raise Refused.

    Minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]], or UNLIMITED.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    for pattern in _TIMES:
        found = pattern.fullmatch(text)
        if found:
            parts = {name: int(value) for name, value in found.groupdict().items() if value}
            return sum(_SECONDS[name] * value for name, value in parts.items()) or None
    raise Refused(f"{option}={text}: is not a time such as 90, 1:30:00 or 2-12")


def read_mib(text: str, option: str) -> int:
    """Return memory in MiB, rounded up; without a unit it is MiB. Raise Refused."""
    found = _MEMORY.fullmatch(text)
    if not found:
        raise Refused(f"{option}={text}: is not a size such as 500, 500M or 4G")
    if int(found[1]) == 0:
        raise Refused(f"{option}=0 (all memory of a node) is not supported: state a size")
    return -(-int(found[1]) * _KIB[found[2].upper()] // 1024)


def read_count(text: str, option: str) -> int:
    """Return a number from 1. Raise Refused."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refused(f"{option}={text}: is not a number from 1")
    return int(text)


def require_one(text: str, option: str) -> None:
    """Raise Refused unless a number of nodes or tasks is 1."""
    if text not in ("1", "1-1"):
        raise Refused(
            f"{option}={text}: a job has one task on one node; use --array for more tasks"
        )


def read_gpus(text: str, option: str) -> int:
    """Return the number of `2`, of `gpu:2` or `gpu` (--gres); 0 for none. Raise Refused."""
    word = text
    if option == "--gres":
        if text.lower() in ("none", ""):
            return 0
        name, _, word = text.partition(":")
        if name != "gpu":
            raise Refused(f"--gres={text}: only gpu is supported, such as gpu:1")
        word = word or "1"
    if not word.isascii() or not word.isdigit():
        raise Refused(f"{option}={text}: only a number of GPUs is supported; use --constraint")
    return int(word)


def read_dependencies(text: str) -> list[dict[str, Any]]:
    """Return the conditions of `afterok:1:2,afterany:3` as those of a job. Raise Refused."""
    found = []
    for condition in text.split(","):
        kind, *ids = condition.split(":")
        if kind not in _UNTIL or not ids or not all(i.isascii() and i.isdigit() for i in ids):
            raise Refused(
                f"--dependency={condition}: only afterok, afterany and after with ids of jobs"
                " are supported, all of which must hold"
            )
        found += [{"job": int(job), "until": _UNTIL[kind]} for job in ids]
    return found


def read_signal(text: str) -> tuple[str, int]:
    """Return the name of a signal, and how many seconds before the time limit. Raise Refused."""
    found = _SIGNAL.fullmatch(text)
    if not found or found["scope"].upper() != "B":
        raise Refused(f"--signal={text}: only a signal to the script is supported, as B:USR2@30")
    name = found["name"].upper().removeprefix("SIG")
    name = _NUMBERS.get(name, name)
    if name not in SIGNALS:
        raise Refused(f"--signal={text}: only the signals {', '.join(SIGNALS)} are supported")
    return name, int(found["seconds"] or _USUAL_LEAD_SECONDS)


def read_constraints(text: str) -> list[dict[str, Any]]:
    """Return `ssd&zone=a` as constraints on labels of cells. Raise Refused."""
    constraints: list[dict[str, Any]] = []
    for feature in text.split("&"):
        found = _FEATURE.fullmatch(feature)
        if not found:
            raise Refused(
                f"--constraint={text}: only labels joined with & are supported, as ssd&zone=a"
            )
        key, value = found.groups()
        constraints.append(
            {"key": key, "op": "exists"}
            if value is None
            else {"key": key, "op": "eq", "values": [value]}
        )
    return constraints
