"""Joining a Ray cluster, or starting one on this machine, and what a worker asks of a node there."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import ray

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target
from tilewright.workers.cluster.local_ray import RayFolder, handlers_kept
from tilewright.workers.cluster.station_actor import offered_targets

CONNECT_SECONDS = 5.0
"""How long the head of a cluster may take to accept a connection."""


class PoolUnavailable(ConnectionError):
    """Ray cannot be reached or started; the message is one clause that names the address or cause."""


def target_resource(target: str) -> dict[str, float]:
    """What a worker asks of a node: one ``target:NAME``, on a cluster any of whose nodes offer a target.

    So ``ray start --resources='{"target:tpu7x": 8}'`` keeps workers of other targets off a node, and says how many fit.
    A target that no node offers yet waits for one that joins, rather than for a place on another target's nodes.
    """
    return {f"target:{target}": 1.0} if offered_targets() else {}


def lacking(target: Target) -> str:
    """What no node of the cluster has for a target, so that its workers wait for one that joins; nothing if one has."""
    name, offered = f"target:{target.name}", offered_targets()
    if offered and name not in offered:
        others = ", ".join(sorted(offered))
        return f"no node of the cluster offers {name}, only {others}: workers wait for one that joins"
    gpu = target.measured and not target.interpreted and not isinstance(target.part, Chip)
    if gpu and not ray.cluster_resources().get("GPU"):
        return f"no node of the cluster has a GPU for {target.name}: workers wait for one that joins"
    return ""


def start_ray(address: str | None, count: int, gpus: int, folder: RayFolder | None = None) -> None:
    """Join the cluster at ``address``, or start Ray on this machine with ``count`` CPUs. Raises PoolUnavailable.

    A local Ray keeps its files in ``folder``. It gets a small object store: only kernel sources and figures pass
    through it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # its workers hold the device and judge; compilers, which they are not to wait for, are nice by themselves
    os.environ.setdefault("RAY_worker_niceness", "0")
    # its log monitor forwards to nobody, and lists the folder ten times a second unless told that it holds many files
    os.environ.setdefault("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0")
    os.environ.setdefault("LOG_NAME_UPDATE_INTERVAL_S", "60")
    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "ignore_reinit_error": True,
    }
    if address:
        _require_listener(address)
        _require_token(address)
        common["address"] = address
    else:
        common.update(
            address="local",  # also beside a cluster that somebody runs on this machine
            num_cpus=count,
            num_gpus=gpus,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            **({"_temp_dir": str(folder.path)} if folder else {}),
        )
    try:
        with handlers_kept():
            ray.init(**common)
    except Exception as error:  # Ray raises a bare Exception when its node does not start in time
        where = f"the Ray cluster at {address} cannot be joined" if address else "Ray cannot start"
        raise PoolUnavailable(f"{where}: {first_line(error).rstrip('.')}") from error


def own_folder() -> RayFolder:
    """For the files of a Ray of our own. Raises PoolUnavailable."""
    try:
        return RayFolder()
    except OSError as error:
        raise PoolUnavailable(f"Ray cannot start: {error}") from error


def _require_listener(address: str) -> None:
    """Ray itself would try an address where nobody listens for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise PoolUnavailable(
            f"the Ray cluster at {address} cannot be joined: {error.strerror or error}"
        ) from error


def _require_token(address: str) -> None:
    """Ray itself would offer a token that is refused for 20 s, with a line of log for each second."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    if not address.rpartition(":")[2].isdigit() or address.startswith("ray://"):
        return
    try:
        with _without_ray_log():
            GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        raise PoolUnavailable(
            f"the Ray cluster at {address} refuses this machine's token, or the lack of one: set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN_PATH to the cluster's"
        ) from error
    except Exception:  # noqa: BLE001 - a slow cluster: joining waits for it, and says what is wrong
        return


@contextlib.contextmanager
def _without_ray_log() -> Iterator[None]:
    """Without what Ray's own log says on the terminal meanwhile; whatever else is said is said afterwards."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            for line in said:
                if b"gcs_client.cc" not in line:
                    os.write(2, line)


def first_line(error: BaseException) -> str:
    """What an error says, on one line of moderate length."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
