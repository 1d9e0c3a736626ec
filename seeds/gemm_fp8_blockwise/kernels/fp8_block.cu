// D[M,N] bf16 = sum over blocks b of 128 along K of  sa[b,m] * sb[n/128,b] * (A[m,b] . B[n,b])   (A, B e4m3, K-major)
// Hopper (sm_90a). No headers; the parameters are macros, and fp8_block.py says what is launched.
//
// One producer warp fills a ring of STAGES blocks (A tile, B tile, A scales by TMA; B scales and the tile's origin by
// ordinary stores of the same warp). WGS consumer warpgroups own 64*MW rows each of the tile and share nothing but the
// ring, so they may drift apart: while one stores its tile, another one's wgmma keeps the tensor cores busy.
//
// Parameters (all typed integers)
//   WGS   consumer warpgroups along M (1, 2)         MW   waves of 64 rows per warpgroup     NW   waves of WN columns
//   WN    columns of one wgmma (16 .. 192 by 16)
//   STAGES ring depth     CL cluster size (1, 2)      MCB  1: the pair shares B (stacked along M); 0: shares A (along N)
//   GROUP walk: GROUP units down before one across    AXIS 0: down = M, 1: down = N
//   ECW   columns per piece of the epilogue (32, 64)
//   AHEAD A and its scales come of a launch before: `quantise`      OUTCS streaming stores
//   SB    1: B has a scale a row and block, as A has (weight gradients)
//   CREG, PREG registers of consumers and producer    UNR  unrolling of the loop over blocks
//   GROUPS  of rows of A, each with a matrix B of its own; `count` has their rows (0: one product). Rows are dealt to groups
//         in order, or, MASKED, a group has room for M rows and the first ones count. A group's tiles begin at a multiple
//         of four rows, where copies of scales may, and rows of others are not stored.
#ifndef GROUPS
#define GROUPS 0
#define MASKED 0
#endif
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

#if GROUPS
#define COUNTS , const int* __restrict__ count
#else
#define COUNTS
#endif

#define COLUMNS WN
#include "hopper.cuh"

enum { BM = 64 * WGS * MW, BN = WN * NW, W = MW * NW };
enum { A_BYTES = BM * 128, B_BYTES = BN * 128, S_BYTES = BM * 4, SB_BYTES = SB ? BN * 4 : 0 };
enum { A_AT = 0, B_AT = A_AT + STAGES * A_BYTES, S_AT = B_AT + STAGES * B_BYTES };
enum { SB_AT = S_AT + STAGES * S_BYTES, I_AT = SB_AT + STAGES * SB_BYTES };
enum { I_BYTES = GROUPS ? 32 : 16, FULL_AT = I_AT + STAGES * I_BYTES, EMPTY_AT = FULL_AT + STAGES * 8 };
enum { E_AT = (EMPTY_AT + STAGES * 8 + 127) / 128 * 128, E_ROW = ECW * 2 + 16, E_BYTES = 16 * E_ROW };
enum { G_AT = E_AT + WGS * 4 * E_BYTES, SMEM_BYTES = G_AT + GROUPS * 8 };
enum { THREADS = 128 * (WGS + 1) };
static_assert(SMEM_BYTES <= 232448, "shared memory");
static_assert(MW == 1 || NW == 1, "waves go one way");
static_assert(BM <= 256 && BN <= 256, "TMA boxes");
static_assert(!SB || BN % 32 == 0, "a copy's place");
enum { ONE_SB = SB || 128 % BN == 0 };          // a tile lies in one 128-column block of B
enum { FIXED_SB = BN % 128 == 0 };        // tiles begin at blocks of B

__device__ __forceinline__ float lds(u32 at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
struct Info { float sb0, sb1; int m0, n0, low, high; };   // rows that are stored
__device__ __forceinline__ Info lds_info(u32 at) {
    Info v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=f"(v.sb0), "=f"(v.sb1), "=r"(v.m0), "=r"(v.n0) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void block_mma(float (&d)[NA], u32 a, u32 b) {
    const u64 da = desc(a), db = desc(b);
    mma<0>(d, da, db);
    mma<1>(d, da + 2, db + 2);
    mma<1>(d, da + 4, db + 4);
    mma<1>(d, da + 6, db + 6);
}

// 16 rows x WN columns of one warp: registers -> this warp's piece of shared memory -> whole rows of D
__device__ __forceinline__ void store(const float (&d)[NA], u32 piece, u16* out, int row, int col, int low, int high, int N, int lane) {
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
            if (row + r < high && (!GROUPS || row + r >= low) && col + c0 + c * 8 < N)
                asm volatile("st.global" OUT_HINT ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(out + (u64)(row + r) * N + col + c0 + c * 8),
                             "r"(v0), "r"(v1), "r"(v2), "r"(v3) : "memory");
        }
        __syncwarp();
    }
}

template <int V> struct Tag { enum { value = V }; };
struct Scales { float a[MW][2]; Info i; };
__device__ __forceinline__ void load_scales(Scales& x, u32 base, int s, int row) {
    x.i = lds_info(base + I_AT + s * I_BYTES);
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
        over((M + um - 1) / um, (N + un - 1) / un);
    }
    __device__ __forceinline__ void over(int tm, int tn) {
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

#if GROUPS
static_assert(CL == 1, "one CTA a tile");
__device__ __forceinline__ int2 lds_int2(u32 at) {
    int2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ int summed(int v, int lane) {   // over the lanes up to this one
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += other;
    }
    return v;
}
// of each group the end of its rows, and the rows of tiles up to there, by one warp; rows past M are nobody's
__device__ __forceinline__ void count_tiles(const int* __restrict__ count, u32 to, int M, int lane) {
    int before = 0, high = 0;
    for (int first = 0; first < GROUPS; first += 32) {
        const int g = first + lane, asked = g < GROUPS ? min(max(__ldg(count + g), 0), M) : 0, rows_to = summed(asked, lane);
        const int begin = MASKED ? g * M : min(before + rows_to - asked, M), end = MASKED ? begin + asked : min(before + rows_to, M);
        const int tiles_to = summed(end > begin ? (end - (begin & ~3) + BM - 1) / BM : 0, lane);
        if (g < GROUPS) asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + g * 8), "r"(end), "r"(high + tiles_to) : "memory");
        before = min(before + __shfl_sync(~0u, rows_to, 31), M);
        high += __shfl_sync(~0u, tiles_to, 31);
    }
}
#endif

#if CL == 2
#define CLUSTER_ATTR __cluster_dims__(2, 1, 1)
#else
#define CLUSTER_ATTR
#endif


extern "C" __global__ void CLUSTER_ATTR __launch_bounds__(THREADS, 1)
fp8_block(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
          const __grid_constant__ TensorMap map_s, SCALES_OF_B, u16* __restrict__ out, int M, int N, int K COUNTS) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const u32 base = (u32)__cvta_generic_to_shared(smem);
    const int lane = threadIdx.x & 31, wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
    const int blocks = (K + 127) / 128;
    int rank = 0;
    if (CL == 2) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int me = blockIdx.x / CL, gangs = gridDim.x / CL;
    Walk walk(M, N);

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
#if GROUPS
    if (warp == WGS * 4 + 1) count_tiles(count, base + G_AT, M, lane);
#endif
    if (CL == 2) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    else __syncthreads();
#if GROUPS
    const int wide = (N + BN - 1) / BN;   // in tiles
    walk.units = lds_int2(base + G_AT + (GROUPS - 1) * 8).y * wide;
#endif

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
                int m0, n0, g = 0;
#if GROUPS
                int passed = 0;
                for (int i = lane; i < GROUPS; i += 32) passed += lds_int2(base + G_AT + i * 8).y * wide <= u;
                g = __reduce_add_sync(~0u, passed);
                const int2 mine = lds_int2(base + G_AT + g * 8), last = g ? lds_int2(base + G_AT + g * 8 - 8) : make_int2(0, 0);
                const int low = MASKED ? g * M : last.x;
                Walk inside = walk;
                inside.over(mine.y - last.y, wide);
                inside.at(u - last.y * wide, 0, m0, n0);
                m0 += low & ~3;
#else
                walk.at(u, rank, m0, n0);
#endif
#if !SB
                const int ahead = g * (last_nb + 1), at = n0 / 128 < last_nb ? n0 / 128 : last_nb;
                const int nb = ahead + at, nb1 = at < last_nb ? nb + 1 : nb;
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
                        if (u != me || k >= early) ask_b(k, g * N + n0, s);
                        tma(base + S_AT + s * S_BYTES, &map_s, MASKED ? m0 - g * M : m0, MASKED ? g * blocks + k : k, full);
#if SB
                        tma(base + SB_AT + s * SB_BYTES, &map_sb, n0, k, full);
#endif
                    }
                    const float x0 = __shfl_sync(~0u, v0, k & 31), x1 = __shfl_sync(~0u, v1, k & 31);
                    if (lane == 0) {
#if GROUPS
                        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(base + I_AT + s * I_BYTES + 16), "r"(low), "r"(mine.x) : "memory");
#endif
                        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(base + I_AT + s * I_BYTES), "f"(x0), "f"(x1),
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
            store(acc[w], piece, out, r + (MW > 1 ? w * 64 : 0), at.n0 + (NW > 1 ? w * WN : 0), at.low, at.high, N, lane);
#pragma unroll
            for (int i = 0; i < NA; i++) acc[w][i] = 0.f;
        };
        if (tiles > 0) {
            // a tile's rows are stored behind the next wave's wgmma, the next tile's if need be
            float p[NA];
            Scales x;
            bar_wait(base + FULL_AT, 0);
            load_scales(x, base, 0, row);
            auto issue = [&](auto tag) {
                constexpr int w = decltype(tag)::value;
                const u32 a = a_at + s * A_BYTES, b = b_at + s * B_BYTES;
                hold(p);
                mma_fence();
                block_mma(p, a + (MW > 1 ? w * 64 * 128 : 0), b + (NW > 1 ? w * WN * 128 : 0));
                mma_commit();
            };
            Info tile, done;
            for (int t = 0; t < tiles; t++) {
#pragma unroll UNR
                for (int k = 0; k < blocks; k++) {
                    issue(Tag<0>{});
                    if (k == 0) {
                        if (t > 0) finish(Tag<W - 1>{}, done);   // the last tile's rows, behind this tile's first wave
                        tile = x.i;
                        tile.low = 0, tile.high = M;
#if GROUPS
                        const int2 rows = lds_int2(base + I_AT + s * I_BYTES + 16);
                        tile.low = rows.x, tile.high = rows.y;
#endif
                    }
                    if constexpr (W == 2) {
                        const Factors g = factors<0>(x);
                        mma_wait<0>(p);
                        promote(acc[0], p, g, scales_of_b(s, 0));
                        issue(Tag<1>{});
                    }
                    const int old = s;
                    if (++s == STAGES) s = 0, phase ^= 1;
                    const Factors g = factors<W - 1>(x);
                    bar_wait(base + FULL_AT + s * 8, phase);
                    load_scales(x, base, s, row);
                    if constexpr (W == 2) if (k == blocks - 1) finish(Tag<0>{}, tile);
                    mma_wait<0>(p);
                    if (!SB) release(old);
                    promote(acc[W - 1], p, g, scales_of_b(old, W - 1));
                    if (SB) release(old);
                }
                done = tile;
            }
            finish(Tag<W - 1>{}, done);
        }
    }
    if (CL == 2) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
