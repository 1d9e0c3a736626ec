"""What XLA runs around kernels is read from its optimised text, by bytes."""

import pytest

from tilewright.workers.runners.mosaic.xla_operations import Around, Uncountable, operations_around

HLO = """HloModule jit_f, entry_computation_layout={(bf16[256,512]{1,0}, bf16[512,128]{1,0})->bf16[256,128]{1,0}}

%fused_computation.1 (p0: bf16[256,512], p1: bf16[512,128]) -> bf16[256,128] {
  %p0 = bf16[256,512]{1,0} parameter(0)
  %p1 = bf16[512,128]{1,0} parameter(1)
  ROOT %convolution.3 = bf16[256,128]{1,0} convolution(%p0, %p1), dim_labels=bf_io->bf
}

%fused_computation.2 (p2: bf16[256,128]) -> f32[256,128] {
  %p2 = bf16[256,128]{1,0} parameter(0)
  ROOT %convert.1 = f32[256,128]{1,0} convert(%p2)
}

ENTRY %main.9 (a: bf16[256,512], b: bf16[512,128]) -> bf16[256,128] {
  %a = bf16[256,512]{1,0} parameter(0)
  %b = bf16[512,128]{1,0} parameter(1)
  %fusion.1 = bf16[256,128]{1,0} fusion(%a, %b), kind=kOutput, calls=%fused_computation.1
  %fusion.2 = f32[256,128]{1,0} fusion(%fusion.1), kind=kLoop, calls=%fused_computation.2
  %slice.4 = f32[8,128]{1,0} slice(%fusion.2), slice={[0:8], [0:128]}
  ROOT %kernel.1 = bf16[256,128]{1,0} custom-call(%slice.4), custom_call_target="tpu_custom_call"
}
"""


def test_bytes_and_products_of_each_operation():
    whole, small = 256 * 128, 8 * 128
    assert operations_around(HLO) == [
        Around("fusion.1", 2 * (256 * 512 + 512 * 128), 2 * whole, product=True),
        Around("fusion.2", 2 * whole, 4 * whole),
        Around("slice.4", 4 * small, 4 * small),
    ]


def test_a_copy_that_the_sparse_cores_make_is_its_bytes():
    """jax cannot print such a module; libtpu dumps it."""
    rest = """  %slice.4 = f32[8,128]{1,0} slice(%fusion.2), slice={[0:8], [0:128]}
  %format.start = ((), (), (s32[16384]{0}, s32[25]{0})) custom-call-start(), async_execution_thread="sparsecore"
  %format.update = ((f32[8,128]{1,0}), f32[8,128]{0,1}, (s32[16384]{0}, s32[25]{0})) custom-call-update(%format.start, %slice.4), output_to_operand_aliasing={}
  %format.done = f32[8,128]{0,1} custom-call-done(%format.update)
"""  # noqa: E501
    line = "  %slice.4 = f32[8,128]{1,0} slice(%fusion.2), slice={[0:8], [0:128]}\n"
    moved = HLO.replace(line, rest).replace("custom-call(%slice.4)", "custom-call(%format.done)")
    assert operations_around(moved) == [
        *operations_around(HLO),
        Around("format.update", 4 * 8 * 128, 4 * 8 * 128),
    ]


def test_a_loop_has_no_bytes():
    looped = HLO.replace("slice(%fusion.2)", "while(%fusion.2)")
    with pytest.raises(Uncountable, match="runs a while"):
        operations_around(looped)
