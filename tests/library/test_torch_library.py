"""The library as a torch program sees it: numbers, gradients, torch.compile, fallbacks, and what it refuses to run."""

import json

import pytest

from testkit import ROOT
from testkit.children import answer_of
from testkit.library.shelves import SMALL, put
from tests.library.test_documents import python_blocks
from tilewright.evolve.promote.library_writer import LibraryWriter

pytest.importorskip("torch")
pytest.importorskip("triton")
PRODUCT = "gemm_fp8_blockwise/gemm_nt"
CHILD = ROOT / "testkit" / "library" / "torch_children.py"


DAMAGES = {
    "edited_kernel": "kernel.py is not what was promoted",
    "stale_toolchain": "verified with triton 3.0.0 up to below 3.1",
}


def damage(library, how):
    """A package called ``how`` whose product kernel must not be used. Damage to other files:
    ``tests/evolve/promote/test_library_commands.py``."""
    writer = LibraryWriter(library, how)
    toolchain, serves = ({"triton": ("3.0.0", "3.1")}, "cpu") if how == "stale_toolchain" else (None, "interpret")
    version = put(writer, PRODUCT, "pointer", ((256,) * 3,), params=SMALL, toolchain=toolchain, serves=serves)
    folder = writer.place(PRODUCT) / "versions" / version
    if how == "edited_kernel":
        text = (folder / "kernel.py").read_text()
        (folder / "kernel.py").write_text(text.replace("acc += partial * scale[:, None]", "acc += partial"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    writer = LibraryWriter(tmp_path_factory.mktemp("blockwise"))
    put(writer, PRODUCT, "pointer", ((128, 128, 256), (256, 256, 256)), params=SMALL)
    for how in DAMAGES:
        damage(writer.library, how)
    return writer


@pytest.fixture(scope="module")
def answers(writer):
    library = writer.library
    environment = {"PYTHONPATH": str(library), "PATH": "/usr/bin:/bin", "HOME": str(library.parent)}
    environment |= {"BLOCKS": json.dumps(python_blocks()), "TRITON_INTERPRET": "1"}
    scenarios = ("numbers", "compiled", "fallbacks", "pages", "damaged", "modules", "odd_models")
    return answer_of(CHILD, *scenarios, environment=environment)


def test_forward_and_gradients_have_the_recipes_precision(answers):
    found = answers["numbers"]
    assert all(value >= 26.0 for value in found["snr"]), found
    assert found["inference"] >= 26.0 and found["same"] and found["only_x"]
    assert found["shapes"] == [[2, 64, 128], [2, 64, 256], [128, 256]]


def test_missing_operators_are_replaced_with_one_warning_each(answers):
    messages = answers["numbers"]["warnings"]
    assert all("no kernel has been promoted; the reference answers" in text for text in messages)
    names = [text.split(":")[0].removeprefix("gemm_fp8_blockwise/") for text in messages]
    assert sorted(names) == ["gemm_nt_rows", "quant_128x128_dual", "quant_dual"], "not gemm_nt, which is served"
    assert not answers["numbers"]["later"]


def test_compiles_into_one_graph_with_its_gradient(answers):
    found = answers["compiled"]
    assert all(value > 60.0 for value in found["equal"]), found
    assert found["odd"] > 60.0 and len(found["odd_warnings"]) == 1, "a fallback within a compiled graph warns, too"
    assert set(found["opcheck"].values()) == {"SUCCESS"}, found["opcheck"]
    assert found["kept"] == 3, "of two layers that read one tensor: it once, and the two weights"


def test_modules_under_autocast_checkpointing_and_accumulation(answers):
    found = answers["modules"]
    assert found["autocast"] >= 20.0, "two layers' FP8 noise"
    assert all(found["state"]) and found["keys"] and found["checkpointed"]
    assert all(value > 100.0 for value in (*found["kept"], *found["gradients"])) and found["emptied"]


@pytest.mark.parametrize(
    ("kind", "converted", "left", "reason"),
    [
        ("shared layer", 1, 0, ""),
        ("tied weight", 2, 0, ""),
        ("adapter", 2, 2, ""),
        ("hooks", 2, 0, ""),
        ("replaced forward", 1, 0, "0: its forward was replaced"),
        ("weight norm", 1, 0, ""),
        ("pruned", 1, 0, "0: its weight is computed at each call"),
        ("pruned afterwards", 2, 0, ""),
        ("frozen", 2, 0, ""),
        ("narrow", 0, 3, ""),
    ],
)
def test_odd_models_are_converted_or_left_with_a_sentence_and_never_wrong(answers, kind, converted, left, reason):
    found = answers["odd_models"][kind]
    assert (found["converted"], found["left"], found["same"]) == (converted, left, True)
    assert [text for text in found["said"] if "stay" in text] == (
        [f"layers stay as they are, first of each kind: {reason}"] if reason else []
    )
    assert found["snr"] > 22 and found["gradient"] > 18 and all(found["gradients"]), found
    assert found["back"] > 100


def test_the_pages_examples_run(answers):
    assert answers["pages"] == {"ran": len(python_blocks())}


def test_shapes_off_the_recipe_are_multiplied_in_bf16(answers):
    found = answers["fallbacks"]
    assert found["equal"] and found["empty"] == [0, 7]
    assert not found["again"], "one warning"
    assert len(found["refused"]) == 4 and all("gemm_fp8_blockwise takes" in text for text in found["refused"])


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_library_never_gives_a_wrong_answer(answers, how):
    assert answers["damaged"][how]["snr"] >= 26.0
    messages = answers["damaged"][how]["warnings"]
    assert sum(DAMAGES[how] in text for text in messages) == 1, messages
