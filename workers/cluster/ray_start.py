"""Joining a Ray cluster, or starting Ray on this machine, and what a pool asks Ray for.

A node offers a target with ``ray start --resources='{"target:tpu7x": 8}'``: then workers of other targets stay off it,
and at most 8 of this one come. On a cluster no node of which offers any target, every node serves all.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray._private import worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target
from tilewright.workers.cluster.pool_folder import PoolFolder
from tilewright.workers.cluster.settings import PoolUnavailable
from tilewright.workers.toolchains import tpu as tpu_toolchain

SLIVER = 0.001
"""Share of a node's resource that is enough for a placement on it."""


def worker_resources(target: str) -> dict[str, Any]:
    """Ray's resources for one worker: a CPU, since its children do the work, and one unit of the target.

    A target that no node offers yet waits for one that joins, rather than for a place on another target's nodes.
    """
    return {"num_cpus": 1, "resources": {f"target:{target}": 1.0} if _offered_targets() else {}}


def station_resources(target: Target, gpus: int) -> list[dict[str, Any]]:
    """Ray's resources for each station: one for each of ``gpus`` GPUs (0: all of the target's nodes) or for each TPU.

    Under the interpreter ``gpus`` processes of a CPU stand in for them, at least one. A station on a node that is lost
    may restart on any; it refuses a GPU of another product.
    """
    asked: list[dict[str, Any]]
    if target.interpreted:
        nodes = [node for node, _ in _nodes(target)]
        count = max(1, gpus)
        asked = [{"num_gpus": 0, **(_on(nodes[number % len(nodes)]) if nodes else {})} for number in range(count)]
    elif isinstance(target.part, Chip):
        count = max(1, int(ray.cluster_resources().get(tpu_toolchain.RESOURCE, 1)))
        asked = [{"resources": {tpu_toolchain.RESOURCE: 1}}] * count
    else:
        places = [node for node, has in _nodes(target) for _ in range(int(has.get("GPU", 0)))]
        if places and not gpus:
            asked = [{"num_gpus": 1, **_on(node)} for node in places]
        else:
            # a target that only others' nodes could take waits for a node that offers it
            awaited = {f"target:{target.name}": SLIVER} if _offered_targets() and not places else {}
            asked = [{"num_gpus": 1, "resources": awaited}] * max(1, gpus)
    return [{"num_cpus": 0, **one} for one in asked]


def missing_resource(target: Target) -> str:
    """A sentence on the resource for a target that no node of the cluster has; empty where one has it.

    Workers of the target wait for a node that joins.
    """
    name, offered = f"target:{target.name}", _offered_targets()
    if offered and name not in offered:
        others = ", ".join(sorted(offered))
        return f"no node of the cluster offers {name}, only {others}: workers wait for one that joins"
    gpu = target.measured and not target.interpreted and not isinstance(target.part, Chip)
    if gpu and not ray.cluster_resources().get("GPU"):
        return f"no node of the cluster has a GPU for {target.name}: workers wait for one that joins"
    if ray.cluster_resources().get("CPU"):
        return ""
    head = ray.get_runtime_context().gcs_address
    start = f"ray start --address={head} --resources='{{\"{name}\": 8}}'"
    return f"no node of the cluster has a CPU: workers wait for one that joins ({start})"


def _offered_targets() -> set[str]:
    """The ``target:NAME`` resources of the cluster's nodes."""
    return {name for name in ray.cluster_resources() if name.startswith("target:")}


def _nodes(target: Target) -> list[tuple[str, Mapping[str, float]]]:
    """Ids and resources of the nodes for a target: those that offer it; all, where no node offers any."""
    alive = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return [one for one in alive if f"target:{target.name}" in one[1]] if _offered_targets() else alive


def nodes_text(target: Target, address: str) -> str:
    """Text on the nodes of a target's workers, such as ``2 nodes of the cluster at 10.0.0.1:6379``."""
    count = len(_nodes(target))
    return f"{count} node{'s' * (count != 1)} of the cluster at {address}"


def _on(node: str) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}


RAY_LOG = "tilewright.evolve.ray"
"""Logger of Ray's own lines: below the one whose lines the campaign's log gets."""

CONNECT_SECONDS = 5.0
"""Seconds that the head of a cluster may take to accept a connection."""

HEAD_SECONDS = 25.0
"""Seconds that the head of a joined cluster may refuse connections before a campaign ends with a sentence; after 60 s
Ray would end this process without one."""

ASK_SECONDS = 3.0
"""Seconds between two connections to the head."""


@dataclass
class Head:
    """The head of a joined cluster, asked now and then whether it still accepts connections."""

    address: str
    _answered: float = field(default_factory=time.monotonic)
    _asked: float = 0.0

    @classmethod
    def joined(cls) -> Self:
        """The head of the cluster that this process is in."""
        return cls(str(ray.get_runtime_context().gcs_address))

    def require(self) -> None:
        """Raise PoolUnavailable once it has been gone for ``HEAD_SECONDS``; rarely more than a look at the clock."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        self._asked = now
        try:
            _require_listener(self.address)
            self._answered = time.monotonic()
        except PoolUnavailable as error:
            if time.monotonic() - self._answered > HEAD_SECONDS:
                raise PoolUnavailable(f"the head of the Ray cluster at {self.address} is gone") from error


def start_ray(address: str | None, count: int, gpus: int, folder: PoolFolder | None = None) -> None:
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
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "ignore_reinit_error": True}
    if address:
        _require_listener(address)
        common["address"] = address
    else:
        common.update(
            address="local",  # also beside a cluster that somebody runs on this machine
            num_cpus=count,
            num_gpus=gpus,  # its TPU chips Ray finds by itself
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            **({"_temp_dir": str(folder.path)} if folder else {}),
        )
    lines: list[str] = []
    try:
        with _own_signal_handler(), _written_lines(lines):
            try:
                ray.init(**common)
            except Exception as error:  # Ray gives a node 30 s to start, too few on a busy machine
                if address or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()
                ray.init(**common)
    except Exception as error:  # Ray raises a bare Exception when its node does not start in time
        where = f"the Ray cluster at {address} cannot be joined" if address else "Ray cannot start"
        why = first_line(error).rstrip(".")
        if any("InvalidAuthToken" in line for line in lines):
            why = "it wants a token, and this process has none or another (RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH)"
        raise PoolUnavailable(f"{where}: {why}") from error
    finally:
        _log(lines)


LOST_NODE = re.compile(r"The node with node id.* address: (\S+) .*marked dead")
"""The line that Ray writes on a node that it gives up."""


def keep_lines(target: Target, on_note: Callable[[str], None]) -> None:
    """Log the lines that Ray would print: it prints the end of a lost node's log, whatever ``log_to_driver`` says.

    ``on_note`` is called with a sentence on each lost node, and on what the cluster then lacks for the target.
    """

    def take(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        _log(data["lines"])
        for lost in filter(None, map(LOST_NODE.search, data["lines"])):
            then = missing_resource(target) or "its evaluations run again elsewhere"
            on_note(f"warning: the cluster lost its node {lost[1]}; {then}")

    worker.print_to_stdstream = take


def _log(lines: Iterable[str]) -> None:
    for line in lines:
        logging.getLogger(RAY_LOG).info("%s", line)


@contextlib.contextmanager
def _written_lines(lines: list[str]) -> Iterator[None]:
    """Add to ``lines`` what Ray writes onto this process's standard error, past Python, instead of showing it."""
    shown = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(shown, 2)
            os.close(shown)
            written.seek(0)
            lines += written.read().decode(errors="replace").splitlines()


@contextlib.contextmanager
def _own_signal_handler() -> Iterator[None]:
    """Keep this process's handler of SIGTERM: Ray installs one that ends the process and cleans up nothing."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _require_listener(address: str) -> None:
    """Raise PoolUnavailable where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise PoolUnavailable(f"the Ray cluster at {address} cannot be joined: {error.strerror or error}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, cut to 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def last_line(error: BaseException) -> str:
    """The last line of an error's message, cut to 200 characters: of a remote traceback, the exception itself."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
