// D[M,N] bf16 = sum over blocks b of 128 along K of  sa[b,m] * sb[n/128,b] * (A[m,b] . B[n,b])   (A, B e4m3, K-major)
// Hopper (sm_90a). No headers; the parameters are macros, and fp8_block.py says what is launched.
//
// One producer warp fills a ring of STAGES blocks (A tile, B tile, A scales by TMA; B scales and the tile's origin by
// ordinary stores of the same warp). WGS consumer warpgroups own 64*MW rows each of the tile and share nothing but the
// ring, so they may drift apart: while one stores its tile, another one's wgmma keeps the tensor cores busy.
//
// Parameters (all typed integers)
//   WGS   consumer warpgroups along M (1, 2, 3)      MW   waves of 64 rows per warpgroup     NW   waves of WN columns
//   WN    columns of one wgmma (16 .. 192 by 16)      DBUF two partials: next block's wgmma is queued before promotion
//   RSA   A through registers (ldmatrix, once for the NW waves)
//   STAGES ring depth     CL cluster size (1, 2)      MCB  1: the pair shares B (stacked along M); 0: shares A (along N)
//   GROUP walk: GROUP units down before one across    AXIS 0: down = M, 1: down = N
//   ECW   columns per piece of the epilogue (32, 64)
//   ORDER warpgroups take turns at the tensor cores: 1 passed on at issue, 2 when 3/4 of a wave is done, 3 when half is
//   AHEAD A and its scales come of a launch before: `quantise`      OUTCS streaming stores
//   SB    1: B has a scale a row and block, as A has (weight gradients)
//   BLOCKS CTAs of a multiprocessor   CREG, PREG registers of consumers and producer    UNR  unrolling of the loop over blocks
#ifndef WGS
#define WGS 2
#endif
#ifndef MW
#define MW 1
#endif
#ifndef NW
#define NW 1
#endif
#ifndef WN
#define WN 128
#endif
#ifndef DBUF
#define DBUF 0
#endif
#ifndef RSA
#define RSA 0
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef CL
#define CL 1
#endif
#ifndef MCB
#define MCB 1
#endif
#ifndef GROUP
#define GROUP 8
#endif
#ifndef AXIS
#define AXIS 0
#endif
#ifndef ECW
#define ECW 64
#endif
#ifndef CREG
#define CREG 240
#endif
#ifndef PREG
#define PREG 24
#endif
#ifndef UNR
#define UNR 1
#endif
#ifndef ORDER
#define ORDER 0
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef SB
#define SB 0
#endif
#ifndef OUTCS
#define OUTCS 0
#endif
#if OUTCS
#define OUT_HINT ".cs"
#else
#define OUT_HINT ""
#endif
#if SB
#define SCALES_OF_B const __grid_constant__ TensorMap map_sb
#else
#define SCALES_OF_B const float* __restrict__ sb
#endif
#if DBUF
#undef ORDER
#define ORDER 0
#endif

#define COLUMNS WN
// What the kernels of this folder share: Hopper's barriers, copies and matrix instruction, and the quantiser of rows.
// `COLUMNS`, of the instruction, is a macro of the kernel that includes this.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct alignas(64) TensorMap { u64 word[16]; };

// registers and operands of a warpgroup's sums, by columns: %0 to %(COLUMNS / 2 - 1), then what comes in
#define G0 "%0,%1,%2,%3"
#define H0(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define G1 "%4,%5,%6,%7"
#define H1(d) "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define G2 "%8,%9,%10,%11"
#define H2(d) "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define G3 "%12,%13,%14,%15"
#define H3(d) "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define G4 "%16,%17,%18,%19"
#define H4(d) "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define G5 "%20,%21,%22,%23"
#define H5(d) "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define G6 "%24,%25,%26,%27"
#define H6(d) "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define G7 "%28,%29,%30,%31"
#define H7(d) "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define G8 "%32,%33,%34,%35"
#define H8(d) "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define G9 "%36,%37,%38,%39"
#define H9(d) "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define G10 "%40,%41,%42,%43"
#define H10(d) "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define G11 "%44,%45,%46,%47"
#define H11(d) "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define G12 "%48,%49,%50,%51"
#define H12(d) "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define G13 "%52,%53,%54,%55"
#define H13(d) "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define G14 "%56,%57,%58,%59"
#define H14(d) "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define G15 "%60,%61,%62,%63"
#define H15(d) "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define G16 "%64,%65,%66,%67"
#define H16(d) "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define G17 "%68,%69,%70,%71"
#define H17(d) "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define G18 "%72,%73,%74,%75"
#define H18(d) "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define G19 "%76,%77,%78,%79"
#define H19(d) "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define G20 "%80,%81,%82,%83"
#define H20(d) "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define G21 "%84,%85,%86,%87"
#define H21(d) "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define G22 "%88,%89,%90,%91"
#define H22(d) "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define G23 "%92,%93,%94,%95"
#define H23(d) "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define LIST_8 G0
#define REGS_8(d) H0(d)
#define IN_8(f) f("%4", "%5", "%6", "%7", "%8", "%9")
#define LIST_16 LIST_8 "," G1
#define REGS_16(d) REGS_8(d), H1(d)
#define IN_16(f) f("%8", "%9", "%10", "%11", "%12", "%13")
#define LIST_24 LIST_16 "," G2
#define REGS_24(d) REGS_16(d), H2(d)
#define IN_24(f) f("%12", "%13", "%14", "%15", "%16", "%17")
#define LIST_32 LIST_24 "," G3
#define REGS_32(d) REGS_24(d), H3(d)
#define IN_32(f) f("%16", "%17", "%18", "%19", "%20", "%21")
#define LIST_40 LIST_32 "," G4
#define REGS_40(d) REGS_32(d), H4(d)
#define IN_40(f) f("%20", "%21", "%22", "%23", "%24", "%25")
#define LIST_48 LIST_40 "," G5
#define REGS_48(d) REGS_40(d), H5(d)
#define IN_48(f) f("%24", "%25", "%26", "%27", "%28", "%29")
#define LIST_56 LIST_48 "," G6
#define REGS_56(d) REGS_48(d), H6(d)
#define IN_56(f) f("%28", "%29", "%30", "%31", "%32", "%33")
#define LIST_64 LIST_56 "," G7
#define REGS_64(d) REGS_56(d), H7(d)
#define IN_64(f) f("%32", "%33", "%34", "%35", "%36", "%37")
#define LIST_72 LIST_64 "," G8
#define REGS_72(d) REGS_64(d), H8(d)
#define IN_72(f) f("%36", "%37", "%38", "%39", "%40", "%41")
#define LIST_80 LIST_72 "," G9
#define REGS_80(d) REGS_72(d), H9(d)
#define IN_80(f) f("%40", "%41", "%42", "%43", "%44", "%45")
#define LIST_88 LIST_80 "," G10
#define REGS_88(d) REGS_80(d), H10(d)
#define IN_88(f) f("%44", "%45", "%46", "%47", "%48", "%49")
#define LIST_96 LIST_88 "," G11
#define REGS_96(d) REGS_88(d), H11(d)
#define IN_96(f) f("%48", "%49", "%50", "%51", "%52", "%53")
#define LIST_104 LIST_96 "," G12
#define REGS_104(d) REGS_96(d), H12(d)
#define IN_104(f) f("%52", "%53", "%54", "%55", "%56", "%57")
#define LIST_112 LIST_104 "," G13
#define REGS_112(d) REGS_104(d), H13(d)
#define IN_112(f) f("%56", "%57", "%58", "%59", "%60", "%61")
#define LIST_120 LIST_112 "," G14
#define REGS_120(d) REGS_112(d), H14(d)
#define IN_120(f) f("%60", "%61", "%62", "%63", "%64", "%65")
#define LIST_128 LIST_120 "," G15
#define REGS_128(d) REGS_120(d), H15(d)
#define IN_128(f) f("%64", "%65", "%66", "%67", "%68", "%69")
#define LIST_136 LIST_128 "," G16
#define REGS_136(d) REGS_128(d), H16(d)
#define IN_136(f) f("%68", "%69", "%70", "%71", "%72", "%73")
#define LIST_144 LIST_136 "," G17
#define REGS_144(d) REGS_136(d), H17(d)
#define IN_144(f) f("%72", "%73", "%74", "%75", "%76", "%77")
#define LIST_152 LIST_144 "," G18
#define REGS_152(d) REGS_144(d), H18(d)
#define IN_152(f) f("%76", "%77", "%78", "%79", "%80", "%81")
#define LIST_160 LIST_152 "," G19
#define REGS_160(d) REGS_152(d), H19(d)
#define IN_160(f) f("%80", "%81", "%82", "%83", "%84", "%85")
#define LIST_168 LIST_160 "," G20
#define REGS_168(d) REGS_160(d), H20(d)
#define IN_168(f) f("%84", "%85", "%86", "%87", "%88", "%89")
#define LIST_176 LIST_168 "," G21
#define REGS_176(d) REGS_168(d), H21(d)
#define IN_176(f) f("%88", "%89", "%90", "%91", "%92", "%93")
#define LIST_184 LIST_176 "," G22
#define REGS_184(d) REGS_176(d), H22(d)
#define IN_184(f) f("%92", "%93", "%94", "%95", "%96", "%97")
#define LIST_192 LIST_184 "," G23
#define REGS_192(d) REGS_184(d), H23(d)
#define IN_192(f) f("%96", "%97", "%98", "%99", "%100", "%101")
#define STR1(x) #x
#define STR(x) STR1(x)
#define JOIN1(a, b) a##b
#define JOIN(a, b) JOIN1(a, b)
#define PICK0(a, b, c, d, e, f) a
#define PICK1(a, b, c, d, e, f) b
#define PICK2(a, b, c, d, e, f) c
#define PICK3(a, b, c, d, e, f) d
#define PICK4(a, b, c, d, e, f) e
#define PICK5(a, b, c, d, e, f) f
#define LIST JOIN(LIST_, COLUMNS)
#define REGS(d) JOIN(REGS_, COLUMNS)(d)
#define I0 JOIN(IN_, COLUMNS)(PICK0)
#define I1 JOIN(IN_, COLUMNS)(PICK1)
#define I2 JOIN(IN_, COLUMNS)(PICK2)
#define I3 JOIN(IN_, COLUMNS)(PICK3)
#define I4 JOIN(IN_, COLUMNS)(PICK4)
#define I5 JOIN(IN_, COLUMNS)(PICK5)
#define SHAPE "wgmma.mma_async.sync.aligned.m64n" STR(COLUMNS) "k32.f32.e4m3.e4m3 {"
enum { NA = COLUMNS / 2 };

__device__ __forceinline__ void bar_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ u32 at_cta(u32 at, u32 cta) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(cta));
    return there;
}
__device__ __forceinline__ void bar_arrive_at(u32 bar, u32 cta) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at_cta(bar, cta)) : "memory");
}
__device__ __forceinline__ void bar_wait(u32 bar, u32 parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}"
                 ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma(u32 to, const TensorMap* map, int x, int y, u32 bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ __forceinline__ void tma_to(u32 to, const TensorMap* map, int x, int y, u32 bar, u16 ctas) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(ctas) : "memory");
}
__device__ __forceinline__ u64 desc(u32 at) {   // K-major, rows of 128 bytes, 128-byte swizzle
    return ((u64)((1u << 30) | 64u) << 32) | (1u << 16) | (at >> 4);
}
__device__ __forceinline__ u32 pack(float lo, float hi) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}
__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void mma_wait(float (&d)[NA]) {
    asm volatile("wgmma.wait_group.sync.aligned " I0 ";" : REGS(d) : "n"(PENDING) : "memory");
}
__device__ __forceinline__ void hold(float (&d)[NA]) { asm volatile("" : REGS(d) :: "memory"); }
template <int ADD> __device__ __forceinline__ void mma(float (&d)[NA], u64 a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2 ", 0;\n" SHAPE LIST "}, " I0 ", " I1 ", p, 1, 1;\n}"
                 : REGS(d) : "l"(a), "l"(b), "n"(ADD) : "memory");
}

// -- eight elements of a lane, sixteen lanes a block: codes of the contract and the block's scale --------------------
struct Codes { u32 low, high; float scale; };
__device__ __forceinline__ u32 codes4(float a, float b, float c, float d) {
    u32 v;
    asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\nmov.b32 %0, {l, h};\n}"
        : "=r"(v) : "f"(a), "f"(b), "f"(c), "f"(d));
    return v;
}
__device__ __forceinline__ float low_of(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_of(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ Codes quantised(const uint4& v) {
    const float e[8] = {low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y), low_of(v.z), high_of(v.z), low_of(v.w), high_of(v.w)};
    float most = 1e-4f;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(e[i]));
#pragma unroll
    for (int d = 8; d; d >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    float scale, inverse;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(scale) : "f"(448.f), "f"(most));
    asm("rcp.rn.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
    return {codes4(e[0] * scale, e[1] * scale, e[2] * scale, e[3] * scale),
            codes4(e[4] * scale, e[5] * scale, e[6] * scale, e[7] * scale), inverse};
}
__device__ __forceinline__ uint4 ldg4(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// x [M,K] -> codes [rows,K], scales [K/128,rows]; rows beyond M are left as they are. A CTA has 4 rows of 4 blocks.
extern "C" __global__ void __launch_bounds__(256) quantise(const u16* __restrict__ x, uint2* __restrict__ q, float* __restrict__ s, int M, int K, int rows) {
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
    const int half = threadIdx.x / 16, lane = threadIdx.x & 15, across = (K / 128 + 3) / 4;
    const int m = blockIdx.x / across * 4 + half / 4, k = blockIdx.x % across * 4 + half % 4;
    const bool there = m < M && k < K / 128;
    const u64 at = (u64)m * K + k * 128 + lane * 8;
    const Codes c = quantised(there ? ldg4(x + at) : make_uint4(0, 0, 0, 0));
    if (there) {
        q[at / 8] = make_uint2(c.low, c.high);
        if (lane == 0) s[(u64)k * rows + m] = c.scale;
    }
}

enum { BM = 64 * WGS * MW, BN = WN * NW, W = MW * NW };
enum { A_BYTES = BM * 128, B_BYTES = BN * 128, S_BYTES = BM * 4, SB_BYTES = SB ? BN * 4 : 0 };
enum { A_AT = 0, B_AT = A_AT + STAGES * A_BYTES, S_AT = B_AT + STAGES * B_BYTES };
enum { SB_AT = S_AT + STAGES * S_BYTES, I_AT = SB_AT + STAGES * SB_BYTES };
enum { FULL_AT = I_AT + STAGES * 16, EMPTY_AT = FULL_AT + STAGES * 8 };
enum { E_AT = (EMPTY_AT + STAGES * 8 + 127) / 128 * 128, E_ROW = ECW * 2 + 16, E_BYTES = 16 * E_ROW };
enum { SMEM_BYTES = E_AT + WGS * 4 * E_BYTES };
enum { THREADS = 128 * (WGS + 1) };
static_assert(SMEM_BYTES <= 232448, "shared memory");
static_assert(MW == 1 || NW == 1, "waves go one way");
static_assert(!DBUF || W == 1, "two partials of one wave");
static_assert(BM <= 256 && BN <= 256, "TMA boxes");
static_assert(!SB || BN % 32 == 0 && !DBUF, "a copy's place; a stage is held until its scales are read");
enum { ONE_SB = SB || 128 % BN == 0 };          // a tile lies in one 128-column block of B
enum { FIXED_SB = BN % 128 == 0 };        // tiles begin at blocks of B

__device__ __forceinline__ float lds(u32 at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
struct Info { float sb0, sb1; int m0, n0; };
__device__ __forceinline__ Info lds_info(u32 at) {
    Info v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=f"(v.sb0), "=f"(v.sb1), "=r"(v.m0), "=r"(v.n0) : "r"(at) : "memory");
    return v;
}
template <int ADD> __device__ __forceinline__ void mma_rs(float (&d)[NA], const u32 (&a)[4], u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I5 ", 0;\n" SHAPE LIST "}, {" I0 "," I1 "," I2 "," I3 "}, " I4 ", p, 1, 1;\n}"
                 : REGS(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD) : "memory");
}
__device__ __forceinline__ void block_mma(float (&d)[NA], u32 a, u32 b) {
    const u64 da = desc(a), db = desc(b);
    mma<0>(d, da, db);
    mma<1>(d, da + 2, db + 2);
    if (ORDER == 3) mma_commit();
    mma<1>(d, da + 4, db + 4);
    if (ORDER == 2) mma_commit();
    mma<1>(d, da + 6, db + 6);
}

// 16 rows x WN columns of one warp: registers -> this warp's piece of shared memory -> whole rows of D
__device__ __forceinline__ void store(const float (&d)[NA], u32 piece, u16* out, int row, int col, int M, int N, int lane) {
#pragma unroll
    for (int c0 = 0; c0 < WN; c0 += ECW) {
        constexpr int FULL = ECW / 8;
        const int cols = WN - c0 < ECW ? WN - c0 : ECW, chunks = cols / 8;
#pragma unroll
        for (int j = 0; j < FULL; j += 2) {
            if (j >= chunks) break;
            const int e = (c0 / 8 + j) * 4;
            const u32 to = piece + ((lane >> 3 & 1) * 8 + (lane & 7)) * E_ROW + (j + (lane >> 4)) * 16;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                         "r"(pack(d[e], d[e + 1])), "r"(pack(d[e + 2], d[e + 3])), "r"(pack(d[e + 4], d[e + 5])),
                         "r"(pack(d[e + 6], d[e + 7])) : "memory");
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < FULL / 2; i++) {
            if (i >= chunks / 2) break;
            const int p = i * 32 + lane, r = p / chunks, c = p % chunks;
            u32 v0, v1, v2, v3;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v0), "=r"(v1), "=r"(v2), "=r"(v3)
                         : "r"(piece + r * E_ROW + c * 16) : "memory");
            if (row + r < M && col + c0 + c * 8 < N)
                asm volatile("st.global" OUT_HINT ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(out + (u64)(row + r) * N + col + c0 + c * 8),
                             "r"(v0), "r"(v1), "r"(v2), "r"(v3) : "memory");
        }
        __syncwarp();
    }
}

template <int V> struct Tag { enum { value = V }; };
struct Scales { float a[MW][2]; Info i; };
__device__ __forceinline__ void load_scales(Scales& x, u32 base, int s, int row) {
    x.i = lds_info(base + I_AT + s * 16);
#pragma unroll
    for (int w = 0; w < MW; w++)
#pragma unroll
        for (int h = 0; h < 2; h++) x.a[w][h] = lds(base + S_AT + s * S_BYTES + (row + w * 64 + h * 8) * 4);
}
__device__ constexpr int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }
enum { GRAN = gcd(BN, 128), GS = ONE_SB || FIXED_SB ? 1 : WN / GRAN };   // columns that share a scale of B
static_assert(ONE_SB || FIXED_SB || WN % GRAN == 0, "granules");
struct Factors { float f[GS][2]; };
template <int w> __device__ __forceinline__ Factors factors(const Scales& x) {   // both scales, for the columns of wave w
    if (SB) return {{{x.a[MW > 1 ? w : 0][0], x.a[MW > 1 ? w : 0][1]}}};   // A's alone
    constexpr int aw = MW > 1 ? w : 0, off = NW > 1 ? w * WN : 0;
    Factors r;
#pragma unroll
    for (int g = 0; g < GS; g++) {
        const int at = off + g * GRAN;
        bool second = !ONE_SB && at >= 128;
        if (!ONE_SB && !FIXED_SB && at > 0 && at < 128) second = (x.i.n0 & 127) + at >= 128;
        const float sb = second ? x.i.sb1 : x.i.sb0;
        r.f[g][0] = x.a[aw][0] * sb;
        r.f[g][1] = x.a[aw][1] * sb;
        asm volatile("" : "+f"(r.f[g][0]), "+f"(r.f[g][1]));   // here, not after the wait
    }
    return r;
}
__device__ __forceinline__ void promote(float (&acc)[NA], const float (&p)[NA], const Factors& x, u32 scales_of_b = 0) {
#pragma unroll
    for (int j = 0; j < WN / 8; j++) {
#if SB
        float b0, b1;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(b0), "=f"(b1) : "r"(scales_of_b + j * 32) : "memory");
        acc[j * 4 + 0] = fmaf(x.f[0][0] * b0, p[j * 4 + 0], acc[j * 4 + 0]);
        acc[j * 4 + 1] = fmaf(x.f[0][0] * b1, p[j * 4 + 1], acc[j * 4 + 1]);
        acc[j * 4 + 2] = fmaf(x.f[0][1] * b0, p[j * 4 + 2], acc[j * 4 + 2]);
        acc[j * 4 + 3] = fmaf(x.f[0][1] * b1, p[j * 4 + 3], acc[j * 4 + 3]);
        continue;
#endif
        const int g = GS == 1 ? 0 : j * 8 / GRAN;
        acc[j * 4 + 0] = fmaf(x.f[g][0], p[j * 4 + 0], acc[j * 4 + 0]);
        acc[j * 4 + 1] = fmaf(x.f[g][0], p[j * 4 + 1], acc[j * 4 + 1]);
        acc[j * 4 + 2] = fmaf(x.f[g][1], p[j * 4 + 2], acc[j * 4 + 2]);
        acc[j * 4 + 3] = fmaf(x.f[g][1], p[j * 4 + 3], acc[j * 4 + 3]);
    }
}

struct Walk {
    int down, across, units;
    __device__ __forceinline__ Walk(int M, int N) {
        const int um = CL == 2 && MCB ? 2 * BM : BM, un = CL == 2 && !MCB ? 2 * BN : BN;
        const int tm = (M + um - 1) / um, tn = (N + un - 1) / un;
        down = AXIS ? tn : tm;
        across = AXIS ? tm : tn;
        units = tm * tn;
    }
    __device__ __forceinline__ void at(int u, int rank, int& m0, int& n0) const {
        const int per = GROUP * across, first = u / per * GROUP, inside = u % per;
        const int rows = down - first < GROUP ? down - first : GROUP;
        const int d = first + inside % rows, a = inside / rows;
        int m = AXIS ? a : d, n = AXIS ? d : a;
        if (CL == 2 && MCB) m = 2 * m + rank;
        if (CL == 2 && !MCB) n = 2 * n + rank;
        m0 = m * BM;
        n0 = n * BN;
    }
};

#if CL == 2
#define CLUSTER_ATTR __cluster_dims__(2, 1, 1)
#else
#define CLUSTER_ATTR
#endif


extern "C" __global__ void CLUSTER_ATTR __launch_bounds__(THREADS, BLOCKS)
fp8_block(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
          const __grid_constant__ TensorMap map_s, SCALES_OF_B, u16* __restrict__ out, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const u32 base = (u32)__cvta_generic_to_shared(smem);
    const int lane = threadIdx.x & 31, wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
    const int blocks = (K + 127) / 128;
    int rank = 0;
    if (CL == 2) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int me = blockIdx.x / CL, gangs = gridDim.x / CL;
    const Walk walk(M, N);

    if (threadIdx.x == WGS * 128 + 32) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_a) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_b) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_s) : "memory");
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            bar_init(base + FULL_AT + s * 8, 1);
            bar_init(base + EMPTY_AT + s * 8, CL == 1 ? WGS * 128 : WGS * 4 * CL);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CL == 2) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    else __syncthreads();

#if AHEAD
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");   // who comes next waits for the end of all this
#endif
    if (wg == WGS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PREG));
        if (warp == WGS * 4) {
            int s = 0;
            u32 phase = 1;
            auto ask_b = [&](int k, int n0, int stage) {
                const u32 b = base + B_AT + stage * B_BYTES, full = base + FULL_AT + stage * 8;
                if (CL == 2 && MCB) tma_to(b + rank * (B_BYTES / 2), &map_b, k * 128, n0 + rank * (BN / 2), full, 3);
                else tma(b, &map_b, k * 128, n0, full);
            };
            int early = 0;
#if AHEAD
            // the first stages' part of B is on its way while what makes A still runs
            if (me < walk.units) {
                int m0, n0;
                walk.at(me, rank, m0, n0);
                early = blocks < STAGES ? blocks : STAGES;
                if (lane == 0) for (int k = 0; k < early; k++) ask_b(k, n0, k);
            }
            asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#if !SB
            const int last_nb = (N + 127) / 128 - 1;
#endif
            for (int u = me; u < walk.units; u += gangs) {
                int m0, n0;
                walk.at(u, rank, m0, n0);
#if !SB
                const int nb = n0 / 128 < last_nb ? n0 / 128 : last_nb, nb1 = nb < last_nb ? nb + 1 : nb;
#endif
                float v0 = 0, v1 = 0;
                for (int k = 0; k < blocks; k++) {
#if !SB
                    if ((k & 31) == 0) {
                        const int kk = k + lane < blocks ? k + lane : blocks - 1;
                        v0 = __ldg(sb + (u64)nb * blocks + kk);
                        if (!ONE_SB) v1 = __ldg(sb + (u64)nb1 * blocks + kk);
                    }
#endif
                    const u32 full = base + FULL_AT + s * 8;
                    bar_wait(base + EMPTY_AT + s * 8, phase);
                    if (lane == 0) {
                        const u32 a = base + A_AT + s * A_BYTES;
                        if (CL == 2 && !MCB) tma_to(a + rank * (A_BYTES / 2), &map_a, k * 128, m0 + rank * (BM / 2), full, 3);
                        else tma(a, &map_a, k * 128, m0, full);
                        if (u != me || k >= early) ask_b(k, n0, s);
                        tma(base + S_AT + s * S_BYTES, &map_s, m0, k, full);
#if SB
                        tma(base + SB_AT + s * SB_BYTES, &map_sb, n0, k, full);
#endif
                    }
                    const float x0 = __shfl_sync(~0u, v0, k & 31), x1 = __shfl_sync(~0u, v1, k & 31);
                    if (lane == 0) {
                        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(base + I_AT + s * 16), "f"(x0), "f"(x1),
                                     "r"(m0), "r"(n0) : "memory");
                        bar_expect(full, A_BYTES + B_BYTES + S_BYTES + SB_BYTES);
                    }
                    __syncwarp();
                    if (++s == STAGES) s = 0, phase ^= 1;
                }
            }
            // one empty block more: consumers always look one block ahead
            bar_wait(base + EMPTY_AT + s * 8, phase);
            if (lane == 0) bar_arrive(base + FULL_AT + s * 8);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CREG));
        const int tiles = me < walk.units ? (walk.units - me + gangs - 1) / gangs : 0;
        const int row = wg * 64 * MW + (warp & 3) * 16 + lane / 4;
        const u32 a_at = base + A_AT + wg * (64 * MW * 128), b_at = base + B_AT;
        const u32 piece = base + E_AT + warp * E_BYTES;
        int s = 0;
        u32 phase = 0;
        auto release = [&](int stage) {
            const u32 bar = base + EMPTY_AT + stage * 8;
            if (CL == 1) { bar_arrive(bar); return; }   // every lane for its own reads, which racecheck follows
            __syncwarp();   // every lane has read its scales
            if (lane < CL) bar_arrive_at(bar, lane);
        };
        auto scales_of_b = [&](int stage, int w) {
            return base + SB_AT + stage * SB_BYTES + ((NW > 1 ? w * WN : 0) + (lane & 3) * 2) * 4;
        };
        float acc[W][NA];
#pragma unroll
        for (int w = 0; w < W; w++)
#pragma unroll
            for (int i = 0; i < NA; i++) acc[w][i] = 0.f;
        auto finish = [&](auto tag, const Info& at) {
            constexpr int w = decltype(tag)::value;
            const int r = at.m0 + wg * 64 * MW + (warp & 3) * 16;
            store(acc[w], piece, out, r + (MW > 1 ? w * 64 : 0), at.n0 + (NW > 1 ? w * WN : 0), M, N, lane);
#pragma unroll
            for (int i = 0; i < NA; i++) acc[w][i] = 0.f;
        };
        if (tiles > 0) {
#if DBUF
            float p[NA], q[NA];
            Scales x, y;
            int k = 0, t = 0;
            bar_wait(base + FULL_AT, 0);
            load_scales(x, base, 0, row);
            hold(p);
            mma_fence();
            block_mma(p, a_at, b_at);
            mma_commit();
            auto step = [&](float (&now)[NA], float (&next)[NA], Scales& xn, Scales& xx) {
                const int old = s;
                if (++s == STAGES) s = 0, phase ^= 1;
                bar_wait(base + FULL_AT + s * 8, phase);
                load_scales(xx, base, s, row);
                hold(next);
                mma_fence();
                block_mma(next, a_at + s * A_BYTES, b_at + s * B_BYTES);
                mma_commit();
                const Factors f = factors<0>(xn);
                mma_wait<1>(now);
                release(old);
                promote(acc[0], now, f);
                if (++k == blocks) {
                    finish(Tag<0>{}, xn.i);
                    k = 0;
                    return ++t == tiles;
                }
                return false;
            };
            while (true) {
                if (step(p, q, x, y)) { mma_wait<0>(q); break; }
                if (step(q, p, y, x)) { mma_wait<0>(p); break; }
            }
#else
            // a tile's rows are stored behind the next wave's wgmma, the next tile's if need be
            float p[NA];
            Scales x;
            bar_wait(base + FULL_AT, 0);
            load_scales(x, base, 0, row);
#if RSA
            u32 f[4][4];
#endif
            const int my_turn = 1 + wg, next_turn = 1 + (wg + 1) % WGS;
            auto pass = [&] { asm volatile("bar.arrive %0, 256;" ::"r"(next_turn) : "memory"); };
            auto hand = [&] {
                if (ORDER >= 2) {
                    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                    pass();
                }
            };
            if (ORDER && wg == WGS - 1) pass();
            auto issue = [&](auto tag) {
                constexpr int w = decltype(tag)::value;
                const u32 a = a_at + s * A_BYTES, b = b_at + s * B_BYTES;
#if RSA
                if (w == 0) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const u32 from = a + ((warp & 3) * 16 + (lane >> 3 & 1) * 8 + (lane & 7)) * 128 + (((j * 2 + (lane >> 4)) ^ (lane & 7)) * 16);
                        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                                     : "=r"(f[j][0]), "=r"(f[j][1]), "=r"(f[j][2]), "=r"(f[j][3]) : "r"(from) : "memory");
                    }
                }
                hold(p);
                if (ORDER) asm volatile("bar.sync %0, 256;" ::"r"(my_turn) : "memory");
                mma_fence();
                const u64 db = desc(b + (NW > 1 ? w * WN * 128 : 0));
                mma_rs<0>(p, f[0], db);
                mma_rs<1>(p, f[1], db + 2);
                if (ORDER == 3) mma_commit();
                mma_rs<1>(p, f[2], db + 4);
                if (ORDER == 2) mma_commit();
                mma_rs<1>(p, f[3], db + 6);
#else
                hold(p);
                if (ORDER) asm volatile("bar.sync %0, 256;" ::"r"(my_turn) : "memory");
                mma_fence();
                block_mma(p, a + (MW > 1 ? w * 64 * 128 : 0), b + (NW > 1 ? w * WN * 128 : 0));
#endif
                mma_commit();
                if (ORDER == 1) pass();
            };
            Info tile, done;
            for (int t = 0; t < tiles; t++) {
#pragma unroll UNR
                for (int k = 0; k < blocks; k++) {
                    issue(Tag<0>{});
                    if (k == 0) {
                        if (t > 0) finish(Tag<W - 1>{}, done);   // the last tile's rows, behind this tile's first wave
                        tile = x.i;
                    }
                    if constexpr (W == 2) {
                        const Factors g = factors<0>(x);
                        hand();
                        mma_wait<0>(p);
                        promote(acc[0], p, g, scales_of_b(s, 0));
                        issue(Tag<1>{});
                    }
                    const int old = s;
                    if (++s == STAGES) s = 0, phase ^= 1;
                    const Factors g = factors<W - 1>(x);
                    bar_wait(base + FULL_AT + s * 8, phase);
                    load_scales(x, base, s, row);
                    hand();
                    if constexpr (W == 2) if (k == blocks - 1) finish(Tag<0>{}, tile);
                    mma_wait<0>(p);
                    if (!SB) release(old);
                    promote(acc[W - 1], p, g, scales_of_b(old, W - 1));
                    if (SB) release(old);
                }
                done = tile;
            }
            finish(Tag<W - 1>{}, done);
#endif
        }
    }
    if (CL == 2) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
