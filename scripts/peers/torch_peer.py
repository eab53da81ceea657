"""The peer for PyTorch on a CPU: `torch_peer.py eager` or `torch_peer.py compile`."""

import itertools
import re
import sys

import protocol  # before torch: it fixes the number of threads

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

SEED = 20
LEARNING_RATE = 1e-3
FEW_PARAMETERS = 10


class Eager:
    """PyTorch as it runs without a compiler."""

    name = "torch-eager"

    def inference(self, function):
        return function

    def gradients(self, function):
        return function

    def step(self, model, loss_of, weight_decay):
        return usual_step(model, lambda inputs, target: loss_of(model(inputs), target), weight_decay)


class Compiled:
    """PyTorch with `torch.compile`: one graph for a fixed shape."""

    name = "torch-compile"

    def __init__(self):
        # As an option of `torch.compile` it costs 30 µs a call.
        inductor.freezing = True
        # A cached graph may look for frozen weights under names that this process gave to others.
        inductor.fx_graph_cache = False
        # A module's code is compiled for every workload it is in; past the limit it would run uncompiled.
        dynamo.cache_size_limit = 256

    def inference(self, function):
        """The weights are constants of the graph; products may be the compiler's own where they are faster."""
        return torch.compile(function, dynamic=False, mode="max-autotune-no-cudagraphs")

    def gradients(self, function):
        return torch.compile(function, fullgraph=True, dynamic=False)

    def step(self, model, loss_of, weight_decay):
        """One graph for everything where the model is small, for its loss where one graph would take minutes."""
        if len(list(model.parameters())) <= FEW_PARAMETERS:
            return whole_step(model, loss_of, weight_decay)
        objective = self.gradients(lambda inputs, target: loss_of(model(inputs), target))
        return usual_step(model, objective, weight_decay)


def usual_step(model, objective, weight_decay):
    """The loop of every tutorial; of Adam's three forms the fused one is the fastest on a CPU."""
    kind = torch.optim.AdamW if weight_decay else torch.optim.Adam
    optimiser = kind(model.parameters(), lr=LEARNING_RATE, weight_decay=weight_decay, fused=True)

    def step(inputs, target):
        optimiser.zero_grad(set_to_none=True)
        loss = objective(inputs, target)
        loss.backward()
        optimiser.step()
        return loss

    return step


def whole_step(model, loss_of, weight_decay):
    """Forward, backward and optimiser in one compiled graph."""
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    first, second = ({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
    corrections, steps = torch.zeros(2), itertools.count(1)

    def update(params, first, second, corrections, inputs, target):
        def objective(params):
            return loss_of(torch.func.functional_call(model, params, (inputs,)), target)

        gradients, loss = torch.func.grad_and_value(objective)(params)
        for name, gradient in gradients.items():
            adam(params[name], gradient, first[name], second[name], corrections, weight_decay)
        return loss

    run = torch.compile(update, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def step(inputs, target):
        set_corrections(corrections, next(steps))
        return run(params, first, second, corrections, inputs, target)

    return step


def set_corrections(corrections, step):
    """What Adam's bias correction makes of the learning rate, and of the second moment's root, in this step."""
    corrections[0] = LEARNING_RATE / (1 - 0.9**step)
    corrections[1] = (1 - 0.999**step) ** -0.5


def adam(parameter, gradient, first, second, corrections, weight_decay):
    """Adam's update in place (AdamW's, with weight decay), written so that the compiler fuses it."""
    rate, root = corrections.unbind()
    first.lerp_(gradient, 0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    parameter.mul_(1 - LEARNING_RATE * weight_decay)
    parameter.sub_(rate * first / (second.sqrt() * root + 1e-8))


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


def train(mode, model, loss_of, inputs, target, weight_decay=0.0):
    """A train step, which reads its loss back."""
    model.train()
    step = mode.step(model, loss_of, weight_decay)
    return (lambda: step(inputs, target).item()), count(model)


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


# Convolutional networks: w3, w4


def channels_last(module, *tensors):
    """Images and convolutions in the order of memory that is faster on a CPU."""
    module.to(memory_format=torch.channels_last)
    return [tensor.to(memory_format=torch.channels_last) for tensor in tensors]


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 10),
    )


def w3(mode, kind):
    model = small_cnn()
    (inputs,) = channels_last(model, torch.randn(32, 1, 28, 28))
    if kind == "forward":
        return forward(mode, model, inputs)
    return train(mode, model, F.cross_entropy, inputs, torch.randint(10, (32,)))


def conv_norm(fan_in, fan_out, size, stride):
    conv = nn.Conv2d(fan_in, fan_out, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(fan_out))


class Residual(nn.Module):
    def __init__(self, fan_in, fan_out, stride):
        super().__init__()
        self.first = conv_norm(fan_in, fan_out, 3, stride)
        self.second = conv_norm(fan_out, fan_out, 3, 1)
        self.shortcut = nn.Identity() if fan_in == fan_out else conv_norm(fan_in, fan_out, 1, stride)

    def forward(self, x):
        inner = self.second(F.relu(self.first(x), inplace=True))
        return F.relu(inner + self.shortcut(x), inplace=True)


def resnet20():
    layers = [conv_norm(3, 16, 3, 1), nn.ReLU(inplace=True)]
    for fan_in, fan_out in ((16, 16), (16, 32), (32, 64)):
        layers.append(Residual(fan_in, fan_out, fan_out // fan_in))
        layers += [Residual(fan_out, fan_out, 1) for _ in range(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def w4(mode):
    model = resnet20()
    (inputs,) = channels_last(model, torch.randn(32, 3, 32, 32))
    return train(mode, model, F.cross_entropy, inputs, torch.randint(10, (32,)))


# The character-level GPT: w5


class GptBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def attention(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self, vocabulary=65, length=128, dim=128, heads=4, blocks=4):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.Sequential(*(GptBlock(dim, heads) for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False))

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.positions))


def mean_over_tokens(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def w5(mode):
    tokens, targets = torch.randint(65, (8, 128)), torch.randint(65, (8, 128))
    return train(mode, Gpt(), mean_over_tokens, tokens, targets, weight_decay=0.1)


# Single layers: w6


def randomised(module):
    """The module with normal parameters, none of them zero or one."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    return module


class Function(nn.Module):
    """A function without parameters, as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def layer_of(module, *shapes):
    return randomised(module), [torch.randn(shape) for shape in shapes]


def linear(rows, fan_in, fan_out):
    return layer_of(nn.Linear(fan_in, fan_out), (rows, fan_in))


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def conv():
    module, inputs = layer_of(nn.Conv2d(64, 64, 3, padding=1), (32, 64, 32, 32))
    return module, channels_last(module, *inputs)


def rotation(positions, dim):
    """The cosines and the sines of every position's angles."""
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return angles.cos(), angles.sin()


def rotated(x, cos, sin):
    """The first half of the last axis paired with the second."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Rope(nn.Module):
    """Rotates [batch, position, head, dim]."""

    def __init__(self, positions, dim):
        super().__init__()
        cos, sin = rotation(positions, dim)
        self.register_buffer("cos", cos[:, None])
        self.register_buffer("sin", sin[:, None])

    def forward(self, x):
        return rotated(x, self.cos, self.sin)


def embedding():
    return randomised(nn.Embedding(65536, 256)), [torch.randint(65536, (4096,))]


LAYERS = {
    "linear-64x256x256": lambda: linear(64, 256, 256),
    "linear-1024x768x3072": lambda: linear(1024, 768, 3072),
    "layer-norm": lambda: layer_of(nn.LayerNorm(768), (1024, 768)),
    "rms-norm": lambda: layer_of(nn.RMSNorm(768, eps=1e-5), (1024, 768)),
    "softmax": lambda: layer_of(nn.Softmax(dim=-1), (1024, 768)),
    "gelu": lambda: layer_of(nn.GELU(), (1048576,)),
    "attention": lambda: layer_of(Function(causal_attention), *[(2, 6, 256, 64)] * 3),
    "conv": conv,
    "rope": lambda: layer_of(Rope(256, 64), (2, 256, 6, 64)),
    "embedding": embedding,
}


def vjp(mode, module, inputs):
    """Forward, then new gradients of every parameter and of every input that has one."""
    for x in inputs:
        x.requires_grad_(x.is_floating_point())
    wanted = [*(x for x in inputs if x.requires_grad), *module.parameters()]
    run = mode.gradients(module)
    dy = torch.randn_like(module(*inputs).detach())

    def call():
        return torch.autograd.grad(run(*inputs), wanted, dy)

    return call, count(module)


def w6(mode, layer, kind):
    if layer not in LAYERS:
        raise protocol.Unsupported("this peer has no such layer")
    module, inputs = LAYERS[layer]()
    if kind == "-vjp":
        return vjp(mode, module, inputs)
    return forward(mode, module, *inputs)


# One token through a Llama-shaped stack: w7

DIM, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, BLOCKS, VOCABULARY = 512, 8, 4, 64, 1408, 8, 32000
POSITION = 256


class LlamaBlock(nn.Module):
    """With the key/value cache of its own, which is updated in place."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(DIM, eps=1e-5)
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.mlp_norm = nn.RMSNorm(DIM, eps=1e-5)
        self.gate_up = nn.Linear(DIM, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)
        self.register_buffer("keys", torch.randn(1, KV_HEADS, POSITION + 1, HEAD_DIM))
        self.register_buffer("values", torch.randn(1, KV_HEADS, POSITION + 1, HEAD_DIM))

    def attention(self, x, position, cos, sin):
        heads = self.qkv(x).view(1, -1, HEAD_DIM)
        turned = rotated(heads[:, : HEADS + KV_HEADS], cos, sin)
        # The heads that share keys take the place of positions.
        q = turned[:, :HEADS].view(1, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
        self.keys.index_copy_(2, position, turned[:, HEADS:].unsqueeze(2))
        self.values.index_copy_(2, position, heads[:, HEADS + KV_HEADS :].unsqueeze(2))
        return self.out(F.scaled_dot_product_attention(q, self.keys, self.values).reshape(1, DIM))

    def mlp(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def forward(self, x, position, cos, sin):
        x = x + self.attention(self.attention_norm(x), position, cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(BLOCKS))
        self.norm = nn.RMSNorm(DIM, eps=1e-5)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        cos, sin = rotation(POSITION + 1, HEAD_DIM)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, token, position):
        x = self.tokens(token)
        cos, sin = self.cos[position], self.sin[position]
        for block in self.blocks:
            x = block(x, position, cos, sin)
        return self.head(self.norm(x))


def w7(mode, weights):
    model = Llama().eval()
    params = count(model)
    if weights == "bf16":
        model.to(torch.bfloat16)
    if weights == "8bit":
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    call, _ = forward(mode, model, torch.randint(VOCABULARY, (1,)), torch.tensor([POSITION]))
    return call, params


# Matrix products: w8


def w8(mode, shape):
    sizes = [int(size) for size in shape.split("x")]
    m, k, n = sizes if len(sizes) == 3 else sizes * 3
    return forward(mode, Function(torch.matmul), torch.randn(m, k), torch.randn(k, n))


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
    mode = {"eager": Eager, "compile": Compiled}[sys.argv[1]]()
    protocol.keep_memory()
    torch.set_num_threads(protocol.THREADS)
    torch.set_num_interop_threads(1)

    def build(workload):
        torch.manual_seed(SEED)
        return protocol.find(workload, FAMILIES, mode)

    protocol.serve(mode.name, torch.__version__.split("+")[0], build)


if __name__ == "__main__":
    main()
