"""The measured TPU target without a TPU: its profile reader, its recipe, and its whole path with a CPU as stand-in."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData

from testkit import FIXTURES, twins
from tilewright.evolve.cli import main
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.evaluation import FigureKind, Verdict
from tilewright.fitness.targets import Target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device.comparison import compare
from tilewright.workers.device.station import LocalStation
from tilewright.workers.request import Limits
from tilewright.workers.runners.pallas.clock import ProfileError, ProfilerClock, Program, program_seconds, read_profile
from tilewright.workers.toolchains import tpu as tpu_toolchain

jax.config.update("jax_platforms", "cpu")  # an installed libtpu would be asked for a TPU

OPERATOR = load_operator(f"{FIXTURES / 'small_gemm'}/good")

# Made by hand in the shape of a TPU's profile; no TPU was traced. Times in picoseconds.
TPU_PROFILE = """
planes {
  id: 1 name: "/device:TPU:0"
  lines { id: 1 name: "Steps" timestamp_ns: 1000 events { metadata_id: 1 offset_ps: 0 duration_ps: 9000000 } }
  lines {
    id: 2 name: "XLA Modules" timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 6000000 duration_ps: 2500000 }
    events { metadata_id: 1 offset_ps: 1000000 duration_ps: 2000000 }
    events { metadata_id: 2 offset_ps: 4000000 duration_ps: 7000000 }
  }
  lines { id: 3 name: "XLA Ops" timestamp_ns: 1000 events { metadata_id: 1 offset_ps: 0 duration_ps: 4000000 } }
  event_metadata { key: 1 value { id: 1 name: "jit_candidate_0(123456789)" } }
  event_metadata { key: 2 value { id: 2 name: "jit_candidate_01(42)" } }
}
planes { id: 2 name: "/host:CPU" }
"""


def profile(text=TPU_PROFILE):
    return ProfileData.from_serialized_xspace(ProfileData.text_proto_to_serialized_xspace(text))


def test_device_times_are_those_of_our_program_in_order():
    assert program_seconds(profile(), "candidate_0") == pytest.approx([2e-6, 2.5e-6])
    assert program_seconds(profile(), "candidate_01") == pytest.approx([7e-6])


def test_a_profile_without_the_program_or_on_two_cores_is_refused():
    with pytest.raises(ProfileError, match="ran on 0 TPU cores of the profile, which has /device:TPU:0"):
        program_seconds(profile(), "candidate_2")
    second = TPU_PROFILE + TPU_PROFILE.replace("TPU:0", "TPU:1")
    with pytest.raises(ProfileError, match="ran on 2 TPU cores"):
        program_seconds(profile(second), "candidate_0")


def test_what_the_profiler_writes_here_is_read_and_has_no_tpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with jax.profiler.trace(str(tmp_path / "one")):
        jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((64, 64))))
    found = read_profile(tmp_path / "one")
    assert "/host:CPU" in {plane.name for plane in found.planes}
    calls = []
    program = Program("candidate_0", lambda x: calls.append(1) or [x])
    with pytest.raises(ProfileError, match="0 TPU cores"):
        ProfilerClock().burst(program, [jnp.ones(4)], 3)
    assert len(calls) == 4, "one call is thrown away"
    with pytest.raises(ProfileError, match="0 files"):
        read_profile(tmp_path / "none")


def bus(tmp_path, vendor, device):
    slot = tmp_path / "0000:00:05.0"
    slot.mkdir()
    (slot / "vendor").write_text(f"{vendor}\n")
    (slot / "device").write_text(f"{device}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("vendor", "device", "wanted", "why"),
    [
        ("0x1ae0", "0x006f", "v6e", None),
        ("0x1ae0", "0x006f", None, None),
        ("0x1ae0", "0x006f", "v5e", "this machine's TPU is a v6e"),
        ("0x1ae0", "0x005e", None, "is none of tpu7x, v6e, v5e"),
        ("0x10de", "0x2335", None, "has no TPU"),
    ],
)
def test_the_chip_is_read_off_the_bus(tmp_path, vendor, device, wanted, why):
    found = tpu_toolchain.missing_parts(CHIPS.get(wanted), bus=bus(tmp_path, vendor, device))
    assert found is None if why is None else why in found and "\n" not in found
    assert tpu_toolchain.missing_parts(CHIPS["v5e"], remote=True, bus=tmp_path) is None


@pytest.mark.skipif(tpu_toolchain.chip_here() is not None, reason="this machine has a TPU")
@pytest.mark.parametrize("target", ["tpu", "tpu-v6e"])
def test_without_a_tpu_a_campaign_is_refused_in_one_sentence(tmp_path, capsys, target):
    home = tmp_path / "home"
    assert main(["--home", str(home), "doctor", "--target", target]) == 2
    output = capsys.readouterr().out
    assert output.count("\n") == 1 and output.startswith("no   target tpu: this machine has no TPU")
    assert main(["--home", str(home), "run", "quickstart", "--target", target]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and f"target: {target} cannot be used here" in output and "no TPU" in output
    assert not home.exists() or not any(home.iterdir())


PATIENCE = 250.0
"""Seconds: the machine that runs the tests may be slow and busy."""


@pytest.fixture(scope="module")
def stand_in():
    """A measured TPU target whose device is this CPU: its cascade, station and target."""
    peaks = dict.fromkeys(CHIPS["v5e"].peaks, 1e18)
    chip = dataclasses.replace(CHIPS["v5e"], interpreted=True, peaks=peaks, hbm=1e18)
    target = Target("tpu-v5e", FigureKind.MEASURED, chip)
    station = LocalStation(chip)
    limits = Limits(trace=ChildLimits(PATIENCE), compile=ChildLimits(PATIENCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.workers.device.timing.STALL_SECONDS", PATIENCE)
        yield MeasuredCascade(OPERATOR, target, OPERATOR.suites["tiny"], station, limits), station, target
    station.close()


def judged(stand_in, source, name="g", **options):
    return stand_in[0].evaluate(name, source, twins.PARAMS, seed=7, **options)


@pytest.mark.timeout(600)
def test_the_whole_path_measures_an_honest_kernel_and_pairs_contenders(stand_in):
    _, station, target = stand_in
    found = judged(stand_in, twins.HONEST, "first")
    assert found.verdict is Verdict.OK, found.reason + found.log
    (figures,) = found.workloads
    assert figures.kind is FigureKind.MEASURED and figures.diagnosis["calls"] > 1
    assert found.toolchain["device"] == "TPU v5 lite" and found.toolchain["libtpu"] != "missing"
    assert any(reading.inputs.startswith("timed calls") for reading in found.gates)
    champion = station.champion()
    assert champion.entry.id == "first"
    same = judged(stand_in, "# a comment\n" + twins.HONEST, known_artefacts={found.artefact})
    assert same.verdict is Verdict.DUPLICATE
    twin = dataclasses.replace(champion.entry, id="twin", source=twins.SCALED_TWIN)
    compared = compare(station, OPERATOR, target, OPERATOR.suites["tiny"].workloads, [champion.entry, twin], 7, (2, 1))
    assert compared.genomes == ("first", "twin"), compared.failed
    assert 0 < compared.ratio("first", "twin").value < 1000
