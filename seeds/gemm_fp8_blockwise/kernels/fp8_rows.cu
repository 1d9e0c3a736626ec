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
#include "hopper.cuh"

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
