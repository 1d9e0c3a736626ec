"""Any operator by its name, one a user brought too; plans made ahead, kept with a library, in a cache, in a wheel."""

import json
import re
import shutil
import zipfile

import pytest

from testkit import ROOT
from testkit.children import answer_of
from testkit.library.shelves import SMALL, put
from testkit.promote_campaign import FormulaPool, one_sentence, quick_child, write_campaign
from tilewright.evolve import cli
from tilewright.evolve.promote.command import Options, promote
from tilewright.evolve.promote.library_commands import add_plans
from tilewright.evolve.promote.library_writer import LibraryError, LibraryWriter
from tilewright.library import plan_shelf, store
from tilewright.library.loaded import Dispatcher, served

CHILD = ROOT / "testkit" / "library" / "loaded_children.py"
PRODUCT = "gemm_fp8_blockwise/gemm_nt"


def child(library, *arguments, program=CHILD):
    environment = {"PYTHONPATH": str(library), "PATH": "/usr/bin:/bin", "HOME": str(library.parent)}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    return answer_of(program, *arguments, environment=environment)


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A library with an operator that a user brought, promoted for a TPU."""
    home = tmp_path_factory.mktemp("brought")
    writer = LibraryWriter(home / "library")
    folder = write_campaign(home / "home")
    promote(folder, writer, Options(), lambda line: None, lambda resolved: FormulaPool(resolved, quick_child))
    return writer


@pytest.mark.parametrize("framework", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_an_operator_a_user_brought_is_callable_and_falls_back_on_its_own_reference(brought, framework):
    pytest.importorskip(framework)
    found = child(brought.library, framework)
    assert max(found["off"]) < 2**-7, "bf16's rounding of the float64 product"
    (message,) = found["warnings"]
    assert "promoted for tpu:TPU7x, not for cpu" in message and not found["later"]
    assert len(found["refused"]) == 4 and all("small_gemm/good takes" in text for text in found["refused"])
    assert "promoted: small_gemm/good" in found["unknown"]
    here, exact, near = found["served"]
    assert here == "reference product: small_gemm/good: promoted for tpu:TPU7x, not for cpu"
    assert re.match("kernel .*verified at 256x256x512: 50.00 us a call .*modelled", exact)
    assert "verified at 256x256x512" in near or "verified at 512x256x512" in near
    assert not found["tilewright"], "the reference comes with the version"


def test_served_tells_kernel_time_and_interval_for_every_shipped_family():
    kernels = ROOT / "library" / "tilewright_library" / "kernels"
    families = set()
    for operator in store.operators(kernels):
        dispatch = store.current_dispatch(operator, kernels)
        receipt = store.read_receipt(store.current_version(operator, kernels))
        for target, entry in dispatch["targets"].items():
            timed = {s["workload"]: s for s in receipt["targets"][target]["shapes"]}
            for region in entry["regions"]:
                dims = tuple(region["dims"][name] for name in dispatch["dimensions"])
                # as a program on that device with the verified tools sees it
                found = served(operator, store.INTERPRET, dims, kernels)
                if entry["language"] in ("gluon", "cuda"):
                    assert found.kernel is None and found.reason
                    continue
                assert found.kernel == region["kernel"] and found.exact
                if region["workload"] in timed:
                    assert found.figure == entry["kind"] and found.verified_on
                    assert found.interval[0] <= found.seconds <= found.interval[1]
        families.add(operator)
    assert len(families) >= 7


@pytest.mark.parametrize("operator", ["gemm_nt", "gemm_nt_rows"])
def test_kernels_that_copy_scales_by_tma_serve_rows_in_multiples_of_4(operator):
    """A copy begins at a multiple of 16 bytes; of another one an H200 reports an illegal instruction. Kernels for few
    rows (``teams``, ``MOST``) load scales otherwise where they lie so."""
    regions = store.load_table(f"gemm_fp8_blockwise/{operator}", "cuda:9.0").regions
    many_rows = [r for r in regions if not {"teams", "MOST"} & r.kernel.params.keys()]
    beside = ((r.legality, {"M": r.dims[0] - 2, "N": r.dims[1], "K": r.dims[2]}) for r in many_rows)
    assert many_rows and not any(legality.holds(dims) for legality, dims in beside)


def test_a_library_of_0_1_0_opens_with_a_file_for_each_kernel(tmp_path):
    writer = LibraryWriter(tmp_path / "library")
    version = put(writer, PRODUCT, "pointer", ((256, 256, 256), (512, 512, 512)), params=SMALL)
    _, receipt, dispatch = writer.version(PRODUCT)
    entry = dispatch["targets"]["interpreter"]
    kernel = entry["kernels"].pop("pointer")
    text = writer.file(PRODUCT, version, kernel["file"], kernel["sha256"])
    files = {}
    for region, name in zip(entry["regions"], ("one", "two"), strict=True):
        region["kernel"] = name
        files[f"interpreter_{name}.py"] = data = f"# campaign old-001, genome {name}\n".encode() + text
        facts = {"file": f"interpreter_{name}.py", "sha256": store.digest(data)}
        entry["kernels"][name] = {**kernel, **facts}
    files["dispatch.json"] = json.dumps({**dispatch, "format": 1}).encode()
    with writer.writing():
        writer.add(PRODUCT, files, {**receipt, "format": 1}, {"action": "promote"})
    index = writer.place(PRODUCT) / store.INDEX
    index.write_text(index.read_text().replace(f'"format": {store.FORMAT}', '"format": 1'))
    found = store.load_table(PRODUCT, store.INTERPRET, writer.kernels).choose((500, 512, 512)).kernel
    assert (found.name, found.source().splitlines()[0]) == ("two", "# campaign old-001, genome two")
    assert cli.main(["library", "verify", "--files", "--library", str(writer.library)]) == 0


# -- plans made ahead --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A library with a plain Triton product for Hopper, warmed for one shape here, on a CPU; the version before."""
    pytest.importorskip("triton")
    home = tmp_path_factory.mktemp("warmed")
    writer = LibraryWriter(home / "library")
    hopper = {"serves": "cuda:9.0", "target": "h200"}
    before = put(writer, PRODUCT, "pointer", ((256, 256, 256),), params=SMALL, **hopper)
    shapes = home / "shapes.txt"
    shapes.write_text(f"# one shape\n{PRODUCT} 128 256 256\n")
    library = ["--library", str(writer.library)]
    assert cli.main(["library", "warm", "--shapes", str(shapes), *library]) == 0
    return writer, before


def test_plans_are_made_without_a_gpu_and_vouched_for_by_the_receipt(warmed, tmp_path):
    writer, before = warmed
    version, receipt, _ = writer.version(PRODUCT)
    assert version != before and writer.index(PRODUCT)["history"][-1]["action"] == "warm"
    place = writer.place(PRODUCT) / "versions" / version
    (pack,) = plan_shelf.packs(place, "h200")
    plan = pack.find("pointer", (128, 256, 256))
    assert plan is not None and plan.architecture == 90 and plan.outputs[0].shape == (128, 256)
    assert pack.find("pointer", (256, 256, 256)) is None and pack.find("other", (128, 256, 256)) is None
    (record,) = receipt["plans"].values()
    assert record["digests"] == [plan.digest] and record["toolchain"]["triton"]
    assert cli.main(["library", "rollback", PRODUCT, "--library", str(writer.library)]) == 0
    assert writer.version(PRODUCT)[0] == before
    arguments = ["library", "rollback", PRODUCT, "--to", version, "--library", str(writer.library)]
    assert cli.main(arguments) == 0 and writer.version(PRODUCT)[0] == version


def test_a_pack_that_is_not_what_was_promoted_is_refused(warmed, tmp_path):
    writer, _ = warmed
    version, receipt, _ = writer.version(PRODUCT)
    place = writer.place(PRODUCT) / "versions" / version
    (name,) = [n for n in receipt["files"] if n.startswith("plans_")]
    good = (place / name).read_bytes()
    (place / name).write_bytes(good[:-20])
    with pytest.raises(store.UnsoundLibrary, match="is not what was promoted"):
        plan_shelf.packs(place, "h200")
    (place / name).unlink()
    with pytest.raises(store.UnsoundLibrary, match="cannot be read"):
        plan_shelf.packs(place, "h200")
    (place / name).write_bytes(good)
    with zipfile.ZipFile(place / name) as archive:
        index = json.loads(archive.read("index.json"))
        parts = {n: archive.read(n) for n in archive.namelist()}
    index["plans"]["pointer"]["128x256x256"]["digest"] = "0" * 64
    parts["index.json"] = json.dumps(index).encode()
    with zipfile.ZipFile(tmp_path / "forged.zip", "w") as archive:
        for part, data in parts.items():
            archive.writestr(part, data)
    forged = plan_shelf.Pack((tmp_path / "forged.zip").read_bytes(), "forged")
    with pytest.raises(store.UnsoundLibrary, match="another plan than its index says"):
        forged.find("pointer", (128, 256, 256))


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def swapped(path):
    """Another file's bytes: sound by themselves, and not what the receipt's hash says."""
    path.write_bytes(plan_shelf.packed({}, {"triton": "3.7.1"}))


@pytest.mark.parametrize("sabotage", [flipped, swapped])
def test_sabotage_of_plans_is_told_and_not_warmed(warmed, tmp_path, sabotage, capsys):
    """That of a version's other files: ``tests/evolve/promote/test_library_commands.py``."""
    shutil.copytree(warmed[0].library, tmp_path / "library")
    writer = LibraryWriter(tmp_path / "library")
    version = writer.version(PRODUCT)[0]
    (path,) = (writer.place(PRODUCT) / "versions" / version).glob("plans_*.zip")
    sabotage(path)
    capsys.readouterr()
    library = ["--library", str(writer.library)]
    assert cli.main(["library", "verify", "--files", *library]) == 2
    output = capsys.readouterr()
    bad = [line for line in (output.out + output.err).splitlines() if "is not what was promoted" in line]
    assert len(bad) == 1 and one_sentence(bad[0]), output
    with pytest.raises(LibraryError, match="is not what was promoted"):
        add_plans(writer, PRODUCT, "plans_h200_x.zip", plan_shelf.packed({}, {"triton": "3.7.1"}))
    assert writer.versions(PRODUCT) == sorted({version, warmed[1]})


def test_a_plan_of_another_architecture_is_not_taken(warmed, monkeypatch):
    """On a device of capability 8.0 the plan for 9.0 is left alone: one is made, or the reference answers."""
    torch = pytest.importorskip("torch")
    from tilewright.library import torch_launch

    made: list[int] = []

    def noted(kernel, shapes, dims, architecture, device, packs):
        made.append(architecture)

    monkeypatch.setattr(torch_launch, "made_plan", noted)
    table = store.load_table(PRODUCT, "cuda:9.0", warmed[0].kernels)
    kernel, dims = table.regions[0].kernel, (128, 256, 256)
    for capability, wanted in (((9, 0), 90), ((8, 0), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        launcher = torch_launch.Launcher(Dispatcher(warmed[0].kernels))
        plan = launcher._plan(table, kernel, table.operands, dims, torch.device("cuda", 0))
        assert (plan.architecture if plan else None) == wanted
    assert made == [80]


def test_the_cache_knows_a_plan_by_what_it_was_made_from(warmed, tmp_path, monkeypatch):
    writer, _ = warmed
    version, _, _ = writer.version(PRODUCT)
    place = writer.place(PRODUCT) / "versions" / version
    (pack,) = plan_shelf.packs(place, "h200")
    plan = pack.find("pointer", (128, 256, 256))
    assert plan is not None
    monkeypatch.setenv(plan_shelf.CACHE_VARIABLE, str(tmp_path))
    kernel = store.load_table(PRODUCT, "cuda:9.0", writer.kernels).regions[0].kernel
    keys = {
        plan_shelf.cache_key(kernel, dims, architecture, {"triton": triton})
        for dims in ((128, 256, 256), (256, 256, 256))
        for architecture in (90, 100)
        for triton in ("3.6.0", "3.7.1")
    }
    assert len(keys) == 8
    key = min(keys)
    assert plan_shelf.cached(key) is None
    plan_shelf.keep(key, plan)
    assert plan_shelf.cached(key) == plan and plan_shelf.cached(max(keys)) is None
    (path,) = plan_shelf.cache_folder().glob("*.plan")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert plan_shelf.cached(key) is None, "cut short"
    path.write_bytes(data)
    path.rename(path.with_name(f"{key}-{'0' * 40}.plan"))
    assert plan_shelf.cached(key) is None, "another plan than its name says"
    monkeypatch.setenv(plan_shelf.CACHE_VARIABLE, "/proc/none")
    plan_shelf.keep(key, plan)
    assert plan_shelf.cached(key) is None
