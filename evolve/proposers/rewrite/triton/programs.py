"""The rule on options of launches."""

from collections.abc import Iterable
from functools import partial

from tilewright.evolve.proposers.rewrite.base import Language
from tilewright.evolve.proposers.rewrite.dataflow import parameter_access
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel


class LaunchOption(NodeRule[tuple[str, tuple[int, ...], int]]):
    """Make a launch option a parameter."""

    name = "triton_launch_option"
    launched = True
    why = (
        "Warps per program, pipeline stages and the register limit decide occupancy; their defaults fit no kernel in "
        "particular."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, tuple[str, tuple[int, ...], int]]]:
        given = {a.keyword.value for a in kernel.launch().args if a.keyword is not None}
        options = (
            ("num_warps", (2, 4, 8), 4),
            ("num_stages", (1, 2, 3, 4, 5), 3),
            ("maxnreg", (128, 168, 255), 255),
        )
        # nothing pipelines a Gluon kernel's loops but itself
        unread = {"num_stages"} if kernel.source.language is Language.GLUON else set[str]()
        for option, values, default in options:
            if option not in given | unread:
                yield f"choose {option}", (option, values, default)

    def change(self, edit: Edit, kernel: TritonKernel, payload: tuple[str, tuple[int, ...], int]) -> None:
        option, values, default = payload
        parameter = edit.add_parameter(option, values, default)
        access = parameter_access(kernel.source, kernel.launch(), parameter)
        edit.transform(kernel.launch(), partial(with_keyword, keyword=option, text=access))
