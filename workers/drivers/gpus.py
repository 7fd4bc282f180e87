"""The GPUs of a cell: which numbers an attempt gets, and the variables that show a program them."""

from collections.abc import Mapping, Sequence

from workers.attempt.runtime import EngineError

NO_SUCH_DEVICE = "999999"  # Intel's driver shows every device for an empty mask


def choose_gpus(count: int, capacity: int, held: Sequence[str]) -> tuple[int, ...]:
    """Return the lowest `count` free numbers below `capacity`. Raise EngineError.

    `held`: the numbers that each attempt holds, in the format of `format_gpus`.
    """
    taken = {int(number) for item in held for number in item.split(",") if number.isdecimal()}
    free = [number for number in range(capacity) if number not in taken]
    if len(free) < count:
        raise EngineError(f"{count} GPUs are requested, and {len(free)} of {capacity} are free")
    return tuple(free[:count])


def format_gpus(gpus: Sequence[int]) -> str:
    """Return the numbers like "0,2"."""
    return ",".join(map(str, gpus))


def gpu_variables(gpus: Sequence[int]) -> Mapping[str, str]:
    """Return variables by which CUDA, ROCm and Level Zero show these GPUs only.

    HIP counts among the GPUs that ROCR_VISIBLE_DEVICES shows, and would otherwise apply
    CUDA_VISIBLE_DEVICES to them.
    """
    numbers = format_gpus(gpus)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # else two programs could number the GPUs differently
        "CUDA_VISIBLE_DEVICES": numbers,
        "ROCR_VISIBLE_DEVICES": numbers,
        "HIP_VISIBLE_DEVICES": format_gpus(range(len(gpus))),
        "ZE_AFFINITY_MASK": numbers or NO_SUCH_DEVICE,
    }
