"""The parts of a lowered chain that do not come from its source; see ``gluon.texts`` for how they are filled in."""

from collections.abc import Mapping
from typing import Any

from tilewright.evolve.proposers.rewrite.gluon.texts import specialized

SPACE: Mapping[str, tuple[tuple[Any, ...], Any]] = {
    "rows": ((64, 128), 64),
    "columns": ((0, 32, 64, 128, 256), 0),
    "consumers": ((0, 1, 2), 0),
    "stages": ((2, 3, 4), 2),
    "overlap": ((False, True), True),
    "laps": ((1, 2, 4), 1),
    "residents": ((0, 1, 2, 3), 0),
}
"""What a lowered chain can be tuned by: values and default. With 0, three ``consumers`` where their accumulators leave
room in the registers, else two. ``residents``: programs that share a multiprocessor, one of which begins or ends a tile
while the others multiply; with 0, two where tiles are narrow and loops short. ``columns`` with 0 follow from them."""

CONSTRAINTS: Mapping[str, str] = {
    "rows * columns <= 16384": "scores and weights live in the registers of one group of warps"
}

STEPS = '''
@gluon.jit
def {kernel}_steps_{number}({programs}{step_parameters}):
    """First step and number of steps of one program of the old kernel."""
    <scalars>
    return {start}, gl.cdiv(max({stop} - ({start}), 0), {step})


@gluon.jit
def {kernel}_span_{number}({programs}{last}, {step_parameters}CONSUMERS: gl.constexpr):
    """First step and number of steps of all programs whose operands a ring carries; the first is ``{mine}``."""
    first, count = {kernel}_steps_{number}({programs}{step_arguments})
    end = first + count * ({step})
    for each in gl.static_range(1, CONSUMERS):
        {next_program}
        other, count = {kernel}_steps_{number}({programs_next}{step_arguments})
        end = max(end, other + count * ({step}))
        first = min(first, other)
    return first, gl.cdiv(end - first, {step})
'''

CLEARED = '''
@gluon.jit
def {cleared}(tile, rows, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Put zeros behind the first ``rows`` of a tile, where what lies there is another's."""
    wide: gl.constexpr = min(WIDTH // 8, 32)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // wide, wide], [1, 1], [1, 0])
    for part in gl.static_range(ROWS // 8):
        if rows < 8 * part + 8:
            piece = tile.slice(8 * part, 8)
            row = 8 * part + gl.arange(0, 8, layout=gl.SliceLayout(1, layout))
            value = piece.load(layout)
            piece.store(gl.where((row < rows)[:, None], value, gl.zeros([8, WIDTH], value.dtype, layout)))
'''

PARTIAL = "{bar} = gl.where({rows}{moving} < {ROWS}, STAGES, {stage})"
"""A tile whose last rows are another's lands on a barrier of its own, behind the ring's, before it is ready."""

LANDED = """
if {bar} == STAGES:
    mbarrier.wait({which}_ready.index(STAGES), {landed})
    {landed} ^= 1
    {cleared}({view}, {rows}{moving}, {ROWS}, {WIDTH})
    fence_async_shared()
    mbarrier.arrive({which}_ready.index({stage}), count=1)
"""

COMMON = '''
@gluon.jit
def {place_of}(lap, tiles, others, heads):
    """Tile of rows, what else numbers a program, and whether there is such a tile, of this program in a lap of all.
    Laps go through ``heads`` at a time, so that what they load stays in L2, from the last rows to the first. Every
    other lap is dealt backwards, so that who had a long tile gets a short one."""
    number = gl.where(lap % 2 == 1, gl.num_programs(0) - 1 - gl.program_id(0), gl.program_id(0))
    laps = gl.cdiv(heads * tiles, gl.num_programs(0))
    begun = lap // laps * heads
    wide = min(others - begun, heads)
    tile = lap % laps * gl.num_programs(0) + number
    return tiles - 1 - tile // wide, begun + tile % wide, tile < wide * tiles
'''

PRODUCER = '''
@gluon.jit
def {kernel}_producer(
    q_desc, {r_desc}k_desc, v_desc, {ring_descs}{ring_stages}{numbers}{fixed_given}{k_stages}, {v_stages}, {bars},
    {producer_parameters}STAGES: gl.constexpr, CONSUMERS: gl.constexpr
):
    """Keep the ring full with what the loops load; each group's left operand comes behind their first copy."""
    q_empty, q_ready, k_empty, k_ready, v_empty, v_ready = {bars}
    {stage} = 0
    {phase} = 1
    {q_phase} = 1
    <landings>
    for {lap} in range({all_laps}):
        {row}, {other}, {there} = {place_of}({lap}, {tiles}, {others}, {heads})
        if {there}:
            <programs_of_other>
            {mine} = min({row} * CONSUMERS, {last})
            <loops>
'''

QUERY = """
for each in gl.static_range(CONSUMERS):
    {mine} = min({row} * CONSUMERS + each, {last})
    <query_scalars>
    mbarrier.wait(q_empty.index(each), {q_phase})
    mbarrier.expect(q_ready.index(each), {q_bytes} * ({ROWS}) * ({DEPTH}))
    tma.async_copy_global_to_shared(q_desc, [{q_at}], q_ready.index(each), {q_stages}.index(each))
    <r_copied>
{q_phase} ^= 1
{mine} = min({row} * CONSUMERS, {last})
"""

SECOND_FIXED = {
    "copied": "tma.async_copy_global_to_shared(r_desc, [{r_at}], q_ready.index(each), {r_stages}.index(each))",
    "view": "{r_now} = {r_stages}.index(GROUP).reshape([{ROWS}, {DEPTH}])",
    "made": "{r_stages} = gl.allocate_shared_memory(r_desc.dtype, [CONSUMERS, {r_box}], Q_LAYOUT)",
}
"""Of a second tile that stays, which comes with the first."""

PRODUCER_LOOP = """
{first}, {count} = {kernel}_span_{number}({programs}{last}, {step_arguments}CONSUMERS)
<copy_scalars>
for {turn} in range({count}):
    {variable} = {first} + {turn} * ({step})
    mbarrier.wait(k_empty.index({stage}), {phase})
    <k_partial>
    mbarrier.expect(k_ready.index({k_bar}), 2 * ({COLUMNS}) * ({DEPTH}){k_numbers})
    tma.async_copy_global_to_shared(k_desc, [{k_at}], k_ready.index({k_bar}), {k_stages}.index({stage}))
    <k_brings>
    <query_first>
    mbarrier.wait(v_empty.index({stage}), {phase})
    <v_partial>
    mbarrier.expect(v_ready.index({v_bar}), 2 * ({COLUMNS}) * ({WIDTH}){v_numbers})
    tma.async_copy_global_to_shared(v_desc, [{v_at}], v_ready.index({v_bar}), {v_stages}.index({stage}))
    <v_brings>
    <k_landed>
    <v_landed>
    <advance>
<query_none>
"""

CONSUMER = '''
@gluon.jit
def {kernel}_consumer(
    o_desc, {p_desc}{ring_stages}{numbers}{fixed_given}{k_stages}, {v_stages}, {o_stages}, {bars},
    {consumer_parameters}STAGES: gl.constexpr, CONSUMERS: gl.constexpr, OVERLAP: gl.constexpr,
    GROUP: gl.constexpr
):
    """Compute one old program of every tile: its first product of a step beside its second of the step before."""
    {scores}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {COLUMNS}, 16])
    {out}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {WIDTH}, 16])
    {operand_layout}: gl.constexpr = gl.DotOperandLayout(0, {out}, 2)
    q_empty, q_ready, k_empty, k_ready, v_empty, v_ready = {bars}
    {nothing} = gl.zeros(({ROWS}, {COLUMNS}), gl.float32, {scores})
    {stage} = 0
    {phase} = 0
    {q_phase} = 0
    {q_now} = {q_stages}.index(GROUP).reshape([{ROWS}, {DEPTH}])
    <r_view>
    for {lap} in range({all_laps}):
        {row}, {other}, {there} = {place_of}({lap}, {tiles}, {others}, {heads})
        if {there}:
            <programs_of_other>
            mbarrier.wait(q_ready.index(GROUP), {q_phase})
            {q_phase} ^= 1
            <prepared>
            <consumer_loops>
            <after>
    tma.store_wait(0)
'''

CUT = """
{q_rows} = {rows}
if {q_rows} < {ROWS}:
    {query} = {q_now}.load(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {DEPTH}, 16]))
    {query} = gl.where((gl.arange(0, {ROWS}) < {q_rows})[:, None], {query}, gl.zeros_like({query}))
    {q_now}.store({query})
    fence_async_shared()
"""

PREPARED = """
{query} = {q_now}.load(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {DEPTH}, 16]))
<prepare>
{q_now}.store({query})
fence_async_shared()
"""

ADVANCE = """
{wrapped} = {stage} == STAGES - 1
{stage} = gl.where({wrapped}, 0, {stage} + 1)
{phase} = gl.where({wrapped}, {phase} ^ 1, {phase})
"""

STORE = """
tma.store_wait(0)
{o_stages}.index(GROUP).reshape([{ROWS}, {WIDTH}]).store(({value}).to({to}.dtype))
fence_async_shared()
tma.async_copy_shared_to_global({to}, [{o_at}], {o_stages}.index(GROUP))
"""

SKIP = """
for {turn} in range({how_many}):
    mbarrier.wait(k_ready.index({stage}), {phase})
    mbarrier.arrive(k_empty.index({stage}), count=1)
    mbarrier.wait(v_ready.index({stage}), {phase})
    mbarrier.arrive(v_empty.index({stage}), count=1)
    <advance>
"""

CONSUMER_LOOP = """
{mine} = min({row} * CONSUMERS, {last})
{first}, {count} = {kernel}_span_{number}({programs}{last}, {step_arguments}CONSUMERS)
{mine} = min({row} * CONSUMERS + GROUP, {last})
{own_first}, {own} = {kernel}_steps_{number}({programs}{step_arguments})
{skipped} = ({own_first} - {first}) // ({step})
<before>
<skip_first>
<whole_steps>
if OVERLAP:
    if {own} > 0:
        {variable_first} = {own_first}
        <step_first>
        for {masked} in gl.static_range({phases}):
            for {turn} in range({begin_first}, {end}):
                {variable} = {own_first} + {turn} * ({step})
                <step_next>
        <step_last>
    <release_none>
else:
    for {masked} in gl.static_range({phases}):
        for {turn} in range({begin}, {end}):
            {variable} = {own_first} + {turn} * ({step})
            <step_alone>
    <release>
<skip_last>
"""

ENTRY = """
@gluon.jit
def {ring_of}(STAGES: gl.constexpr, COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(STAGES):
        mbarrier.init(bars.index(each), count=COUNT)
    return bars


@gluon.jit(do_not_specialize=[{unspecialized}])
def {kernel}(
    q_desc, {r_desc}k_desc, v_desc, {ring_descs}o_desc, {p_desc}{numbers}{entry_parameters}STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr, OVERLAP: gl.constexpr, REGISTERS: gl.constexpr,
    Q_LAYOUT: gl.constexpr, K_LAYOUT: gl.constexpr, V_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr{ring_layout}
):
    {q_stages} = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, {q_box}], Q_LAYOUT)
    <r_made>
    {k_stages} = gl.allocate_shared_memory(k_desc.dtype, [STAGES, {k_box}], K_LAYOUT)
    {v_stages} = gl.allocate_shared_memory(v_desc.dtype, [STAGES, {v_box}], V_LAYOUT)
    {o_stages} = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, {o_box}], O_LAYOUT)
    <ring_made>
    {bars} = (
        {ring_of}(CONSUMERS, 1),
        {ring_of}(CONSUMERS, 1),
        {ring_of}(STAGES, CONSUMERS),
        {ring_of}(STAGES{one_more}, 1),
        {ring_of}(STAGES, CONSUMERS),
        {ring_of}(STAGES{one_more}, 1),
    )
    fence_async_shared()
    <specialized>
"""

_CONSUME = (
    "({kernel}_consumer, (o_desc, {p_desc}{ring_stages}{numbers}{fixed_given}{k_stages}, {v_stages}, "
    "{o_stages}, {bars}, {consumer_arguments}STAGES, CONSUMERS, OVERLAP, NUMBER)),"
)
_PRODUCE = (
    "({kernel}_producer, (q_desc, {r_desc}k_desc, v_desc, {ring_descs}{ring_stages}{numbers}{fixed_given}{k_stages}, "
    "{v_stages}, {bars}, {producer_arguments}STAGES, CONSUMERS)),"
)

ENTRY = ENTRY.replace("    <specialized>", specialized(_CONSUME, _PRODUCE, "{producer_registers}"))

HOST = """
{last} = ({grid_of_axis}) - 1
# short loops of narrow tiles gain by a second program, whose tiles are smaller
several = {residents} or 1 + int({width} <= 64 and {last} < 32)
<chosen>
# as many programs as the registers of a multiprocessor suffice for
several = max(1, min(several, 512 // (({consumers} or 2) + 1) // ({rows} * max({columns}, {width}) // 128 + 40)))
{groups} = {consumers} or (3 if several < 2 and {rows} * ({spread}) <= {three} else 2)
{tiles} = {last} // {groups} + 1
{others} = {grid_of_others}
{many} = min({tiles} * {others}, 132 * several)
# heads at a time: their tiles fill laps of all programs, and no lap of long tiles is left without one against it
{heads} = max(1, min({others}, {laps} * max(1, {many} // {tiles})))
{all_laps}, {heads} = min(
    (whole + rest + (whole + rest) % 2 / (1.01 * (rest or each)), n)
    for n in range({heads}, 4 * {heads} + 1, 1 + {heads} // 8)
    for each in [-(-n * {tiles} // {many})]
    for whole, rest in [({others} // n * each, -(-({others} % n) * {tiles} // {many}))]
)
q_layout = gl.NVMMASharedLayout(min(128, 2 * {depth}), 16, rank={q_rank})
k_layout = gl.NVMMASharedLayout(min(128, 2 * {depth}), 16, rank={k_rank})
v_layout = gl.NVMMASharedLayout(min(128, 2 * {width}), 16, rank={v_rank})
o_layout = gl.NVMMASharedLayout(min(128, {o_bytes} * {width}), 8 * {o_bytes}, rank={o_rank})
# of each thread as it begins, and of those that multiply, which get what the warp that copies gives back
begun = min(248, 512 // ({groups} + 1) // several // 8 * 8)
registers = min(240, (begun * ({groups} + 1) - {producer_registers}) // {groups} // 8 * 8)
# as many stages as shared memory has room for
room = 225000 // several - {rows} * {groups} * ({tiles_kept} * {depth} + {o_bytes} * {width})
stages = max(1, min({stages}, room // (2 * {columns} * ({depth} + {width}))))
{kernel}[({many},)](
    q_desc={q_desc},
    k_desc={k_desc},
    v_desc={v_desc},
    o_desc={o_desc},
    <more_descs>
    {tiles}={tiles},
    {others}={others},
    {last}={last},
    {heads}={heads},
    {all_laps}=int({all_laps}),
    {sizes_given}{given}STAGES=stages,
    CONSUMERS={groups},
    OVERLAP={overlap} and stages > 1 and {rows} * ({spread}) // 128 <= registers - {beside},
    Q_LAYOUT=q_layout,
    K_LAYOUT=k_layout,
    V_LAYOUT=v_layout,
    O_LAYOUT=o_layout,
    REGISTERS=registers,
    num_warps=4,
    maxnreg=begun,
)
"""
