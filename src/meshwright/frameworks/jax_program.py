"""The program that the target ``jax`` writes behind the numbers of a plan.

Dims of weights have names; a rule for each name says over which axes of the mesh it is split, and
XLA inserts the collectives (GSPMD). Experts are spread over tp and a part of the data axes, each
takes its tokens up to a capacity. Sequence parallelism, gathered weights and experts are pinned by
sharding constraints, recomputation by a policy of ``jax.checkpoint``.

Source: JAX 0.10, ``jax.sharding``, ``jax.checkpoint_policies``, ``jax.shard_map``,
``jax.nn.dot_product_attention``, ``jax.distributed``.
"""

PROGRAM = '''\
import argparse
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DTYPE = jnp.bfloat16 if PLAN["precision"] == "bf16" else jnp.float32
jax.config.update(  # of products of float32
    "jax_default_matmul_precision", "tensorfloat32" if PLAN["precision"] == "tf32" else "float32"
)
AXES = PLAN["mesh"]
DATA = tuple(axis for axis in AXES if axis != "tp")
SHARDS = ("dp_shard", "ep")
EXPERT_AXES = ("ep", "tp") if PLAN["ep"] > 1 else ()
SEQUENCE = "tp" if PLAN["sequence_parallel"] else None
SLACK = 1.25  # room of an expert over its even share of the tokens
ROPE_BASE = 500000.0
MESH = None

HIDDEN, LAYERS = MODEL["hidden_size"], MODEL["num_hidden_layers"]
HEADS, KV_HEADS = MODEL["num_attention_heads"], MODEL["num_key_value_heads"]
HEAD, VOCAB = MODEL["head_dim"], MODEL["vocab_size"]
EXPERTS = MODEL.get("num_experts", MODEL.get("num_local_experts", 0))
TOP_K = MODEL.get("num_experts_per_tok", 0)
FFN = MODEL.get("moe_intermediate_size", MODEL["intermediate_size"])
KIND = MODEL["model_type"]
WINDOW = MODEL.get("sliding_window")
SIZES = {
    "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "head": HEAD,
    "ffn": FFN, "vocab": VOCAB, "experts": EXPERTS,
}  # fmt: skip


def weight_dims():
    """Return the dims of each weight by name; those of layers are stacked."""
    layer = {
        "attention_norm": ("hidden",),
        "query": ("hidden", "heads", "head"),
        "key": ("hidden", "kv_heads", "head"),
        "value": ("hidden", "kv_heads", "head"),
        "output": ("heads", "head", "hidden"),
        "ffn_norm": ("hidden",),
    }
    if KIND == "qwen2":
        layer |= {
            "query_bias": ("heads", "head"),
            "key_bias": ("kv_heads", "head"),
            "value_bias": ("kv_heads", "head"),
        }
    if KIND.startswith("qwen3"):
        layer |= {"query_norm": ("head",), "key_norm": ("head",)}
    inside = ("experts",) if EXPERTS else ()
    if EXPERTS:
        layer["router"] = ("hidden", "experts")
    layer |= {
        "gate": (*inside, "hidden", "ffn"),
        "up": (*inside, "hidden", "ffn"),
        "down": (*inside, "ffn", "hidden"),
    }
    dims = {f"layers.{name}": ("layers", *of) for name, of in layer.items()}
    dims |= {"embedding": ("vocab", "hidden"), "norm": ("hidden",)}
    return dims if MODEL["tie_word_embeddings"] else dims | {"head": ("hidden", "vocab")}


def spec(dims, *, sharded):
    """Return where each dim of a weight is split; ``sharded``: as ZeRO splits it as well."""
    is_expert = "experts" in dims and "ffn" in dims
    over = {"heads": "tp", "kv_heads": "tp", "ffn": "tp", "vocab": "tp"}
    if is_expert:
        over = {"experts": EXPERT_AXES}
    if sharded and len(dims) - ("layers" in dims) > 1:
        over["hidden"] = tuple(axis for axis in SHARDS if not (is_expert and axis in EXPERT_AXES))
    return P(*(_fitting(over.get(dim), SIZES[dim]) for dim in dims))


def _fitting(axes, size):
    """Return axes over which a dim of a size is split; none where they do not divide it."""
    axes = (axes,) if isinstance(axes, str) else axes or ()
    degree = math.prod(AXES[axis] for axis in axes)
    return axes if axes and size % degree == 0 else None


DIMS = weight_dims()
GATHERED = {name: spec(dims, sharded=False) for name, dims in DIMS.items()}
SHARDED = {name: spec(dims, sharded=True) for name, dims in DIMS.items()}
WEIGHTS = SHARDED if PLAN["zero_stage"] == 3 else GATHERED
STATE = SHARDED if PLAN["zero_stage"] else GATHERED
"""Where weights lie, and the moments of Adam."""


def placed(specs):
    """Return shardings on the mesh."""
    return jax.tree.map(lambda one: NamedSharding(MESH, one), specs)


def hold(x, *axes):
    """Pin where the dims of a value are split."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*axes)))


def hold_all(tree, specs):
    """Pin where weights, or what belongs to them, lie."""
    return {name: hold(value, *specs[name]) for name, value in tree.items()}


def norm(x, weight):
    """Return the root-mean-square norm."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return wide.astype(x.dtype) * weight


def rotated(x):
    """Return heads turned by their position in the sequence."""
    angles = ROPE_BASE ** (-jnp.arange(0, HEAD, 2) / HEAD)
    angles = jnp.arange(x.shape[1])[:, None] * angles
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    both = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return both.astype(x.dtype)


def attend(query, key, value):
    """Return attention of the heads of one device, by the kernel of its platform."""
    if jax.default_backend() == "tpu":
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        repeats = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(x, repeats, axis=2) for x in (key, value))
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        found = flash_attention(query, key, value, causal=True, sm_scale=HEAD**-0.5)
        return found.swapaxes(1, 2)
    kernel = "cudnn" if jax.default_backend() == "gpu" else "xla"
    window = None if WINDOW is None else (WINDOW - 1, 0)
    return jax.nn.dot_product_attention(
        query, key, value, is_causal=True, local_window_size=window, implementation=kernel
    )


def attention(x, w):
    """Return self-attention; heads are split over tp, sequences over the data axes."""
    names = ("query", "key", "value")
    heads = [jnp.einsum("bsh,hnd->bsnd", x, w[name]) for name in names]
    if KIND == "qwen2":
        heads = [one + w[f"{name}_bias"] for one, name in zip(heads, names, strict=True)]
    if KIND.startswith("qwen3"):
        heads[0], heads[1] = norm(heads[0], w["query_norm"]), norm(heads[1], w["key_norm"])
    query, key, value = rotated(heads[0]), rotated(heads[1]), heads[2]
    degree = AXES["tp"]
    if KV_HEADS % degree:
        repeats = HEADS // KV_HEADS
        key, value = jnp.repeat(key, repeats, axis=2), jnp.repeat(value, repeats, axis=2)
    split = P(DATA, None, "tp", None)
    mixed = jax.shard_map(
        attend, mesh=MESH, in_specs=(split, split, split), out_specs=split, check_vma=False
    )(query, key, value)
    return jnp.einsum("bsnd,ndh->bsh", mixed, w["output"])


def network(x, w):
    """Return the dense network; its inner dim is split over tp."""
    inner = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
    return inner @ w["down"]


def experts(x, w):
    """Return the experts: each takes its tokens of a sequence, up to a capacity."""
    batch, length, _ = x.shape
    room = min(length, math.ceil(length * TOP_K / EXPERTS * SLACK))
    x = hold(x, DATA, None, None)
    scores = jax.nn.softmax((x @ w["router"]).astype(jnp.float32), axis=-1)
    share, chosen = jax.lax.top_k(scores, TOP_K)
    share = (share / share.sum(-1, keepdims=True)).reshape(batch, -1, 1).astype(x.dtype)
    chosen = chosen.reshape(batch, -1)
    mine = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32)
    place = (jnp.cumsum(mine, axis=1) * mine).sum(-1) - 1
    slot = jnp.where(place < room, chosen * room + place, EXPERTS * room)
    rows = jnp.arange(batch)[:, None]
    token = jnp.arange(length * TOP_K) // TOP_K
    sent = jnp.zeros((batch, EXPERTS * room + 1, HIDDEN), x.dtype)
    sent = sent.at[rows, slot].set(x[:, token])[:, :-1].reshape(batch, EXPERTS, room, HIDDEN)
    rest = tuple(axis for axis in DATA if axis not in EXPERT_AXES)
    sent = hold(sent, rest, EXPERT_AXES or None, None, None)
    inner = jax.nn.silu(jnp.einsum("bech,ehf->becf", sent, w["gate"]))
    inner = inner * jnp.einsum("bech,ehf->becf", sent, w["up"])
    back = jnp.einsum("becf,efh->bech", inner, w["down"])
    back = hold(back, DATA, None, None, None).reshape(batch, EXPERTS * room, HIDDEN)
    back = jnp.pad(back, ((0, 0), (0, 1), (0, 0)))
    return (back[rows, slot] * share).reshape(batch, length, TOP_K, HIDDEN).sum(2)


def layer(x, w):
    """Return one layer; its weights are gathered where ZeRO splits them."""
    specs = {name: P(*GATHERED[f"layers.{name}"][1:]) for name in w}
    w = {name: value.astype(DTYPE) for name, value in w.items()}
    w = {name: checkpoint_name(hold(value, *specs[name]), "weights") for name, value in w.items()}
    x = hold(x + attention(norm(x, w["attention_norm"]), w), DATA, SEQUENCE, None)
    own = experts if EXPERTS else network
    return hold(x + own(norm(x, w["ffn_norm"]), w), DATA, SEQUENCE, None)


POLICIES = {
    "none": jax.checkpoint_policies.save_anything_except_these_names("weights"),
    "selective": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def loss_of(weights, tokens):
    """Return the mean cross entropy of the next token."""
    weights = hold_all(weights, WEIGHTS)
    whole = {
        name: hold(value.astype(DTYPE), *GATHERED[name])
        for name, value in weights.items()
        if not name.startswith("layers.")
    }
    stacked = {
        name.removeprefix("layers."): value
        for name, value in weights.items()
        if name.startswith("layers.")
    }
    step = jax.checkpoint(layer, policy=POLICIES[PLAN["recompute"]])
    x = hold(whole["embedding"][tokens[:, :-1]], DATA, SEQUENCE, None)
    x, _ = jax.lax.scan(lambda x, w: (step(x, w), None), x, stacked)
    x = hold(norm(x, whole["norm"]), DATA, None, None)
    head = whole["embedding"].T if "head" not in whole else whole["head"]
    logits = hold(x @ head, DATA, None, "tp").astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def start(key):
    """Return weights in FP32, the moments of Adam, and the number of the step."""
    weights = {}
    for number, (name, dims) in enumerate(DIMS.items()):
        shape = tuple(SIZES[dim] for dim in dims)
        drawn = jax.random.normal(jax.random.fold_in(key, number), shape) * 0.02
        is_norm, is_bias = name.endswith("norm"), name.endswith("bias")
        weights[name] = jnp.ones(shape) if is_norm else jnp.zeros(shape) if is_bias else drawn
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"weights": weights, "first": zeros, "second": zeros, "step": jnp.zeros((), jnp.int32)}


def train_step(state, tokens, learning_rate):
    """Return the state after one update, and the loss: gradients of micro-batches add up."""

    def add(total, micro_batch):
        loss, gradients = jax.value_and_grad(loss_of)(state["weights"], micro_batch)
        summed = jax.tree.map(jnp.add, total[1], gradients)
        return (total[0] + loss, hold_all(summed, WEIGHTS)), None

    nothing = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state["weights"]))
    (loss, gradients), _ = jax.lax.scan(add, nothing, tokens)
    count, step = tokens.shape[0], state["step"] + 1
    gradients = hold_all(jax.tree.map(lambda one: one / count, gradients), STATE)
    weights = hold_all(state["weights"], STATE)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["second"], gradients)

    def updated(weight, m, v):
        m, v = m / (1 - 0.9**step), v / (1 - 0.95**step)
        return weight - learning_rate * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * weight)

    weights = hold_all(jax.tree.map(updated, weights, first, second), WEIGHTS)
    state = {"weights": weights, "first": first, "second": second, "step": step}
    return state, loss / count


def state_specs():
    """Return where each part of the state lies."""
    return {"weights": WEIGHTS, "first": STATE, "second": STATE, "step": P()}


def batch_shape():
    """Return micro-batches, sequences in one over all ranks, and tokens with the last target."""
    ranks = math.prod(AXES[axis] for axis in DATA)
    sequences = ranks * PLAN["micro_batch_size"]
    return PLAN["global_batch_size"] // sequences, sequences, PLAN["sequence_length"] + 1


def read_batch(tokens, step):
    """Return the tokens of a step on the devices that need them; without a file drawn ones."""
    shape = batch_shape()
    size = math.prod(shape)
    if tokens is None:
        whole = np.random.default_rng(0).integers(0, VOCAB, shape, dtype=np.int32)
    else:
        places = np.arange(step * size, (step + 1) * size) % len(tokens)
        whole = np.asarray(tokens[places], dtype=np.int32).reshape(shape)
    sharding = NamedSharding(MESH, P(None, DATA, None))
    return jax.make_array_from_callback(shape, sharding, lambda index: whole[index])


def build_mesh():
    """Return the devices in the order of the plan, outermost axis first."""
    devices = np.array(jax.devices()).reshape(tuple(AXES.values()))
    return Mesh(devices, tuple(AXES), axis_types=(AxisType.Auto,) * len(AXES))


def main():
    """Train for some steps, and print the loss of each."""
    global MESH
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--tokens", help="token numbers as a .npy file of one dim; else drawn")
    parser.add_argument("--shards", action="store_true", help="print what a device holds")
    args = parser.parse_args()
    if PLAN["num_hosts"] > 1:
        if "HEAD_ADDRESS" in os.environ:
            address = f"{os.environ['HEAD_ADDRESS']}:29500"
            jax.distributed.initialize(address, PLAN["num_hosts"], int(os.environ["NODE_RANK"]))
        else:
            jax.distributed.initialize()
    MESH = build_mesh()
    tokens = np.load(args.tokens, mmap_mode="r") if args.tokens else None
    shardings = placed(state_specs())
    state = jax.jit(start, out_shardings=shardings)(jax.random.key(0))
    step = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, None))
    if args.shards:
        for name, weight in state["weights"].items():
            print(name, weight.addressable_shards[0].data.shape, flush=True)
    for number in range(args.steps):
        state, loss = step(state, read_batch(tokens, number), args.learning_rate)
        print(f"step {number} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
'''
