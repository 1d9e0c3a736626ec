// Softmax along rows: one block takes a row. ``softmax`` says how the kernel is launched; nothing compiles it.
#include <cuda_runtime.h>
#include <float.h>
#include <torch/extension.h>

#define BLOCK 256

__device__ float together(float value, bool largest) {
    __shared__ float parts[32];
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffff, value, offset);
        value = largest ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) value = largest ? fmaxf(value, parts[warp]) : value + parts[warp];
    return value;
}

__global__ void __launch_bounds__(BLOCK) softmax_rows(const float *__restrict__ x, float *__restrict__ y, int columns) {
    const float *row = x + (long long)blockIdx.x * columns;
    float *out = y + (long long)blockIdx.x * columns;
    float most = -FLT_MAX, sum = 0;
#pragma unroll 4
    for (int at = threadIdx.x; at < columns; at += BLOCK) most = fmaxf(most, row[at]);
    most = together(most, true);
#pragma unroll 4
    for (int at = threadIdx.x; at < columns; at += BLOCK) sum += expf(row[at] - most);
    sum = together(sum, false);
    for (int at = threadIdx.x; at < columns; at += BLOCK) out[at] = expf(row[at] - most) / sum;
}

torch::Tensor softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    softmax_rows<<<x.size(0), BLOCK>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
