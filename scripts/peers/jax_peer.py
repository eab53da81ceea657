"""The peer for JAX on a CPU."""

import re

import protocol  # before jax: it fixes the number of threads

protocol.keep_to_cores()
protocol.keep_memory()

import jax
import jax.numpy as jnp
import numpy as np
import optax

SEED = 20
LEARNING_RATE = 1e-3


class Random:
    """Seeded normal numbers and labels."""

    def __init__(self):
        self.numbers = np.random.default_rng(SEED)

    def normal(self, *shape, scale=1.0):
        return jnp.asarray(scale * self.numbers.standard_normal(shape, dtype=np.float32))

    def labels(self, classes, *shape):
        return jnp.asarray(self.numbers.integers(classes, size=shape, dtype=np.int32))

    def linear(self, fan_in, fan_out):
        """Weight and bias."""
        return self.normal(fan_in, fan_out, scale=fan_in**-0.5), self.normal(fan_out, scale=0.1)


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def forward(function, params, *inputs):
    """Inference, compiled."""
    run = jax.jit(function)

    def call():
        return jax.block_until_ready(run(params, *inputs))

    return call, count(params)


def train_with_state(loss_of, params, state, inputs, target, optimiser=None):
    """A train step in one compiled function, which updates everything in place; the loss is read back.

    `loss_of(params, state, inputs, target)` gives the loss and the model's own state after the step.
    """
    steps = optimiser or optax.adam(LEARNING_RATE)

    def step(params, moments, state, inputs, target):
        losses = jax.value_and_grad(loss_of, has_aux=True)
        (loss, state), gradients = losses(params, state, inputs, target)
        updates, moments = steps.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, state, loss

    run = jax.jit(step, donate_argnums=(0, 1, 2))
    size = count(params)
    moments = steps.init(params)

    def call():
        nonlocal params, moments, state
        params, moments, state, loss = run(params, moments, state, inputs, target)
        return float(loss)

    return call, size


def train(loss_of, params, inputs, target, optimiser=None):
    """A train step of a model without a state of its own."""

    def stateless(params, state, inputs, target):
        return loss_of(params, inputs, target), state

    return train_with_state(stateless, params, (), inputs, target, optimiser)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def on_labels(model):
    """The loss of a model that gives logits."""
    return lambda params, inputs, labels: cross_entropy(model(params, inputs), labels)


def mean_square(output, target):
    return jnp.mean((output - target) ** 2)


def linear(layer, x):
    weight, bias = layer
    return x @ weight + bias


# Models: w1, w2


def mlp(activation):
    """A stack of linears with an activation between them."""

    def apply(layers, x):
        for layer in layers[:-1]:
            x = activation(linear(layer, x))
        return linear(layers[-1], x)

    return apply


def layers_of(random, *sizes):
    return [random.linear(a, b) for a, b in zip(sizes, sizes[1:])]


def w1(random, kind, batch):
    batch = int(batch)
    apply, params = mlp(jnp.tanh), layers_of(random, 8, 64, 64, 4)
    inputs = random.normal(batch, 8)
    if kind == "forward":
        return forward(apply, params, inputs)
    return train(lambda params, x, y: mean_square(apply(params, x), y), params, inputs, random.normal(batch, 4))


def w2(random, kind):
    apply, params = mlp(jax.nn.relu), layers_of(random, 784, 256, 128, 10)
    inputs = random.normal(64, 784)
    if kind == "forward":
        return forward(apply, params, inputs)
    return train(on_labels(apply), params, inputs, random.labels(10, 64))


# Convolutional networks: w3, w4


def convolve(x, weight, stride=1):
    """Images as [batch, height, width, channels], which is XLA's own order on a CPU; padding keeps their size."""
    pad = weight.shape[0] // 2
    order = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=order)


def conv_weight(random, size, fan_in, fan_out):
    return random.normal(size, size, fan_in, fan_out, scale=(size * size * fan_in) ** -0.5)


def max_pool(x):
    """Windows of 2×2 that don't overlap."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def small_cnn(params, x):
    (w1, b1), (w2, b2), last = params
    x = max_pool(jax.nn.relu(convolve(x, w1) + b1))
    x = max_pool(jax.nn.relu(convolve(x, w2) + b2))
    return linear(last, x.reshape(x.shape[0], -1))


def w3(random, kind):
    convs = [(conv_weight(random, 3, a, b), random.normal(b, scale=0.1)) for a, b in ((1, 16), (16, 32))]
    params = [*convs, random.linear(1568, 10)]
    inputs = random.normal(32, 28, 28, 1)
    if kind == "forward":
        return forward(small_cnn, params, inputs)
    return train(on_labels(small_cnn), params, inputs, random.labels(10, 32))


def batch_norm(norm, x):
    """In training mode: with the batch's own mean and variance, which are given back for the running ones."""
    scale, shift = norm
    mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    return (x - mean) * (scale * jax.lax.rsqrt(variance + 1e-5)) + shift, (mean, variance)


def conv_norm(params, x, stride=1):
    weight, norm = params
    return batch_norm(norm, convolve(x, weight, stride))


def residual(params, x):
    """A basic block; one with a shortcut of its own halves the image."""
    stride = 2 if "shortcut" in params else 1
    inner, first = conv_norm(params["first"], x, stride)
    inner, second = conv_norm(params["second"], jax.nn.relu(inner))
    if "shortcut" not in params:
        return jax.nn.relu(inner + x), [first, second]
    outer, third = conv_norm(params["shortcut"], x, stride)
    return jax.nn.relu(inner + outer), [first, second, third]


def resnet20(params, x):
    """Logits, and every norm's mean and variance."""
    x, seen = conv_norm(params["stem"], x)
    x, statistics = jax.nn.relu(x), [seen]
    for block in params["blocks"]:
        x, seen = residual(block, x)
        statistics += seen
    return linear(params["last"], x.mean(axis=(1, 2))), statistics


def conv_norm_params(random, size, fan_in, fan_out):
    return conv_weight(random, size, fan_in, fan_out), (1 + random.normal(fan_out, scale=0.1), random.normal(fan_out))


def residual_params(random, fan_in, fan_out):
    params = {
        "first": conv_norm_params(random, 3, fan_in, fan_out),
        "second": conv_norm_params(random, 3, fan_out, fan_out),
    }
    if fan_in != fan_out:
        params["shortcut"] = conv_norm_params(random, 1, fan_in, fan_out)
    return params


def resnet20_params(random):
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    return {
        "stem": conv_norm_params(random, 3, 3, 16),
        "blocks": [residual_params(random, a, b) for a, b in zip(widths, widths[1:])],
        "last": random.linear(64, 10),
    }


def w4(random):
    params = resnet20_params(random)
    inputs, labels = random.normal(32, 32, 32, 3), random.labels(10, 32)
    running = jax.tree.map(jnp.zeros_like, jax.eval_shape(resnet20, params, inputs)[1])

    def loss_of(params, running, inputs, labels):
        logits, seen = resnet20(params, inputs)
        running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, seen)
        return cross_entropy(logits, labels), running

    return train_with_state(loss_of, params, running, inputs, labels)


# The character-level GPT: w5

GPT_DIM, GPT_HEADS, GPT_BLOCKS, GPT_LENGTH, GPT_VOCABULARY = 128, 4, 4, 128, 65


def layer_norm(norm, x):
    scale, shift = norm
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


def causal_attention(q, k, v):
    """On [batch, head, position, dim], which is faster on a CPU than `jax.nn.dot_product_attention` and its layout."""
    length, dim = q.shape[-2:]
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * dim**-0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)), v)


def gpt_attention(params, x):
    """On rows of [batch · position]."""
    rows, dim = x.shape
    qkv = linear(params["qkv"], x).reshape(-1, GPT_LENGTH, 3, GPT_HEADS, dim // GPT_HEADS)
    mixed = causal_attention(*qkv.transpose(2, 0, 3, 1, 4))
    return linear(params["out"], mixed.transpose(0, 2, 1, 3).reshape(rows, dim))


def gpt(params, tokens):
    """Logits as [batch · position, vocabulary]: the products are faster in two dimensions."""
    x = (params["tokens"][tokens] + params["positions"]).reshape(-1, GPT_DIM)
    for block in params["blocks"]:
        x = x + gpt_attention(block, layer_norm(block["attention_norm"], x))
        x = x + linear(block["down"], gelu(linear(block["up"], layer_norm(block["mlp_norm"], x))))
    return layer_norm(params["norm"], x) @ params["head"]


def norm_params(random, dim):
    return 1 + random.normal(dim, scale=0.1), random.normal(dim, scale=0.1)


def gpt_block_params(random):
    return {
        "attention_norm": norm_params(random, GPT_DIM),
        "qkv": random.linear(GPT_DIM, 3 * GPT_DIM),
        "out": random.linear(GPT_DIM, GPT_DIM),
        "mlp_norm": norm_params(random, GPT_DIM),
        "up": random.linear(GPT_DIM, 4 * GPT_DIM),
        "down": random.linear(4 * GPT_DIM, GPT_DIM),
    }


def w5(random):
    params = {
        "tokens": random.normal(GPT_VOCABULARY, GPT_DIM, scale=0.02),
        "positions": random.normal(GPT_LENGTH, GPT_DIM, scale=0.02),
        "blocks": [gpt_block_params(random) for _ in range(GPT_BLOCKS)],
        "norm": norm_params(random, GPT_DIM),
        "head": random.normal(GPT_DIM, GPT_VOCABULARY, scale=GPT_DIM**-0.5),
    }
    tokens, targets = random.labels(GPT_VOCABULARY, 8, GPT_LENGTH), random.labels(GPT_VOCABULARY, 8 * GPT_LENGTH)
    return train(on_labels(gpt), params, tokens, targets, optax.adamw(LEARNING_RATE, weight_decay=0.1))


# Single layers: w6


def rms_norm(scale, x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotation(positions, dim):
    """The cosines and the sines of every position's angles."""
    frequencies = 10000.0 ** (-np.arange(0, dim, 2) / dim)
    angles = np.outer(np.arange(positions), frequencies)
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def rotated(x, cos, sin):
    """The first half of the last axis paired with the second."""
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def rope(random):
    cos, sin = (table[:, None] for table in rotation(256, 64))
    return (lambda _, x: rotated(x, cos, sin)), (), (random.normal(2, 256, 6, 64),)


def attention(random):
    return (lambda _, q, k, v: causal_attention(q, k, v)), (), tuple(random.normal(2, 6, 256, 64) for _ in range(3))


def conv_layer(random):
    params = conv_weight(random, 3, 64, 64), random.normal(64)
    return (lambda params, x: convolve(x, params[0]) + params[1]), params, (random.normal(32, 32, 32, 64),)


def embedding(random):
    return (lambda table, ids: table[ids]), random.normal(65536, 256), (random.labels(65536, 4096),)


LAYERS = {
    "linear-64x256x256": lambda random: (linear, random.linear(256, 256), (random.normal(64, 256),)),
    "linear-1024x768x3072": lambda random: (linear, random.linear(768, 3072), (random.normal(1024, 768),)),
    "layer-norm": lambda random: (layer_norm, norm_params(random, 768), (random.normal(1024, 768),)),
    "rms-norm": lambda random: (rms_norm, random.normal(768), (random.normal(1024, 768),)),
    "softmax": lambda random: ((lambda _, x: jax.nn.softmax(x)), (), (random.normal(1024, 768),)),
    "gelu": lambda random: ((lambda _, x: gelu(x)), (), (random.normal(1048576),)),
    "attention": attention,
    "conv": conv_layer,
    "rope": rope,
    "embedding": embedding,
}


def vjp(random, function, params, inputs):
    """Forward, then the gradients of the parameters and of every input that has one."""
    dy = random.normal(*jax.eval_shape(function, params, *inputs).shape)
    smooth = all(jnp.issubdtype(x.dtype, jnp.floating) for x in inputs)

    def both(params, inputs, dy):
        if smooth:
            y, back = jax.vjp(lambda params, inputs: function(params, *inputs), params, inputs)
        else:
            y, back = jax.vjp(lambda params: function(params, *inputs), params)
        return y, back(dy)

    run = jax.jit(both)

    def call():
        return jax.block_until_ready(run(params, inputs, dy))

    return call, count(params)


def w6(random, layer, kind):
    if layer not in LAYERS:
        raise protocol.Unsupported("this peer has no such layer")
    function, params, inputs = LAYERS[layer](random)
    if kind == "-vjp":
        return vjp(random, function, params, inputs)
    return forward(function, params, *inputs)


# One token through a Llama-shaped stack: w7

DIM, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, BLOCKS, VOCABULARY = 512, 8, 4, 64, 1408, 8, 32000
POSITION = 256


def product(x, weight):
    """x·W, where W is stored as [in, out] in f32, or as [out, in] in bf16 or as 8-bit numbers with a scale a row.

    XLA fuses the conversion into the product only when it has W as [out, in]; in f32 the other order is faster.
    """
    if isinstance(weight, tuple):
        numbers, scales = weight
        return (x @ numbers.astype(x.dtype).T) * scales
    if weight.dtype == jnp.bfloat16:
        return x @ weight.astype(x.dtype).T
    return x @ weight


def decode_attention(params, x, cache, position, cos, sin):
    """Writes the token's key and value into the cache, then attends to all of it."""
    heads = product(x, params["qkv"]).reshape(-1, HEAD_DIM)
    turned = rotated(heads[: HEADS + KV_HEADS], cos, sin)
    keys, values = (
        jax.lax.dynamic_update_slice(old, new[:, None], (0, position, 0))
        for old, new in zip(cache, (turned[HEADS:], heads[HEADS + KV_HEADS :]))
    )
    q = turned[:HEADS].reshape(KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    weights = jax.nn.softmax(jnp.einsum("kgd,kpd->kgp", q, keys) * HEAD_DIM**-0.5)
    mixed = jnp.einsum("kgp,kpd->kgd", weights, values)
    return product(mixed.reshape(1, DIM), params["out"]), (keys, values)


def decode(params, caches, token, position):
    """The logits, and the caches with the token added."""
    x = params["tokens"][token][None]
    cos, sin = (table[position].astype(x.dtype) for table in params["rotation"])
    after = []
    for block, cache in zip(params["blocks"], caches):
        mixed, cache = decode_attention(block, rms_norm(block["attention_norm"], x), cache, position, cos, sin)
        x = x + mixed
        gate, up = jnp.split(product(rms_norm(block["mlp_norm"], x), block["gate_up"]), 2, axis=-1)
        x = x + product(jax.nn.silu(gate) * up, block["down"])
        after.append(cache)
    return product(rms_norm(params["norm"], x), params["head"]), after


def eight_bit(weight):
    """Symmetric, with a scale an output, as [out, in]."""
    scales = jnp.abs(weight).max(axis=0) / 127
    return jnp.round(weight / scales).astype(jnp.int8).T, scales


STORED = {"f32": lambda weight: weight, "bf16": lambda weight: weight.T.astype(jnp.bfloat16), "8bit": eight_bit}


def decode_params(random, stored):
    def matrix(fan_in, fan_out):
        return stored(random.normal(fan_in, fan_out, scale=fan_in**-0.5))

    def block():
        return {
            "attention_norm": random.normal(DIM),
            "qkv": matrix(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
            "out": matrix(DIM, DIM),
            "mlp_norm": random.normal(DIM),
            "gate_up": matrix(DIM, 2 * HIDDEN),
            "down": matrix(HIDDEN, DIM),
        }

    return {
        "tokens": random.normal(VOCABULARY, DIM),
        "blocks": [block() for _ in range(BLOCKS)],
        "norm": random.normal(DIM),
        "head": matrix(DIM, VOCABULARY),
        "rotation": rotation(POSITION + 1, HEAD_DIM),
    }


def decode_size():
    block = DIM * (HEADS + 2 * KV_HEADS) * HEAD_DIM + DIM * DIM + 3 * DIM * HIDDEN + 2 * DIM
    return 2 * VOCABULARY * DIM + BLOCKS * block + DIM


def w7(random, weights):
    params = decode_params(random, STORED[weights])
    if weights == "bf16":
        params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    dtype = params["tokens"].dtype
    shape = KV_HEADS, POSITION + 1, HEAD_DIM
    caches = [tuple(random.normal(*shape).astype(dtype) for _ in range(2)) for _ in range(BLOCKS)]
    run = jax.jit(decode, donate_argnums=1)
    token, position = random.labels(VOCABULARY), jnp.int32(POSITION)

    def call():
        nonlocal caches
        logits, caches = run(params, caches, token, position)
        return jax.block_until_ready(logits)

    return call, decode_size()


# Matrix products: w8


def w8(random, shape):
    sizes = [int(size) for size in shape.split("x")]
    m, k, n = sizes if len(sizes) == 3 else sizes * 3
    return forward(lambda _, a, b: a @ b, (), random.normal(m, k), random.normal(k, n))


FAMILIES = [
    (re.compile(r"w1-(?P<kind>forward|train)-(?P<batch>\d+)"), w1),
    (re.compile(r"w2-(?P<kind>forward|train)"), w2),
    (re.compile(r"w3-(?P<kind>forward|train)"), w3),
    (re.compile(r"w4-train"), w4),
    (re.compile(r"w5-train"), w5),
    (re.compile(r"w6-(?P<layer>.+?)(?P<kind>-vjp|)"), w6),
    (re.compile(r"w7-decode-(?P<weights>f32|bf16|8bit)"), w7),
    (re.compile(r"w8-matmul-(?P<shape>\d+|\d+x\d+x\d+)"), w8),
]


def main():
    protocol.serve("jax", jax.__version__, lambda workload: protocol.find(workload, FAMILIES, Random()))


if __name__ == "__main__":
    main()
