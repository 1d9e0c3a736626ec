"""Grouped matrix products of an MoE layer in three phases, with operands quantised inside the kernel (TPU).

Rows 0 .. M-1 are dealt to G groups in order, ``sizes[g]`` rows to group g (any of them may be 0; their sum is M).
With r(g) the rows of group g, the phases and their operands in call order are

    fwd    out  [M,N] = lhs[r(g)] . rhs[g]       lhs  [M,K] bf16, rhs [G,K,N] e4m3, scales, sizes [G] int32
    dlhs   dlhs [M,K] = grad[r(g)] . rhs[g]^T    grad [M,N] bf16, rhs [G,K,N] e4m3, scales, sizes
    tgmm   drhs [G,K,N] = lhs[r(g)]^T . grad[r(g)]   lhs [M,K] bf16, grad [M,N] bf16, sizes

Sums are in float32 or better, results are rounded once to bfloat16; drhs of an empty group is zero. In ``fwd`` and
``dlhs``, C is the contracted dimension (K, then N) and F the other one. ``rhs`` comes quantised for the phase, with
``scales`` [G, C/g, 1, F] float32, constant over blocks of g along C and 128 along F. The row operand is quantised in
the kernel, 1 x g along C:

    s[m, t] = max(absmax(x[m, t*g : (t+1)*g]), 1e-12) / 448           float32 (rounded to bf16 in ``bf16-scales``)
    q[m, c] = RNE cast of x[m, c] / s[m, c // g] to e4m3              computed in float32

``tgmm`` quantises both operands g x 1 along M, in blocks that start at multiples of g whatever groups their rows
belong to. ``recipes.py`` has the table of recipes: width g, what is quantised, how scales are kept. The tolerances are
those of ``gemm_fp8_fused`` (its docstring): either order of the float32 divisions, operands rounded to bf16 after
scaling; not bf16 before the cast, and no coarser scales. Gates compare ``out``, ``dlhs`` and ``drhs`` themselves:
``exact`` (45 dB) with float64 products of the dequantised operands, ``field`` (25 dB) with those of the unquantised.

Inputs draw new group sizes for every seed, ragged ones by kind (``make_inputs``), on any shape. Kernels are *timed*
with the sizes that ``known`` says: equal groups, or a fixed ragged distribution where the workload says ``ragged``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import ml_dtypes
import numpy as np

from tilewright.seeds import shaped
from tilewright.seeds.gmm_fp8.recipes import RECIPES, Recipe, suites
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload

FREE_BLOCK = shaped.SCALED_COLUMNS
_KERNELS = Path(__file__).parent / "kernels"
_NAMES = {"fwd": ("lhs", "out"), "dlhs": ("grad", "dlhs"), "tgmm": ("lhs", "drhs")}


def draw_sizes(rng: np.random.Generator, rows: int, groups: int, kind: str) -> np.ndarray:
    """Sizes of ``groups`` groups of ``rows`` rows in all, int32.

    ``randn``: cut anywhere, some groups empty. ``outliers``: one group has nearly all rows, others a handful or none.
    ``spread``: many borders inside one tile, then two large groups. ``zero_blocks``: one group has all rows.
    """
    sizes = np.zeros(groups, dtype=np.int32)
    if groups == 1 or kind == "zero_blocks":
        sizes[rng.integers(groups)] = rows
        return sizes
    if kind == "outliers":
        sizes[:] = rng.integers(0, 1 + min(9, rows // groups), groups)
        sizes[rng.integers(groups)] = 0
        heavy = rng.integers(groups)
        sizes[heavy] = 0
        sizes[heavy] = rows - sizes.sum()
        return sizes
    if kind == "spread":
        sizes[:-2] = rng.integers(1, 1 + max(1, min(40, rows // (2 * groups))), max(0, groups - 2))
        left = rows - int(sizes.sum())
        sizes[-2] = left // 2 - rng.integers(1, max(2, left // 8))
        sizes[-1] = rows - sizes.sum()
        return sizes
    cuts = np.sort(rng.integers(0, rows + 1, groups - 1))
    return np.diff(np.concatenate([[0], cuts, [rows]])).astype(np.int32)


@dataclass(frozen=True)
class GroupedProduct:
    """One recipe of one phase; see the module's docstring for the contract."""

    name: str
    recipe: Recipe
    gates: tuple[Gate, ...] = shaped.GATES
    input_kinds: tuple[str, ...] = shaped.INPUT_KINDS

    @property
    def constants(self) -> Mapping[str, int]:
        """The width of a scale group (0: none, or the whole contracted dimension)."""
        return {"group": self.recipe.group or 0}

    @property
    def suites(self) -> Mapping[str, Suite]:
        """The suites of ``recipes.py``, with C and F of this phase."""
        return suites(self.recipe.phase)

    @cached_property
    def kernels(self) -> Mapping[str, SeedKernel]:
        """The named tiling of the phase, the same with operands quantised once, and the bf16 product of the phase."""
        name = "rows" if self.recipe.rows else "tgmm"
        bf16 = RECIPES[f"{self.recipe.phase}-bf16"]
        once: dict[str, object] = {"block_m": 256, "block_n": 2048, "block_k": 2048}
        if self.recipe.rows:
            once |= {"sub_n": 256, "order": "visits"}
            wide = {**once, "bodies": "shared"}
            once["bodies"] = "split"
            if self.recipe.group == 128 and self.recipe.quantise_x:
                # partials of 128 are more vector operations than bf16 dots take cycles
                once["dequant"] = "operands"
        else:
            once |= {"sub_n": 512, "sums": "direct"}
            wide = {**once, "sub_k": 2048}
            once |= {"sub_k": 256, "placement": "cached" if self.recipe.quantised else "per_use"}
            if (self.recipe.group or 0) > 256:
                once |= {"block_m": self.recipe.group, "narrow": 256}
            elif self.recipe.quantised:
                # a tile is one group's, quantised once without a cache, on which the simulator aborts at 32 groups
                once |= {"placement": "per_use", "sub_n": 2048, "sub_k": 512}
        started: dict[str, object] = {"block_k": 2048} if self.recipe.full else {}
        if self.recipe.phase == "dlhs":
            started |= {"block_n": 128, "sub_n": 128}
        own = kernel_source(name, self.recipe)
        return {
            "naive": SeedKernel("naive", own, started),
            "once": SeedKernel("once", own, once),
            "bf16": SeedKernel("bf16", kernel_source(name, bf16), wide, baseline=True, inputs="bf16"),
        }

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """Operands in call order. ``variant`` ``bf16``: the same without quantisation, ``rhs`` in bfloat16.

        Raises ValueError for a variant or a shape the operator does not have.
        """
        if variant not in (None, "bf16"):
            raise ValueError(f"{self.name} has no inputs variant {variant!r}; it has 'bf16'")
        m, n, k, groups = self._dims(workload)
        sizes = TensorSpec("sizes", (groups,), "int32")
        lhs, grad = TensorSpec("lhs", (m, k), "bfloat16"), TensorSpec("grad", (m, n), "bfloat16")
        if not self.recipe.rows:
            return (lhs, grad, sizes)
        rows = lhs if self.recipe.phase == "fwd" else grad
        if variant == "bf16" or not self.recipe.quantised:
            return (rows, TensorSpec("rhs", (groups, k, n), "bfloat16"), sizes)
        contracted, free = self._contracted(workload)
        scales = TensorSpec("scales", (groups, contracted // self._width(workload), 1, free), "float32")
        return (rows, TensorSpec("rhs", (groups, k, n), "float8_e4m3fn"), scales, sizes)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """``out`` [M, N], ``dlhs`` [M, K] or ``drhs`` [G, K, N] in bfloat16."""
        m, n, k, groups = self._dims(workload)
        shape = {"fwd": (m, n), "dlhs": (m, k), "tgmm": (groups, k, n)}[self.recipe.phase]
        return (TensorSpec(_NAMES[self.recipe.phase][1], shape, "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands: see ``shaped.values``; ``kind`` distributes group sizes, too (``draw_sizes``).

        Raises ValueError for a kind that is not there.
        """
        m, n, k, groups = self._dims(workload)
        rng = np.random.default_rng([seed, *kind.encode()])
        made: Arrays = {}
        for spec in self.inputs(workload):
            if spec.name in ("lhs", "grad"):
                axis = 1 if self.recipe.rows else 0
                width = self._block(workload, spec.shape[axis])
                drawn = shaped.values(rng, kind, spec.shape, axis, width, seed, first=not made)
                made[spec.name] = drawn.astype(ml_dtypes.bfloat16)
        if self.recipe.rows:
            axis = 1 if self.recipe.phase == "fwd" else 2
            width = self._block(workload, (groups, k, n)[axis])
            rhs = shaped.values(rng, kind, (groups, k, n), axis, width, seed, first=False, free=FREE_BLOCK, larger=7.0)
            made |= self._quantised_matrices(rhs, axis, workload)
        return {**made, "sizes": draw_sizes(rng, m, groups, kind)}

    def known(self, workload: Workload) -> Arrays:
        """The group sizes a workload is timed with: equal ones, or a fixed ragged draw for ``ragged`` ones."""
        m, _, _, groups = self._dims(workload)
        if workload.dims.get("ragged", 0):
            return {"sizes": draw_sizes(np.random.default_rng(workload.dims["ragged"]), m, groups, "randn")}
        sizes = np.full(groups, m // groups, dtype=np.int32)
        sizes[: m % groups] += 1
        return {"sizes": sizes}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """Float64 references: ``exact`` over the dequantised operands, ``field`` over the unquantised ones."""
        sizes, name = inputs["sizes"], _NAMES[self.recipe.phase][1]
        operands = [name for name in ("lhs", "grad") if name in inputs]
        (first, *others), steps = zip(*(self._as_codes(name, inputs[name], workload) for name in operands), strict=True)
        raw, *fields = (inputs[name].astype(np.float64) for name in operands)
        second = others[0] if others else self._matrices(inputs)

        def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return _over_rows(a, b, sizes) if self.recipe.rows else _over_columns(a, b, sizes)

        slack, turned = shaped.slack_of(
            product, first, second, *steps, carried=self.recipe.rows and self.recipe.quantise_x
        )
        return {
            "exact": {name: product(first, second)},
            "field": {name: product(raw, fields[0] if fields else second)},
            "slack": {name: slack},
            "turned": {name: turned},
        }

    def oracle_at(
        self, workload: Workload, inputs: Arrays, where: Mapping[str, Sequence[np.ndarray]]
    ) -> dict[str, Arrays]:
        """What ``oracle`` says of these rows and columns of the result, for ``tgmm`` of each matrix."""
        name = _NAMES[self.recipe.phase][1]
        if not self.recipe.rows:
            groups, down, across = where[name]
            part = {"lhs": inputs["lhs"][:, down], "grad": inputs["grad"][:, across], "sizes": inputs["sizes"]}
            found = self.oracle(workload, part)
            return {reference: {name: arrays[name][groups]} for reference, arrays in found.items()}
        rows, columns = where[name]
        owners = np.searchsorted(np.cumsum(inputs["sizes"]), rows, side="right")
        part = {k: inputs[k][rows] for k in ("lhs", "grad") if k in inputs}
        part["rhs"] = inputs["rhs"][..., columns] if self.recipe.phase == "fwd" else inputs["rhs"][:, columns]
        if "scales" in inputs:
            part["scales"] = inputs["scales"][..., columns]
        return self.oracle(workload, {**part, "sizes": np.bincount(owners, minlength=len(inputs["sizes"]))})

    def flops(self, workload: Workload) -> int:
        """2 M N K in every phase: each row meets one matrix; quantisation is overhead, not work."""
        m, n, k, _ = self._dims(workload)
        return 2 * m * n * k

    def bytes(self, workload: Workload) -> int:
        """Operands once, matrices of empty groups left out, one scale of ``rhs`` a block; the result once."""
        m, n, k, groups = self._dims(workload)
        if not self.recipe.rows:
            return 2 * m * (n + k) + 2 * groups * n * k
        filled = int(np.count_nonzero(self.known(workload)["sizes"]))
        contracted, free = self._contracted(workload)
        per_group = (1 if self.recipe.quantised else 2) * n * k
        if self.recipe.quantised:
            per_group += 4 * (contracted // self._width(workload)) * (free // FREE_BLOCK)
        return 2 * m * (n + k) + filled * per_group

    def _dims(self, workload: Workload) -> tuple[int, int, int, int]:
        m, n, k, groups = (workload.dims[name] for name in ("M", "N", "K", "G"))
        width = self.recipe.group or FREE_BLOCK
        divided = (n, k) if self.recipe.rows else (m, FREE_BLOCK * n, FREE_BLOCK * k)
        wide = self._contracted(workload)[0] if self.recipe.rows else m
        if wide % width or any(size % FREE_BLOCK for size in divided):
            raise ValueError(
                f"workload {workload.id}: {self.name} needs N and K multiples of {FREE_BLOCK} and the contracted "
                f"dimension a multiple of {width}"
            )
        return m, n, k, groups

    def _contracted(self, workload: Workload) -> tuple[int, int]:
        """(contracted, free) dimension of ``fwd`` and ``dlhs``."""
        n, k = workload.dims["N"], workload.dims["K"]
        return (k, n) if self.recipe.phase == "fwd" else (n, k)

    def _width(self, workload: Workload) -> int:
        """Elements of the contracted dimension that share a scale."""
        return self.recipe.group or self._contracted(workload)[0]

    def _block(self, workload: Workload, axis_size: int) -> int:
        return (self.recipe.group if not self.recipe.rows else self._width(workload)) or min(FREE_BLOCK, axis_size)

    def _quantised_matrices(self, rhs: np.ndarray, axis: int, workload: Workload) -> Arrays:
        """``rhs`` [G,K,N] float32 as the kernel gets it, contracted along ``axis``."""
        if not self.recipe.quantised:
            return {"rhs": rhs.astype(ml_dtypes.bfloat16)}
        along = rhs if axis == 1 else rhs.swapaxes(1, 2)
        codes, scales = shaped.quantise_weights(along, self._width(workload), bf16_scales=self.recipe.bf16_scales)
        codes = codes if axis == 1 else codes.swapaxes(1, 2)
        return {"rhs": np.ascontiguousarray(codes), "scales": np.ascontiguousarray(scales)}

    def _matrices(self, inputs: Arrays) -> np.ndarray:
        """Dequantised matrices as they are multiplied: float64 [G, C, F]."""
        rhs = inputs["rhs"]
        wide = rhs if self.recipe.phase == "fwd" else rhs.swapaxes(1, 2)
        if not self.recipe.quantised:
            return wide.astype(np.float64)
        return shaped.dequantise_weights(wide, inputs["scales"])

    def _as_codes(self, name: str, x: np.ndarray, workload: Workload) -> tuple[np.ndarray, np.ndarray | None]:
        """An operand as its codes and scales say, float64, and by how much its elements change where their codes may
        turn; None where it has none."""
        rows = self.recipe.rows
        if not (self.recipe.quantise_x if rows or name == "lhs" else self.recipe.quantise_y):
            return x.astype(np.float64), None
        along = x if rows else np.ascontiguousarray(x.T)
        q, scale = shaped.quantise(along, self._block(workload, 0), bf16_scales=self.recipe.bf16_scales)
        values, steps = shaped.dequantise(q, scale), shaped.turned_steps(along, scale)
        return (values, steps) if rows else (values.T, steps.T)


def _over_rows(rows: np.ndarray, matrices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[M, C] and [G, C, F] -> [M, F]: each group of rows times its matrix."""
    ends = np.cumsum(sizes)
    parts = [rows[end - size : end] @ matrix for end, size, matrix in zip(ends, sizes, matrices, strict=True)]
    return np.concatenate(parts, axis=0)


def _over_columns(lhs: np.ndarray, grad: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[M, K] and [M, N] -> [G, K, N]: the product over the rows of each group."""
    ends = np.cumsum(sizes)
    return np.stack([lhs[end - size : end].T @ grad[end - size : end] for end, size in zip(ends, sizes, strict=True)])


def kernel_source(name: str, recipe: Recipe) -> str:
    """A kernel's module for one recipe: shared functions put in, the recipe's constants and constraints' numbers set.

    The numbers are written out because a baseline keeps its own where another recipe is evolved.
    """
    head, rest = inlined(_KERNELS / f"{name}.py").split("SPACE = ", 1)
    space, rest = rest.split("CONSTRAINTS = ", 1)
    constraints, body = rest.split("\n}\n", 1)
    for key, number in recipe.numbers().items():
        constraints = constraints.replace(key, str(number))
    for key, value in recipe.source_constants().items():
        body, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", body, flags=re.MULTILINE)
        assert count == 1, f"{name}.py has no {key}"
    return f"{head}SPACE = {space}CONSTRAINTS = {constraints}\n}}\n{body}"


def operators() -> dict[str, GroupedProduct]:
    """The family's operators by recipe name."""
    return {name: GroupedProduct(f"gmm_fp8/{name}", recipe) for name, recipe in RECIPES.items()}
