"""Kernels in CUDA C++ whose blocks do the work of several blocks, and ask memory for all of it before they begin."""

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.workers.intake.cuda.device_code import DeviceCode, Kernel, Parameter, within

_TOGETHER = r"__shared__|__sync|__shfl|__ballot|__any|__all|\bc(ooperative_groups|g)::|(blockIdx|gridDim)(?!\.)"
"""Words of a kernel whose threads or blocks work together, or that uses its block's place as a whole."""

_AHEAD, _KERNEL = re.split("// --.*", Path(__file__).with_name("turns.cuh").read_text())
"""Two parts of ``turns.cuh``: the class that stands for a pointer where a kernel's loads are only started, and the
template of the functions that replace a kernel."""


class _Definition(NamedTuple):
    """A kernel's definition: its node, and its text before its parameters, of the parameters, and of its body."""

    node: Any
    first: str
    taken: str
    work: str

    @property
    def name(self) -> str:
        return re.findall(r"\w+", self.first)[-1]


def in_turns(code: DeviceCode, device: str, launch: str) -> tuple[str, str]:
    """Device code and launch function with the parameter ``TURNS`` for kernels whose threads share nothing; both
    unchanged if there is no such kernel. The last argument of such a kernel is its original's number of blocks."""
    data, names = device.encode(), set[str]()
    for found in reversed(_independent_kernels(code, device)):  # from the end: places before stay as they are
        kernel = code.kernels[found.name]
        whole = found.node.parent if kernel.templates else found.node
        template = data[whole.start_byte : found.node.start_byte].decode().strip()
        text = _kernel_of_several_blocks(found, kernel, template)
        data = data[: whole.start_byte] + text.encode() + data[whole.end_byte :]
        names.add(found.name)
    return (_AHEAD + data.decode(), _launch_with_fewer_blocks(launch, names)) if names else (device, launch)


def _independent_kernels(code: DeviceCode, device: str) -> list[_Definition]:
    """Kernels whose threads share nothing; none where another function asks for its block's place."""
    nodes = within(code.tree(device), "function_definition")
    kernels = [node for node in nodes if b"__global__" in node.text.partition(b"{")[0]]
    others = device.encode()
    for node in kernels:
        others = others.replace(node.text, b"")
    if re.search(b"blockIdx|gridDim", others):
        return []
    found = []
    for node in kernels:
        head = next(within(node, "parameter_list"))
        first, _, work = node.text.partition(head.text)
        one = _Definition(node, first.decode(), head.text.decode()[1:-1], work.decode())
        kernel = code.kernels.get(one.name)
        shared = re.search(_TOGETHER, one.work)
        if kernel and one.taken and not shared and not _reads_whole_numbers(kernel):
            found.append(one)
    return found


def _kernel_of_several_blocks(found: _Definition, kernel: Kernel, template: str) -> str:
    """The functions that replace a kernel, as C++; ``template``: the line before it, or nothing."""
    parts = {
        "TEMPLATE": template,
        "TYPES": f"<{', '.join(kernel.templates)}>" if kernel.templates else "",
        "NAME": found.name,
        "FIRST": found.first,
        "TAKEN": found.taken,
        "AHEAD": _prefetch_parameters(kernel, found.work),
        "COUNT": str(len(kernel.parameters)),
        "BARE": ", ".join(
            f"{{{p.name}, &read[turn][{n}]}}" if p.pointer else p.name for n, p in enumerate(kernel.parameters)
        ),
        "GIVEN": ", ".join(p.name for p in kernel.parameters),
        "WORK": found.work.replace("blockIdx.x", "block_of_x").replace("gridDim.x", "blocks_of_x"),
    }
    return re.sub("|".join(parts), lambda word: parts[word[0]], _KERNEL)


def _reads_whole_numbers(kernel: Kernel) -> bool:
    """Whether a kernel has pointers to whole numbers: a pass that only starts loads has zeros in their place, and
    they may be indices."""
    return any(p.pointer and re.search(r"int|long|short|char|bool|size_t", p.kind) for p in kernel.parameters)


def _prefetch_parameters(kernel: Kernel, work: str) -> str:
    """The parameters of the pass that only starts loads, as C++; pointers that ``work`` writes to are not loaded."""

    def read(pointer: Parameter) -> str:
        return "false" if re.search(rf"\b{pointer.name}\s*\[[^;=]*\]\s*[-+*/|&^]?=(?!=)", work) else "true"

    return ", ".join(
        f"Ahead<{p.kind}, {read(p)}> {p.name}" if p.pointer else f"{p.kind} {p.name}" for p in kernel.parameters
    )


def _launch_with_fewer_blocks(launch: str, names: set[str]) -> str:
    """The launch function's text with grids of the kernels in ``names`` divided by ``TURNS``."""
    tree = ast.parse(launch)
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Dict)):
        parts: dict[str, Any] = {ast.literal_eval(k): v for k, v in zip(node.keys, node.values, strict=True) if k}
        if "kernel" in parts and ast.literal_eval(parts["kernel"]).partition("<")[0] in names:
            blocks = ast.unparse(parts["grid"].elts[0])
            parts["grid"].elts[0] = ast.parse(f'-(-({blocks}) // params["TURNS"])', mode="eval").body
            parts["arguments"].elts.append(ast.parse(f'{{"u32": {blocks}}}', mode="eval").body)
    return ast.unparse(tree).replace("'", '"') + "\n"
