"""The program that reads kernels in CUDA C++ in, compiled and not run: a reference's error stands for the kernel's."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.fitness import dialect
from tilewright.library import cuda_record
from tilewright.library.plans.format import Tensor
from tilewright.seeds.inlined import with_device_code
from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.dtypes import numpy_dtype
from tilewright.workers.intake.child_program import Answer, Refusal, Request, answer_request, first_line
from tilewright.workers.intake.cuda.cut import cut
from tilewright.workers.intake.cuda.device_code import without_numbers
from tilewright.workers.intake.cuda.host_function import HostFunction
from tilewright.workers.intake.cuda.knobs import found_knobs, scheduled
from tilewright.workers.intake.cuda.launch_text import launched
from tilewright.workers.intake.cuda.turns import in_turns
from tilewright.workers.intake.judge import bounds
from tilewright.workers.intake.judge.input_kinds import CheckedShape, Effort, InputKinds, inputs_of
from tilewright.workers.intake.judge.inputs import EXTREME, SPECIAL, family
from tilewright.workers.intake.judge.oracles import Oracle
from tilewright.workers.intake.judge.reference import run_reference
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import operand_row
from tilewright.workers.intake.triton.call_site import Seed
from tilewright.workers.intake.triton.checked_shapes import SOME, check_dims, joined_reasons, last_resorts
from tilewright.workers.intake.triton.knob_evidence import independent_dimensions, product_work

CHECKED_ELEMENTS = 1 << 18
"""Of the operands of a shape that is checked: its answers are judged on the host, once for each kind of inputs."""


def module_text(launch: str, device: str, space: Mapping[str, Sequence[int]], knobs: Mapping[str, int]) -> str:
    """A kernel module; numbers that are in no ``space`` stand in it as they are."""
    for name, value in knobs.items():
        if name not in space:
            launch = launch.replace(f'params["{name}"]', str(value))
            device = re.sub(rf"(unroll[ (]+|bounds__\([^)]*|#if )\b{name}\b", rf"\g<1>{value}", device)
        launch = launch.replace(f"${name}$", name if name in space else str(value))
    declared = {"SPACE": {n: tuple(v) for n, v in space.items()}, "DEFAULTS": {n: knobs[n] for n in space}}
    head = "".join(f"{name} = {table!r}\n" for name, table in declared.items()).replace("'", '"')
    return with_device_code(f"{head}CONSTRAINTS = {{}}\n\n\n{launch}", without_numbers(device, tuple(space)))


class Intake:
    """One request: the kernel with its dimensions, launch and judge."""

    def __init__(self, request: Request) -> None:
        """Raises Refusal, CallsDiffer, and what the user's files raise."""
        if request["reference"] == SELF:
            raise Refusal("CUDA C++ runs on a device alone: without --reference nothing says what is right")
        self._capability, source = int(request["part"]["capability"]), HostFunction(request)
        site = source.site
        self._source, self.site, self.oracle = source, site, Oracle(site.judge, site.reference_calls())

        takes = lambda small, named: site.reference_takes(small, source.own(named))  # noqa: E731
        every, site.dims = dimensions.name_dimensions(source.every, len(source.calls), source.works, surely=takes)
        site.operands, self._results = source.own(every), [o for o in every if o.name in source.outputs]
        self.text = source.launch(every, site.dims)

    def compiled(self, device: str, space: Mapping[str, Sequence[int]], knobs: Mapping[str, int]) -> str:
        """The module, once the plan of the first call was made of it. Raises Refusal."""
        scope: dict[str, Any] = {}
        text, dims = module_text(self.text, device, space, knobs), self.site.dims[0]
        parts = self.site.operands, self._results
        inputs, outputs = ([Tensor(o.name, o.dtype, o.sizes(dims)) for o in some] for some in parts)
        try:
            exec(text, scope)
            params = {name: knobs[name] for name in space}
            cuda_record.record(scope, params, inputs, outputs, self._capability)
        except Exception as error:
            raise Refusal(f"it does not compile, or cannot be launched so: {first_line(error)}") from error
        return text

    def rounded(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The reference's answers in the operands' types, as the results'."""
        made = run_reference(self.oracle.function, self.oracle.call, inputs, "")
        return [a.astype(numpy_dtype(r.dtype)) for a, r in zip(made, self._results, strict=False)]

    def shapes(self) -> list[CheckedShape]:
        """Small shapes, with the reference's answers and in place of the kernel's those in the operands' own types.
        Sizes that kernels or launch name keep their value. Raises Refusal."""
        site, found, reasons = self.site, list[CheckedShape](), dict[str, str]()
        dims, rank = site.dims[0], max(len(o.shape) for o in site.operands)
        literals = re.findall(r"\b\d{2,9}\b", self._source.code.text + self.text)
        numbers = set(dims.values() if self._source.sized else map(int, literals))
        asked = [check_dims(dims, scale, rank) for scale in ("large", "even")]
        if len(dims) < 2 and rank > 2:  # a batch of images, whose size is no number of the text's
            asked, numbers = [{n: min(size, few) for n, size in dims.items()} for few in (3, 2)], set()
        free = [n for n, size in dims.items() if size not in numbers]
        wanted = (*asked, *last_resorts(dims))
        asked = [{n: one[n] if n in free else size for n, size in dims.items()} for one in wanted]
        thin = [self._thinned(small, free, CHECKED_ELEMENTS >> 2 * n) for n, small in enumerate(asked[:2])]
        for place, small in enumerate([*thin, *asked]):
            if len(found) == 2 or (found and (place >= len(thin) or small == found[0].dims)):
                continue
            try:
                if why := self._source.unlike_at(small):
                    raise Refusal(why)
                inputs = inputs_of(site.operands, small, "randn", 4)
                shape = CheckedShape(small, inputs, self.oracle(inputs), self.rounded(inputs))
                made, given = [r.sizes(small) for r in self._results], [a.shape for a in shape.answers]
                if given[: len(made)] != made:
                    raise Refusal(f"the reference returns a result of shape {given}, not {made}")
                found.append(shape)
            except Exception as error:  # noqa: BLE001 - a shape that the reference does not take
                reasons[str(small)] = error.what if isinstance(error, Refusal) else first_line(error)
        if not found:
            raise Refusal(joined_reasons(reasons))
        return found

    def _thinned(self, small: Mapping[str, int], free: Sequence[str], most: int) -> dict[str, int]:
        """With the longest of the ``free`` dimensions halved until the operands have so many elements at most."""
        thin = dict(small)
        while self.site.elements(thin) > most and max((thin[n] for n in free), default=0) > SOME:
            longest = max(free, key=thin.__getitem__)
            thin[longest] = -(-thin[longest] // 2)
        return thin

    def answer(self) -> Answer:
        """What the operator and its seed are made of. Raises Refusal."""
        site, source = self.site, self._source
        self.compiled(source.code.text, {}, source.knobs)  # its lines are the file's
        plain = launched(self.text, site.operands, site.dims[0], source.knobs)
        device, certain = scheduled(source.code, source.knobs, plain["steps"])
        shapes, launch = self.shapes(), self.text
        device, self.text = in_turns(source.code, device, launch)
        certain |= {"TURNS": 1} if self.text != launch else {}
        knobs = {**source.knobs, **certain}
        factors = bounds.factors(site.operands, shapes[0].dims) if "mma" in device else ""
        kinds = InputKinds(
            site.operands,
            shapes,
            self.oracle,
            lambda pairs: [self.rounded(given) for _, given in pairs],
            Effort(12, (3,), False, 1, 60.0),
            factors,
            device.replace("__half", " float16 "),
            (),
        )
        results, failed = kinds.results([o.shape for o in self._results])
        if failed:
            raise Refusal(f"the reference in the operands' own types cannot judge: {failed}")

        def said(changed: Mapping[str, int]) -> Any:
            return launched(launch, site.operands, site.dims[0], {**knobs, **changed})

        def compiles(name: str, value: int) -> bool:
            try:
                return bool(self.compiled(device, {name: (value,)}, {**knobs, name: value}))
            except Refusal:
                return False

        space, fixed = found_knobs(knobs, certain, source.code, said, compiles)
        text = self.compiled(device, space, knobs)
        site.operands = kinds.operands
        seed = Seed(site, None, None, self.oracle, None)  # type: ignore[arg-type]
        return {
            "source": text,
            "space": {n: list(v) for n, v in space.items()},
            "defaults": {n: knobs[n] for n in space},
            "points": [],
            "fixed": fixed,
            "operands": [operand_row(o) for o in site.operands],
            "rest": [],
            "results": [[o.name, *[*vars(r).values()][1:]] for o, r in zip(self._results, results, strict=True)],
            "knobs": [{"name": n, "source": "a number of the text"} for n in space],
            "call": self.oracle.call,
            "orders": [()] * len(site.operands),
            "precision": self.oracle.precision,
            "spread": kinds.spread,
            "check": [s.dims for s in shapes],
            "small": [shapes[0].dims],
            "notes": [],
            "left_out": list(dict.fromkeys(source.left_out)),
            "kinds": [k for k in kinds.names if family(k) not in EXTREME and k not in SPECIAL],
            "wrapper": None,
            "independent": independent_dimensions(seed, shapes[0], results),
            "work": product_work(seed),
            "dims": site.dims,
            "calls": source.texts,
            "parameters": source.parameters,
            "refusals": [{"line": 0, "what": v.what} for v in dialect.check(text, entry="launch")],
        }


def _answered(request: Request) -> Answer:
    """Where torch computes before or after the kernels, the files of the part between. Raises Refusal."""
    try:
        return Intake(request).answer()
    except Refusal as why:
        if "torch computes" not in why.what:
            raise
        return {"cut": {**cut(request, why), "why": why.what}}


if __name__ == "__main__":
    answer_request(_answered)
