"""The numbers of GPUs, and the variables by which programs see them."""

import pytest

from workers.attempt.runtime import EngineError
from workers.drivers.gpus import choose_gpus, gpu_variables


def test_lowest_free_gpus_are_chosen() -> None:
    assert choose_gpus(2, 4, ["0,2"]) == (1, 3)
    assert choose_gpus(0, 0, []) == ()
    with pytest.raises(EngineError, match="and 1 of 2 are free"):
        choose_gpus(2, 2, ["1", ""])


def test_each_vendor_sees_the_chosen_gpus() -> None:
    variables = gpu_variables((1, 3))
    assert variables["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert variables["ZE_AFFINITY_MASK"] == "1,3"
    # ROCr hides the others; HIP counts the rest from 0.
    assert variables["ROCR_VISIBLE_DEVICES"] == "1,3"
    assert variables["HIP_VISIBLE_DEVICES"] == "0,1"


def test_no_vendor_shows_a_gpu_to_a_task_without_any() -> None:
    variables = gpu_variables(())
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    assert [variables[name] for name in names] == ["", "", ""]
    # An empty mask of Level Zero would show every GPU, and a number without a GPU shows none.
    assert int(variables["ZE_AFFINITY_MASK"]) > 1024
