"""The parts of a lowered kernel that do not come from its source: ring, walk, stores, launch.

``filled`` puts names and statements into a text: ``{name}`` within a line, and ``<name>`` alone on a line for
statements, which are indented as that line is.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK = re.compile(r"^( *)<(\w+)>$", re.MULTILINE)
_WORD = re.compile(r"\{(\w+)\}")


def filled(text: str, table: Mapping[str, str]) -> str:
    """``text`` without its common indentation, its marks replaced. Raises KeyError for a mark nobody fills."""
    plain = textwrap.dedent(text).strip("\n")
    with_words = _WORD.sub(lambda found: table[found[1]], plain)
    whole = _BLOCK.sub(lambda found: textwrap.indent(table[found[2]], found[1]), with_words)
    return "\n".join(line for line in whole.splitlines() if line.strip())


def listed(names: Sequence[str]) -> str:
    return "".join(f"{name}, " for name in names)


def declared(runtime: Sequence[str], fixed: Sequence[str]) -> str:
    """Parameters of a jitted function."""
    return listed([*runtime, *(f"{name}: gl.constexpr" for name in fixed)])


def guarded(text: str) -> str:
    """Only with two pieces of columns."""
    return only("PIECES == 2", text)


def only(condition: str, text: str) -> str:
    lines = [f"    {line}" for line in text.splitlines() if line.strip()]
    return "\n".join([f"if {condition}:", *lines]) if lines else ""


def specialized(consume: str, produce: str, registers: str) -> str:
    """The body of an entry for one to three consumers; ``registers`` are those of the producer's warp."""
    cases = []
    for count in (1, 2, 3):
        parts = [*(consume.replace("NUMBER", str(number)) for number in range(count)), produce]
        warps = ", ".join(["4"] * (count - 1) + ["1"])
        given = ", ".join(["REGISTERS"] * (count - 1) + [registers])
        calls = [f"        {part}" for part in parts]
        made = [f"if CONSUMERS == {count}:", "    gl.warp_specialize([", *calls, f"    ], [{warps}], [{given}])"]
        cases += [f"    {line}" for line in made]
    return "\n".join(cases)


SPACE: Mapping[str, tuple[tuple[Any, ...], Any]] = {
    "consumers": ((1, 2, 3), 2),
    "pieces": ((1, 2), 1),
    "stages": ((2, 3, 4, 5, 6, 8), 4),
    "walk_rows": ((1, 2, 4, 8, 16, 32), 8),
    "programs": ((132, 1048576), 132),
    "slots": ((1, 2, 4), 1),
    "parts": ((1, 2, 4), 1),
    "producer_registers": ((24, 40), 24),
    "in_flight": ((False, True), True),
    "pin": ((False, True), True),
    "ring": ((False, True), True),
}
"""What a lowered kernel can be tuned by: values and default."""

WALK = '''
@gluon.jit
def {walk}({tile}, {rows_of_tiles}, {columns_of_tiles}, WALK: gl.constexpr):
    """Tile of rows and tile of columns: down WALK rows of tiles before the next column."""
    whole = WALK * {columns_of_tiles}
    first = ({tile} // whole) * WALK
    tall = min({rows_of_tiles} - first, WALK)
    inside = {tile} % whole
    return first + inside % tall, inside // tall
'''

STORE = '''
@gluon.jit
def store_part(c_desc, slot, value, row, column, SLOTS: gl.constexpr):
    """Store columns of a tile through a slot of shared memory that the last store but SLOTS has left."""
    tma.store_wait(SLOTS - 1)
    slot.store(value.to(c_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, column], slot)


@gluon.jit
def halves_of(value, WIDTH: gl.constexpr, NARROW: gl.constexpr):
    """Left and right WIDTH columns."""
    left, right = value.reshape([value.shape[0], 2, WIDTH]).permute(0, 2, 1).split()
    return gl.convert_layout(left, NARROW), gl.convert_layout(right, NARROW)


@gluon.jit
def part_of(
    value, PART: gl.constexpr, PARTS: gl.constexpr, WIDTH: gl.constexpr, HALF: gl.constexpr, NARROW: gl.constexpr
):
    """Columns PART * WIDTH to the next part of a tile."""
    if PARTS == 4:
        left, right = halves_of(value, 2 * WIDTH, HALF)
        value = left if PART < 2 else right
    if PARTS > 1:
        left, right = halves_of(value, WIDTH, NARROW)
        value = left if PART % 2 == 0 else right
    return value


@gluon.jit
def store_tile(
    c_desc, slots, own, FIRST: gl.constexpr, value, row, column, {finish_parameters}SLOTS: gl.constexpr,
    PARTS: gl.constexpr, WIDTH: gl.constexpr, HALF: gl.constexpr, NARROW: gl.constexpr
):
    """Store a tile in PARTS of WIDTH columns, through the slots from ``own`` on in turn."""
    <narrowed>
    for part in gl.static_range(PARTS):
        columns = part_of(value, part, PARTS, WIDTH, HALF, NARROW)
        columns = {finished}
        slot = slots.index(own + (FIRST * PARTS + part) % SLOTS)
        store_part(c_desc, slot, columns, row, column + part * WIDTH, SLOTS)
'''

FINISH = '''
@gluon.jit
def {finish}({sum}, {row_tile}, {column_tile}, {finish_declared}FIRST: gl.constexpr, WIDTH: gl.constexpr):
    """What the kernel does with WIDTH columns of its product from FIRST on."""
    <finish_before>
    <finish_after>
    return {finish_value}
'''

PRODUCER = '''
@gluon.jit
def {kernel}_producer(
    a_desc, b_desc, {ring_desc}{rows_of_tiles}, {columns_of_tiles}, {last_row_tile}, {last_column_tile}, {a_stages},
    {b_stages}, {empty}, {ready}, {ready_more}, {producer_parameters}STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, PIECES: gl.constexpr, WALK: gl.constexpr, A_BYTES: gl.constexpr,
    B_BYTES: gl.constexpr{ring_fixed}
):
    """Keep the ring full: per stage the rows of every consumer and the pieces of columns."""
    {stage} = 0
    {phase} = 1
    <producer_outside>
    for {tile} in range(gl.program_id(0), {rows_of_tiles} * {columns_of_tiles}, gl.num_programs(0)):
        {group}, {piece} = {walk}({tile}, {rows_of_tiles}, {columns_of_tiles}, WALK)
        {row_tile} = {row_tile_of_group}
        {column_tile} = min({piece} * PIECES, {last_column_tile})
        <producer_before>
        {loop}
            <producer_body>
            mbarrier.wait({empty}.index({stage}), {phase})
            {ready_at} = {ready}.index({stage})
            mbarrier.expect({ready_at}, CONSUMERS * A_BYTES + B_BYTES{ring_bytes})
            {column_tile} = min({piece} * PIECES, {last_column_tile})
            for each in gl.static_range(CONSUMERS):
                {row_tile} = {row_tile_of_each}
                tma.async_copy_global_to_shared(
                    a_desc, {a_at}, {ready_at}, {a_stages}.index({stage} * CONSUMERS + each)
                )
                <ring_copy>
            tma.async_copy_global_to_shared(b_desc, {b_at}, {ready_at}, {b_stages}.index({stage} * PIECES))
            if PIECES == 2:
                {column_tile} = min({piece} * PIECES + 1, {last_column_tile})
                mbarrier.expect({ready_more}.index({stage}), B_BYTES)
                tma.async_copy_global_to_shared(
                    b_desc, {b_at}, {ready_more}.index({stage}), {b_stages}.index({stage} * PIECES + 1)
                )
            {wrapped} = {stage} == STAGES - 1
            {stage} = gl.where({wrapped}, 0, {stage} + 1)
            {phase} = gl.where({wrapped}, {phase} ^ 1, {phase})
'''

CONSUMER = '''
@gluon.jit
def {kernel}_consumer(
    {consumer_c}{ring_stages}{rows_of_tiles}, {columns_of_tiles}, {last_row_tile}, {last_column_tile}, {a_stages},
    {b_stages}, {empty}, {ready}, {ready_more}, {consumer_parameters}STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, PIECES: gl.constexpr, WALK: gl.constexpr, K_INSTRUCTION: gl.constexpr,
    {slots_fixed}{ring_used}{mode}: gl.constexpr, {group}: gl.constexpr
):
    """Multiply this group's rows with every piece of columns, and finish the tiles as the kernel does."""
    {mma}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {COLUMNS}, K_INSTRUCTION])
    <store_layouts>
    {nothing} = gl.zeros(({ROWS}, {COLUMNS}), gl.float32, {mma})
    {stage} = 0
    {phase} = 0
    <outside>
    for {tile} in range(gl.program_id(0), {rows_of_tiles} * {columns_of_tiles}, gl.num_programs(0)):
        {row_tile}, {piece} = {walk}({tile}, {rows_of_tiles}, {columns_of_tiles}, WALK)
        {row_tile} = {row_tile_of_own}
        {column_tile}_0 = min({piece} * PIECES, {last_column_tile})
        {column_tile}_1 = min({piece} * PIECES + 1, {last_column_tile})
        <before>
        {launched} = 0
        {loop}
            <early>
            mbarrier.wait({ready}.index({stage}), {phase})
            {a_now} = {a_stages}.index({stage} * CONSUMERS + {group}){a_view}
            <body>
            {wrapped} = {stage} == STAGES - 1
            {stage} = gl.where({wrapped}, 0, {stage} + 1)
            {phase} = gl.where({wrapped}, {phase} ^ 1, {phase})
        <end>
        <after>
    {store_wait}
'''

PARTIAL = """
if {number}:
    mbarrier.wait({ready_of}.index({stage}), {phase})
{partial} = warpgroup_mma(
    {a_now}, {b_stages}.index({stage} * PIECES + {number}){b_view}, {nothing}, use_acc=False, is_async=True
)
<ring_read>
{partial} = warpgroup_mma_wait(num_outstanding=0, deps=({partial},))
if {last}:
    mbarrier.arrive({empty}.index({stage}), count=1)
"""

IN_PLACE = """
{sum_0} = warpgroup_mma({a_now}, {b_stages}.index({stage} * PIECES){b_view}, {sum_0}, is_async=True)
if PIECES == 2:
    mbarrier.wait({ready_more}.index({stage}), {phase})
    {sum_1} = warpgroup_mma({a_now}, {b_stages}.index({stage} * PIECES + 1){b_view}, {sum_1}, is_async=True)
    {sum_0}, {sum_1} = warpgroup_mma_wait(num_outstanding=2 if IN_FLIGHT else 0, deps=({sum_0}, {sum_1}))
else:
    {sum_0} = warpgroup_mma_wait(num_outstanding=1 if IN_FLIGHT else 0, deps=({sum_0},))
if IN_FLIGHT:
    mbarrier.arrive({empty}.index(gl.where({stage} == 0, STAGES - 1, {stage} - 1)), count=1, pred={launched} == 1)
    {launched} = 1
else:
    mbarrier.arrive({empty}.index({stage}), count=1)
"""

ENTRY = """
@gluon.jit
def {kernel}(
    a_desc, b_desc, {entry_c}{ring_entry}{rows_of_tiles}, {columns_of_tiles}, {last_row_tile}, {last_column_tile},
    {entry_parameters}STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PIECES: gl.constexpr,
    WALK: gl.constexpr, K_INSTRUCTION: gl.constexpr, A_BYTES: gl.constexpr, B_BYTES: gl.constexpr,
    A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, {slots_parameter}{ring_layout}{mode}: gl.constexpr,
    REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr
):
    {a_stages} = gl.allocate_shared_memory(a_desc.dtype, [STAGES * CONSUMERS, {a_box}], A_LAYOUT)
    {b_stages} = gl.allocate_shared_memory(b_desc.dtype, [STAGES * PIECES, {b_box}], B_LAYOUT)
    {c_slots_made}
    {ring_made}
    {empty} = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    {ready} = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    {ready_more} = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init({empty}.index(each), count=CONSUMERS)
        mbarrier.init({ready}.index(each), count=1)
        mbarrier.init({ready_more}.index(each), count=1)
    fence_async_shared()
    <specialized>
"""

_CONSUME = (
    "({kernel}_consumer, ({consumer_c}{ring_stages}{rows_of_tiles}, {columns_of_tiles}, {last_row_tile}, "
    "{last_column_tile}, "
    "{a_stages}, {b_stages}, {empty}, {ready}, {ready_more}, {consumer_arguments}STAGES, CONSUMERS, PIECES, WALK, "
    "K_INSTRUCTION, {slots_argument}{ring_argument}{mode}, NUMBER)),"
)
_PRODUCE = (
    "({kernel}_producer, (a_desc, b_desc, {ring_desc}{rows_of_tiles}, {columns_of_tiles}, {last_row_tile}, "
    "{last_column_tile}, "
    "{a_stages}, {b_stages}, {empty}, {ready}, {ready_more}, {producer_arguments}STAGES, CONSUMERS, PIECES, WALK, "
    "A_BYTES, B_BYTES{ring_last})),"
)

ENTRY = ENTRY.replace("    <specialized>", specialized(_CONSUME, _PRODUCE, "PRODUCER_REGISTERS"))

HOST = """
a_layout = gl.NVMMASharedLayout(min(128, {a_inner} * {a}.element_size()), 8 * {a}.element_size())
b_layout = gl.NVMMASharedLayout(min(128, {b_inner} * {b}.element_size()), 8 * {b}.element_size())
<c_layout>
<ring_host>
{last_row_tile} = {rows_there_are} - 1
{last_column_tile} = {columns_there_are} - 1
{rows_of_tiles} = {rows_of_programs}
{columns_of_tiles} = {last_column_tile} // {pieces} + 1
# as many stages as shared memory has room for
room = 232000{c_width}
stage_bytes = ({group_rows} * {consumers} + {columns} * {pieces}) * {depth} * {a}.element_size(){ring_room}
stages = max(1, min({stages}, room // stage_bytes))
"""

LAUNCH = """
{kernel}[(min({rows_of_tiles} * {columns_of_tiles}, {programs}),)](
    a_desc={a_desc},
    b_desc={b_desc},
    {rows_of_tiles}={rows_of_tiles},
    {columns_of_tiles}={columns_of_tiles},
    {last_row_tile}={last_row_tile},
    {last_column_tile}={last_column_tile},
    {given}STAGES=stages,
    CONSUMERS={consumers},
    PIECES={pieces},
    WALK={walk_rows},
    K_INSTRUCTION=32 // {a}.element_size(),
    A_BYTES={a}.element_size() * a_box,
    B_BYTES={a}.element_size() * b_box,
    A_LAYOUT=a_layout,
    B_LAYOUT=b_layout,
    {ring}{mode},
    REGISTERS=(240, 240, 160)[{consumers} - 1] - 8 * ({producer_registers} == 40),
    PRODUCER_REGISTERS={producer_registers},
    num_warps=4,
    maxnreg=(248, 168, 128)[{consumers} - 1],
)
"""
LAUNCH = LAUNCH.replace("a_box", "{a_elements}").replace("b_box", "{b_elements}")
