"""The peer for PyTorch on a CPU: `torch_peer.py eager` or `torch_peer.py compile`."""

import re
import sys

import protocol  # before torch: it fixes the number of threads

import torch
import torch.nn.functional as F
from torch import nn

SEED = 20
LEARNING_RATE = 1e-3


class Eager:
    """PyTorch as it runs without a compiler."""

    name = "torch-eager"

    def inference(self, function):
        return function

    def training(self, function):
        return function


class Compiled:
    """PyTorch with `torch.compile`: one graph for a fixed shape."""

    name = "torch-compile"

    def inference(self, function):
        return torch.compile(function, fullgraph=True, dynamic=False)

    def training(self, function):
        return torch.compile(function, fullgraph=True, dynamic=False)


def count(module):
    return sum(p.numel() for p in module.parameters())


def forward(mode, model, *inputs):
    """Inference: no autograd graph is recorded."""
    model.eval()
    run = mode.inference(model)

    @torch.inference_mode()
    def call():
        return run(*inputs)

    return call, count(model)


def train(mode, model, loss_of, inputs, target, optimiser=torch.optim.Adam, **settings):
    """A train step, which reads its loss back."""
    model.train()
    steps = optimiser(model.parameters(), lr=LEARNING_RATE, fused=True, **settings)

    def objective(inputs, target):
        return loss_of(model(inputs), target)

    run = mode.training(objective)

    def call():
        steps.zero_grad(set_to_none=True)
        loss = run(inputs, target)
        loss.backward()
        steps.step()
        return loss.item()

    return call, count(model)


# Models: w1, w2


def policy():
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def w1(mode, kind, batch):
    batch = int(batch)
    inputs = torch.randn(batch, 8)
    if kind == "forward":
        return forward(mode, policy(), inputs)
    return train(mode, policy(), F.mse_loss, inputs, torch.randn(batch, 4))


def classifier():
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def w2(mode, kind):
    inputs = torch.randn(64, 784)
    if kind == "forward":
        return forward(mode, classifier(), inputs)
    return train(mode, classifier(), F.cross_entropy, inputs, torch.randint(10, (64,)))


# Matrix products: w8


class MatMul(nn.Module):
    def forward(self, a, b):
        return a @ b


def w8(mode, shape):
    sizes = [int(size) for size in shape.split("x")]
    m, k, n = sizes if len(sizes) == 3 else sizes * 3
    return forward(mode, MatMul(), torch.randn(m, k), torch.randn(k, n))


FAMILIES = [
    (re.compile(r"w1-(?P<kind>forward|train)-(?P<batch>\d+)"), w1),
    (re.compile(r"w2-(?P<kind>forward|train)"), w2),
    (re.compile(r"w8-matmul-(?P<shape>\d+|\d+x\d+x\d+)"), w8),
]


def main():
    mode = {"eager": Eager, "compile": Compiled}[sys.argv[1]]()
    torch.set_num_threads(protocol.THREADS)
    torch.set_num_interop_threads(1)

    def build(workload):
        torch.manual_seed(SEED)
        return protocol.find(workload, FAMILIES, mode)

    protocol.serve(mode.name, torch.__version__.split("+")[0], build)


if __name__ == "__main__":
    main()
