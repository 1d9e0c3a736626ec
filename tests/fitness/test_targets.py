"""Targets: what each is called, runs, may be asked, and how what it finds was reached."""

import dataclasses

import pytest

from tilewright.fitness import gpus
from tilewright.fitness.architectures import ARCHITECTURES
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.evaluation import FigureKind, Reached
from tilewright.fitness.gpus import GPUS, local_gpu, local_name
from tilewright.fitness.targets import MEASURED_TPUS, Target, UnknownTarget, load_target, target_text, targets


def test_every_part_is_a_target_of_its_kind():
    found = targets()
    assert list(found) == [*CHIPS, *GPUS, *MEASURED_TPUS, *ARCHITECTURES]
    for name, target in found.items():
        assert target.name == name and load_target(name) == target
        assert target.label == f"{name} ({target.kind.value})"
        assert target.measured is (name in GPUS or name in MEASURED_TPUS)
        assert target.compile_only is (name in ARCHITECTURES)
        assert target.entry == ("build" if name in CHIPS or name in MEASURED_TPUS else "launch")
        if name in CHIPS:
            assert target.chip is target.hardware is CHIPS[name] and target.kind is FigureKind.MODELLED
            assert target.constants == {"vmem_bytes": CHIPS[name].vmem_bytes}
        elif name in ARCHITECTURES:
            part = ARCHITECTURES[name]
            assert target.architecture is part and not target.interpreted
            assert target.constants == {"smem_bytes": part.smem_bytes, "multiprocessors": part.multiprocessors}
        elif name in GPUS:
            assert target.gpu is target.hardware is GPUS[name]
            assert target.interpreted is (name == "interpreter")


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("tpu7x", Reached.TRACE),
        ("h200", Reached.DEVICE),
        ("h100", Reached.DEVICE),
        ("tpu-v5e", Reached.DEVICE),
        ("interpreter", Reached.INTERPRETER),
        ("sm_100", Reached.INTERPRETER),
    ],
)
def test_how_an_answer_was_reached(name, reached):
    assert load_target(name).reached is reached


def test_a_stand_in_for_a_tpu_interprets_what_was_traced():
    chip = dataclasses.replace(CHIPS["v5e"], interpreted=True)
    target = Target("tpu-v5e", FigureKind.MEASURED, chip)
    assert target.interpreted and target.reached is Reached.TRACE


def test_a_target_has_no_other_part():
    for name, wrong in (("tpu7x", "gpu"), ("h200", "chip"), ("sm_100", "hardware"), ("h200", "architecture")):
        with pytest.raises(AssertionError):
            getattr(load_target(name), wrong)


def test_an_unknown_target_is_named_with_what_there_is():
    with pytest.raises(UnknownTarget) as caught:
        load_target("tpu9")
    listed = ", ".join([*targets(), "tpu", "cuda"])
    assert str(caught.value) == f"target: 'tpu9' is unknown; known targets are {listed}"


def test_a_device_here_is_a_target_that_says_what_it_is():
    name = local_name("NVIDIA H100 NVL (x)", 90, 132, 232448, 50 << 20)
    assert name == f"cuda-NVIDIA_H100_NVL__x-90-132-232448-{50 << 20}"
    found = load_target(name).gpu
    assert (found.name, found.product, found.capability, found.multiprocessors) == (name, "", 90, 132)
    assert (found.smem_bytes, found.flush_bytes) == (232448, 200 << 20)
    assert (found.hbm, found.copy) == (3.9e12, 0.87 * 3.9e12), "the first that fits"
    assert found.peak("f8") == 1671e12 and found.peak("f4") == 835e12
    small = local_gpu("cuda-NVIDIA_Whatever-75-1-65536-1048576")
    assert small.flush_bytes == 64 << 20 and small.hbm == gpus.UNKNOWN_RATE == small.peak("bf16")
    a100 = local_gpu(local_name("NVIDIA A100-SXM4-80GB", 80, 108, 166912, 40 << 20))
    assert a100.hbm == 2.039e12, "a dash of a product is a blank"


@pytest.mark.parametrize(
    "name",
    [
        "h200",
        "cuda",
        "cuda-x-90-132-1",
        "rocm-x-90-132-1-1",
        "cuda-x-90-132-1-x",
        "cuda-x-9.0-132-1-1",
        "cuda-90-1-1-1",
    ],
)
def test_another_name_is_no_device_here(name):
    assert local_gpu(name) is None


def test_peaks_of_narrow_types_are_those_of_wide_ones_doubled():
    for part in (*GPUS.values(), *CHIPS.values()):
        for kind, peak in part.peaks.items():
            assert part.peak(kind) == peak >= part.peak("bf16") * (kind != "f32")
        assert part.peak("unknown") == part.peaks["bf16"]
    for hbm, peaks in gpus.RATES.values():
        assert all(round(peaks[kind] / peaks["bf16"], 1) == 2.0 for kind in peaks if kind != "bf16")
        assert 2e11 < hbm < 1e13


def test_people_read_the_products_name():
    name = local_name("NVIDIA H200", 90, 132, 232448, 62914560)
    assert load_target(name).label == "NVIDIA H200 (measured)"
    assert [target_text(n) for n in (name, "h200", "cuda", None)] == ["NVIDIA H200", "h200", "cuda", "None"]
