"""Device times out of what jax's profiler wrote: how long each run of one program took on a TPU.

A TPU's plane is called ``/device:TPU:0`` and so on; its line ``XLA Modules`` has one event for each execution of a
program, named ``jit_<function>(<fingerprint>)``, from the device's own clock.
"""

from __future__ import annotations

from pathlib import Path

from jax.profiler import ProfileData

PLANE = "/device:TPU:"
LINE = "XLA Modules"


class ProfileError(RuntimeError):
    """A profile that does not hold what was run. One line."""


def read_profile(folder: Path) -> ProfileData:
    """The one profile that a trace left under ``folder``. Raises ProfileError."""
    files = sorted(folder.rglob("*.xplane.pb"))
    if len(files) != 1:
        raise ProfileError(f"the profiler wrote {len(files)} files, not one")
    return ProfileData.from_serialized_xspace(files[0].read_bytes())


def program_seconds(profile: ProfileData, program: str) -> list[float]:
    """Seconds of every execution of the jitted function ``program`` on one TPU core, in order.

    Raises ProfileError when there is none, or when it ran on several cores.
    """
    found = []
    for plane in profile.planes:
        if not plane.name.startswith(PLANE):
            continue
        runs = [
            (event.start_ns, event.duration_ns)
            for line in plane.lines
            if line.name == LINE
            for event in line.events
            if event.name.split("(")[0] == f"jit_{program}"
        ]
        if runs:
            found.append([duration * 1e-9 for _, duration in sorted(runs)])
    if len(found) != 1:
        where = ", ".join(sorted(plane.name for plane in profile.planes)) or "nothing"
        raise ProfileError(f"{program} ran on {len(found)} TPU cores of the profile, which has {where}")
    return found[0]
