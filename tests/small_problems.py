"""Small models, systems and workloads whose whole space of plans can be priced one by one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from meshwright.catalog.calibration import load_calibration
from meshwright.cost.problem import Problem
from meshwright.sharding.strategy import (
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    make_strategy,
)
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
)
from meshwright.spec.system import ChipSpec, HostLink, MemoryLevel, NetworkLevel, SystemSpec
from meshwright.spec.workload import OptimizerPreset, SoftwareStack, Training

TILE = 16
MIB = 2.0**20
CALIBRATION = replace(
    load_calibration("generic"), communication_buffer_bytes=1.0 * MIB, checkpoint_s=1.0
)

ADAM = OptimizerPreset(
    name="adam", weight_bytes_per_param=2, gradient_bytes_per_param=4, state_bytes_per_param=12
)
SMALL_STATE = OptimizerPreset(
    name="small-state",
    weight_bytes_per_param=1,
    gradient_bytes_per_param=2,
    state_bytes_per_param=0.01,
    gathered_weight_bytes_per_param=2,
    reduced_gradient_bytes_per_param=2,
)


def chip(capacity_bytes: float = 64.0 * MIB, **fields: object) -> ChipSpec:
    """Return a chip of 10 TFLOP/s and 1 TB/s with tiles of 16 x 16."""
    memory = MemoryLevel(name="hbm", capacity_bytes=capacity_bytes, bandwidth_bytes_per_s=1e12)
    known = {
        "name": "small",
        "vendor": "none",
        "family": "small",
        "matmul_flops_per_s": {"bf16": 1e13},
        "memories": (memory,),
        "num_cores": 4,
        "tile_rows": TILE,
        "tile_columns": TILE,
    }
    return ChipSpec(**(known | fields))


def level(
    size: int, kind: str = "switch", bandwidth: float = 1e11, **fields: object
) -> NetworkLevel:
    """Return a level of the network with 1 us of latency."""
    known = {"name": f"{kind}-{size}", "latency_s": 1e-6}
    known |= {"kind": kind, "size": size, "bandwidth_bytes_per_s": bandwidth}
    return NetworkLevel(**(known | fields))


def system(
    *levels: NetworkLevel, dead: int = 0, host_bytes: float = 0.0, **fields: object
) -> SystemSpec:
    """Return a system of small chips on the given levels, innermost first."""
    num = 1
    named = []
    for number, entry in enumerate(levels):
        num *= entry.size
        named.append(entry.model_copy(update={"name": f"level{number}"}))
    host = HostLink(capacity_bytes=host_bytes, bandwidth_bytes_per_s=2e10) if host_bytes else None
    used = fields.pop("chip", None) or chip(**fields)
    return SystemSpec(
        name="small",
        chip=used,
        num_devices=num,
        levels=tuple(named),
        host=host,
        dead_devices=tuple(range(num - dead, num)),
    )


def gqa(num_heads: int = 4, num_kv_heads: int = 2, **fields: object) -> AttentionSpec:
    """Return grouped-query attention with heads of 16."""
    return AttentionSpec(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=16, value_head_size=16, **fields
    )


def mla(num_heads: int = 4) -> AttentionSpec:
    """Return latent attention."""
    return AttentionSpec(
        kind="mla", num_heads=num_heads, num_kv_heads=num_heads, head_size=16,
        value_head_size=16, query_rank=32, kv_rank=16, rope_head_size=8,
    )  # fmt: skip


def dense(attention: AttentionSpec | None = None, ffn: int = 128) -> LayerSpec:
    """Return a dense layer."""
    network = FeedForwardSpec(ffn_size=ffn, gated=True)
    return LayerSpec(attention=attention or gqa(), feed_forward=network)


def states(**fields: object) -> LayerSpec:
    """Return a layer of a state space alone, as those of Mamba 2."""
    known = {"kind": "mamba2", "num_heads": 8, "head_size": 16, "num_groups": 4}
    known |= {"state_size": 16, "conv_size": 4, "chunk_size": 32}
    return LayerSpec(recurrence=RecurrenceSpec(**(known | fields)), num_norms=1)


def delta(layer: LayerSpec) -> LayerSpec:
    """Return a layer with the gated delta rule in place of its attention."""
    rule = states(kind="gated_delta").recurrence
    return layer.model_copy(update={"attention": None, "recurrence": rule})


def experts(num: int = 4, top_k: int = 2, shared: int = 0) -> LayerSpec:
    """Return a layer with routed experts."""
    network = ExpertSpec(num_experts=num, top_k=top_k, ffn_size=64, shared_ffn_size=shared)
    return LayerSpec(attention=gqa(), experts=network)


def model(*kinds: LayerSpec, num_layers: int = 4, **fields: object) -> ModelSpec:
    """Return a model of hidden size 64 whose layers take the kinds in turn."""
    used = kinds or (dense(),)
    known = {"name": "small", "architecture": "small", "hidden_size": 64, "vocab_size": 512}
    known |= {"layer_kinds": used, "layer_pattern": tuple(i % len(used) for i in range(num_layers))}
    return ModelSpec(**(known | fields))


_LAYOUTS: dict[str, dict] = {}
"""Layouts and collectives follow from the model and its software alone: derived once for all."""


def problem(
    spec: ModelSpec | None = None, on: SystemSpec | None = None, **fields: object
) -> Problem:
    """Return a training problem: 8 sequences of 64 tokens, Adam, on 2 x 4 devices."""
    known = {"global_batch_size": 8, "sequence_length": 64, "optimizer": ADAM}
    work = Training(**(known | fields))
    where = on or system(level(4), level(2, bandwidth=1e10))
    asked = Problem(spec or model(), where, work, CALIBRATION)
    shared = (asked.pieces, work.software)
    vars(asked)["_shardings"] = _LAYOUTS.setdefault(str(shared), {})
    return asked


MODELS = (
    lambda layers: model(num_layers=layers),
    lambda layers: model(num_layers=layers, tied_embeddings=True),
    lambda layers: model(
        num_layers=layers, tied_embeddings=True, learned_positions=128, norm="layer"
    ),
    lambda layers: model(dense(gqa(8, 8), 96), num_layers=layers),
    lambda layers: model(dense(gqa(6, 3)), dense(gqa(6, 3, window=16)), num_layers=layers),
    lambda layers: model(dense(mla()), num_layers=layers),
    lambda layers: model(experts(), num_layers=layers),
    lambda layers: model(dense(), experts(8, 2, 64), num_layers=layers),
    lambda layers: model(states(num_groups=1), num_layers=layers),
    lambda layers: model(
        states(),
        LayerSpec(attention=gqa(), num_norms=1),
        LayerSpec(feed_forward=FeedForwardSpec(ffn_size=128, gated=False), num_norms=1),
        num_layers=layers,
    ),
    lambda layers: model(
        delta(experts()),
        experts().model_copy(update={"attention": gqa(output_gate=True)}),
        num_layers=layers,
    ),
)
SYSTEMS = (
    lambda **f: system(level(4), **f),
    lambda **f: system(level(4, message_half_bytes=1e4), level(2, bandwidth=1e10), **f),
    lambda **f: system(level(2), level(2, bandwidth=2e10), level(2, bandwidth=5e9), **f),
    lambda **f: system(
        level(4, in_network_reduction=True),
        level(3, bandwidth=1e10, rail_optimized=True, oversubscription=2.0),
        **f,
    ),
    lambda **f: system(level(2, "torus"), level(4, "torus"), **f),
    lambda **f: system(level(2, "mesh"), level(3, "mesh"), **f),
    lambda **f: system(level(8, "fully_connected"), dead=1, **f),
)
"""Switched clusters, a torus, a wafer, and a host that lost a device."""


def random_problem(chance: random.Random) -> Problem:
    """Return any of the small problems."""
    roomy = chance.random() < 0.5
    capacity = (16.0 if roomy else chance.choice([2.0, 2.5, 3.0, 4.0, 6.0])) * MIB
    host = chance.choice([0.0, 0.0, 0.0, 1.0 * MIB, 8.0 * MIB])
    where = chance.choice(SYSTEMS)(capacity_bytes=capacity, host_bytes=host)
    software = SoftwareStack(
        flash_attention=chance.random() < 0.8,
        async_tensor_parallel=chance.random() < 0.3,
        cuda_graphs=chance.random() < 0.3,
        shards_by_unit=chance.random() < 0.3,
        whole_in_pipelines=chance.random() < 0.3,
    )
    return problem(
        chance.choice(MODELS)(chance.choice([1, 2, 3, 4, 6])),
        where,
        global_batch_size=chance.choice([4, 6, 8, 12]),
        sequence_length=chance.choice([64, 128, 192]),
        optimizer=chance.choice([ADAM, ADAM, SMALL_STATE]),
        software=software,
        expert_load_imbalance=chance.choice([1.0, 1.25]),
        causal=chance.random() < 0.8,
    )


def option_sets() -> Iterator[PlanOptions]:
    """Yield every combination of the structural choices that the search leaves open."""
    for sp, context, zero, recompute, kind, offload in itertools.product(
        (True, False),
        ContextKind,
        ((0, True), (1, True), (2, True), (3, True), (3, False)),
        Recompute,
        ScheduleKind,
        Offload,
    ):
        yield PlanOptions(
            sequence_parallel=sp,
            context_kind=context,
            zero_stage=zero[0],
            reshard_after_forward=zero[1],
            recompute=recompute,
            schedule=kind,
            offload=offload,
        )


def with_numbers(chance: random.Random, plan_options: PlanOptions) -> PlanOptions:
    """Return a set of plan options with edges that may count as layers, and some layers recomputed.

    Now and then communication of experts hides behind another micro-batch.
    """
    names = ("embedding_layers", "head_layers", "recompute_layers")
    numbers = {name: chance.choice([0, 0, 1, 2]) for name in names}
    if not numbers["recompute_layers"]:
        numbers["recompute_run"] = chance.choice([1, 1, 2, 3])
    return replace(plan_options, overlap_expert_parallel=chance.random() < 0.3, **numbers)


def random_strategy(chance: random.Random, problem: Problem) -> Strategy:
    """Return random degrees for at most the devices of a problem; most of them are legal."""
    names = ["tp", "cp", "pp", "dp_shard", "dp_replicate"]
    names += ["tatp"] if problem.has_grid else []
    degrees = dict.fromkeys(names, 1)
    left = problem.system.num_alive
    for _ in range(4):
        factor = chance.choice([1, 2, 2, 3, 4])
        if factor <= left:
            left //= factor
            degrees[chance.choice(names)] *= factor
    if problem.num_experts:
        degrees["ep"] = chance.choice([1, 2, 4])
        degrees["etp"] = chance.choice([1, degrees["tp"]])
    degrees["num_virtual_stages"] = chance.choice([1, 1, 2, 3]) if degrees["pp"] > 1 else 1
    degrees["micro_batch_size"] = chance.choice([1, 1, 2, 3, 4])
    return make_strategy(**degrees)
