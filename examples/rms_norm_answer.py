"""An answer to it: CUDA C++ in a string, which `load_inline` compiles, and a layer that calls it."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>

__global__ void rms_norm_rows(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y,
                              int columns, float eps) {
    __shared__ float parts[32];
    const float* row = x + (long long)blockIdx.x * columns;
    float sum = 0.f;
    for (int at = threadIdx.x; at < columns; at += blockDim.x) sum += row[at] * row[at];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.f;
    for (int warp = 0; warp < blockDim.x / 32; warp++) sum += parts[warp];
    const float scale = rsqrtf(sum / columns + eps);
    for (int at = threadIdx.x; at < columns; at += blockDim.x)
        y[(long long)blockIdx.x * columns + at] = row[at] * scale * weight[at];
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps) {
    TORCH_CHECK(x.is_cuda() && x.dim() == 2, "rows on a GPU");
    auto y = torch::empty_like(x);
    const int threads = 512;
    rms_norm_rows<<<x.size(0), threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), y.data_ptr<float>(), x.size(1), eps);
    return y;
}
"""
kernels = load_inline("rms_norm", "torch::Tensor rms_norm(torch::Tensor, torch::Tensor, double);", SOURCE, ["rms_norm"])


def rms_norm(x, weight):
    return kernels.rms_norm(x.contiguous(), weight, 1e-6)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features))

    def forward(self, x):
        return rms_norm(x, self.weight)
