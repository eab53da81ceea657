"""The peer for JAX on a CPU."""

import os
import re

import protocol  # before jax: it fixes the number of threads

protocol.keep_to_cores()

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


def train(loss_of, params, inputs, target, optimiser=None):
    """A train step in one compiled function, which updates its state in place; the loss is read back."""
    steps = optimiser or optax.adam(LEARNING_RATE)

    def step(params, state, inputs, target):
        loss, gradients = jax.value_and_grad(loss_of)(params, inputs, target)
        updates, state = steps.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    run = jax.jit(step, donate_argnums=(0, 1))
    size = count(params)
    state = steps.init(params)

    def call():
        nonlocal params, state
        params, state, loss = run(params, state, inputs, target)
        return float(loss)

    return call, size


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


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
    return train(lambda params, x, y: cross_entropy(apply(params, x), y), params, inputs, random.labels(10, 64))


# Matrix products: w8


def w8(random, shape):
    sizes = [int(size) for size in shape.split("x")]
    m, k, n = sizes if len(sizes) == 3 else sizes * 3
    return forward(lambda _, a, b: a @ b, (), random.normal(m, k), random.normal(k, n))


FAMILIES = [
    (re.compile(r"w1-(?P<kind>forward|train)-(?P<batch>\d+)"), w1),
    (re.compile(r"w2-(?P<kind>forward|train)"), w2),
    (re.compile(r"w8-matmul-(?P<shape>\d+|\d+x\d+x\d+)"), w8),
]


def main():
    protocol.serve("jax", jax.__version__, lambda workload: protocol.find(workload, FAMILIES, Random()))


if __name__ == "__main__":
    main()
