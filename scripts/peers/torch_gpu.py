#!/usr/bin/env python3
"""What `nn`'s program `gpu` measures, in PyTorch: a line of JSON for each measurement.

    torch_gpu.py                                        everything, on the first GPU
    torch_gpu.py --modes eager captured --seconds 0.5   some of it
    torch_gpu.py --device cpu --tiny                    whether it runs, where there is no GPU

Steps run in four ways: `eager`; `captured`, all of such a step in one CUDA graph; and compiled, in PyTorch's modes
`reduce-overhead`, which makes CUDA graphs, and `max-autotune-no-cudagraphs`. The optimiser is the fused one. Inputs
come from pinned memory in each step, and its loss is read back, as in `nn`.
"""

import argparse
import json
import os
import statistics
import sys
import time

# Of all cores: protocol gives a peer on the CPU one.
os.environ.setdefault("BENCH_THREADS", str(os.cpu_count()))

from protocol import in_short
from torch_peer import Gpt, count, mean_over_tokens, policy, resnet20

import torch
import torch.nn.functional as F

EAGER, CAPTURED = "eager", "captured"
MODES = [EAGER, CAPTURED, "reduce-overhead", "max-autotune-no-cudagraphs"]
PRECISIONS = ["tf32", "f32", "bf16"]
LEARNING_RATE = 1e-3


class Work:
    """What is measured, counted as `nn`'s program counts it."""

    def __init__(self, name, params=0, flops=0, bytes=0, items=1, unit="calls"):
        self.name, self.params, self.flops, self.bytes = name, params, flops, bytes
        self.items, self.unit = items, unit


def perceptron_flops(rows, *widths):
    return sum(2 * rows * a * b for a, b in zip(widths, widths[1:]))


def attention_flops(batch, width, length):
    """Two products, of the half of all scores that a causal mask leaves."""
    return 4 * batch * width * (length * (length + 1) // 2)


def resnet_flops(batch):
    """Forward of ResNet-20 on 32×32: its first convolution, and all."""
    first = 9 * 3 * 16 * 1024
    stages = (
        6 * 9 * 16 * 16 * 1024
        + (9 * 16 * 32 + 5 * 9 * 32 * 32 + 16 * 32) * 256
        + (9 * 32 * 64 + 5 * 9 * 64 * 64 + 32 * 64) * 64
    )
    return 2 * batch * first, 2 * batch * (first + stages + 640)


class Bench:
    def __init__(self, options):
        self.options = options
        self.device = torch.device(options.device)
        self.gpu = self.device.type == "cuda"
        self.precision = PRECISIONS[0]

    def set_precision(self, precision):
        self.precision = precision
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"

    def late(self):
        return self.options.until is not None and time.monotonic() > self.options.until

    def wanted(self, name):
        return not self.late() and self.options.only in name

    def wait(self):
        if self.gpu:
            torch.cuda.synchronize()

    def report(self, work, mode, samples, precision):
        median = statistics.median(samples)
        line = {
            "peer": "torch",
            "work": work.name,
            "mode": mode,
            "precision": precision,
            "tiny": self.options.tiny,
            "params": work.params,
            "flops": work.flops,
            "bytes": work.bytes,
            "ms": round(median * 1e3, 6),
            "min_ms": round(min(samples) * 1e3, 6),
            "samples": len(samples),
            "per_s": round(work.items / median, 3),
            "unit": work.unit,
            "tflops": round(work.flops / median * 1e-12, 4),
            "gb_s": round(work.bytes / median * 1e-9, 3),
        }
        print(json.dumps(line, separators=(",", ":")), flush=True)

    def samples(self, calls, run):
        """Seconds a call, sample by sample, each of so many calls."""
        samples, begin = [], time.perf_counter()
        while len(samples) < 5 or (time.perf_counter() - begin < self.options.seconds and len(samples) < 20_000):
            start = time.perf_counter()
            run(calls)
            samples.append((time.perf_counter() - start) / calls)
        return samples

    def steps(self, work, mode, precision, call):
        """Times what has its result when it returns."""
        for _ in range(5):
            call()
        self.report(work, mode, self.samples(1, lambda _: call()), precision)

    def kernel(self, work, call, precision=None):
        """Times a kernel, called so often in a row that a sample takes some milliseconds."""
        if not self.wanted(work.name):
            return

        def run(calls):
            for _ in range(calls):
                call()
            self.wait()

        run(3)
        calls = 1
        while not self.options.tiny and calls < 4096:
            start = time.perf_counter()
            run(calls)
            if time.perf_counter() - start > 0.005:
                break
            calls *= 2
        self.report(work, "kernel", self.samples(calls, run), precision or self.precision)

    def on_host(self, tensor):
        return tensor.pin_memory() if self.gpu else tensor

    def compiled(self, function, mode):
        return function if mode in (EAGER, CAPTURED) else torch.compile(function, dynamic=False, mode=mode)

    def replayed(self, work_on_gpu):
        """All that a function launches, as one CUDA graph; the function must have been called before."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work_on_gpu()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = work_on_gpu()

        def replay():
            graph.replay()
            return result

        return replay

    def each_mode(self, name, measure):
        """Measures in every mode that is wanted; one that fails doesn't take the others with it."""
        for mode in self.options.modes:
            if not self.wanted(name) or (mode == CAPTURED and not self.gpu):
                continue
            torch._dynamo.reset()
            torch.manual_seed(1)
            try:
                measure(mode)
            except Exception as error:
                print(f"{name}, {mode}: {in_short(error)}", file=sys.stderr, flush=True)
                self.options.failed = True

    def trains(self, work, make, loss_of, inputs, target, optimiser, precision=None, layout=torch.contiguous_format):
        """A model's training."""

        def measure(mode):
            model = make().to(self.device).train()
            if layout != torch.contiguous_format:
                model.to(memory_format=layout)
            work.params = count(model)
            capture = mode == CAPTURED
            adam = optimiser(model.parameters(), lr=LEARNING_RATE, fused=True, capturable=capture)
            x_host, t_host = self.on_host(inputs.contiguous(memory_format=layout)), self.on_host(target)
            # Not empty: a capture's first runs come before the first step.
            x, t = (tensor.to(self.device, copy=True) for tensor in (x_host, t_host))
            kind = self.device.type
            rounds = (precision or self.precision) == "bf16"

            def loss(x, t):
                # Weights stay in single precision, products and what they give are bfloat16.
                with torch.autocast(kind, torch.bfloat16, enabled=rounds):
                    return loss_of(model(x), t)

            objective = self.compiled(loss, mode)

            def on_gpu():
                adam.zero_grad(set_to_none=True)
                loss = objective(x, t)
                loss.backward()
                adam.step()
                return loss

            run = self.replayed(on_gpu) if capture else on_gpu

            def step():
                x.copy_(x_host, non_blocking=True)
                t.copy_(t_host, non_blocking=True)
                assert run().item() < float("inf")

            self.steps(work, mode, precision or self.precision, step)

        self.each_mode(work.name, measure)

    def infers(self, name, batch):
        def measure(mode):
            model = policy().to(self.device).eval()
            flops = perceptron_flops(batch, 8, 64, 64, 4)
            work = Work(name, count(model), flops, items=batch, unit="samples")
            x_host = self.on_host(torch.randn(batch, 8))
            x = x_host.to(self.device, copy=True)
            y_host = self.on_host(torch.empty(batch, 4))
            with torch.inference_mode():
                forward = self.compiled(model, mode)
                run = self.replayed(lambda: forward(x)) if mode == CAPTURED else lambda: forward(x)

                def call():
                    x.copy_(x_host, non_blocking=True)
                    y_host.copy_(run(), non_blocking=True)
                    self.wait()

                self.steps(work, mode, "f32", call)

        self.each_mode(name, measure)

    def random(self, *shape):
        return torch.randn(shape, device=self.device)

    def factor(self, *shape):
        """The same, of the type that products are of."""
        return self.random(*shape).to(torch.bfloat16 if self.precision == "bf16" else torch.float32)

    def models(self):
        """Those that have large products."""
        tiny = self.options.tiny
        batch, length, dim, heads, blocks = (2, 16, 32, 2, 2) if tiny else (64, 256, 384, 6, 6)
        tokens = batch * length
        flops = 2 * tokens * (blocks * 12 * dim * dim + dim * 65) + blocks * attention_flops(batch, dim, length)
        work = Work("gpt-train", flops=3 * flops, items=tokens, unit="tokens")
        x, t = torch.randint(65, (batch, length)), torch.randint(65, (batch, length))
        self.trains(work, lambda: Gpt(65, length, dim, heads, blocks), mean_over_tokens, x, t, adamw)

        if self.precision == "bf16":
            return
        batch = 1 if tiny else 128
        first, flops = resnet_flops(batch)
        work = Work("resnet-train", flops=3 * flops - first, items=batch, unit="samples")
        x, t = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        self.trains(work, resnet20, F.cross_entropy, x, t, torch.optim.Adam, layout=torch.channels_last)

    def policies(self):
        """Too small for TF32 in `nn`, and so in full precision here."""
        flops = 3 * perceptron_flops(256, 8, 64, 64, 4) - perceptron_flops(256, 8, 64)
        work = Work("policy-train", flops=flops, items=256, unit="samples")
        x, t = torch.randn(256, 8), torch.randn(256, 4)
        self.trains(work, policy, F.mse_loss, x, t, torch.optim.Adam, "f32")
        self.infers("policy-forward-1", 1)
        self.infers("policy-forward-256", 256)

    def products(self):
        tiny = self.options.tiny
        sizes = {
            "product-4096": [64] * 3 if tiny else [4096] * 3,
            "product-1024x768x3072": [32, 24, 96] if tiny else [1024, 768, 3072],
        }
        for name, (rows, inputs, outputs) in sizes.items():
            if self.wanted(name):
                a, b, c = self.factor(rows, inputs), self.factor(inputs, outputs), self.factor(rows, outputs)
                work = Work(name, flops=2 * rows * inputs * outputs)
                self.kernel(work, lambda: torch.mm(a, b, out=c))

    def attention(self):
        if not self.wanted("attention"):
            return
        batch, heads, length, dim = (1, 2, 40, 64) if self.options.tiny else (8, 12, 1024, 64)
        # The heads of a token lie side by side, as a model's projections give them.
        q, k, v, dy = (self.factor(batch, length, heads, dim).transpose(1, 2) for _ in range(4))
        flops = attention_flops(batch, heads * dim, length)
        with torch.no_grad():
            forward = Work("attention", flops=flops)
            self.kernel(forward, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        y = F.scaled_dot_product_attention(*inputs, is_causal=True)
        # Five products of which forward has two.
        backward = Work("attention-vjp", flops=5 * flops / 2)
        self.kernel(backward, lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))

    def rows(self):
        """What the memory's speed limits."""
        rows, cols = (8, 64) if self.options.tiny else (65_536, 1024)
        x, y = self.random(rows, cols), self.random(rows, cols)
        gamma, beta, bytes = self.random(cols), self.random(cols), 8 * rows * cols
        with torch.inference_mode():
            self.kernel(Work("copy", bytes=bytes), lambda: y.copy_(x), "f32")
            norm = Work("layer-norm", bytes=bytes)
            self.kernel(norm, lambda: F.layer_norm(x, (cols,), gamma, beta, 1e-5), "f32")
            self.kernel(Work("softmax", bytes=bytes), lambda: torch.softmax(x, -1), "f32")

    def adam(self):
        if not self.wanted("adam"):
            return
        n = 1000 if self.options.tiny else 100_000_000
        parameter = torch.nn.Parameter(self.random(n))
        parameter.grad = self.random(n)
        step = adamw([parameter], lr=LEARNING_RATE, fused=True).step
        self.kernel(Work("adam", params=n, bytes=28 * n), step, "f32")


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, weight_decay=0.1, **options)


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a try without a GPU")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--within", type=float, help="seconds after which nothing more is begun")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--only", default="", help="works whose name holds this")
    given = parser.parse_args()
    given.until = None if given.within is None else time.monotonic() + given.within
    given.failed = False
    return given


def main():
    given = options()
    bench = Bench(given)
    on = torch.cuda.get_device_name() if bench.gpu else given.device
    print(f"PyTorch {torch.__version__} on {on}", file=sys.stderr, flush=True)
    torch.backends.cudnn.benchmark = True
    modes = given.modes
    # What compiles long comes last: a time limit may cut it off.
    for precision in given.precisions:
        bench.set_precision(precision)
        bench.products()
        bench.attention()
    bench.rows()
    bench.adam()
    for group in ([EAGER, CAPTURED], MODES[2:]):
        given.modes = [mode for mode in modes if mode in group]
        bench.set_precision("f32")
        bench.policies()
        for precision in given.precisions:
            bench.set_precision(precision)
            bench.models()
    if bench.late():
        print("the time was over before all was measured", file=sys.stderr)
    sys.exit(1 if given.failed else 0)


if __name__ == "__main__":
    main()
