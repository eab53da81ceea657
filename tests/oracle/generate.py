#!/usr/bin/env python3
"""Writes the fixtures that the Rust tests compare with: see README.md beside this file.

    python tests/oracle/generate.py            write every fixture
    python tests/oracle/generate.py --check    recompute, compare with what is there, write nothing

Everything is float64. Drawn numbers are rounded to float32 first, so that a float32 test starts from exactly
the same inputs and its error is its own. Each case draws from a generator seeded by its name: adding or
removing a case leaves the others as they were.
"""

import json
import math
import pathlib
import sys
import warnings
import zlib

import numpy as np
import torch
import torch.nn.functional as F

import tensorfile

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
TORCH = torch.__version__.split("+")[0]

CASES = {}


class Case:
    """What one fixture holds, filled by the function that describes it."""

    def __init__(self, name):
        self.name = name
        self.text = ""
        self.hyper = {}
        self.tensors = {}
        self._random = np.random.default_rng(zlib.crc32(name.encode()))

    def say(self, text, **hyper):
        """The case in words, and its hyperparameters for a program to read."""
        self.text, self.hyper = text, hyper

    def randn(self, *shape, scale=1.0, shift=0.0):
        drawn = self._random.standard_normal(shape) * scale + shift
        return torch.from_numpy(np.asarray(drawn, dtype=np.float32).astype(np.float64))

    def randint(self, low, high, *shape):
        return torch.from_numpy(self._random.integers(low, high, shape))

    def put(self, name, value):
        assert name not in self.tensors, f"{self.name}: {name} given twice"
        value = torch.as_tensor(value).detach().clone()
        assert value.dtype in (torch.float64, torch.int64), f"{self.name}: {name} is {value.dtype}"
        self.tensors[name] = value.numpy()

    def run(self, f, *inputs, params=None, upstream=None):
        """Records inputs, parameters, the outputs of `f(*inputs, **params)` and every gradient.

        A dot in a torch name cannot be a keyword: `f` receives `conv1.weight` as `conv1_weight`.
        """
        params = params or {}
        leaves = {}
        for i, x in enumerate(inputs):
            self.put(f"x{i}", x)
            leaves[f"dx{i}"] = x
        for name, p in params.items():
            self.put(f"param.{name}", p)
            leaves[f"grad.{name}"] = p
        leaves = {
            name: leaf.clone().requires_grad_() if leaf.is_floating_point() else leaf
            for name, leaf in leaves.items()
        }
        xs = [leaves[f"dx{i}"] for i in range(len(inputs))]
        ps = {name.replace(".", "_"): leaves[f"grad.{name}"] for name in params}
        ys = f(*xs, **ps)
        ys = ys if isinstance(ys, tuple) else (ys,)
        dys = upstream or [self.randn(*y.shape) for y in ys]
        torch.autograd.backward(ys, dys)
        for i, (y, dy) in enumerate(zip(ys, dys)):
            self.put(f"y{i}", y)
            self.put(f"dy{i}", dy)
        for name, leaf in leaves.items():
            if leaf.is_floating_point():
                self.put(name, leaf.grad)
        return ys


def case(name):
    def register(f):
        assert name not in CASES, f"two cases are called {name}"
        CASES[name] = f
        return f

    return register


# Linear layers


def linear_case(name, lead, fan_in, fan_out, bias=True):
    @case(name)
    def _(c):
        c.say(
            f"Linear: x {[*lead, fan_in]}, weight [OUT, IN] = {[fan_out, fan_in]}, "
            + ("bias" if bias else "no bias"),
            IN=fan_in, OUT=fan_out, bias=bias,
        )
        params = {"weight": c.randn(fan_out, fan_in)}
        if bias:
            params["bias"] = c.randn(fan_out)
        c.run(lambda x, weight, bias=None: F.linear(x, weight, bias), c.randn(*lead, fan_in), params=params)


linear_case("linear", [3], 7, 5)
linear_case("linear_wide", [3], 5, 16)
linear_case("linear_square", [3], 6, 6)
linear_case("linear_in1", [3], 1, 5)
linear_case("linear_out1", [3], 7, 1)
linear_case("linear_tokens", [3, 4], 6, 5)
linear_case("linear_batch1", [1], 9, 8)
linear_case("linear_nobias", [3], 7, 5, bias=False)
linear_case("linear_nobias_tokens", [2, 5], 6, 8, bias=False)

ACTIVATIONS = {
    "relu": ("ReLU", torch.relu),
    "tanh": ("Tanh", torch.tanh),
    "sigmoid": ("Sigmoid", torch.sigmoid),
    "silu": ("SiLU", F.silu),
    "mish": ("Mish", F.mish),
    "gelu": ("GELU, erf form", F.gelu),
    "gelu_tanh": ("GELU, tanh form", lambda x: F.gelu(x, approximate="tanh")),
    "elu": ("ELU, alpha 1", F.elu),
}


def linear_act_case(name, lead, fan_in, fan_out, act):
    @case(name)
    def _(c):
        title, f = ACTIVATIONS[act]
        c.say(f"Linear then {title}: x {[*lead, fan_in]}, OUT {fan_out}", IN=fan_in, OUT=fan_out, act=act)
        c.run(
            lambda x, weight, bias: f(F.linear(x, weight, bias)),
            c.randn(*lead, fan_in),
            params={"weight": c.randn(fan_out, fan_in), "bias": c.randn(fan_out)},
        )


for act in ACTIVATIONS:
    linear_act_case(f"linear_{act}", [3], 6, 5, act)
linear_act_case("linear_gelu_tanh_tokens", [2, 3], 5, 8, "gelu_tanh")


# Activations. Ordinary, large and tiny values stand in files of their own: in one vector the large would
# hide an error of the small from any bound relative to the norm. The two ordinary values among the large keep
# the gradient of a saturating function from being nothing but the rounding of 1 - y^2.

LARGE = [1e4, -1e4, 1000.0, -1000.0, 709.0, -709.0, 100.0, -100.0, 40.0, -40.0, 20.0, -20.0, 10.0, -10.0, 0.75, -0.75]
TINY = [0.0, -0.0, 2.0**-10, -(2.0**-10), 2.0**-27, -(2.0**-27), 2.0**-60, -(2.0**-60), 2.0**-100, -(2.0**-100)]


def activation_cases(act):
    title, f = ACTIVATIONS[act]

    @case(f"act_{act}")
    def _(c):
        c.say(f"{title} on ordinary values, ±0 among them", act=act)
        x = c.randn(3, 16, scale=2.0)
        x[0, 0], x[1, 0] = 0.0, -0.0
        c.run(f, x)

    @case(f"act_{act}_large")
    def _(c):
        c.say(f"{title} on values up to ±1e4", act=act)
        c.run(f, torch.tensor(LARGE, dtype=torch.float64).reshape(2, 8))

    @case(f"act_{act}_tiny")
    def _(c):
        c.say(f"{title} on ±0 and values down to ±2^-100", act=act)
        c.run(f, torch.tensor(TINY, dtype=torch.float64).reshape(2, 5))


for act in ACTIVATIONS:
    activation_cases(act)


def softmax_cases(name, title, f):
    @case(name)
    def _(c):
        c.say(f"{title} over the last axis")
        c.run(f, c.randn(3, 7))

    @case(f"{name}_tokens")
    def _(c):
        c.say(f"{title} over the last axis of three")
        c.run(f, c.randn(2, 4, 5, scale=3.0))

    @case(f"{name}_offset")
    def _(c):
        c.say(f"{title} with rows moved by +1e4, -1e4, +300 and -300: exp of them alone overflows or vanishes")
        rows = torch.tensor([[1e4], [-1e4], [300.0], [-300.0]], dtype=torch.float64)
        c.run(f, (c.randn(4, 6) + rows).float().double())

    @case(f"{name}_spread")
    def _(c):
        c.say(f"{title} with rows whose entries lie up to 2000 apart")
        c.run(f, c.randn(3, 9, scale=500.0))


softmax_cases("softmax", "Softmax", lambda x: F.softmax(x, dim=-1))
softmax_cases("log_softmax", "LogSoftmax", lambda x: F.log_softmax(x, dim=-1))


# Gated units and feed-forward networks


def gated_case(name, title, f, lead, half):
    @case(name)
    def _(c):
        c.say(f"{title}: x {[*lead, 2 * half]}", H=half)
        c.run(f, c.randn(*lead, 2 * half, scale=2.0))


def first_gates(act):
    def f(x):
        a, b = x.chunk(2, dim=-1)
        return act(a) * b

    return f


gated_case("swiglu", "SwiGLU, silu(first half) * second half", first_gates(F.silu), [3], 4)
gated_case("swiglu_tokens", "SwiGLU, silu(first half) * second half", first_gates(F.silu), [2, 3], 5)
gated_case("geglu", "GeGLU, gelu(first half) * second half, erf form", first_gates(F.gelu), [3], 4)
gated_case("glu", "PyTorch's GLU, first half * sigmoid(second half)", lambda x: F.glu(x, dim=-1), [3], 4)


def gated_feed_forward_case(name, act, title, lead, dim, hidden):
    @case(name)
    def _(c):
        c.say(
            f"down({title}(gate(x)) * up(x)), no biases: x {[*lead, dim]}, {hidden} wide in the middle; names of transformers' Llama",
            D=dim, H=hidden,
        )

        def net(x, gate_proj_weight, up_proj_weight, down_proj_weight):
            return F.linear(act(F.linear(x, gate_proj_weight)) * F.linear(x, up_proj_weight), down_proj_weight)

        params = {
            "gate_proj.weight": c.randn(hidden, dim, scale=0.5),
            "up_proj.weight": c.randn(hidden, dim, scale=0.5),
            "down_proj.weight": c.randn(dim, hidden, scale=0.5),
        }
        c.run(net, c.randn(*lead, dim), params=params)


gated_feed_forward_case("swiglu_feed_forward", F.silu, "silu", [2, 3], 6, 10)
gated_feed_forward_case("swiglu_feed_forward_square", F.silu, "silu", [3], 5, 5)
gated_feed_forward_case("geglu_feed_forward", F.gelu, "gelu", [3], 6, 7)
gated_feed_forward_case("glu_feed_forward", torch.sigmoid, "sigmoid", [3], 6, 7)


@case("feed_forward_gelu")
def _(c):
    c.say("fc2(gelu_tanh(fc1(x))): x [2, 3, 6], 16 wide in the middle", D=6, FF=16)

    def net(x, fc1_weight, fc1_bias, fc2_weight, fc2_bias):
        return F.linear(F.gelu(F.linear(x, fc1_weight, fc1_bias), approximate="tanh"), fc2_weight, fc2_bias)

    params = {
        "fc1.weight": c.randn(16, 6, scale=0.5), "fc1.bias": c.randn(16, scale=0.5),
        "fc2.weight": c.randn(6, 16, scale=0.25), "fc2.bias": c.randn(6, scale=0.25),
    }
    c.run(net, c.randn(2, 3, 6), params=params)


# Fine-tuning by a matrix of low rank


def lora_case(name, lead, fan_in, fan_out, rank, scale, bias=True):
    @case(name)
    def _(c):
        c.say(
            f"LoRA: linear(x, weight, bias) + {scale} * linear(linear(x, lora_A), lora_B), weight and bias frozen: "
            f"x {[*lead, fan_in]}, OUT {fan_out}, R {rank}",
            IN=fan_in, OUT=fan_out, R=rank, scale=scale, bias=bias,
        )
        weight, b = c.randn(fan_out, fan_in), c.randn(fan_out) if bias else None
        c.put("state.weight", weight)
        if bias:
            c.put("state.bias", b)
        params = {"lora_A.weight": c.randn(rank, fan_in), "lora_B.weight": c.randn(fan_out, rank)}
        c.run(
            lambda x, lora_A_weight, lora_B_weight: F.linear(x, weight, b)
            + scale * F.linear(F.linear(x, lora_A_weight), lora_B_weight),
            c.randn(*lead, fan_in),
            params=params,
        )
        c.put("state_after.weight", weight)
        if bias:
            c.put("state_after.bias", b)


lora_case("lora_linear", [3], 7, 5, 2, 1.5)
lora_case("lora_linear_square", [2, 3], 4, 4, 4, 0.25)
lora_case("lora_linear_nobias", [2, 3], 6, 5, 1, 2.0, bias=False)


# Random numbers, as the crate documents them


def philox4x32(counter, key):
    """Philox4x32-10 of Salmon et al. 2011."""
    low = 0xFFFFFFFF
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & low, (p >> 32) ^ d ^ k1, p & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return a, b, c, d


assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def normal_numbers(n):
    """Those of the stream of seed 0, place 0, step 0, rank 0."""
    numbers = []
    for block in range((n + 1) // 2):
        a, b, c, d = philox4x32((block, 0, 0, 0), (0, 0))
        u, v = ((a | b << 32) >> 11) * 2.0**-53, ((c | d << 32) >> 11) * 2.0**-53
        r, phi = math.sqrt(-2.0 * math.log(1.0 - u)), math.tau * v
        numbers += [r * math.cos(phi), r * math.sin(phi)]
    return torch.tensor(numbers[:n], dtype=torch.float64)


def hash_words(n):
    """Those of the stream of seed 0, place 0, step 0, rank 0: SplitMix64, keyed."""
    low, step = 0xFFFFFFFFFFFFFFFF, 0x9E3779B97F4A7C15

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & low
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & low
        return z ^ (z >> 31)

    key = mix(step)
    for counter in (0, 0, 0):
        key = mix((key ^ counter) + step & low)
    return [mix(key + (i + 1) * step & low) >> 32 for i in range(n)]


@case("hash_dropout")
def _(c):
    c.say("x [3, 20], kept and divided by 0.7 where the element's hash is at least 0.3 * 2^32", rate=0.3)
    kept = [word >= round(0.3 * 2**32) for word in hash_words(60)]
    mask = torch.tensor(kept, dtype=torch.float64).reshape(3, 20)
    c.run(lambda x: x * mask / 0.7, c.randn(3, 20))


def rsample_case(name, batch, n, squash, train=True):
    @case(name)
    def _(c):
        c.say(
            f"reparameterised Gaussian: x0 mean, x1 log_std, [{batch}, {n}], noise {'of Philox, seed 0' if train else 'zero'}"
            + ("; y0 its tanh, y1 [B, 1] the log-density of that" if squash else ""),
            N=n, squash=squash, train=train,
        )
        noise = normal_numbers(batch * n).reshape(batch, n) if train else torch.zeros(batch, n, dtype=torch.float64)

        def sample(mean, log_std):
            u = mean + torch.exp(log_std) * noise
            if not squash:
                return u
            density = torch.distributions.Normal(mean, torch.exp(log_std)).log_prob(u)
            jacobian = torch.distributions.transforms.TanhTransform().log_abs_det_jacobian(u, None)
            return torch.tanh(u), (density - jacobian).sum(-1, keepdim=True)

        c.run(sample, c.randn(batch, n), c.randn(batch, n, scale=0.5))


rsample_case("rsample", 3, 5, False)
rsample_case("rsample_infer", 3, 5, False, train=False)
rsample_case("rsample_tanh", 3, 5, True)
rsample_case("rsample_tanh_infer", 3, 5, True, train=False)


# Recurrence


def cell_case(name, kind, batch, fan_in, hidden):
    @case(name)
    def _(c):
        lstm = kind == "lstm"
        gates = "i, f, g, o" if lstm else "r, z, n, b_hn within the reset product"
        c.say(f"PyTorch's {kind.upper()}Cell: gates {gates}; x [{batch}, {fan_in}], states of {hidden}", IN=fan_in, HID=hidden)

        def step(x, h, *cell, weight_ih, weight_hh, bias_ih, bias_hh):
            if lstm:
                return torch._VF.lstm_cell(x, (h, *cell), weight_ih, weight_hh, bias_ih, bias_hh)
            return torch._VF.gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh)

        states = [c.randn(batch, hidden) for _ in range(2 if lstm else 1)]
        c.run(step, c.randn(batch, fan_in), *states, params=recurrent_params(c, kind, fan_in, hidden, ""))


def recurrent_params(c, kind, fan_in, hidden, suffix):
    wide = (4 if kind == "lstm" else 3) * hidden
    return {
        f"weight_ih{suffix}": c.randn(wide, fan_in, scale=0.5), f"weight_hh{suffix}": c.randn(wide, hidden, scale=0.5),
        f"bias_ih{suffix}": c.randn(wide, scale=0.5), f"bias_hh{suffix}": c.randn(wide, scale=0.5),
    }


def sequence_case(name, kind, batch, steps, fan_in, hidden, state=False):
    @case(name)
    def _(c):
        lstm = kind == "lstm"
        c.say(
            f"PyTorch's {kind.upper()}, one layer, batch first: x [{batch}, {steps}, {fan_in}], states of {hidden}, "
            + ("from the state given and giving the last" if state else "from zero"),
            IN=fan_in, HID=hidden, T=steps, state=state,
        )

        def run(x, *states, **weights):
            start = states or [torch.zeros(batch, hidden, dtype=torch.float64)] * (2 if lstm else 1)
            start = [s.unsqueeze(0) for s in start]
            flat = [weights[f"{w}_l0"] for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            options = (True, 1, 0.0, True, False, True)
            if lstm:
                y, *last = torch._VF.lstm(x, tuple(start), flat, *options)
            else:
                y, *last = torch._VF.gru(x, start[0], flat, *options)
            return (y, *(s.squeeze(0) for s in last)) if state else y

        states = [c.randn(batch, hidden) for _ in range(2 if lstm else 1)] if state else []
        params = recurrent_params(c, kind, fan_in, hidden, "_l0")
        c.run(run, c.randn(batch, steps, fan_in), *states, params=params)


for kind in ("lstm", "gru"):
    cell_case(f"{kind}_cell", kind, 3, 4, 5)
    cell_case(f"{kind}_cell_square", kind, 2, 3, 3)
    sequence_case(f"{kind}_seq", kind, 3, 6, 4, 5)
    sequence_case(f"{kind}_seq_square", kind, 3, 3, 3, 3)
    sequence_case(f"{kind}_seq_state", kind, 2, 4, 3, 5, state=True)


# Normalisation


def layer_norm_case(name, lead, dim, eps, scale=1.0, shift=0.0, affine=True):
    @case(name)
    def _(c):
        c.say(
            f"LayerNorm over the last {dim}, eps {eps}, {'with' if affine else 'no'} weight and bias, "
            f"input scale {scale} around {shift}",
            D=dim, eps=eps, affine=affine,
        )
        x = c.randn(*lead, dim, scale=scale, shift=shift)
        params = {"weight": c.randn(dim), "bias": c.randn(dim)} if affine else {}
        c.run(lambda x, weight=None, bias=None: F.layer_norm(x, (dim,), weight, bias, eps), x, params=params)


layer_norm_case("layer_norm", [3], 8, 1e-5)
layer_norm_case("layer_norm_tokens", [2, 4], 13, 1e-5)
layer_norm_case("layer_norm_eps12", [3], 8, 1e-12, scale=2.0**-10)
layer_norm_case("layer_norm_small", [3], 9, 1e-5, scale=2.0**-8)
layer_norm_case("layer_norm_large_mean", [3], 16, 1e-5, shift=2000.0)
layer_norm_case("layer_norm_no_affine", [3], 8, 1e-5, affine=False)


def rms_norm_case(name, lead, dim, eps, scale):
    @case(name)
    def _(c):
        c.say(
            f"RMSNorm: x / sqrt(mean(x^2) + eps) * weight over the last {dim}, eps {eps}, input scale {scale}",
            D=dim, eps=eps,
        )
        c.run(
            lambda x, weight: x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight,
            c.randn(*lead, dim, scale=scale),
            params={"weight": c.randn(dim)},
        )


rms_norm_case("rms_norm", [3], 8, 1e-4, 1.0)
rms_norm_case("rms_norm_small", [3], 8, 1e-4, 2.0**-7)
rms_norm_case("rms_norm_eps5_small", [3], 12, 1e-5, 2.0**-9)
rms_norm_case("rms_norm_tokens", [2, 3], 5, 1e-5, 0.5)


def batch_norm_case(name, shape, train, scale=1.0, shift=0.0):
    @case(name)
    def _(c):
        channels, eps, momentum = shape[1], 1e-5, 0.1
        c.say(
            f"BatchNorm over axis 1 of {shape}, {'training' if train else 'inference'}, eps {eps}, momentum {momentum}; "
            "the running variance takes in the unbiased batch variance",
            C=channels, eps=eps, momentum=momentum, train=train,
        )
        x = c.randn(*shape, scale=scale, shift=shift)
        mean, var = c.randn(channels), torch.exp(c.randn(channels)).float().double()
        c.put("state.running_mean", mean)
        c.put("state.running_var", var)
        c.put("state.num_batches_tracked", torch.tensor(7))
        c.run(
            lambda x, weight, bias: F.batch_norm(x, mean, var, weight, bias, train, momentum, eps),
            x,
            params={"weight": c.randn(channels), "bias": c.randn(channels)},
        )
        c.put("state_after.running_mean", mean)
        c.put("state_after.running_var", var)
        c.put("state_after.num_batches_tracked", torch.tensor(8 if train else 7))


batch_norm_case("batch_norm1d_train", [5, 6], True)
batch_norm_case("batch_norm1d_eval", [5, 6], False)
batch_norm_case("batch_norm2d_train", [3, 4, 3, 2], True)
batch_norm_case("batch_norm2d_train_batch1", [1, 5, 3, 4], True)
batch_norm_case("batch_norm2d_train_large_mean", [3, 3, 4, 4], True, shift=1000.0)
batch_norm_case("batch_norm2d_eval", [3, 4, 3, 2], False)


# Convolution, pooling, space


def conv2d_case(name, shape, out, kernel, stride=1, pad=0, dilation=1, groups=1, bias=True):
    @case(name)
    def _(c):
        k = [kernel, kernel] if isinstance(kernel, int) else list(kernel)
        c.say(
            f"Conv2D: x {shape}, OC {out}, kernel {kernel}, stride {stride}, pad {pad}, dilation {dilation}, groups {groups}; "
            "weight [OC, IC/G, KH, KW]",
            IC=shape[1], OC=out, kernel=kernel, stride=stride, pad=pad, dilation=dilation, groups=groups, bias=bias,
        )
        params = {"weight": c.randn(out, shape[1] // groups, *k)}
        if bias:
            params["bias"] = c.randn(out)
        c.run(
            lambda x, weight, bias=None: F.conv2d(x, weight, bias, stride, pad, dilation, groups),
            c.randn(*shape),
            params=params,
        )


conv2d_case("conv2d", [3, 3, 6, 6], 4, 3)
conv2d_case("conv2d_square", [2, 4, 5, 5], 4, 3)
conv2d_case("conv2d_no_bias", [3, 2, 5, 5], 3, 3, bias=False)
conv2d_case("conv2d_stride2_pad1", [3, 2, 7, 7], 3, 3, stride=2, pad=1)
conv2d_case("conv2d_stride2_pad1_even", [2, 3, 8, 8], 2, 3, stride=2, pad=1)
conv2d_case("conv2d_dilation2", [2, 2, 8, 8], 3, 3, pad=1, dilation=2)
conv2d_case("conv2d_groups2", [3, 4, 5, 5], 6, 3, pad=1, groups=2)
conv2d_case("conv2d_depthwise", [3, 5, 5, 5], 5, 3, pad=1, groups=5)
conv2d_case("conv2d_depthwise_stride2", [2, 4, 7, 6], 4, 3, stride=2, pad=1, groups=4)
conv2d_case("conv2d_depthwise_twice", [2, 3, 5, 5], 6, 3, pad=1, groups=3)
conv2d_case("conv2d_oc1", [3, 3, 6, 6], 1, 3)
conv2d_case("conv2d_ic1", [3, 1, 6, 6], 5, 3, pad=1)
conv2d_case("conv2d_1x1", [3, 5, 4, 4], 4, 1)
conv2d_case("conv2d_1x1_stride2", [2, 4, 5, 5], 6, 1, stride=2)
conv2d_case("conv2d_k5_pad2", [2, 2, 6, 6], 3, 5, pad=2)
conv2d_case("conv2d_not_square", [3, 2, 5, 9], 3, 3, stride=2, pad=1)
conv2d_case("conv2d_patch", [2, 3, 8, 4], 6, 4, stride=4)
conv2d_case("conv2d_all", [2, 4, 9, 7], 6, 3, stride=2, pad=2, dilation=2, groups=2)
conv2d_case("conv2d_rect", [2, 3, 7, 8], 4, (3, 2), stride=(2, 1), pad=(0, 1), dilation=(1, 2))


def conv1d_case(name, shape, out, kernel, stride=1, pad=0, dilation=1, groups=1):
    @case(name)
    def _(c):
        c.say(
            f"Conv1D: x {shape}, OC {out}, kernel {kernel}, stride {stride}, pad {pad}, dilation {dilation}, groups {groups}",
            IC=shape[1], OC=out, kernel=kernel, stride=stride, pad=pad, dilation=dilation, groups=groups,
        )
        c.run(
            lambda x, weight, bias: F.conv1d(x, weight, bias, stride, pad, dilation, groups),
            c.randn(*shape),
            params={"weight": c.randn(out, shape[1] // groups, kernel), "bias": c.randn(out)},
        )


conv1d_case("conv1d", [3, 4, 9], 5, 3, pad=1)
conv1d_case("conv1d_stride2_dilation2", [2, 4, 12], 6, 3, stride=2, pad=2, dilation=2, groups=2)


def max_pool2d_case(name, shape, k, stride, pad, draw):
    @case(name)
    def _(c):
        c.say(
            f"MaxPool2D: x {shape}, kernel {k}, stride {stride}, pad {pad} with -inf; "
            "of equal maxima the first in row order takes the gradient",
            kernel=k, stride=stride, pad=pad,
        )
        c.run(lambda x: F.max_pool2d(x, k, stride, pad), draw(c, shape))


def normal(c, shape):
    return c.randn(*shape)


def negative(c, shape):
    return (-1.0 - c.randn(*shape).abs()).float().double()


def ties(c, shape):
    return c.randint(0, 2, *shape).double()


max_pool2d_case("max_pool2d_k2", [3, 2, 6, 4], 2, 2, 0, normal)
max_pool2d_case("max_pool2d_k2_odd", [2, 2, 7, 5], 2, 2, 0, normal)
max_pool2d_case("max_pool2d_k3s2p1", [3, 2, 7, 6], 3, 2, 1, normal)
max_pool2d_case("max_pool2d_k3s2p1_negative", [2, 2, 5, 5], 3, 2, 1, negative)
max_pool2d_case("max_pool2d_k2_ties", [3, 2, 6, 6], 2, 2, 0, ties)
max_pool2d_case("max_pool2d_k3s2p1_ties", [3, 2, 7, 7], 3, 2, 1, ties)
max_pool2d_case("max_pool2d_k3s1p1_ties", [2, 1, 5, 6], 3, 1, 1, ties)


def avg_pool2d_case(name, shape, k, stride, pad):
    @case(name)
    def _(c):
        c.say(
            f"AvgPool2D: x {shape}, kernel {k}, stride {stride}, pad {pad} with zeros that count: always divided by {k * k}",
            kernel=k, stride=stride, pad=pad,
        )
        c.run(lambda x: F.avg_pool2d(x, k, stride, pad, count_include_pad=True), c.randn(*shape))


avg_pool2d_case("avg_pool2d_k2", [3, 2, 6, 4], 2, 2, 0)
avg_pool2d_case("avg_pool2d_k2_odd", [2, 2, 7, 5], 2, 2, 0)
avg_pool2d_case("avg_pool2d_k3s2p1", [3, 2, 7, 6], 3, 2, 1)


@case("global_avg_pool2d")
def _(c):
    c.say("mean over the last two axes of [3, 5, 4, 3]")
    c.run(lambda x: x.mean((-2, -1)), c.randn(3, 5, 4, 3))


def pixel_shuffle_case(name, batch, grid, e, s):
    @case(name)
    def _(c):
        c.say(
            f"PixelShuffle on tokens: GRID {grid}, E {e}, S {s}; out[t, c] = in[h*GRID + w, e] with "
            "t = (h div S)*(GRID/S) + w div S, c = (h mod S)*S*E + (w mod S)*E + e",
            GRID=grid, E=e, S=s,
        )
        tokens, width = (grid // s) ** 2, e * s * s
        source = np.full((tokens, width), -1)
        for h in range(grid):
            for w in range(grid):
                for i in range(e):
                    t = (h // s) * (grid // s) + w // s
                    channel = (h % s) * s * e + (w % s) * e + i
                    source[t, channel] = (h * grid + w) * e + i
        assert sorted(source.flat) == list(range(grid * grid * e))
        index = torch.from_numpy(source.reshape(-1))
        c.run(lambda x: x.reshape(batch, -1)[:, index].reshape(batch, tokens, width), c.randn(batch, grid * grid, e))


pixel_shuffle_case("pixel_shuffle", 3, 4, 3, 2)
pixel_shuffle_case("pixel_shuffle_s3", 2, 6, 2, 3)
pixel_shuffle_case("pixel_shuffle_s4", 2, 4, 5, 4)


# Tokens


@case("embedding")
def _(c):
    c.say("Embedding of 7 rows of 5; ids repeat and one row is never used", V=7, D=5)
    ids = torch.tensor([[1, 6, 1, 0], [2, 2, 1, 5], [6, 4, 0, 1]])
    c.run(lambda ids, weight: F.embedding(ids, weight), ids, params={"weight": c.randn(7, 5)})


@case("embedding_tied")
def _(c):
    c.say("one table both as embedding and as output layer: logits = embed(ids) @ weight.T; the gradients add", V=7, D=5)
    ids = torch.tensor([[1, 6, 1, 0], [2, 2, 1, 5], [6, 4, 0, 1]])
    c.run(lambda ids, weight: F.linear(F.embedding(ids, weight), weight), ids, params={"weight": c.randn(7, 5)})


@case("pos_embed")
def _(c):
    c.say("learned positions added: x [3, 5, 6] plus a table [5, 6]", S=5, D=6)
    c.run(lambda x, weight: x + F.embedding(torch.arange(5), weight), c.randn(3, 5, 6), params={"weight": c.randn(5, 6)})


def sinusoidal_case(name, batch, positions, dim, theta):
    @case(name)
    def _(c):
        c.say(
            f"x [{batch}, {positions}, {dim}]; y[2j] = x + sin(t * {theta}^(-2j/{dim})), y[2j+1] = x + cos of the same, t from 0",
            S=positions, D=dim, theta=theta,
        )
        table = [
            [(math.sin, math.cos)[i % 2](t * theta ** (-(i - i % 2) / dim)) for i in range(dim)] for t in range(positions)
        ]
        c.run(lambda x: x + torch.tensor(table, dtype=torch.float64), c.randn(batch, positions, dim))


sinusoidal_case("sinusoidal_pos_add", 3, 5, 8, 10000.0)
sinusoidal_case("sinusoidal_pos_add_theta100", 2, 7, 6, 100.0)


def rope_case(name, batch, positions, heads, dim, theta=10000.0, offset=0, rotated=None, interleaved=False):
    @case(name)
    def _(c):
        rotary = rotated or dim
        pair = "(2j, 2j+1)" if interleaved else f"(j, j+{rotary // 2})"
        c.say(
            f"RoPE: x [B, S, H*D] = {[batch, positions, heads * dim]}, H {heads}, D {dim}, theta {theta}, first position {offset}, "
            f"the first {rotary} of each head turned, pairs {pair}, angle = position * theta^(-2j/{rotary})",
            S=positions, H=heads, D=dim, theta=theta, offset=offset, rotary=rotary, interleaved=interleaved,
        )

        def rope(x):
            rows = []
            for b in range(batch):
                for s in range(positions):
                    row = [x[b, s, i] for i in range(heads * dim)]
                    for h in range(heads):
                        for j in range(rotary // 2):
                            angle = (offset + s) * theta ** (-2.0 * j / rotary)
                            first = h * dim + (2 * j if interleaved else j)
                            second = h * dim + (2 * j + 1 if interleaved else j + rotary // 2)
                            p, q = x[b, s, first], x[b, s, second]
                            row[first] = p * math.cos(angle) - q * math.sin(angle)
                            row[second] = p * math.sin(angle) + q * math.cos(angle)
                    rows.append(torch.stack(row))
            return torch.stack(rows).reshape(batch, positions, heads * dim)

        c.run(rope, c.randn(batch, positions, heads * dim))


rope_case("rope", 3, 5, 2, 8)
rope_case("rope_d2", 2, 4, 3, 2)
rope_case("rope_theta1e5_offset", 2, 4, 3, 6, theta=1e5, offset=37)
rope_case("rope_partial", 2, 4, 2, 8, rotated=4)
rope_case("rope_interleaved", 3, 5, 2, 8, interleaved=True)
rope_case("rope_interleaved_offset", 2, 4, 3, 6, offset=37, interleaved=True)


# Attention


def heads_first(x, heads):
    """[B, S, H*D] -> [B, H, S, D]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def tokens_first(y):
    """[B, H, S, D] -> [B, S, H*D]"""
    return y.transpose(1, 2).flatten(2)


def attention_case(name, batch, tokens, heads, dim, causal=False, major=False):
    @case(name)
    def _(c):
        shape = [batch, 3, heads, tokens, dim] if major else [batch, tokens, 3 * heads * dim]
        what = "q, k and v head by head" if major else "token by token, q of all heads, then k, then v"
        c.say(
            f"attention, {'causal' if causal else 'all to all'}: x {shape}, {what}; y [B, S, H*D]",
            S=tokens, H=heads, D=dim, causal=causal, major=major,
        )

        def attend(x):
            q, k, v = x.unbind(1) if major else [heads_first(part, heads) for part in x.chunk(3, -1)]
            return tokens_first(F.scaled_dot_product_attention(q, k, v, is_causal=causal))

        c.run(attend, c.randn(*shape))


attention_case("attention_major", 3, 5, 2, 4, major=True)
attention_case("attention_major_causal", 2, 6, 3, 2, causal=True, major=True)
attention_case("attention_qkv", 3, 5, 2, 3)
attention_case("attention_causal", 3, 7, 2, 4, causal=True)
attention_case("attention_causal_one_token", 2, 1, 2, 3, causal=True)
attention_case("attention_causal_d1", 2, 9, 3, 1, causal=True)
attention_case("attention_causal_d80", 1, 5, 2, 80, causal=True)
attention_case("attention_causal_long", 1, 131, 1, 5, causal=True)


@case("qkv_to_major")
def _(c):
    c.say("QKVToMajor: [B, S, 3*H*D] -> [B, 3, H, S, D]", S=5, H=2, D=3)
    c.run(lambda x: x.unflatten(-1, (3, 2, 3)).permute(0, 2, 3, 1, 4), c.randn(3, 5, 18))


def gqa_case(name, batch, tokens, heads, kv_heads, dim, causal=True):
    @case(name)
    def _(c):
        c.say(
            f"grouped-query attention, {'causal' if causal else 'all to all'}: q [B, S, H*D], k and v [B, S, KV*D]",
            S=tokens, H=heads, KV=kv_heads, D=dim, causal=causal,
        )

        def attend(q, k, v):
            q, k, v = heads_first(q, heads), heads_first(k, kv_heads), heads_first(v, kv_heads)
            return tokens_first(F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True))

        keys = [batch, tokens, kv_heads * dim]
        c.run(attend, c.randn(batch, tokens, heads * dim), c.randn(*keys), c.randn(*keys))


gqa_case("gqa", 3, 5, 6, 2, 3)
gqa_case("gqa_open", 2, 4, 4, 2, 5, causal=False)
gqa_case("gqa_one_head", 2, 5, 3, 1, 4)
gqa_case("gqa_full", 2, 5, 3, 3, 2)


@case("repeat_kv_heads")
def _(c):
    c.say("RepeatKVHeads: [B, S, KV*D] -> [B, S, KV*REP*D], repeat_interleave over heads", S=4, KV=2, REP=3, D=5)
    c.run(lambda x: x.unflatten(-1, (2, 5)).repeat_interleave(3, -2).flatten(2), c.randn(3, 4, 10))


def cross_attention_case(name, batch, queries, keys, heads, dim, masks=None):
    @case(name)
    def _(c):
        c.say(
            f"attention of {queries} tokens to {keys} others: q [B, Q, DIM], k and v [B, KV, DIM]"
            + (", mask [B, KV], 1 = attend" if masks else ""),
            DIM=dim, H=heads, Q=queries, KV=keys, masked=bool(masks),
        )

        def attend(q, k, v, mask=None):
            q, k, v = [heads_first(x, heads) for x in (q, k, v)]
            if mask is None:
                return tokens_first(F.scaled_dot_product_attention(q, k, v))
            seen = (mask != 0)[:, None, None, :].expand(-1, heads, queries, -1)
            y = tokens_first(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
            # A mask has no influence but through what it hides: its gradient is 0.
            return y + 0.0 * mask.sum()

        inputs = [c.randn(batch, queries, dim), c.randn(batch, keys, dim), c.randn(batch, keys, dim)]
        if masks:
            inputs.append(torch.tensor(masks, dtype=torch.float64))
        c.run(attend, *inputs)


cross_attention_case("cross_attention", 3, 4, 6, 2, 6)
cross_attention_case("cross_attention_one_query", 2, 1, 5, 1, 4)
cross_attention_case(
    "cross_attention_masked", 3, 2, 5, 2, 4, [[1, 1, 1, 1, 1], [1, 0, 0, 1, 0], [0, 1, 0, 0, 0]]
)
# PyTorch too gives zeros where nothing is seen.
cross_attention_case("cross_attention_nothing_seen", 2, 3, 4, 1, 4, [[0, 0, 0, 0], [0, 0, 1, 1]])


# Binary and structural


@case("add")
def _(c):
    c.say("sum of two inputs")
    c.run(lambda a, b: a + b, c.randn(3, 4, 5), c.randn(3, 4, 5))


@case("mul")
def _(c):
    c.say("elementwise product of two inputs")
    c.run(lambda a, b: a * b, c.randn(3, 4, 5), c.randn(3, 4, 5))


@case("add_same")
def _(c):
    c.say("one input used twice, x + x: its gradients add")
    c.run(lambda a: a + a, c.randn(3, 6))


@case("mul_same")
def _(c):
    c.say("one input used twice, x * x: its gradients add")
    c.run(lambda a: a * a, c.randn(3, 6))


def concat_case(name, axis, *shapes):
    @case(name)
    def _(c):
        c.say(f"Concat along axis {axis} of a sample, batch not counted: {list(shapes)}", axis=axis)
        c.run(lambda *xs: torch.cat(xs, dim=axis + 1), *[c.randn(*s) for s in shapes])


concat_case("concat_axis0", 0, [3, 5], [3, 8])
concat_case("concat_axis0_planes", 0, [3, 2, 4, 3], [3, 1, 4, 3], [3, 3, 4, 3])
concat_case("concat_axis1", 1, [3, 4, 2], [3, 4, 5])


def slice_case(name, shape, axis, start, length):
    @case(name)
    def _(c):
        c.say(
            f"Slice of {shape} along axis {axis} of a sample, batch not counted: from {start}, {length} long",
            axis=axis, start=start, length=length,
        )
        c.run(lambda x: x.narrow(axis + 1, start, length), c.randn(*shape))


slice_case("slice_axis0", [3, 9], 0, 2, 4)
slice_case("slice_axis0_planes", [3, 5, 2, 3], 0, 1, 3)
slice_case("slice_axis1", [3, 4, 7], 1, 3, 4)


# Losses


def mse_case(reduction):
    @case(f"loss_mse_{reduction}")
    def _(c):
        c.say(f"MSE of x0 (prediction) against x1 (target), {reduction} over all entries", reduction=reduction)
        c.run(lambda x, t: F.mse_loss(x, t, reduction=reduction), c.randn(4, 5), c.randn(4, 5))


mse_case("mean")
mse_case("sum")


def cross_entropy_case(name, reduction, smoothing=0.0, ids=(2, 0, 4, 2, 3, 1), ignore=None, offset=0.0):
    @case(name)
    def _(c):
        c.say(
            f"CrossEntropy of logits x0 [6, 5] and ids x1, {reduction}, label smoothing {smoothing}, "
            + ("nothing ignored" if ignore is None else f"id {ignore} ignored: no loss, no gradient, not in the mean's count"),
            reduction=reduction, label_smoothing=smoothing, ignore_index=ignore,
        )
        c.run(
            lambda x, t: F.cross_entropy(
                x, t, reduction=reduction, label_smoothing=smoothing, ignore_index=-100 if ignore is None else ignore
            ),
            c.randn(6, 5, scale=2.0, shift=offset),
            torch.tensor(ids),
        )


for reduction in ("mean", "sum", "none"):
    cross_entropy_case(f"loss_cross_entropy_{reduction}", reduction)
    cross_entropy_case(f"loss_cross_entropy_{reduction}_smooth", reduction, smoothing=0.1)
    cross_entropy_case(f"loss_cross_entropy_{reduction}_ignore", reduction, ignore=2)
    cross_entropy_case(f"loss_cross_entropy_{reduction}_smooth_ignore", reduction, smoothing=0.1, ignore=2)
cross_entropy_case("loss_cross_entropy_mean_ignore_negative", "mean", ids=(1, -100, 4, -100, 3, 0), ignore=-100)
cross_entropy_case("loss_cross_entropy_mean_offset", "mean", offset=1e4)


# Optimisers, clipping, schedules


def optimiser_case(name, make, **hyper):
    @case(name)
    def _(c):
        c.say(
            f"5 steps of {make.__name__} from p0: step t takes gradient g[t] and gives p[t+1]",
            optimiser=make.__name__, **hyper,
        )
        p = torch.nn.Parameter(c.randn(7))
        optimiser = make([p], foreach=False, **hyper)
        c.put("p0", p)
        for t in range(5):
            # Unequal sizes over time, so that a wrong bias correction or a swapped beta shows.
            p.grad = c.randn(7, scale=2.0 ** (t - 2))
            c.put(f"g{t}", p.grad)
            optimiser.step()
            c.put(f"p{t + 1}", p)


SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
optimiser_case("optim_sgd", SGD, lr=0.1)
optimiser_case("optim_sgd_weight_decay", SGD, lr=0.1, weight_decay=0.01)
optimiser_case("optim_sgd_momentum", SGD, lr=0.1, momentum=0.9)
optimiser_case("optim_sgd_nesterov", SGD, lr=0.1, momentum=0.9, nesterov=True)
optimiser_case("optim_sgd_momentum_weight_decay", SGD, lr=0.05, momentum=0.9, weight_decay=0.01)
optimiser_case("optim_sgd_nesterov_weight_decay", SGD, lr=0.05, momentum=0.8, weight_decay=0.01, nesterov=True)
optimiser_case("optim_adam", Adam, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
optimiser_case("optim_adam_large_eps", Adam, lr=0.1, betas=(0.8, 0.95), eps=0.1, weight_decay=0.0)
optimiser_case("optim_adam_weight_decay", Adam, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
optimiser_case("optim_adamw", AdamW, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
optimiser_case("optim_adamw_large_eps", AdamW, lr=0.1, betas=(0.8, 0.95), eps=0.1, weight_decay=0.01)


def clip_norm_case(name, scale):
    @case(name)
    def _(c):
        limit = 1.0
        c.say(
            f"gradients g0.. clipped to a joint 2-norm of {limit}: c0.. = g * min(1, {limit} / (norm + 1e-6)); norm is the one before",
            max_norm=limit,
        )
        ps = [torch.nn.Parameter(torch.zeros(*s, dtype=torch.float64)) for s in ([5], [2, 3], [1])]
        for i, p in enumerate(ps):
            p.grad = c.randn(*p.shape, scale=scale)
            c.put(f"g{i}", p.grad)
        c.put("norm", torch.nn.utils.clip_grad_norm_(ps, limit, foreach=False))
        for i, p in enumerate(ps):
            c.put(f"c{i}", p.grad)


clip_norm_case("clip_grad_norm", 2.0)
clip_norm_case("clip_grad_norm_below", 2.0**-6)


@case("clip_grad_value")
def _(c):
    c.say("each entry of g0 clipped to [-0.5, 0.5], giving c0", clip_value=0.5)
    p = torch.nn.Parameter(torch.zeros(9, dtype=torch.float64))
    p.grad = c.randn(9)
    c.put("g0", p.grad)
    torch.nn.utils.clip_grad_value_([p], 0.5, foreach=False)
    c.put("c0", p.grad)


def schedule_case(name, text, make, formula, count=21, **hyper):
    @case(name)
    def _(c):
        c.say(f"{text}; lr[t] is what step t uses, t = 0..{count - 1}", **hyper)
        optimiser = SGD([torch.nn.Parameter(torch.zeros(1))], lr=hyper["lr"])
        schedule = make(optimiser)
        values = []
        for t in range(count):
            values.append(optimiser.param_groups[0]["lr"])
            if t + 1 < count:
                optimiser.step()
                schedule.step()
        closed = [formula(t) for t in range(count)]
        np.testing.assert_allclose(values, closed, rtol=0, atol=1e-14, err_msg=name)
        c.put("lr", torch.tensor(closed, dtype=torch.float64))


def cosine(t, steps, high, low):
    return low + (high - low) * (1 + math.cos(math.pi * t / steps)) / 2


schedules = torch.optim.lr_scheduler
schedule_case(
    "schedule_cosine",
    "CosineAnnealingLR from 0.1 to 0.001 in 20 steps",
    lambda o: schedules.CosineAnnealingLR(o, 20, 0.001),
    lambda t: cosine(t, 20, 0.1, 0.001),
    lr=0.1, steps=20, min=0.001,
)
schedule_case(
    "schedule_warmup_cosine",
    "LinearLR from 0.1 * 0.25 to 0.1 in 5 steps, then CosineAnnealingLR to 0 in 15",
    lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.25, 1.0, 5), schedules.CosineAnnealingLR(o, 15, 0.0)], [5]
    ),
    lambda t: 0.1 * (0.25 + 0.75 * t / 5) if t < 5 else cosine(t - 5, 15, 0.1, 0.0),
    lr=0.1, start_factor=0.25, warmup=5, steps=15, min=0.0,
)
schedule_case(
    "schedule_linear",
    "LinearLR from 0.1 * 0.25 to 0.1 in 5 steps, then constant",
    lambda o: schedules.LinearLR(o, 0.25, 1.0, 5),
    lambda t: 0.1 * (0.25 + 0.75 * min(t, 5) / 5),
    lr=0.1, start_factor=0.25, warmup=5,
)
schedule_case(
    "schedule_one_cycle",
    "OneCycleLR over 20 steps: cosine from 0.1/25 up to 0.1 at step 5 (0.3 * 20 - 1), cosine down to 0.1/25/1e4 at step 19",
    lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20),
    lambda t: cosine(t, 5, 0.004, 0.1) if t <= 5 else cosine(t - 5, 14, 0.1, 0.004 / 1e4),
    count=20,
    lr=0.1, total_steps=20, pct_start=0.3, div_factor=25.0, final_div_factor=1e4,
)


# Whole networks


@case("net_lenet")
def _(c):
    c.say(
        "conv1(1-4, 3x3, pad 1) relu maxpool2 conv2(4-6, 3x3, pad 1) relu maxpool2 flatten fc1(24-10) relu fc2(10-5) on x0 [3, 1, 8, 8]; "
        "y0 is the cross-entropy (mean) with the ids x1, its upstream gradient 1"
    )
    logits = []

    def net(x, ids, conv1_weight, conv1_bias, conv2_weight, conv2_bias, fc1_weight, fc1_bias, fc2_weight, fc2_bias):
        h = F.max_pool2d(torch.relu(F.conv2d(x, conv1_weight, conv1_bias, padding=1)), 2)
        h = F.max_pool2d(torch.relu(F.conv2d(h, conv2_weight, conv2_bias, padding=1)), 2)
        h = torch.relu(F.linear(h.flatten(1), fc1_weight, fc1_bias))
        logits.append(F.linear(h, fc2_weight, fc2_bias))
        return F.cross_entropy(logits[0], ids)

    def layer(name, *shape):
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        return {f"{name}.weight": c.randn(*shape, scale=bound), f"{name}.bias": c.randn(shape[0], scale=bound)}

    params = layer("conv1", 4, 1, 3, 3) | layer("conv2", 6, 4, 3, 3) | layer("fc1", 10, 24) | layer("fc2", 5, 10)
    one = [torch.tensor(1.0, dtype=torch.float64)]
    c.run(net, c.randn(3, 1, 8, 8), torch.tensor([4, 0, 2]), params=params, upstream=one)
    c.put("logits", logits[0])


@case("net_residual_mlp")
def _(c):
    c.say("y = x + down(gelu_tanh(up(ln(x)))): x [3, 4, 6], hidden 16, LayerNorm eps 1e-5", D=6, H=16, eps=1e-5)

    def block(x, ln_weight, ln_bias, up_weight, up_bias, down_weight, down_bias):
        h = F.linear(F.layer_norm(x, (6,), ln_weight, ln_bias, 1e-5), up_weight, up_bias)
        return x + F.linear(F.gelu(h, approximate="tanh"), down_weight, down_bias)

    params = {
        "ln.weight": c.randn(6), "ln.bias": c.randn(6),
        "up.weight": c.randn(16, 6, scale=0.5), "up.bias": c.randn(16, scale=0.5),
        "down.weight": c.randn(6, 16, scale=0.25), "down.bias": c.randn(6, scale=0.25),
    }
    c.run(block, c.randn(3, 4, 6), params=params)


@case("net_lora_block")
def _(c):
    dim, heads, kv_heads, hidden, vocabulary, rank, scale = 16, 4, 2, 24, 11, 3, 1.5
    tokens, keep, theta, eps = 6, 5, 1e4, 1e-6
    head = dim // heads
    c.say(
        "Qwen2-style block fine-tuned by low-rank matrices on q, k, v, o, gate, up and down, all else frozen: h = x + o(attend(rope(q(n)), rope(k(n)), v(n))), "
        "n = norm1(x); y = h + down(silu(gate(m)) * up(m)), m = norm2(h); logits head(norm(y)). y0 is the cross-entropy with the ids x1 of the "
        f"first {keep} rows of each sample, mean, its upstream gradient 1",
        D=dim, H=heads, KV=kv_heads, FF=hidden, V=vocabulary, R=rank, scale=scale, S=tokens, keep=keep, theta=theta, eps=eps,
    )
    widths = {
        "q": (dim, dim), "k": (dim, kv_heads * head), "v": (dim, kv_heads * head), "o": (dim, dim),
        "gate": (dim, hidden), "up": (dim, hidden), "down": (hidden, dim),
    }
    params, frozen = {}, {}
    for name, (fan_in, fan_out) in widths.items():
        frozen[f"{name}.weight"] = c.randn(fan_out, fan_in, scale=fan_in**-0.5)
        if name in "qkv":
            frozen[f"{name}.bias"] = c.randn(fan_out, scale=0.5)
        params[f"{name}.lora_A.weight"] = c.randn(rank, fan_in, scale=fan_in**-0.5)
        params[f"{name}.lora_B.weight"] = c.randn(fan_out, rank, scale=0.5)
    for name in ("norm1", "norm2", "norm"):
        frozen[f"{name}.weight"] = c.randn(dim, scale=0.25, shift=1.0)
    frozen["head.weight"] = c.randn(vocabulary, dim, scale=0.5)
    for name, value in frozen.items():
        c.put(f"state.{name}", value)

    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * theta ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

    def turn(x):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    logits = []

    def net(x, ids, **p):
        def linear(name, x):
            base = F.linear(x, frozen[f"{name}.weight"], frozen.get(f"{name}.bias"))
            return base + scale * F.linear(F.linear(x, p[f"{name}_lora_A_weight"]), p[f"{name}_lora_B_weight"])

        def norm(name, x):
            return F.rms_norm(x, (dim,), frozen[f"{name}.weight"], eps)

        n = norm("norm1", x)
        q, k = turn(heads_first(linear("q", n), heads)), turn(heads_first(linear("k", n), kv_heads))
        v = heads_first(linear("v", n), kv_heads)
        attended = tokens_first(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        h = x + linear("o", attended)
        m = norm("norm2", h)
        y = h + linear("down", F.silu(linear("gate", m)) * linear("up", m))
        logits.append(F.linear(norm("norm", y), frozen["head.weight"]))
        return F.cross_entropy(logits[0][:, :keep].flatten(0, 1), ids.flatten())

    one = [torch.tensor(1.0, dtype=torch.float64)]
    c.run(net, c.randn(2, tokens, dim), c.randint(0, vocabulary, 2, keep), params=params, upstream=one)
    c.put("logits", logits[0])


def build(name):
    c = Case(name)
    CASES[name](c)
    for tensor, value in c.tensors.items():
        assert np.isfinite(value).all(), f"{name}: {tensor} is not finite"
    metadata = {"case": c.text, "hyper": json.dumps(c.hyper, separators=(",", ":")), "torch": TORCH}
    return c.tensors, metadata


def write():
    FIXTURES.mkdir(exist_ok=True)
    for stale in FIXTURES.glob("*.safetensors"):
        if stale.stem not in CASES:
            stale.unlink()
    for name in CASES:
        tensors, metadata = build(name)
        tensorfile.save(FIXTURES / f"{name}.safetensors", tensors, metadata)
    total = sum(f.stat().st_size for f in FIXTURES.glob("*.safetensors"))
    print(f"{len(CASES)} fixtures, {total / 1024:.0f} KiB, in {FIXTURES}")


def check():
    from safetensors import safe_open

    have = {f.stem for f in FIXTURES.glob("*.safetensors")}
    assert have == set(CASES), f"missing {sorted(set(CASES) - have)}, not wanted {sorted(have - set(CASES))}"
    for name in CASES:
        tensors, metadata = build(name)
        with safe_open(FIXTURES / f"{name}.safetensors", "numpy") as file:
            assert set(file.keys()) == set(tensors), name
            stored = {k: v for k, v in file.metadata().items() if k != "torch"}
            assert stored == {k: v for k, v in metadata.items() if k != "torch"}, name
            for tensor, value in tensors.items():
                there = file.get_tensor(tensor)
                # Another processor may sum in another order, no more.
                bound = 1e-13 * max(1.0, float(np.abs(value).max()))
                assert (there.dtype, there.shape) == (value.dtype, value.shape), f"{name}: {tensor}"
                np.testing.assert_allclose(there, value, rtol=1e-13, atol=bound, err_msg=f"{name}: {tensor}")
    print(f"{len(CASES)} fixtures agree")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # SequentialLR rouses this in its own parts.
    warnings.filterwarnings("ignore", message="The epoch parameter")
    if sys.argv[1:] == ["--check"]:
        check()
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        write()
