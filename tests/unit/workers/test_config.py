"""A cell's settings: all are read, or all faults are reported at once."""

from pathlib import Path

import pytest

from controlplane.contract.wire import keys
from workers.config import CellConfig, MalformedSettings, parse_capacity


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "key").write_text(keys.encode_key(b"k" * keys.KEY_BYTES) + "\n")
    return {
        "CELLRUN_CELL_NAME": "cell-1",
        "CELLRUN_CELL_KEY_FILE": str(tmp_path / "key"),
        "CELLRUN_CELL_HOME": str(tmp_path / "home"),
        "CELERY_BROKER_URL": "redis://127.0.0.1:6379/0",
        "CELLRUN_CONTROL_URL": "http://127.0.0.1:8000/",
        "CELLRUN_INSTALLATION": "here",
        "PATH": "/bin",
    }


def test_defaults_are_derived_from_the_host(env: dict[str, str]) -> None:
    config = CellConfig.from_env(env)
    assert (config.driver, config.pool, config.labels, config.tags) == ("docker", "", {}, ())
    assert config.key == b"k" * keys.KEY_BYTES
    assert config.control_url == "http://127.0.0.1:8000"
    assert config.capacity["cpu_millis"] >= 1000
    assert set(config.capacity) == {"cpu_millis", "memory_mib", "disk_mib", "gpu"}
    assert "kkk" not in repr(config)


def test_secrets_folder_must_be_in_memory_unless_disk_is_allowed(
    env: dict[str, str], tmp_path: Path
) -> None:
    config = CellConfig.from_env(env)
    assert (config.secrets, config.secrets_on_disk) == (None, False)
    in_memory = {**env, "CELLRUN_CELL_SECRETS": "/dev/shm/not/there/yet"}
    assert CellConfig.from_env(in_memory).secrets == Path("/dev/shm/not/there/yet")
    on_disk = {**env, "CELLRUN_CELL_SECRETS": "/proc/secrets"}
    with pytest.raises(MalformedSettings, match="CELLRUN_CELL_SECRETS: /proc/secrets is not in"):
        CellConfig.from_env(on_disk)
    config = CellConfig.from_env({**on_disk, "CELLRUN_CELL_SECRETS_ON_DISK": "true"})
    assert (config.secrets, config.secrets_on_disk) == (Path("/proc/secrets"), True)


def test_every_setting_is_read_from_the_environment(env: dict[str, str]) -> None:
    config = CellConfig.from_env(
        {
            **env,
            "CELLRUN_CELL_POOL": "gpu",
            "CELLRUN_CELL_LABELS": "zone=a, disk=ssd",
            "CELLRUN_CELL_TAGS": "a,b?",
            "CELLRUN_CELL_CAPACITY": "cpu=1.5,memory=2Gi,disk=10Gi,gpu=2,licence=3",
            "CELLRUN_CELL_DRIVER": "process",
            "CELLRUN_CELL_ADDRESS": "cells.example.com",
            "CELLRUN_CELL_EVACUATE": "true",
            "CELLRUN_CELL_MAX_LOG_MIB": "3",
            "CELLRUN_CELL_FILE_ROOTS": "/srv/shared, /srv/more",
            "CELLRUN_CELL_FILE_SYSTEMS": "s3,memory",
            "CELLRUN_CELL_ALLOWED_NETWORKS": "127.0.0.0/8, fd00::/8",
            "CELLRUN_CELL_MAX_FILES_MIB": "100",
            "CELLRUN_CELL_PRIVILEGED": "false",
            "CELLRUN_CELL_EXEC": "false",
            "CELLRUN_CELL_MOUNTS": "/srv/models, /srv/scratch",
            "CELLRUN_SECRET_KEY": "the control plane's",
        }
    )
    assert config.labels == {"zone": "a", "disk": "ssd"}
    assert (config.pool, config.tags, config.driver) == ("gpu", ("a", "b?"), "process")
    assert config.evacuate
    assert not config.exec_allowed
    assert config.max_log_bytes == 3 * 2**20
    assert config.address == "cells.example.com"
    assert config.file_roots == (Path("/srv/shared"), Path("/srv/more"))
    assert config.file_systems == ("s3", "memory")
    assert config.allowed_networks is not None
    assert [str(network) for network in config.allowed_networks] == ["127.0.0.0/8", "fd00::/8"]
    for text, networks in (("none", ()), ("pool", None), ("", None)):
        found = CellConfig.from_env({**env, "CELLRUN_CELL_ALLOWED_NETWORKS": text})
        assert found.allowed_networks == networks
    assert config.max_files_bytes == 100 * 2**20
    assert not config.privileged_allowed
    assert config.mount_roots == (Path("/srv/models"), Path("/srv/scratch"))
    for text, roots in (("none", ()), ("any", None), ("", None)):
        assert CellConfig.from_env({**env, "CELLRUN_CELL_MOUNTS": text}).mount_roots == roots
    assert dict(config.capacity) == {
        "cpu_millis": 1500,
        "memory_mib": 2048,
        "disk_mib": 10240,
        "gpu": 2,
        "licence": 3,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CELLRUN_CELL_NAME", "Upper"),
        ("CELLRUN_CELL_NAME", ""),
        ("CELLRUN_CELL_KEY_FILE", "/nowhere"),
        ("CELERY_BROKER_URL", "amqp://x"),
        ("CELLRUN_CONTROL_URL", "127.0.0.1:8000"),
        ("CELLRUN_INSTALLATION", "a b"),
        ("CELLRUN_CELL_DRIVER", "podman"),
        ("CELLRUN_CELL_LABELS", "zone"),
        ("CELLRUN_CELL_LABELS", "a=1,a=2"),
        ("CELLRUN_CELL_TAGS", "a,a?"),
        ("CELLRUN_CELL_CAPACITY", "cpu=-1"),
        ("CELLRUN_CELL_CAPACITY", "memory=2Q"),
        ("CELLRUN_CELL_CAPACITY", "gpu=1.5"),
        ("CELLRUN_CELL_CAPACITY", "cpu_millis=5"),
        ("CELLRUN_CELL_CAPACITY", "memory_mib=5"),
        ("CELLRUN_CELL_MAX_LOG_MIB", "0"),
        ("CELLRUN_CELL_MAX_LOG_MIB", "10Mi"),
        ("CELLRUN_CELL_ADDRESS", "http://here"),
        ("CELLRUN_CELL_ADDRESS", "here:80"),
        ("CELLRUN_CELL_EVACUATE", "perhaps"),
        ("CELLRUN_CELL_FILE_ROOTS", "relative"),
        ("CELLRUN_CELL_FILE_ROOTS", "/srv,/"),
        ("CELLRUN_CELL_ALLOWED_NETWORKS", "127.0.0.1/8"),
        ("CELLRUN_CELL_ALLOWED_NETWORKS", "localhost"),
        ("CELLRUN_CELL_PRIVILEGED", "never"),
        ("CELLRUN_CELL_EXEC", "perhaps"),
        ("CELLRUN_CELL_MOUNTS", "srv"),
        ("CELLRUN_CELL_MOUNTS", "/"),
        ("CELLRUN_CELL_MAX_FILES_MIB", "0"),
        ("CELLRUN_CELL_MAX_FILES_MIB", "10Gi"),
        ("CELLRUN_CEL_NAME", "typing mistake"),
    ],
)
def test_malformed_setting_is_refused_by_name(env: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(MalformedSettings, match=name):
        CellConfig.from_env({**env, name: value})


def test_all_invalid_settings_are_reported_together() -> None:
    with pytest.raises(MalformedSettings) as raised:
        CellConfig.from_env({"CELLRUN_CELL_DRIVER": "x"})
    for name in ("CELLRUN_CELL_NAME", "CELLRUN_CELL_KEY_FILE", "CELLRUN_CELL_DRIVER"):
        assert name in str(raised.value)


@pytest.mark.parametrize(
    ("text", "millis"), [("2", 2000), ("0.5", 500), ("0.05", 50), ("250m", 250)]
)
def test_cpu_capacity_is_parsed_to_millicores(text: str, millis: int) -> None:
    assert parse_capacity(f"cpu={text}") == {"cpu_millis": millis}


def test_address_of_the_broker_may_be_in_a_file(env: dict[str, str], tmp_path: Path) -> None:
    url = env.pop("CELERY_BROKER_URL")
    (tmp_path / "broker").write_text(url + "\n")
    in_file = {**env, "CELERY_BROKER_URL_FILE": str(tmp_path / "broker")}
    assert CellConfig.from_env(in_file).broker_url == url
    with pytest.raises(MalformedSettings, match="CELERY_BROKER_URL_FILE, not both"):
        CellConfig.from_env({**in_file, "CELERY_BROKER_URL": url})
    with pytest.raises(MalformedSettings) as raised:
        CellConfig.from_env({**env, "CELERY_BROKER_URL_FILE": "/nonexistent/broker"})
    assert str(raised.value) == (
        "CELERY_BROKER_URL_FILE: /nonexistent/broker cannot be used: No such file or directory"
    )


def test_credentials_of_an_object_store_may_be_in_files(
    env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("hush\n")
    given = {**env, "AWS_ACCESS_KEY_ID": "cell", "AWS_SECRET_ACCESS_KEY_FILE": f"{tmp_path}/secret"}
    config = CellConfig.from_env(given)
    assert config.store_credentials == {
        "AWS_ACCESS_KEY_ID": "cell",
        "AWS_SECRET_ACCESS_KEY": "hush",
    }
    assert "hush" not in repr(config)
    with pytest.raises(MalformedSettings, match="AWS_SECRET_ACCESS_KEY_FILE, not both"):
        CellConfig.from_env({**given, "AWS_SECRET_ACCESS_KEY": "hush"})
