"""``tilewright doctor``: the line on the sandbox."""

import pytest

from tilewright.evolve import doctor


@pytest.mark.parametrize(
    ("printed", "good", "words"),
    [
        ("print(True, True)", True, "network off, files restricted"),
        ("print(True, False)", False, "not restricted in candidates' processes; use a container"),
        ("print(False, True)", False, "network reachable"),
        ("raise SystemExit(1)", False, "network reachable, files not restricted"),
    ],
)
def test_the_sandbox_line_says_what_is_enforced(monkeypatch, printed, good, words):
    monkeypatch.setattr(doctor, "_CONFINE", printed)
    finding = doctor._sandbox()
    assert finding.good is good and words in finding.sentence and not finding.needed


def test_extras_and_the_gpu_of_this_machine_are_listed(monkeypatch):
    wanted = ['jax==0.0.1; extra == "tpu"', 'nowhere==1.0; extra == "triton"', "numpy>=2.0"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: wanted)
    pinned, missing = doctor._extra("tpu"), doctor._extra("triton")
    assert pinned.good and "verified with jax 0.0.1" in pinned.sentence, "another version is no fault"
    way = "Triton and Gluon kernels: nowhere is not installed; pip install 'tilewright[triton]'"
    assert not missing.good and missing.sentence == f"for {way}"
    assert doctor._cuda().part == "target cuda"


def test_targets_that_lack_the_same_are_one_line():
    names = (("torch", "h200"), ("torch", "h100"), ("jax", "v6e"))
    found = [doctor.Diagnosis(f"target {t}", False, f"{p} is not installed", t == "v6e") for p, t in names]
    fine = doctor.Diagnosis("target tpu7x", True, "compiles")
    first, second, third = doctor._together([fine, *found])
    assert first == fine and third == found[-1]
    assert second.part == "targets h200, h100" and not second.needed
    assert second.sentence == "torch is not installed"


def test_the_sandbox_is_tried_in_a_process_of_its_own():
    assert doctor._sandbox().sentence.startswith("network ")
    open("/etc/hostname").close()  # this process stays as it was
