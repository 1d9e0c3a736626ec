"""Finding the Pallas launches of a module and everything they name."""

import logging

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Language, Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import parameters, resolve
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS, PallasCall, Ref, Spec
from tilewright.evolve.proposers.rewrite.place_rule import Place, PlaceRule

log = logging.getLogger(__name__)


def pallas_calls(kernel: KernelSource) -> list[PallasCall]:
    """Every ``pallas_call`` that can be followed. Raises Unsupported naming the construct if none can."""
    if kernel.language is not Language.PALLAS:
        return []
    if "pallas_calls" not in kernel.notes:
        kernel.notes["pallas_calls"] = _find(kernel)
    found, problems = kernel.notes["pallas_calls"]
    if problems and not found:
        raise problems[0]
    return found


def _find(kernel: KernelSource) -> tuple[list[PallasCall], list[Unsupported]]:
    found: list[PallasCall] = []
    problems: list[Unsupported] = []
    for call, name in kernel.calls():
        if name != f"{PALLAS}.pallas_call":
            continue
        try:
            found.append(_view(kernel, call))
        except Unsupported as error:
            problems.append(error)
    return found, problems


def _view(kernel: KernelSource, call: cst.Call) -> PallasCall:
    args = {a.keyword.value: a for a in call.args if a.keyword is not None}
    if any(a.star for a in call.args):
        raise Unsupported("pallas_call with **keywords")
    if "grid_spec" in args:
        raise Unsupported("pallas_call with grid_spec")
    if "grid" not in args or "in_specs" not in args or "out_specs" not in args:
        raise Unsupported("pallas_call without literal grid, in_specs and out_specs")
    function, bound, partial = _kernel_function(kernel, call.args[0].value)
    grid_node = resolve(kernel, args["grid"].value)
    grid = _elements(kernel, grid_node) if isinstance(grid_node, cst.Tuple | cst.List) else [grid_node]
    ins = [(None, n) for n in _spec_list(kernel, args["in_specs"].value, "in_specs")]
    outs = [(None, n) for n in _spec_list(kernel, args["out_specs"].value, "out_specs")]
    scratch_arg = args.get("scratch_shapes")
    scratch_node = resolve(kernel, scratch_arg.value) if scratch_arg else None
    if scratch_node is not None and not isinstance(scratch_node, cst.List | cst.Tuple):
        raise Unsupported("scratch_shapes that is no literal list")
    scratch = _elements(kernel, scratch_node) if scratch_node is not None else []
    positional = [p.name.value for p in parameters(function)]
    if len(positional) < len(ins) + len(outs) + len(scratch):
        raise Unsupported(f"{function.name.value} takes fewer references than the launch passes")
    refs = []
    roles = [("in", n) for _, n in ins] + [("out", n) for _, n in outs] + [("scratch", n) for n in scratch]
    for position, (role, node) in enumerate(roles):
        spec = None if role == "scratch" else _spec(kernel, node, len(grid))
        refs.append(Ref(positional[position], role, position, spec, node))
    return PallasCall(
        kernel, call, args, function, bound, partial, grid_node, grid, refs, scratch_node, _operands(kernel, call)
    )


def _elements(kernel: KernelSource, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a literal list holds; of ``*name`` what that name's list holds."""
    if not isinstance(node, cst.Tuple | cst.List):
        raise Unsupported("a list that is not literal")
    found = []
    for element in node.elements:
        if not isinstance(element, cst.StarredElement):
            found.append(element.value)
            continue
        inner = resolve(kernel, element.value)
        if not isinstance(inner, cst.Tuple | cst.List):
            raise Unsupported("a starred element in a launch list")
        found += _elements(kernel, inner)
    return found


def _spec_list(kernel: KernelSource, node: cst.BaseExpression, what: str) -> list[cst.BaseExpression]:
    value = resolve(kernel, node)
    if isinstance(value, cst.Tuple | cst.List):
        return _elements(kernel, value)
    if isinstance(value, cst.Call):
        return [value]
    raise Unsupported(f"{what} that is no literal list")


def _kernel_function(
    kernel: KernelSource, node: cst.BaseExpression
) -> tuple[cst.FunctionDef, dict[str, cst.Arg], cst.Call | None]:
    """The kernel's definition, the keywords a ``functools.partial`` binds, and that partial."""
    partial = None
    bound: dict[str, cst.Arg] = {}
    value = resolve(kernel, node)
    if isinstance(value, cst.Call) and kernel.qualified(value.func) == "functools.partial":
        if any(a.star for a in value.args) or any(a.keyword is None for a in value.args[1:]):
            raise Unsupported("functools.partial with positional or starred arguments around a kernel")
        bound = {a.keyword.value: a for a in value.args[1:] if a.keyword is not None}
        partial = value
        value = resolve(kernel, value.args[0].value)
    if isinstance(value, cst.Name):
        function = kernel.function(value.value, near=value)
        if function is not None:
            return function, bound, partial
    raise Unsupported(f"a kernel given as {type(value).__name__}")


def _spec(kernel: KernelSource, node: cst.BaseExpression, rank: int) -> Spec | None:
    """A literal BlockSpec with shape and index map; None for anything else (memory spaces, helpers)."""
    value = resolve(kernel, node)
    if not (isinstance(value, cst.Call) and kernel.qualified(value.func) == f"{PALLAS}.BlockSpec"):
        return None
    named = {a.keyword.value: a.value for a in value.args if a.keyword is not None}
    free = [a.value for a in value.args if a.keyword is None]
    shape = named.get("block_shape") or (free[0] if free else None)
    index = named.get("index_map") or (free[1] if len(free) > 1 else None)
    if shape is None or index is None:
        return None
    shape, index = resolve(kernel, shape), resolve(kernel, index)
    if not isinstance(shape, cst.Tuple | cst.List):
        return None
    body: cst.BaseExpression | None = None
    if isinstance(index, cst.Lambda):
        axes = [p.name.value for p in index.params.params]
        body = index.body
        holder: cst.CSTNode = index
    elif isinstance(index, cst.Name) and (function := kernel.function(index.value, near=index)):
        axes = [p.name.value for p in parameters(function)]
        body, holder = _returned_value(function), function
    if not isinstance(body, cst.Tuple) or len(axes) != rank:
        return None
    return Spec(value, _elements(kernel, shape), axes, _elements(kernel, body), holder)


def _returned_value(function: cst.FunctionDef) -> cst.BaseExpression | None:
    body = function.body.body
    if isinstance(function.body, cst.IndentedBlock) and len(body) == 1:
        line = body[0]
        if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Return):
            return line.body[0].value
    return None


def _operands(kernel: KernelSource, call: cst.Call) -> list[cst.BaseExpression]:
    """Arguments the launch is applied to, here or through a name; empty if they cannot be found."""
    parent = kernel.parents.get(call)
    if isinstance(parent, cst.Call) and parent.func is call:
        return [a.value for a in parent.args if not a.star]
    if isinstance(parent, cst.Assign) and isinstance(parent.targets[0].target, cst.Name):
        name = parent.targets[0].target.value
        scope = kernel.enclosing(call, cst.FunctionDef)
        for other, called in kernel.calls(scope):
            if called == name and kernel.enclosing(other, cst.FunctionDef) is scope:
                return [a.value for a in other.args if not a.star]
    return []


class CallRule(PlaceRule[PallasCall, Place]):
    """A rule whose places are in one ``pallas_call`` and its kernel."""

    language = Language.PALLAS

    def views(self, kernel: KernelSource) -> list[PallasCall]:
        return pallas_calls(kernel)
