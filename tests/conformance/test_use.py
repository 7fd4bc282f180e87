"""Every driver that runs programs reports the usage of a task at its end."""

from tests.conformance.kit import Kit


def test_usage_covers_all_processes_across_a_cell_restart(real_kit: Kit) -> None:
    script = "(x=$(head -c 12000000 /dev/zero | tr '\\0' a)); echo ready; sleep 1.5"
    launch = real_kit.launch("sh", "-c", script)
    real_kit.driver.start(launch)
    real_kit.wait_until_ready(launch.uid)
    real_kit.begin_again()
    real_kit.driver.adopt(launch)
    usage = real_kit.events.ended(launch.uid).usage
    assert usage is not None
    assert usage["cpu_seconds"] > 0.01
    assert usage.get("memory_peak_mib", 12) >= 12  # Linux before 5.19 keeps no peak


def test_memory_of_a_short_task_is_positive_or_omitted(real_kit: Kit) -> None:
    launch = real_kit.launch("true")
    real_kit.driver.start(launch)
    usage = real_kit.events.ended(launch.uid).usage
    assert usage is not None
    assert usage.get("memory_peak_mib", 1) > 0
    assert 0 <= usage.get("cpu_seconds", 0) < 5
    assert set(usage["steps"]) >= {"start", "wait", "collect"}
