"""A problem as KernelBench states it: a layer, its inputs, and what it is made with."""

import torch
from torch import nn


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features))

    def forward(self, x):
        return rms_norm(x, self.weight)


def get_inputs():
    return [torch.randn(2048, 4096)]


def get_init_inputs():
    return [4096]
