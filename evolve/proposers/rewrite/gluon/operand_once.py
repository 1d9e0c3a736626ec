"""The rule that computes an operand of a product once, in a kernel of its own, for all tiles that multiply it."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, short, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameters
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.gluon.product import Naming, loop_of, program_of, statement_texts
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, calls, names_in, sliced
from tilewright.evolve.proposers.rewrite.gluon.tile import Axis
from tilewright.evolve.proposers.rewrite.gluon.tiles import numbered, operand
from tilewright.evolve.proposers.rewrite.triton.descriptors import address_of
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel, device_calls, range_of

TORCH_TYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "float8e4nv": "float8_e4m3fn",
    "float8e5": "float8_e5m2",
}


@dataclass(frozen=True)
class Computed:
    """An operand that is computed from what its tile and the step of K say, and nothing else."""

    side: int
    """0: left operand [own, depth]; 1: right operand [depth, own]."""

    node: cst.BaseExpression
    text: str
    """Its expression, where ``own_tile`` numbers tiles of its own axis."""

    statements: tuple[Statement, ...]
    """What it needs, before and in the loop."""

    own_tile: str
    """Name of the tile's number in ``statements``."""

    number: str
    """What the kernel says for it."""

    own: str
    depth: str
    turn: str
    """The loop's target, and ``stride`` how much it grows in a step: ``depth`` or 1."""

    stride: str
    stop: str
    tensor: str
    """The result, whose side along the own axis says how many tiles there are."""

    dtype: str


class ComputeOperandOnce(NodeRule[Computed]):
    """Compute an operand in a kernel of its own into memory, which the product then loads.

    Every tile is computed by the same statements, with what its masks put past the end; so the product's tiles meet
    the same numbers.
    """

    name = "triton_compute_operand_once"
    launched = True
    why = (
        "Unpacking, scaling or casting an operand between its load and the dot is done again for every tile that meets "
        "it, by the warps that should multiply. Done once, it costs its bytes once more; and the product that is left "
        "loads both operands as they are, which asynchronous copies can do."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Computed]]:
        outer, body = program_of(kernel)
        if outer:
            raise Unsupported("an operand computed in a loop over tiles")
        place, loop = loop_of(kernel, body)
        call = device_calls(kernel.source, loop, "dot")[0]
        for side in (0, 1):
            found = _computed(kernel, side, call, loop, body, place)
            if found is not None:
                yield f"{short(kernel.source, found.node)} in a kernel of its own", found

    def change(self, edit: Edit, kernel: TritonKernel, found: Computed) -> None:
        source, tl = kernel.source, kernel.tl
        made, steps, tiles = (source.fresh(n) for n in ("prepared", "steps_of_k", "tiles_of_operand"))
        name = source.fresh(f"{kernel.name}_operand")
        own, depth = _host(kernel, found.own), _host(kernel, found.depth)
        stop = _host(kernel, found.stop)
        count = f"-(-({stop}) // ({depth}))" if found.stride != "1" else stop
        used = _parameters(kernel, found)
        given = [f"{n}={source.code(kernel.given(n))}" for n in used]  # type: ignore[arg-type]
        sizes = (f"{tiles} * {own}", f"{steps} * {depth}")
        shape = ", ".join(sizes if found.side == 0 else sizes[::-1])
        edit.before(source.statement(kernel.function), _kernel(kernel, found, name, used) + "\n\n\n")
        lines = [
            f"{steps} = {count}",
            f"{tiles} = -(-{found.tensor}.shape[{found.side}] // {own})",
            f"{made} = torch.empty(({shape}), dtype=torch.{TORCH_TYPES[found.dtype]})",
            f"{name}[({steps}, {tiles})]({', '.join(given)}, out_ptr={made}, out_row={made}.stride(0), num_warps=4)",
        ]
        edit.before(source.statement(kernel.launch()), "\n".join(lines))
        pointer, row, side = (source.fresh(f"prepared_{n}") for n in ("ptr", "row", "side"))
        kernel.add_argument(edit, pointer, made, constexpr=False)
        kernel.add_argument(edit, row, f"{made}.stride(0)", constexpr=False)
        kernel.add_argument(edit, side, f"{made}.shape[{found.side}]", constexpr=False)
        first = found.turn if found.stride != "1" else f"{found.turn} * {found.depth}"
        k = f"({first} + {tl}.arange(0, {found.depth}))"
        mine = f"({found.number} * {found.own} + {tl}.arange(0, {found.own}))"
        if found.side == 0:
            at = f"{mine}.to({tl}.int64)[:, None] * {row} + {k}[None, :]"
            mask = f"{mine}[:, None] < {side}"
        else:
            at = f"{k}.to({tl}.int64)[:, None] * {row} + {mine}[None, :]"
            mask = f"{mine}[None, :] < {side}"
        edit.replace(found.node, f"{tl}.load({pointer} + {at}, mask={mask}, other=0.0)")
        for statement in _idle(kernel, found):
            edit.remove(statement)


def _idle(kernel: TritonKernel, found: Computed) -> list[cst.CSTNode]:
    """Statements of the loop that nothing but the operand needed."""
    loop = kernel.source.enclosing(found.node, cst.For)
    assert loop is not None and isinstance(loop.body, cst.IndentedBlock)
    gone: list[cst.CSTNode] = []
    needed = {s.text for s in found.statements}
    for node in reversed(loop.body.body):
        left = {id(n) for g in (*gone, node, found.node) for n in walk(g)}
        read = {n.value for n in walk(kernel.function) if isinstance(n, cst.Name) and id(n) not in left}
        texts = statement_texts(kernel, [node])
        if texts and all(s.text in needed and not s.writes & read for s in texts):
            gone.append(node)
    return gone


def _computed(
    kernel: TritonKernel, side: int, call: cst.Call, loop: cst.For, body: Sequence[cst.CSTNode], place: int
) -> Computed | None:
    node, other = call.args[side].value, call.args[1 - side].value
    try:
        operand(kernel, node, loop)
    except Unsupported:
        pass
    else:
        return None  # it is loaded
    depth = operand(kernel, other, loop).axes[side].extent
    start, extent, tensor = _own_axis(kernel, side, body[place + 1 :])
    number = numbered(kernel, Axis(start, extent))
    bounds = range_of(kernel.source, loop)
    if bounds is None or bounds[0] != "0" or bounds[2] not in ("1", depth):
        raise Unsupported("an operand computed in a loop that does not step through K from 0")
    assert isinstance(loop.target, cst.Name)
    naming = Naming(kernel, {"own_tile": number})
    before = naming.of_statements(statement_texts(kernel, body[:place]))
    inside = naming.of_statements(statement_texts(kernel, list(loop.body.body)))
    inside = [s for s in inside if not calls(s.node, kernel.tl, "dot")]
    text = naming.of_text(kernel.source.code(node))
    own_tile = naming.names["own_tile"]
    everything = [*before, *inside]
    kept = sliced(everything, names_in(text), {own_tile, loop.target.value})
    needed = tuple(s for i, s in enumerate(everything) if i in kept)
    written: set[str] = set()
    for statement in (s for s in inside if s in needed):
        if any(name in statement.reads for name in statement.writes - written):
            raise Unsupported(f"an operand that the loop carries: {min(statement.writes)}")
        written |= statement.writes
    for part in (*(s.text for s in needed), text):
        if "program_id(" in part or "num_programs(" in part:
            raise Unsupported("a computed operand that depends on more than its own tile")
        if ".store(" in part or "atomic" in part:
            raise Unsupported("a computed operand whose statements write")
    return Computed(
        side, node, text, needed, own_tile, number, extent, depth, loop.target.value, bounds[2], bounds[1], tensor,
        _dtype(kernel, node),
    )  # fmt: skip


def _own_axis(kernel: TritonKernel, side: int, after: Sequence[cst.CSTNode]) -> tuple[str, str, str]:
    """Start, extent and tensor of the result's rows (side 0) or columns (side 1)."""
    for statement in after:
        for call in device_calls(kernel.source, statement, "store"):
            address = address_of(kernel, call.args[0].value, call)
            if address is not None and address.contiguous_columns(kernel):
                axis = address.columns if side else address.rows
                return axis.start, axis.extent, address.tensor
    raise Unsupported("a product stored as no tile of rows")


def _dtype(kernel: TritonKernel, node: cst.BaseExpression) -> str:
    """What ``.to(...)`` at the operand's end says."""
    while isinstance(node, cst.Name):
        value = kernel.value_of(node.value)
        if value is None:
            break
        node = value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "to":
        name = kernel.source.code(node.args[0].value).rpartition(".")[2]
        if name in TORCH_TYPES:
            return name
    raise Unsupported("a computed operand whose type is not said")


def _host(kernel: TritonKernel, text: str) -> str:
    """An expression of the kernel as the host says it. Raises Unsupported for what the host does not know."""
    known = {p.name.value for p in parameters(kernel.function)}

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id in ("tl", kernel.tl):
                return ast.Name("triton", ast.Load())
            given = kernel.given(node.id) if node.id in known else kernel.value_of(node.id)
            if given is None:
                raise Unsupported(f"{node.id}, which the host does not know")
            code = kernel.source.code(given)
            return _parsed(code if node.id in known else _host(kernel, code))

    tree = _parsed(text)
    if any(isinstance(n, ast.Call) and not ast.unparse(n.func).endswith(".cdiv") for n in ast.walk(tree)):
        raise Unsupported(f"{text}, which the host does not know")
    return ast.unparse(ast.fix_missing_locations(Put().visit(tree)))


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _parameters(kernel: TritonKernel, found: Computed) -> list[str]:
    """Parameters of the old kernel that the operand needs."""
    read = (
        {name for s in found.statements for name in s.reads} | names_in(found.text) | {found.own, found.depth}
    )
    return [p.name.value for p in parameters(kernel.function) if p.name.value in read]


def _kernel(kernel: TritonKernel, found: Computed, name: str, used: Sequence[str]) -> str:
    tl = kernel.tl
    listed = [f"{n}: {tl}.constexpr" if n in kernel.constexprs else n for n in used]
    step = f"{tl}.program_id(0)" + (f" * {found.stride}" if found.stride != "1" else "")
    k = f"{tl}.program_id(0) * {found.depth} + {tl}.arange(0, {found.depth})"
    mine = f"{found.own_tile} * {found.own} + {tl}.arange(0, {found.own})"
    rows, columns = (mine, k) if found.side == 0 else (k, mine)
    decorator = kernel.source.code(kernel.function.decorators[0].decorator)
    lines = [
        f"{found.own_tile} = {tl}.program_id(1)",
        f"{found.turn} = {step}",
        *(line for s in found.statements for line in s.text.splitlines()),
        f"{tl}.store(out_ptr + ({rows}).to({tl}.int64)[:, None] * out_row + ({columns})[None, :], {found.text})",
    ]
    head = f"@{decorator}\ndef {name}({', '.join([*listed, 'out_ptr', 'out_row'])}):\n"
    return head + "\n".join(f"    {line}" for line in lines)
