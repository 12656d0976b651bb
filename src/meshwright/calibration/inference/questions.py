"""From a row of requests to a question: a model on chips under a server, prompts and answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from meshwright.base.errors import SpecError
from meshwright.calibration.frameworks import FSDP
from meshwright.calibration.models import model_of
from meshwright.calibration.refusals import Reason, RefusedError
from meshwright.calibration.rows import HardwareFields, ModelFields, ParallelismFields, Row
from meshwright.calibration.systems import system_of
from meshwright.catalog.calibration import load_calibration, load_serving
from meshwright.catalog.workloads import load_server
from meshwright.cost.engine import stated_rate
from meshwright.serve.problem import ServingProblem
from meshwright.serve.requests import Serving
from meshwright.sharding.strategy import Strategy, Structure, make_strategy
from meshwright.spec.chip import ChipSpec, DType
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import Decode, Precision, Server, SoftwareStack

PLAIN = Structure(sequence_parallel=False, zero_stage=0)
_SERVERS = (
    (r"vllm", "vllm"),
    (r"(tensorrt|trt).*pytorch", "tensorrt-llm-pytorch"),
    (r"tensorrt|trt", "tensorrt-llm"),
    (r"deepspeed|mii|fastgen", "deepspeed-mii"),
    (r"sglang", "sglang"),
    (r"llama\W?cpp|ggml|gguf", "llama.cpp"),
)
_NARROW: tuple[tuple[str, DType], ...] = (
    (r"fp4|float4|int4|w4|awq|gptq|q4", "fp4"),
    (r"fp8|float8", "fp8"),
    (r"int8|w8|q8", "int8"),
)
LEAST_EXPERT_COLUMNS = 256
"""Of the part of an expert: kernels with block scales take no narrower tiles."""
_WEIGHTS_ALONE = re.compile(r"int4|w4a16|w8a16|awq|gptq|q4|q8")


@dataclass(frozen=True)
class Setting:
    """What rows share that are priced together: all but their requests."""

    serving: Serving
    replicas: float
    """Copies of the model, each with its part of the requests."""

    @property
    def system_name(self) -> str:
        """Chips and how many."""
        return self.serving.problem.system.name


@dataclass(frozen=True)
class InferenceQuestion:
    """A row as it is priced."""

    row: Row
    setting: Setting
    prompt_tokens: float
    answer_tokens: float
    batch: float
    """Requests that start together on one replica; infinity: a queue."""


def server_name_of(row: Row) -> str:
    """Return the server of a row: as it is named, else as its source suggests."""
    for text in (row.framework, row.group, row.source.title, row.source.repo):
        for pattern, name in _SERVERS:
            if text and re.search(pattern, text.lower()):
                return name
    return "generic"


def inference_question(row: Row, calibration: str) -> InferenceQuestion:
    """Return what is asked by a row: its stated configuration alone, and defaults.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be asked.
    """
    if not row.input_len or not row.output_len:
        raise RefusedError(Reason.LENGTHS, f"{row.input_len} and {row.output_len} tokens")
    plan, model = row.parallelism, replace(row.model, seq=None, params_b=None)
    setting = _setting(
        server_name_of(row), row.hardware, model, row.precision or "", plan, calibration
    )
    batch = inf if row.batch is None else max(row.batch / setting.replicas, 1.0)
    return InferenceQuestion(row, setting, float(row.input_len), float(row.output_len), batch)


@cache
def _setting(
    server_name: str, hardware: HardwareFields, fields: ModelFields, precision: str,
    plan: ParallelismFields, calibration: str,
) -> Setting:  # fmt: skip
    """Return what rows of one configuration share."""
    system, server = system_of(hardware), load_server(server_name)
    model = model_of(Row("", "", model=fields), FSDP)
    chip = system.chip
    workload = Decode(
        batch_size=1, context_length=1, precision=serving_precision(precision, chip, server),
        software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    problem = ServingProblem(
        model, system, workload, load_calibration(chip.family, calibration),
        constants=load_serving(chip.family, server, calibration),
    )  # fmt: skip
    strategy, replicas = _strategy(plan, system.num_devices, model)
    return Setting(Serving(problem, server, PLAIN, strategy), replicas)


def _strategy(
    plan: ParallelismFields, num_devices: int, model: ModelSpec
) -> tuple[Strategy, float]:
    """Return the degrees of one replica, and the replicas.

    Where no degree is stated, all chips split each layer. Experts lie inside a replica: spread as
    ``ep`` says, the rest of the chips split each of them.
    """
    pp, dp = plan.pp or 1, plan.dp or 1
    tp = plan.tp or max(num_devices // (pp * dp), 1)
    replicas = num_devices / (tp * pp)
    if replicas != int(replicas) or plan.dp not in (None, int(replicas)):
        found = f"tp {tp} x pp {pp} x dp {dp} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    if pp > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} stages of {model.num_layers} layers")
    experts = max((k.experts.num_experts for k in model.layer_kinds if k.experts), default=0)
    ep = min(plan.ep or _experts_spread(model, tp), tp) if experts else 1
    if tp % ep:
        raise RefusedError(Reason.DEGREES, f"ep {ep} does not divide tp {tp}")
    return make_strategy(tp=tp, pp=pp, ep=ep, etp=tp // ep if experts else 1), replicas


def _experts_spread(model: ModelSpec, tp: int) -> int:
    """Return over how many chips of a replica whole experts are spread, where nothing is stated.

    Each expert is split as far as its parts keep a tile of columns; what chips are left hold
    different experts.
    """
    widths = (k.experts.ffn_size for k in model.layer_kinds if k.experts)
    most = max(min(widths) // LEAST_EXPERT_COLUMNS, 1)
    return next(ep for ep in range(1, tp + 1) if tp % ep == 0 and tp // ep <= most)


def serving_precision(text: str, chip: ChipSpec, server: Server) -> Precision:
    """Return the types of a served model: 16 bits where nothing is stated.

    Where only weights are narrow, or the chip has no rate for their type, products run in 16 bits.
    """
    words = text.lower()
    activation: DType = "fp32" if re.fullmatch(r"(fp|tf|float)32", words.strip()) else "bf16"
    narrow = next((dtype for pattern, dtype in _NARROW if re.search(pattern, words)), None)
    cache_type: DType = "fp8" if narrow and server.narrow_cache else activation
    try:
        stated_rate(chip, activation)
    except SpecError as error:
        raise RefusedError(Reason.PRECISION, str(error.faults[0])) from error
    if narrow is None:
        return Precision(
            matmul=activation, activation=activation, weight=activation, kv_cache=cache_type
        )
    has_rate = narrow in chip.matmul_flops_per_s and not _WEIGHTS_ALONE.search(words)
    return Precision(
        matmul=narrow if has_rate else activation, activation=activation, weight=narrow,
        kv_cache=cache_type,
    )  # fmt: skip
