// y[M,N] bf16 = sum over blocks b of 128 along K of  s[b,m] * t[n/128,b] * (q[m,b] . w[n,b])      (q, w e4m3, K-major)
// q, s: x [M,K] bf16 quantised in 1 x 128 blocks by the kernel `quantise` before (linear), or by whoever calls.
// Hopper (sm_90a). No headers; the parameters are macros, and fp8_rows.py says what is launched.
//
// Rows of w are the matrix instruction's first operand, 64 for each of WGS warpgroups, and ROWS rows of x its second. A
// cluster has DEPTHS x CN CTAs: DEPTHS share the depth of one tile and add their sums through shared memory, in the order
// of their ranks; CN have neighbouring tiles along N and fetch the same rows of x once. A stage of the RING holds KB
// blocks. One warp asks for copies, one copies scales, and what was queued before is waited for when w is already on its
// way.
//
// A warpgroup multiplies WAVE rows of x at a time; PARTS partials at once; CREG > 0: registers of consumers, the others give theirs.
#define COLUMNS WAVE
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

enum { BN = 64 * WGS, BM = ROWS, WN = WAVE, NW = BM / WN, GROUPS = BM / 8, CL = DEPTHS * CN };
enum { WAVES = KB * NW, OWN = (GROUPS + DEPTHS - 1) / DEPTHS };
enum { W_BYTES = BN * 128, X_BYTES = BM * 128, S_BYTES = BM * 4 };
enum { W_AT = 0, X_AT = W_AT + RING * KB * W_BYTES, S_AT = X_AT + RING * KB * X_BYTES };
enum { FULL_AT = S_AT + RING * KB * S_BYTES, EMPTY_AT = FULL_AT + RING * 8, E_AT = (EMPTY_AT + RING * 8 + 127) / 128 * 128 };
enum { O_ROW = BN * 2 + 16 };
enum { THREADS = WGS * 128 + (CREG ? 128 : 64) };
static_assert(WN % 8 == 0 && WN <= 128 && BM % WN == 0, "waves");
static_assert(GROUPS % CN == 0, "shares of x");
static_assert(OWN * 8 * O_ROW <= S_AT, "results lie where the ring was");

__device__ __forceinline__ float2 lds2(u32 at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float4 lds4(u32 at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void block_mma(float (&d)[NA], u32 w, u32 x) {
    const u64 a = desc(w), b = desc(x);
    mma<0>(d, a, b);
    mma<1>(d, a + 2, b + 2);
    mma<1>(d, a + 4, b + 4);
    mma<1>(d, a + 6, b + 6);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void promote(float (&acc)[NA], const float (&p)[NA], u32 scales, float t) {
#pragma unroll
    for (int j = 0; j < WN / 8; j++) {
        float2 f = lds2(scales + j * 32);
        f.x *= t;
        f.y *= t;
        acc[j * 4 + 0] = fmaf(f.x, p[j * 4 + 0], acc[j * 4 + 0]);
        acc[j * 4 + 1] = fmaf(f.y, p[j * 4 + 1], acc[j * 4 + 1]);
        acc[j * 4 + 2] = fmaf(f.x, p[j * 4 + 2], acc[j * 4 + 2]);
        acc[j * 4 + 3] = fmaf(f.y, p[j * 4 + 3], acc[j * 4 + 3]);
    }
}
extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
product(const __grid_constant__ TensorMap map_w, const __grid_constant__ TensorMap map_x, const float* __restrict__ s, int scaled,
        const float* __restrict__ t, u16* __restrict__ y, int M, int N, int K) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const u32 base = (u32)__cvta_generic_to_shared(smem);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), wg = warp >> 2;
    int rank = 0;
    if (CL > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int split = rank / CN, column = rank % CN;
    const int tiles_m = (M + BM - 1) / BM, unit = blockIdx.x / CL;
    const int m0 = unit % tiles_m * BM, n0 = (unit / tiles_m * CN + column) * BN;
    const int blocks = K / 128, units = (blocks + KB - 1) / KB;
    const int first = units * split / DEPTHS, steps = units * (split + 1) / DEPTHS - first;

    if (threadIdx.x == WGS * 128) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_w) : "memory");
        for (int i = 0; i < RING; i++) {
            bar_init(base + FULL_AT + i * 8, 33);
            bar_init(base + EMPTY_AT + i * 8, CN == 1 ? WGS * 128 : WGS * 4 * CN);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CL > 1) cluster_sync();
    else __syncthreads();

    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");   // who comes next waits for the end of all this
    if (warp >= WGS * 4) {
#if CREG
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
        if (warp == WGS * 4) {
            if (lane == 0) {
                auto ask_w = [&](int i, int stage) {
                    const u32 full = base + FULL_AT + stage * 8;
                    bar_expect(full, KB * (W_BYTES + X_BYTES));
#pragma unroll
                    for (int u = 0; u < KB; u++)
                        tma(base + W_AT + (stage * KB + u) * W_BYTES, &map_w, ((first + i) * KB + u) * 128, n0, full);
                };
                auto ask_x = [&](int i, int stage) {
                    const u32 full = base + FULL_AT + stage * 8;
#pragma unroll
                    for (int u = 0; u < KB; u++) {
                        const u32 to = base + X_AT + (stage * KB + u) * X_BYTES + column * (X_BYTES / CN);
                        const int k = ((first + i) * KB + u) * 128, m = m0 + column * (BM / CN);
                        if (CN > 1) tma_to(to, &map_x, k, m, full, (u16)(((1 << CN) - 1) << (split * CN)));
                        else tma(to, &map_x, k, m, full);
                    }
                };
                const int early = steps < RING ? steps : RING;
                for (int i = 0; i < early; i++) ask_w(i, i);
                asm volatile("griddepcontrol.wait;" ::: "memory");
                for (int i = 0; i < early; i++) ask_x(i, i);
                int stage = 0;
                u32 phase = 0;
                for (int i = early; i < steps; i++) {
                    bar_wait(base + EMPTY_AT + stage * 8, phase);
                    ask_w(i, stage);
                    ask_x(i, stage);
                    if (++stage == RING) stage = 0, phase ^= 1;
                }
            }
        } else if (warp == WGS * 4 + 1) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            int stage = 0;
            u32 phase = 1;
            for (int i = 0; i < steps; i++) {
                bar_wait(base + EMPTY_AT + stage * 8, phase);
#pragma unroll
                for (int u = 0; u < KB; u++) {
                    const int k = (first + i) * KB + u, there = k < blocks ? k : blocks - 1;
                    for (int r = lane; r < BM; r += 32)
                        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(base + S_AT + (stage * KB + u) * S_BYTES + r * 4),
                                     "l"(s + (u64)there * scaled + m0 + r), "r"(k < blocks && m0 + r < scaled ? 4 : 0) : "memory");
                }
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(base + FULL_AT + stage * 8) : "memory");
                if (++stage == RING) stage = 0, phase ^= 1;
            }
            asm volatile("cp.async.wait_all;" ::: "memory");
        }
        __syncwarp();
        if (CL > 1) cluster_sync();
        return;
    }

#if CREG
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CREG));
#endif
    float acc[NW][NA];
#pragma unroll
    for (int w = 0; w < NW; w++)
#pragma unroll
        for (int i = 0; i < NA; i++) acc[w][i] = 0.f;
    const int last_nb = (N + 127) / 128 - 1, nb = n0 / 128 < last_nb ? n0 / 128 : last_nb;
    const float* mine = t + (u64)nb * blocks;
    float held = 0;
    int stage = 0;
    u32 phase = 0;
    for (int i = 0; i < steps; i++) {
        if ((i * KB & 31) == 0) {
            const int k = (first + i) * KB + lane;
            held = __ldg(mine + (k < blocks ? k : blocks - 1));
        }
        const u32 w_at = base + W_AT + stage * KB * W_BYTES + wg * 64 * 128, x_at = base + X_AT + stage * KB * X_BYTES;
        const u32 s_at = base + S_AT + stage * KB * S_BYTES + (lane & 3) * 8;
        bar_wait(base + FULL_AT + stage * 8, phase);
        float p[PARTS][NA];
#pragma unroll
        for (int from = 0; from < WAVES; from += PARTS) {
#pragma unroll
            for (int v = 0; v < PARTS; v++) hold(p[v]);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int v = 0; v < PARTS; v++) {
                const int u = (from + v) / NW, w = (from + v) % NW;
                block_mma(p[v], w_at + u * W_BYTES, x_at + u * X_BYTES + w * WN * 128);
            }
#pragma unroll
            for (int v = 0; v < PARTS; v++) {
                const int u = (from + v) / NW, w = (from + v) % NW;
                const float scale = __shfl_sync(~0u, held, (i * KB + u) & 31);
                if (v == PARTS - 1) mma_wait<0>(p[v]);
                else if (v == PARTS - 2) mma_wait<1>(p[v]);
                else if (v == PARTS - 3) mma_wait<2>(p[v]);
                else mma_wait<3>(p[v]);
                promote(acc[w], p[v], s_at + u * S_BYTES + w * WN * 4, scale);
            }
        }
        __syncwarp();
        if (CN == 1) bar_arrive(base + EMPTY_AT + stage * 8);   // every lane for its own reads, which racecheck follows
        else if (lane < CN) bar_arrive_at(base + EMPTY_AT + stage * 8, split * CN + lane);
        if (++stage == RING) stage = 0, phase ^= 1;
    }

    if (DEPTHS > 1) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int owner = g % DEPTHS;
            if (owner != split) {
                const int from = split < owner ? split : split - 1;
                const u32 to = at_cta(base + E_AT + ((g / DEPTHS * (DEPTHS - 1) + from) * (WGS * 128) + threadIdx.x) * 16, owner * CN + column);
                const int w = g * 8 / WN, e = (g - w * (WN / 8)) * 4;
                asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(acc[w][e]), "f"(acc[w][e + 1]),
                             "f"(acc[w][e + 2]), "f"(acc[w][e + 3]) : "memory");
            }
        }
    }
    if (CL > 1) cluster_sync();
    else asm volatile("bar.sync 1, %0;" ::"n"(WGS * 128) : "memory");
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (DEPTHS == 1 || g % DEPTHS == split) {
            const int w = g * 8 / WN, e = (g - w * (WN / 8)) * 4;
            float4 v = make_float4(acc[w][e], acc[w][e + 1], acc[w][e + 2], acc[w][e + 3]);
            if (DEPTHS > 1) {
                float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
                for (int from = 0; from < DEPTHS; from++) {
                    float4 term = v;
                    if (from != split) {
                        const int place = from < split ? from : from - 1;
                        term = lds4(base + E_AT + ((g / DEPTHS * (DEPTHS - 1) + place) * (WGS * 128) + threadIdx.x) * 16);
                    }
                    sum.x += term.x, sum.y += term.y, sum.z += term.z, sum.w += term.w;
                }
                v = sum;
            }
            const u32 to = base + (g / DEPTHS * 8 + (lane & 7)) * O_ROW + (wg * 64 + (warp & 3) * 16 + (lane >> 3 & 1) * 8) * 2;
            asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(pack(v.x, v.y)), "r"(pack(v.z, v.w)) : "memory");
        }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(WGS * 128) : "memory");
    for (int at = threadIdx.x; at < OWN * 8 * (BN / 8); at += WGS * 128) {
        const int row = at / (BN / 8), chunk = at % (BN / 8), g = row / 8 * DEPTHS + split, m = m0 + g * 8 + row % 8, n = n0 + chunk * 8;
        if (g < GROUPS && m < M && n < N) {
            const float4 v = lds4(base + row * O_ROW + chunk * 16);
            *(float4*)(y + (u64)m * N + n) = v;
        }
    }
}
