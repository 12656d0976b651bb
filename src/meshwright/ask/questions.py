"""The question of each command and verb, a line for each option.

Options of a beginner come first. Those marked as rare are stated by ``--with NAME=VALUE``, so that
no command has more than forty; in Python all of them are keywords.
"""

from functools import partial
from pathlib import Path
from typing import Any, Literal

from meshwright.ask.kinds import (
    AxisOrder,
    Bytes,
    BytesPerS,
    Count,
    Count0,
    DTypeName,
    Duration,
    Grid,
    IdleWatts,
    Imbalance,
    ManyDevices,
    Modules,
    Name,
    Percentile,
    PerSecond,
    Port,
    Processes,
    Ramp,
    Rank,
    Rent,
    Seconds,
    Share,
    Sizes,
    Spread,
    StageLayers,
    Switches,
    Targets,
    Tensors,
    Tokens,
    Tokens0,
    TokensOfRun,
    Watts,
    Weights,
    Workers,
)
from meshwright.ask.record import Question, argument, like, option
from meshwright.spec.choices import (
    ContextKind,
    Offload,
    Recompute,
    ScheduleKind,
    Streamed,
    StreamForm,
)

BINARY = "128k is 131072, 1M 1048576"
"""Notation of lengths; k and M of other counts are decimal."""
MODEL_HELP = "catalog name, Hugging Face id, config.json or its folder"
OR_JOB = f"{MODEL_HELP}; or a launch file"
PROGRAM_HELP = "a program: model.pt2, model.onnx, model.mlir, module:function, file.py:function"
GRAPH_HELP = f"catalog name, file, hpl-NxB, fft-AxB or a model; {PROGRAM_HELP}"
SYSTEM_HELP = "64xH100, 2x4xL4 (two hosts of four), wafer-6x8, v5p-128, a YAML file"
NETWORK_HELP = (
    "network between hosts: 100GbE, NDR, a YAML file (one adapter a host); 8x200GbE (eight)"
)
CALIBRATION_HELP = (
    "constants of the cost model: uncalibrated, or a file written by calibrate (calibrated)"
)
OPTIMIZER_HELP = "preset of bytes per parameter; see show optimizer"
TRAINING_HELP = "with the backward pass"
FORCE_HELP = "replace existing files, write through symbolic links"
REPORT_HELP = "write a report to share: one HTML file"
degree = partial(option, group="degrees and choices that you fix")
choice = partial(option, group="degrees and choices that you fix")
in_job = partial(option, group="your running job")
in_graph = partial(option, group="program")


# ----------------------------------------------------------------------------- pieces of questions


class Split(Question):
    """How devices share the work: degrees and choices of training and of serving."""

    collects = True

    tp: tuple[Count, ...] | None = degree("tensor parallel degree", "N")
    cp: tuple[Count, ...] | None = degree("context parallel degree", "N")
    pp: tuple[Count, ...] | None = degree("pipeline stages", "N")
    dp: tuple[Count, ...] | None = degree("data parallel degree (the devices that are left)", "N")
    ep: tuple[Count, ...] | None = degree("expert parallel degree", "N")
    etp: tuple[Count, ...] | None = degree(
        "tensor parallel degree inside experts", "N", is_rare=True
    )
    mbs: tuple[Count, ...] | None = degree(
        "sequences in a micro-batch", "N", target="micro_batch_size"
    )
    sp: tuple[bool, ...] | None = choice("sequence parallelism", target="sequence_parallel")
    cp_kind: tuple[ContextKind, ...] | None = choice(
        "attention under context parallelism", target="context_kind", is_rare=True
    )
    axis_order: tuple[AxisOrder, ...] | None = choice(
        "order of the axes on the devices, innermost first (tp-cp-dp-pp)", is_rare=True
    )


class Fixed(Split):
    """Degrees and choices of training that a user fixes."""

    vpp: tuple[Count, ...] | None = degree(
        "virtual stages on each pipeline rank", "N", target="num_virtual_stages"
    )
    tatp: tuple[Count, ...] | None = degree("degree of tensor streams on a grid", "N")
    zero: tuple[Literal[0, 1, 2, 3], ...] | None = choice("ZeRO stage", target="zero_stage")
    recompute: tuple[Recompute, ...] | None = choice("activation recomputation")
    schedule: tuple[ScheduleKind, ...] | None = choice("pipeline schedule")
    offload: tuple[Offload, ...] | None = choice(
        "parts in host memory; gradients includes the optimizer state, state the weights too"
    )
    dp_shard: tuple[Count, ...] | None = degree(
        "data parallel ranks over which state is sharded", "N", is_rare=True
    )
    reshard: tuple[bool, ...] | None = choice(
        "with ZeRO 3: gather the weights again for the backward pass",
        target="reshard_after_forward", is_rare=True,
    )  # fmt: skip
    recompute_modules: tuple[Modules, ...] | None = choice(
        "with --recompute selective: modules to recompute, some of core_attn+layernorm+mla_up_proj+"
        "mlp+moe+moe_act+shared_experts", "NAME+NAME", is_rare=True,
    )  # fmt: skip
    kept_tensors: tuple[Tensors, ...] | None = choice(
        "with --recompute selective: tensors kept beside the input of a layer, some of "
        "query_proj+key_proj+value_proj+context+out_proj+mlpwi+mlpwo", "NAME+NAME", is_rare=True,
    )  # fmt: skip
    offloaded_tensors: tuple[Tensors, ...] | None = choice(
        "tensors kept in host memory: those of kept_tensors, or decoder_layer_input",
        "NAME+NAME",
        is_rare=True,
    )
    recompute_layers: tuple[Count0, ...] | None = choice(
        "with --recompute full: recomputed layers of each chunk (0: all)", "N",
        is_rare=True,
    )  # fmt: skip
    recompute_run: tuple[Count, ...] | None = choice(
        "with --recompute full: layers that share one kept input (1)", "N",
        is_rare=True,
    )  # fmt: skip
    vocab_parallel: tuple[bool, ...] | None = choice(
        "embedding and logits split over all pipeline stages (off)",
        target="vocabulary_parallel", is_rare=True,
    )  # fmt: skip
    embedding_layers: tuple[Count0, ...] | None = choice(
        "weight of the embedding in layers, when layers are dealt to stages (0)", "N", is_rare=True
    )
    head_layers: tuple[Count0, ...] | None = choice(
        "weight of the head in layers, when layers are dealt to stages (0)", "N", is_rare=True
    )
    stage_layers: tuple[StageLayers, ...] | None = choice(
        "layers of each stage (of each chunk where interleaved), such as 7+8*14+7", "N+N",
        is_rare=True,
    )  # fmt: skip
    dp_overlap: tuple[bool, ...] | None = choice(
        "gradient communication overlapped with the backward pass",
        target="overlap_data_parallel", is_rare=True,
    )  # fmt: skip
    ep_overlap: tuple[bool, ...] | None = choice(
        "expert communication hidden behind another micro-batch (off)",
        target="overlap_expert_parallel", is_rare=True,
    )  # fmt: skip
    streamed: tuple[Streamed, ...] | None = choice("operand of a tensor stream", is_rare=True)
    stream_form: tuple[StreamForm, ...] | None = choice("form of a tensor stream", is_rare=True)


class Machine(Question):
    """The system, its power and its rent."""

    collects = True

    on: Name | None = option(SYSTEM_HELP, "SYSTEM")
    network: Name | None = option(NETWORK_HELP, "NAME")
    rent: Rent | None = option("rent of a device in USD an hour, such as 2.5", "USD/h")
    max_power: Watts | None = option(
        "limit of the mean power of the system, such as 15kW", "W", is_rare=True
    )
    max_device_power: Watts | None = option(
        "limit of the mean power of each device", "W", is_rare=True
    )
    idle_power: IdleWatts | None = option(
        "power of an idle device; off leaves it out", "W|off", is_rare=True
    )
    calibration: Name = option(CALIBRATION_HELP, "NAME|FILE", "calibrated")


class Training(Question):
    """A model, a system and a workload of training."""

    collects = True

    model: Name | None = argument(MODEL_HELP)
    on: Name | None = like(Machine, "on")
    seq: Tokens | None = option(
        f"tokens of a sequence; {BINARY}", "TOKENS", field="sequence_length"
    )
    global_batch: Count | None = option("sequences in a step", "N", field="global_batch_size")
    network: Name | None = like(Machine, "network")
    framework: Name | None = option(
        "training framework, such as megatron, torchtitan==0.3.0; see show framework",
        "NAME",
        field="framework",
    )
    precision: DTypeName | None = option(
        "data type of the linear layers (bf16; fp16 where the chip has no bf16)",
        "TYPE",
        field="precision",
    )
    optimizer: Name | None = option(OPTIMIZER_HELP, "NAME", field="optimizer")
    gradient_dtype: Literal["fp32", "bf16"] | None = option(
        "data type of gradient accumulation and reduction (that of the optimizer)",
        field="gradient_dtype",
        is_rare=True,
    )
    tokens: TokensOfRun | None = option(
        "tokens of the whole run, such as 15T; decimal, B is 1e9", "N", field="total_tokens"
    )
    workload: Name | None = option("workload as a YAML file in place of these options", "FILE")
    lora_rank: Rank | None = option(
        "with --optimizer adapters: rank of each adapter; prices the adapters",
        "N",
        is_rare=True,
        field="adapters.rank",
    )
    lora_targets: Targets | None = option(
        "matrices with adapters: all (default), attention, mlp, or some of q+k+v+o+gate+up+down",
        "NAME+NAME", is_rare=True, field="adapters.targets")  # fmt: skip
    weights: Weights | None = option(
        "with --optimizer adapters: format of the frozen weights, one of int4, awq, gptq, nf4, "
        "nf4-double, bnb-int8", "TYPE", is_rare=True,
    )  # fmt: skip
    document_length: Tokens | None = option(
        "tokens of each document packed into a sequence; attention stays within a document",
        "TOKENS", is_rare=True, field="document_length")  # fmt: skip
    batch_ramp: Ramp | None = option(
        "growth of the batch: first size, increment, sequences until the whole batch",
        "N,N,N", is_rare=True, field="batch_ramp")  # fmt: skip
    imbalance: Imbalance | None = option(
        "load of the busiest expert rank over the mean (1)",
        "X",
        is_rare=True,
        field="expert_load_imbalance",
    )
    cuda_graphs: bool = option(
        "kernels launched as CUDA graphs", is_rare=True, field="software.cuda_graphs"
    )
    async_tp: bool = option(
        "async TP: communication overlaps with matrix products",
        is_rare=True,
        field="software.async_tensor_parallel",
    )
    switches: Switches | None = option(
        "framework switches to turn on, all others off: none, or some of compile+loss+async_tp+"
        "loss_in_parts+cuda_graphs (plan: all that never slow a step)", "NAME+NAME", is_rare=True,
        field="switches",
    )  # fmt: skip
    dropout: bool = option("dropout, with stored masks", is_rare=True, field="software.dropout")
    software: Any = option("software stated by files", is_rare=True, is_hidden=True)
    rent: Rent | None = like(Machine, "rent")
    max_power: Watts | None = like(Machine, "max_power")
    max_device_power: Watts | None = like(Machine, "max_device_power")
    idle_power: IdleWatts | None = like(Machine, "idle_power")
    calibration: Name = like(Machine, "calibration")


OF_WORKLOAD = tuple(name for name, option in Training.options.items() if option.field)
"""Options that a workload file replaces."""


class Requests(Question):
    """Requests that are served: decode with ``context``, prefill with ``prompt``, or both."""

    batch: Count | None = option("sequences in flight (decode) or in a batch (prefill)", "N")
    context: Tokens | None = option(
        f"decode: tokens in the KV cache of each sequence; {BINARY}", "TOKENS"
    )
    prompt: Tokens | None = option(
        f"prefill: tokens of a prompt; with --answer whole requests; {BINARY}", "TOKENS"
    )
    answer: Tokens | None = option(f"requests: tokens of an answer; {BINARY}", "TOKENS")
    kv_cache: DTypeName | None = option("data type of the KV cache", "TYPE")
    max_latency: Seconds | None = option('limit of TPOT or TTFT, such as "50 ms"', "TIME")
    max_ttft: Seconds | None = option("requests: limit of the time to the first token", "TIME")
    max_tpot: Seconds | None = option("requests: limit of the time per output token", "TIME")
    latency: bool = option("least latency instead of most throughput")
    disaggregated: bool = option("requests: separate workers for prefill and for decode")
    memory_share: Share | None = option(
        "share of device memory that the server fills (gpu-memory-utilization, "
        "mem-fraction-static)", "X",
    )  # fmt: skip
    speculative_model: Name | None = option(
        "decode: draft model of speculative decoding; mtp: the prediction layer of the model",
        "MODEL",
    )
    speculative_tokens: Count | None = option("tokens drafted in a step", "N")
    acceptance: Share | None = option(
        "probability that a drafted token is accepted, such as 0.7", "RATE"
    )
    two_batch_overlap: bool = option(
        "experts: a pass is two halves; tokens of one travel while the other computes",
        is_rare=True,
    )


class Traffic(Question):
    """Requests that arrive at a rate, whether others have ended or not."""

    rate: PerSecond | None = option("requests: number that arrive in a second", "N")
    trace: Name | None = option(
        "requests one by one: CSV or JSON with arrival_s, prompt_tokens, answer_tokens", "FILE"
    )
    percentile: Percentile = option(
        "with --rate: percentile of the requests that keep the limits", "N", 95
    )
    length_spread: Spread | None = option(
        "with --rate: standard deviation of both lengths over their means (0)", "X", is_rare=True
    )
    arrivals: Literal["poisson", "constant"] = option(
        "with --rate: at random, or at equal intervals", default="poisson", is_rare=True
    )
    shared_prefix: Tokens | None = option(
        "with --rate: first tokens of a prompt that other requests share", "TOKENS", is_rare=True
    )
    num_prefixes: Count | None = option(
        "with --rate: number of different shared prefixes (1)", "N", is_rare=True
    )
    turns: Count | None = option(
        "with --rate: requests of a conversation, each prompt after all turns before it (1)", "N",
        is_rare=True,
    )  # fmt: skip
    turn_interval: Seconds | None = option(
        "with --rate: time between requests of a conversation (60 s)", "TIME", is_rare=True
    )
    most_sequences: Count | None = option(
        "with --rate: sequences that a worker runs at a time (max-num-seqs)", "N", is_rare=True
    )
    most_pass_tokens: Count | None = option(
        "with --rate: tokens of a pass (max-num-batched-tokens)", "N", is_rare=True
    )
    beside: tuple[Name, ...] | None = option(
        "with --rate: other systems; the cheapest one answers", "SYSTEM", takes="again",
        is_rare=True,
    )  # fmt: skip


class Job(Question):
    """Files that start a job."""

    comes_last = True

    from_: tuple[Name, ...] | None = in_job(
        "launch files: script, YAML, TOML, JSON; options on the command line override "
        "them", "FILE", takes="words",
    )  # fmt: skip
    set: tuple[str, ...] | None = in_job(
        "shell variable that no file sets; repeatable", "NAME=VALUE", takes="again"
    )


class Measured(Question):
    """Measured steps that adjust the constants."""

    comes_last = True

    measured: Name | None = option(
        "measured steps of your jobs (YAML, or JSON rows as for validate); they adjust the "
        "constants", "FILE",
    )  # fmt: skip


class Program(Question):
    """Sizes of a program whose graph is read."""

    comes_last = True

    dim: Sizes | None = in_graph(
        f"size of a dim of a program or file, such as batch=8; {BINARY}; repeatable", "NAME=N",
        takes="again",
    )  # fmt: skip
    input: tuple[str, ...] | None = in_graph(
        "shape of an input of a module that states none: 8x3x224x224, ids=8x128:int64", "SHAPE",
        takes="again",
    )  # fmt: skip
    precision: DTypeName | None = option("data type of the tensors (as the graph states)", "TYPE")
    training: bool = option(TRAINING_HELP)


class Written(Question):
    """Files that a command writes."""

    comes_last = True

    force: bool = option(FORCE_HELP)


class Clustered(Question):
    """Workers that share the parts of a long question."""

    comes_last = True

    on_cluster: Name = option(
        "workers: processes here, or a Dask or Ray cluster",
        "local:N|dask://HOST:PORT|ray://HOST:PORT",
        "local:1",
    )


class Reported(Written):
    """A report that a command writes."""

    comes_last = True

    report: Path | None = option(REPORT_HELP, "FILE.html", writes=(".html",))


class Strategy(Training, Fixed):
    """Training, with the degrees and choices that a user fixes."""


# ------------------------------------------------------------------------------------ training


class Plan(Strategy, Job, Measured, Clustered, Reported):
    """Search the whole space for the best way to train, with a proof."""

    has_detail = True
    rarely = ("sp",)
    from_: tuple[Name, ...] | None = like(
        Job, "from_", help="an earlier plan, to plan again after a loss of devices; or launch "
        "files, to find a better plan",
    )  # fmt: skip
    without: Count | None = in_job("with --from: number of lost devices", "N")
    within: Duration | None = option(
        "time limit for all --tokens, such as 30d; with --on CHIP finds the fewest devices", "TIME"
    )
    out: Path | None = option("write the plan as JSON", "FILE", writes=())
    top: Count = option("plans in the ranking", "N", 5)
    fastest: bool = option("lead with the fastest plan, not with the simplest within 5 % of it")
    pareto: bool = option("Pareto front of time, memory, energy and money")
    simulated: Count0 = option(
        "on a grid: number of leading plans to simulate", "N", 5, is_rare=True
    )
    verify: bool = option("run the plan dry before it is given: start, memory, collectives")
    per_operator: bool = option("on a grid: also search a strategy for each operator", is_rare=True)


class Estimate(Strategy, Requests, Job, Measured, Reported):
    """Price one given strategy."""

    has_detail = True
    rarely = tuple(Requests.options.keys() - {"batch", "context", "prompt", "answer"})
    model: Name | None = like(Training, "model", help=OR_JOB)
    out: Path | None = option("write the plan as JSON", "FILE", writes=())


class Fit(Strategy, Job):
    """Check the memory of a strategy, and find the nearest changes that fit."""

    has_detail = True
    model: Name | None = like(Training, "model", help=OR_JOB)


class Explain(Strategy, Job, Reported):
    """Explain a plan: limits, alternatives, better hardware, time lost in a measured step."""

    has_detail = True
    model: Name | None = like(
        Training, "model", help="a plan written by plan --out; a model, with its strategy as "
        "options; or a launch file",
    )  # fmt: skip
    measured: str | None = in_job(
        "measured step: 8.1s, 412k tokens/s, 41% (MFU, causal scores), 400 TFLOP/s a device", "TIME"
    )
    measured_memory: Bytes | None = in_job("measured memory of the fullest device: 61 GB", "SIZE")
    trace: Name | None = in_job(
        "PyTorch profiler trace (.json, .json.gz) to set beside the prediction", "FILE"
    )
    picture: Path | None = option(
        "draw the grid with its link loads; without a grid, the stages over time",
        "FILE.svg",
        writes=(".svg",),
    )
    colors: str | None = option("with --picture: colour the groups of this axis", "AXIS")


class MeasuredJob(Fit):
    """A job of a file of measurements."""

    measured: str | None = like(Explain, "measured")


class Explore(Strategy):
    """Open a page in the browser that answers while you change the question."""

    model: Name | None = like(Training, "model", help=f"{MODEL_HELP}; or a plan as JSON")
    port: Port = option("port of this machine (any free one)", "N", 0)
    no_browser: bool = option("print the address, open no browser")


class Compare(Strategy, Job, Measured, Reported):
    """Compare the best plan with the best plan of each published recipe."""

    has_detail = True
    model: Name | None = like(Training, "model", help=OR_JOB)
    against: tuple[str, ...] | None = option(
        "recipes to compare, such as megatron-3,fsdp (all)", "NAME,NAME"
    )
    fastest: bool = like(Plan, "fastest")


class Check(Strategy, Job):
    """Check whether a strategy is legal, and find the nearest legal one."""

    model: Name | None = like(Training, "model", help=OR_JOB)


# --------------------------------------------------------------------------- other ways of running


class Serve(Machine, Requests, Traffic, Split, Job, Reported):
    """Search the best way to serve: decode, prefill, whole requests, traffic, separate workers."""

    has_detail = True
    leads = ("model", "on", "batch", "rate", "context", "prompt", "answer", "framework",
             "precision", "weights", "kv_cache")  # fmt: skip
    model: Name | None = argument(MODEL_HELP)
    framework: Name | None = option(
        "inference server: vllm, tensorrt-llm, ... (generic); see show framework", "NAME"
    )
    precision: DTypeName | None = option("data type of the linear layers", "TYPE")
    weights: Weights | None = option(
        "data type of the weights in memory, or int4, awq, gptq, nf4, nf4-double, bnb-int8", "TYPE"
    )
    rarely = ("mbs", "sp")
    imbalance: Imbalance | None = like(Training, "imbalance")
    cuda_graphs: bool = like(Training, "cuda_graphs", is_rare=False)
    workers: Workers | None = option(
        "with --disaggregated: numbers of prefill and decode workers, such as 2P3D", "xPyD",
        is_rare=True,
    )  # fmt: skip
    top: Count = like(Plan, "top")
    out: Path | None = like(Plan, "out")


class Loop(Machine, Fixed, Reported):
    """Search the fastest step of an RL loop: rollout, log-probabilities, training, resharding."""

    collects = True
    has_detail = True
    leads = ("model", "on", "algorithm", "prompts", "samples", "prompt", "answer",
             "longest_answer", "mini_batch", "epochs", "apart", "staleness", "engine",
             "engine_tp", "memory_share", "park", "framework", "precision",
             "optimizer")  # fmt: skip
    rarely = ("sp", "tatp")
    model: Name | None = argument(MODEL_HELP)
    algorithm: Literal["grpo", "ppo", "rloo", "dapo"] = option(
        "models beside the policy: reference (grpo, rloo), reference and critic (ppo), none (dapo)",
        default="grpo",
    )
    prompts: Count | None = option("prompts of a step (train_batch_size)", "N")
    samples: Count = option("answers to each prompt (rollout.n)", "N", 8)
    prompt: Tokens | None = option(f"tokens of a prompt; {BINARY}", "TOKENS")
    answer: Tokens0 | None = option(
        "mean tokens of an answer, as your log has it (response_length/mean)", "TOKENS"
    )
    longest_answer: Tokens | None = option(
        "tokens at which answers are cut off (max_response_length); without it all are equal",
        "TOKENS",
    )
    length_spread: Spread | None = option(
        "with --longest-answer: standard deviation of answers over their mean (1)", "X",
        is_rare=True,
    )  # fmt: skip
    mini_batch: Count | None = option("prompts of an update (ppo_mini_batch_size; all)", "N")
    epochs: Count = option("times that samples are trained on (ppo_epochs)", "N", 1)
    reward_model: bool = option(
        "a model as large as the policy scores the answers (a rule does)", is_rare=True
    )
    apart: bool = option("rollouts on devices of their own (one set of devices in turn)")
    staleness: Count0 | None = option(
        "with --apart: updates by which the weights of rollouts may be behind (1)", "N"
    )
    train_devices: Count | None = option(
        "with --apart: devices of training (the best number)", "N", is_rare=True
    )
    engine: Name | None = option("server that rolls out: vllm, sglang, ... (vllm)", "NAME")
    engine_tp: Count | None = option(
        "devices that split each layer in rollouts (rollout.tensor_model_parallel_size)", "N"
    )
    memory_share: Share | None = option(
        "share of device memory that the engine fills (gpu_memory_utilization; all that is free)",
        "X",
    )
    park: Literal["none", "optimizer", "all"] | None = option(
        "state in host memory between phases: of the optimizer (optimizer_offload), weights and "
        "models that only score too (param_offload); the fastest that fits"
    )
    keeps_engine: bool = option(
        "weights and cache of the engine stay on the devices (free_cache_engine=False)",
        is_rare=True,
    )
    framework: Name | None = like(Training, "framework")
    precision: DTypeName | None = like(Training, "precision")
    optimizer: Name | None = like(Training, "optimizer")
    imbalance: Imbalance | None = like(Training, "imbalance")


class Map(Program, Reported):
    """Lay any graph over devices: programs, HPL, FFT, DLRM."""

    collects = True
    has_detail = True
    graph: Name = argument(
        "dlrm-a, fft-4096x4096, a YAML file; model.pt2, model.onnx, model.mlir, module:function",
        "NAME|FILE", is_needed=True,
    )  # fmt: skip
    on: Name | None = like(Machine, "on")
    network: Name | None = like(Machine, "network")
    seq: Tokens | None = option(f"sequence length of a model; {BINARY}", "TOKENS")
    passes: Count = option("passes of the graph in a step", "N", 1)
    optimizer: Name | None = like(Training, "optimizer")
    overlap: bool = option("collectives overlap with other computation")
    solution: Name | None = option(
        "sharding by AutoParallel of the same computation, priced beside", "FILE.json"
    )
    process_grid: Grid | None = option(
        "hpl-NxB: block-cyclic grid of devices, such as 2x4; any: all grids", "PxQ"
    )
    tp: tuple[Count, ...] | None = like(Split, "tp")
    pp: tuple[Count, ...] | None = like(Split, "pp")
    dp: tuple[Count, ...] | None = like(Split, "dp")
    top: Count = like(Plan, "top")
    timeloop: Name | None = option(
        "write the chip and the products of a device for Timeloop and Accelergy", "FOLDER"
    )
    calibration: Name = like(Machine, "calibration")


class Simulate(Written):
    """Simulate the step of a plan, on grids with contention; or flows that share links."""

    what: Name = argument("a plan, or the word: flows", "PLAN.json", is_needed=True)
    file: Name | None = argument("links and flows, after the word flows", "FILE.json")
    trace: Path | None = option("write a Perfetto trace (.json, .json.gz)", "FILE", writes=())
    picture: Path | None = option(
        "draw the pipeline stages over time", "FILE.svg", writes=(".svg",)
    )
    rates: bool = option("with --json: every change of the rate of each link of flows", "", False)


class Route(Written):
    """Route flows over the links of any network, with a proof."""

    collects = True

    file: Name = argument("flows: sender, receivers and bytes of each", "FILE.json", is_needed=True)
    on: Name | None = option(
        "64xH100, wafer-6x8, a YAML file; without it the links of the file", "SYSTEM"
    )
    network: Name | None = like(Machine, "network")
    paths: Processes = option("equal parts of each flow, each with its own route", "N", 1)
    seed: Count = option("random seed of the search", "N", 0)
    out: Path | None = option(
        "write a flow file with routes, for simulate flows", "FILE.json", writes=()
    )


class Place(Written):
    """Price and simulate a plan on devices of your choice."""

    plan: Name = argument("a plan on a grid, as JSON", "PLAN.json", is_needed=True)
    file: Name | None = argument(
        "the device of each rank; without it, prints the placement of the plan", "PLACEMENT.json"
    )
    out: Path | None = option(
        "write the placed plan, or the placement of the plan where none is given",
        "FILE.json",
        writes=(),
    )


class Partition(Reported):
    """Cut layers or kernels into stages that fit SRAM, a cache or HBM."""

    collects = True
    has_detail = True
    model: Name | None = argument("a model, or a graph: catalog name, config.json, program, file")
    layers: Name | None = option("measured layers: YAML, JSON or CSV", "FILE")
    on: Name | None = option("4xWSE-3, 64xGroq-LPU, a YAML file", "SYSTEM")
    network: Name | None = like(Machine, "network")
    level: str | None = option("memory level that holds the layers (the nearest)", "NAME")
    capacity: Bytes | None = option("memory of a device for the layers, such as 230MB", "BYTES")
    objective: Literal["count", "balance", "time"] | None = option("objective (balance)")
    batch: Count = option("sequences in flight, or in a step", "N", 1)
    seq: Tokens | None = option(f"context, prompt or sequence; {BINARY}", "TOKENS")
    groups: Count | None = option("number of groups of the batch (the best one)", "N")
    prefill: bool = option("prompts instead of decode", excludes="kind")
    training: bool = option("forward and backward, with optimizer state", excludes="kind")
    precision: DTypeName | None = option("data type of the linear layers (16 bits)", "TYPE")
    weights: Weights | None = option("data type of the weights in memory", "TYPE")
    kv_cache: DTypeName | None = option("data type of the KV cache", "TYPE")
    optimizer: Name | None = like(Training, "optimizer")
    tp: Count | None = option("devices that split each layer", "N")
    ep: Count | None = option("devices among these that split the experts", "N")
    picture: Path | None = option("draw the stages", "FILE.svg", writes=(".svg",))
    calibration: Name = like(Machine, "calibration")
    dim: Sizes | None = like(Program, "dim")
    input: tuple[str, ...] | None = like(Program, "input")


class Fuse(Program, Reported):
    """Fuse kernels into partitions that run on a chip one by one."""

    collects = True
    has_detail = True
    graph: Name = argument(GRAPH_HELP, is_needed=True)
    on: Name | None = option("catalog name or YAML file: SN10, H100", "CHIP")
    tp: Count = option("chips over which kernels are split", "N", 1)
    pp: Count = option("stages over which repetitions are spread", "N", 1)
    chips: Count | None = option("number of chips, tp x pp; tries every division into both", "N")
    tile: Count | None = option("length of a tile (the best power of two)", "N")
    micro_batch: Count | None = option(
        "passes in flight, which share the weights (best up to 64)", "N"
    )
    objective: Literal["throughput", "latency"] = option(
        "what is optimised: a stream of passes, or one pass alone", "", "throughput"
    )
    passes: Count | None = option("passes of the stream (without end)", "N")
    time_limit: Seconds | None = option("time for the search; the best answer so far", "TIME")
    link: BytesPerS | None = option("one direction of a link between chips", "RATE")
    tokens: Tokens | None = option(f"sequence length of a model (2048); {BINARY}", "TOKENS")
    kernel_by_kernel: bool = option("no fusion: one kernel after the other")
    picture: Path | None = option("draw cores over time", "FILE.svg", writes=(".svg",))


class Export(Written):
    """Write launch files for training frameworks and servers."""

    plan: Name | None = argument("a plan as JSON; without one, the targets")
    target: str | None = argument(
        "torch, megatron, megatron-bridge, torchtitan, torchtitan-autoparallel, deepspeed, "
        "accelerate, axolotl, torchtune, maxtext, chakra or shardings; of a plan of serving vllm, "
        "sglang or tensorrt-llm"
    )
    out: Name = option("folder for the files", "FOLDER", ".")
    launcher: Literal["slurm", "kubernetes"] | None = option(
        "also write a job that starts all hosts, or all workers of a server"
    )
    print: bool = option("print the files, write nothing")
    verify: bool = option("run the plan dry first; its training files say the outcome")


# ------------------------------------------------------------------------- what the catalog holds


class ShowModel(Question):
    """Dims, parameter counts and operators of a model."""

    model: Name | None = argument(f"{MODEL_HELP}; without one, the names")


class ShowChip(Question):
    """Rates, memories, power and their sources."""

    chip: Name | None = argument("catalog name or YAML file; without one, the names")


class ShowSystem(Question):
    """Devices and network levels of a system."""

    system: Name | None = argument(
        "64xH100, wafer-6x8, a catalog name or a YAML file; without one, the names"
    )


class ShowFramework(Question):
    """Launchable plans, kernels and defaults of a framework or server."""

    framework: Name | None = argument("NAME or NAME==VERSION; without one, the names")


class ShowOptimizer(Question):
    """Bytes per parameter that a framework keeps."""

    optimizer: Name | None = argument("preset; without one, the names")


class ShowSchema(Question):
    """JSON Schema of an answer as --json prints it."""

    schema: str | None = argument("plan, serving-plan, ...; without one, the names")


class ShowCompletion(Question):
    """Shell script that completes commands, options and names."""

    shell: str | None = argument(
        "bash, zsh, fish or tcsh; without one, the folder of scripts of each"
    )


class ShowCollectives(Question):
    """Time of each collective algorithm on a group."""

    collects = True

    on: Name = option("64xH100, a name or a file", "SYSTEM", is_needed=True)
    network: Name | None = like(Machine, "network")
    size: Bytes = option(
        "bytes of the full tensor, such as 64 MiB", "SIZE", takes="words", is_needed=True
    )
    group: str = option(
        "members of the group: a number, or devices such as 0,1,2,8", "N|LIST", is_needed=True
    )
    stride: Count = option("distance between members, in devices", "N", 1)


class ShowWalk(Reported):
    """Tensors that each device holds, computes and sends, frame by frame."""

    collects = True

    walk: str | None = argument(
        "tp, tp-sp, tspp, tatp or a collective algorithm; without one, the names"
    )
    group: str | None = option("members: a number, or the sides of a block such as 2x4", "N|RxC")
    model: Name | None = option("model of the layer (gpt3-175b)", "MODEL")
    seq: Tokens | None = option(f"tokens of the sequence (2048); {BINARY}", "TOKENS")
    form: str | None = option(
        "form of a tensor stream: ring, folded_ring, hold, stream, cycle", "NAME"
    )
    streamed: Literal["weights", "inputs"] | None = option("tensor that travels (the smaller one)")
    size: Bytes | None = option(
        "collectives: bytes of the full tensor (64 MiB)", "BYTES", takes="words"
    )
    report: Path | None = like(Reported, "report", help="write an HTML page that plays the walk")


class ShowGraph(Program):
    """Kernels of a computation, and the dims over which they may be split."""

    graph: Name | None = argument(f"{GRAPH_HELP}; without one, the names")
    tokens: Tokens | None = like(Fuse, "tokens")
    yaml: bool = option("print the graph as a file")


class ShowTopologies(Question):
    """Links, diameter and bisection of each network."""

    devices: ManyDevices = option("number of devices", "N", 16)


# ------------------------------------------------------------------- files, many questions, truth


class Read(Program, Written):
    """Read launch files as a question, or a program as a graph of kernels."""

    has_detail = True
    files: tuple[Name, ...] = argument(
        "launch script, YAML, TOML, JSON of Megatron-LM, torchtitan, DeepSpeed, accelerate, "
        f"MaxText, vLLM, ...; or {PROGRAM_HELP}", "FILE", takes="words", is_needed=True,
    )  # fmt: skip
    on: Name | None = in_job(
        "system of the job, in place of the devices that its files ask for", "SYSTEM"
    )
    set: tuple[str, ...] | None = like(Job, "set")
    repeats: Count | None = in_graph("repetitions of the whole graph (1)", "N")
    out: Path | None = in_graph("write the graph as a file", "FILE.yaml", writes=(".yaml",))


class Sweep(Clustered, Written):
    """Ask one question for many models, systems and designs; resumable."""

    file: Name = argument("question, fixed fields and varied fields (YAML)", "FILE", is_needed=True)
    out: Path | None = option(
        "store the results in SQLite, PostgreSQL or Parquet; run again to resume",
        "FILE.db|postgresql://...|s3://...",
        writes=(),
        is_resumed=True,
    )
    budget: Duration | None = option(
        "end after this time, such as 2h, with points far apart first; run again to go on", "TIME"
    )
    front: str | None = option(
        "ask only points that may be best in results and fields, such as tokens_per_s,devices",
        "NAME,NAME",
    )
    watch: bool = option(
        "ask nothing: serve a page of the results in --out, which another process writes"
    )
    csv: Path | None = option("write all points and results", "FILE", writes=())
    picture: Path | None = option("draw the heat map of the file", "FILE.svg", writes=(".svg",))
    report: Path | None = option(
        "write the report: one page (.html), or the document of the file with its pictures (.md)",
        "FILE.md|html",
        writes=(".md", ".html"),
    )
    least: str | None = option(
        "choose the points with the least value of a result, such as price_units", "NAME"
    )
    most: str | None = option(
        "choose the points with the greatest value of a result, such as utilisation", "NAME"
    )
    at_least: tuple[str, ...] | None = option(
        "floor of a result, such as utilisation=0.5; repeatable", "NAME=X",
        takes="again",
    )  # fmt: skip
    at_most: tuple[str, ...] | None = option(
        "ceiling of a result, such as price_units=40000; repeatable", "NAME=X", takes="again"
    )


class Validate(Clustered, Reported):
    """Compare predictions with measurements, yours or published."""

    has_detail = True
    measurements: Name | None = option("your rows, a JSON array (the published ones)", "FILE")
    kernels: bool = option("single kernels in place of steps (your rows as CSV)")
    calibration: Name = like(Machine, "calibration")
    document: Path | None = option(
        "write the tables, with pictures beside them", "FILE.md", writes=(".md",)
    )


class Calibrate(Clustered, Written):
    """Fit the constants of the cost model to measurements."""

    file: Name | None = argument("measured rows, a JSON array (the published ones)", "FILE")
    kernels: bool = like(Validate, "kernels")
    out: Path | None = option("write the calibration", "FILE.yaml", writes=())


class Measure(Written):
    """Measure this machine: kernels, memory, network, launches; all devices under torchrun."""

    has_detail = True
    out: Path = option(
        "write the calibration with its rows (measured.yaml), and the system beside it where the "
        "catalog lacks this machine", "FILE.yaml", "measured.yaml",
        writes=(".yaml",))  # fmt: skip
    quick: bool = option("measure for half a minute in place of two and a half")


class Run(Question):
    """Run a plan: for real on a few processes, or dry at its full size."""

    has_detail = True
    plan: Name = argument("a plan as JSON", "PLAN.json", is_needed=True)
    dry: bool = option("its true size on fake devices: memory and collectives of one step")
    check: bool = option("train the dense model beside it: losses and gradients must be equal")
    steps: Count = option("steps of a real run", "N", 5)
    scale: Literal["tiny", "full"] = option(
        "size of a real run: tiny keeps the shardings of the plan, full its sizes too",
        default="tiny",
    )
    processes: Processes = option(
        "most processes of a tiny run: degrees are halved until they fit", "N", 8
    )
    seed: Count0 = option("seed of weights and tokens", "N", 0)
    dtype: Literal["fp64", "fp32", "bf16"] = option("type of weights and activations",
                                                    default="fp32")  # fmt: skip
    port: Port | None = option("port at which the processes meet (a free one)", "N")


class Study(Clustered, Written):
    """Rebuild a published figure or question."""

    name: str | None = argument("name of a study, or 'all'; without one, the names")
    out: Name | None = option("folder for tables, charts and verdicts", "FOLDER")


COMMANDS: dict[str, type[Question]] = {
    "plan": Plan, "serve": Serve, "loop": Loop, "map": Map, "fuse": Fuse, "partition": Partition,
    "estimate": Estimate, "fit": Fit, "explain": Explain, "explore": Explore, "compare": Compare,
    "check": Check, "simulate": Simulate, "route": Route, "place": Place, "export": Export,
    "show model": ShowModel, "show chip": ShowChip, "show system": ShowSystem,
    "show framework": ShowFramework, "show optimizer": ShowOptimizer, "show schema": ShowSchema,
    "show completion": ShowCompletion, "show collectives": ShowCollectives, "show walk": ShowWalk,
    "show graph": ShowGraph, "show topologies": ShowTopologies, "read": Read, "sweep": Sweep,
    "validate": Validate, "calibrate": Calibrate, "measure": Measure, "run": Run, "study": Study,
}  # fmt: skip
FAMILIES = {
    "show": "show models, graphs, chips, systems, frameworks, optimizers, schemas, collectives, "
    "topologies, walks, shell completion"
}
"""First words with several commands."""
