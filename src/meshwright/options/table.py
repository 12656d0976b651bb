"""The table of commands and their options, for the command line and for Python alike.

``meshwright plan MODEL --global-batch 64`` and ``mw.plan(MODEL, global_batch=64)`` are made from
the same entries: argparse reads this table, and so does :func:`options_from_keywords`, so that
both take the same names and the same values. Standard library only: ``--help`` imports no more.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option or argument of a command."""

    name: str
    """Name in Python: ``global_batch`` is ``--global-batch``."""
    help: str
    metavar: str = ""
    default: Any = None
    kind: str = "value"
    """``value``, ``flag``, ``argument`` (positional, may be left out), ``needed`` (positional),
    ``several`` (positional, one or more), ``values`` (one or more), ``again`` (may be given again
    and again), ``number``."""
    is_required: bool = False
    group: str = ""
    """Title of its section in the help."""
    excludes: str = ""
    """Group of options that exclude each other in one command."""
    choices: tuple[str, ...] = ()
    dest: str = ""
    """Name in the search, where that differs from the option."""
    is_hidden: bool = False

    @property
    def is_positional(self) -> bool:
        """Whether the option is given without its name."""
        return self.kind in ("argument", "needed", "several")

    @property
    def flag(self) -> str:
        """The option as typed: ``--global-batch``; a Python keyword has no trailing ``_``."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def type_in_python(self) -> str:
        """Type for the docstring: ``bool``, one of its choices, or as typed."""
        if self.kind == "flag":
            return "bool"
        found = " | ".join(map(repr, self.choices)) or self.metavar or self.target.upper()
        if self.kind in ("values", "again", "several"):
            found = f"{found}, or several"
        if self.default is not None:
            return f"{found}, default {self.default!r}"
        return found if self.kind == "needed" or self.is_required else f"{found}, optional"

    @property
    def target(self) -> str:
        """Name of the value once it is read."""
        return self.dest or self.name

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Declare the option for a command line."""
        about = argparse.SUPPRESS if self.is_hidden else self.help.replace("%", "%%")
        if self.is_positional:
            shown: dict[str, Any] = {"metavar": self.metavar} if self.metavar else {}
            nargs = {"argument": "?", "several": "+"}.get(self.kind)
            parser.add_argument(self.target, nargs=nargs, help=about, **shown)
            return
        settings: dict[str, Any] = {"help": about, "dest": self.target, "default": self.default}
        if self.kind == "flag":
            settings |= {"action": "store_true", "default": False}
        else:
            settings["metavar"] = "|".join(self.choices) or self.metavar or None
        if self.kind == "values":
            settings["nargs"] = "+"
        if self.kind == "again":
            settings["action"] = "append"
        if self.kind == "number":
            settings["type"] = int
        if self.is_required:
            settings["required"] = True
        parser.add_argument(self.flag, **settings)


@dataclass(frozen=True)
class Command:
    """A verb: its help and its options."""

    help: str
    options: tuple[Option, ...]
    has_detail: bool = False
    """Whether its screen has more to show under ``--detail``."""

    def docstring(self, answer: str, returned: str) -> str:
        """Return the docstring of the verb in Python.

        Parameters
        ----------
        answer
            Docstring of the answer; its first line names the returned value.
        returned
            Type of the returned value.
        """
        lines = [f"{self.help[:1].upper()}{self.help[1:]}.", "", "Parameters", "----------"]
        for option in self.options:
            if not option.is_hidden:
                lines += [f"{option.name} : {option.type_in_python}", f"    {option.help}"]
        about = answer.partition("\n")[0].removeprefix("Return ")
        lines += ["", "Returns", "-------", returned, f"    {about[:1].upper()}{about[1:]}"]
        return "\n".join(lines) + "\n"

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options for a command line, and those of every screen."""
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        for option in self.options:
            title = option.group
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            place = groups[title]
            if option.excludes:
                key = f"{title}/{option.excludes}"
                if key not in groups:
                    groups[key] = groups[title].add_mutually_exclusive_group()
                place = groups[key]
            option.add_to(place)
        if self.has_detail:
            text = "the whole answer: every part, the ranking, the proof"
            parser.add_argument("--detail", action="store_true", help=text)
        parser.add_argument("--json", action="store_true", help="print the result as JSON")


def options_from_keywords(verb: str, given: Mapping[str, object]) -> argparse.Namespace:
    """Return keyword arguments of a verb in the form of the command line.

    Numbers become text, sequences a list with commas; declarations stay objects.

    Raises
    ------
    UnknownNameError
        An option that the verb does not have, with the nearest names.
    SpecError
        A flag that is neither true nor false.
    """
    from meshwright.base.errors import Fault, SpecError, UnknownNameError

    known = {option.name: option for option in COMMANDS[verb].options}
    values = {
        option.target: False if option.kind == "flag" else option.default
        for option in known.values()
    }
    for name, value in given.items():
        if name not in known:
            raise UnknownNameError(f"option of {verb}", name, known)
        option = known[name]
        if value is None:
            continue
        if option.kind == "flag":
            if not isinstance(value, bool):
                raise SpecError(Fault(name, f"found {value!r}, expected True or False"))
            values[option.target] = value
        elif option.kind == "number":
            values[option.target] = value
        elif option.kind == "again" and isinstance(value, Mapping):
            values[option.target] = [f"{key}={entry}" for key, entry in value.items()]
        elif option.kind in ("values", "again", "several"):
            values[option.target] = [str(value)] if isinstance(value, str) else list(_each(value))
        else:
            values[option.target] = _as_typed(option, value)
    excluded: dict[str, str] = {}
    for option in known.values():
        if option.excludes and values[option.target]:
            other = excluded.setdefault(option.excludes, option.name)
            if other != option.name:
                raise SpecError(Fault(option.name, f"not together with {other}"))
    needed = [o for o in known.values() if o.is_required or o.kind in ("needed", "several")]
    if missing := [option for option in needed if values[option.target] is None]:
        raise SpecError([Fault(option.name, "is needed") for option in missing])
    return argparse.Namespace(**values)


def _each(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list | tuple) else [str(value)]


def _as_typed(option: Option, value: object) -> object:
    """Return a value as text; declarations and plans stay objects."""
    if isinstance(value, bool):
        return ("on" if value else "off") if "on" in option.choices else str(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str | Number):
        return str(value)
    if isinstance(value, list | tuple | range | set | frozenset):
        return ",".join(str(_as_typed(option, entry)) for entry in value)
    if hasattr(value, "tolist"):
        return _as_typed(option, value.tolist())
    if any(base.__module__.startswith("meshwright.") for base in type(value).__mro__):
        return value
    from meshwright.base.errors import Fault, SpecError

    expected = "text, a number or a list of them"
    raise SpecError(Fault(option.name, f"found a {type(value).__name__}, expected {expected}"))


BINARY = "128k is 131072, 1M 1048576"
"""Notation of lengths; k and M of other counts are decimal."""
MODEL_HELP = "catalog name, Hugging Face id, config.json or its folder"
OR_JOB = f"{MODEL_HELP}; or a file that starts a job"
_FIXED = "fix a degree or a choice"
_SERVING = "serving instead of training"
_GRAPH = "any computation instead of a model"
CALIBRATION = Option(
    "calibration",
    "constants of the cost model: uncalibrated, or a file written by calibrate (calibrated)",
    "NAME|FILE",
    "calibrated",
)
MEASURED_FILE = Option(
    "measured",
    "measured steps of your jobs (YAML, or JSON rows as for validate); they adjust the constants",
    "FILE",
)
NETWORK = Option(
    "network",
    "network between hosts: 100GbE, NDR, a YAML file (one adapter a host); 8x200GbE (eight)",
    "NAME",
)
WEIGHTS = Option(
    "weights",
    "of serving: data type of the resident weights, or int4, awq, gptq, nf4, nf4-double, "
    "bnb-int8; one of these with --optimizer adapters: as frozen weights rest",
    "TYPE",
)
KERNELS = Option("kernels", "times of single kernels, not of steps (your rows as CSV)", kind="flag")
OUT_PLAN = Option("out", "write the plan as JSON", "FILE")
REPORT = Option("report", "write a report to look at and to pass on: one HTML file", "FILE.html")
FORCE = Option("force", "replace files that are there, write through symbolic links", kind="flag")


def question(*, is_needed: bool, model_help: str = MODEL_HELP) -> tuple[Option, ...]:
    """Return the options that state model, system and training workload."""
    return (
        Option("model", model_help, kind="needed" if is_needed else "argument"),
        Option(
            "on",
            "64xH100, 2x4xL4 (two hosts of four), wafer-6x8, v5p-128, a YAML file",
            "SYSTEM",
            is_required=is_needed,
        ),
        NETWORK,
        Option("seq", f"tokens of a sequence; {BINARY}", "TOKENS"),
        Option("global_batch", "sequences in a step", "N"),
        Option("workload", "a YAML file instead of the options", "FILE"),
        Option(
            "framework",
            "what runs it, such as megatron, torchtitan==0.3.0, or of serving vllm; see show "
            "framework",
            "NAME",
        ),
        Option(
            "precision",
            "data type of the linear layers (bf16; fp16 where the chip has no bf16)",
            "TYPE",
        ),
        Option("optimizer", "preset of bytes per parameter; see show optimizer", "NAME"),
        Option(
            "lora_rank",
            "with --optimizer adapters: rank of each adapter, which is priced then",
            "N",
        ),
        Option(
            "lora_targets",
            "products with adapters: all (usual), attention, mlp, or some of q+k+v+o+gate+up+down",
            "NAME+NAME",
        ),
        WEIGHTS,
        Option("tokens", "tokens of the whole run, such as 15T; decimal, B is 1e9", "N"),
        Option(
            "document_length",
            "tokens of the documents that are packed into a sequence, where "
            "each attends to itself alone",
            "TOKENS",
        ),
        Option(
            "batch_ramp",
            "growth of the batch of a run: first size, increment, and sequences "
            "until the whole batch",
            "N,N,N",
        ),
        Option("imbalance", "load of the busiest expert rank over the mean (1)", "X"),
        Option("cuda_graphs", "kernels launched as CUDA graphs", kind="flag"),
        Option("async_tp", "async TP: communication overlaps with matrix products", kind="flag"),
        Option(
            "switches",
            "what of the framework is on, all else of it off: none, or some of compile+loss+"
            "async_tp+cuda_graphs (plan: all that never cost)",
            "NAME+NAME",
        ),
        Option("dropout", "dropout, whose masks are stored", kind="flag"),
        Option("max_power", "limit of the mean power of the system, such as 15kW", "W"),
        Option("max_device_power", "limit of the mean power of each device", "W"),
        Option("idle_power", "power of an idle device; off leaves it out", "W|off"),
        Option("rent", "rent of a device in USD an hour, such as 2.5", "USD/h"),
        CALIBRATION,
    )


_JOB = "a job that you run"
JOB = (
    Option("from_", "files that start it: launch script, YAML, TOML, JSON; an option that is given "
           "counts instead of theirs", "FILE", kind="values", dest="origin", group=_JOB),
    Option("set", "a shell variable that no file sets; again for each", "NAME=VALUE", kind="again",
           group=_JOB),
)  # fmt: skip
ON_OFF = ("on", "off")
AXIS_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp",
               "tp-pp-dp-cp")  # fmt: skip
FIXED = tuple(
    Option(name, about, metavar, group=_FIXED, choices=choices, dest=dest, is_hidden=name == "etp")
    for name, about, metavar, choices, dest in (
        ("tp", "tensor parallel degree", "N", (), ""),
        ("cp", "context parallel degree", "N", (), ""),
        ("pp", "pipeline stages", "N", (), ""),
        ("dp", "data parallel degree (the devices that are left)", "N", (), ""),
        ("ep", "expert parallel degree", "N", (), ""),
        ("etp", "tensor parallel degree inside experts", "N", (), ""),
        ("tatp", "degree of tensor streams on a grid", "N", (), ""),
        ("dp_shard", "data parallel ranks over which state is sharded", "N", (), ""),
        ("vpp", "virtual stages on each pipeline rank", "N", (), "num_virtual_stages"),
        ("mbs", "sequences in a micro-batch", "N", (), "micro_batch_size"),
        ("recompute", "activation recomputation", "", ("none", "selective", "full"), ""),
        ("recompute_modules", "with --recompute selective: some of core_attn+layernorm+mla_up_proj+"
         "mlp+moe+moe_act+shared_experts", "NAME+NAME", (), ""),
        ("kept_tensors", "with --recompute selective: kept with the input of a layer, all else "
         "is made again: some of query_proj+key_proj+value_proj+context+out_proj+mlpwi+mlpwo",
         "NAME+NAME", (), ""),
        ("offloaded_tensors", "the same, kept in host memory; decoder_layer_input too",
         "NAME+NAME", (), ""),
        ("recompute_layers", "with --recompute full: layers of each chunk, the others are kept "
         "(0: all)", "N", (), ""),
        ("recompute_run", "with --recompute full: layers of a chunk that keep one input together "
         "(1)", "N", (), ""),
        ("schedule", "pipeline schedule", "", ("gpipe", "1f1b", "interleaved", "zero_bubble"), ""),
        ("cp_kind", "attention under context parallelism", "", ("ring", "ulysses"),
         "context_kind"),
        ("axis_order", "order of the axes on the devices, innermost first (tp-cp-dp-pp)", "ORDER",
         AXIS_ORDERS, ""),
        ("offload", "kept in host memory; gradients: with optimizer state, state: and weights", "",
         ("none", "optimizer", "gradients", "state", "activations", "weights", "all"), ""),
        ("zero", "ZeRO stage", "", ("0", "1", "2", "3"), "zero_stage"),
        ("reshard", "with ZeRO 3: weights are gathered again for the backward pass", "", ON_OFF,
         "reshard_after_forward"),
        ("sp", "sequence parallelism", "", ON_OFF, "sequence_parallel"),
        ("vocab_parallel", "embedding and logits split over all pipeline stages (off)", "", ON_OFF,
         "vocabulary_parallel"),
        ("embedding_layers", "layers for which the embedding counts where stages are filled (0)",
         "N", (), ""),
        ("head_layers", "layers for which the head counts where stages are filled (0)", "N", (),
         ""),
        ("stage_layers", "layers of each stage (of interleaved ones of each chunk), as in 7+8*14+7",
         "N+N", (), ""),
        ("dp_overlap", "gradient communication overlapped with the backward pass", "", ON_OFF,
         "overlap_data_parallel"),
        ("ep_overlap", "communication of experts hidden behind another micro-batch (off)", "",
         ON_OFF, "overlap_expert_parallel"),
        ("streamed", "operand of a tensor stream", "", ("auto", "weights", "inputs", "both"), ""),
        ("stream_form", "form of a tensor stream", "",
         ("auto", "hold", "stream", "cycle", "ring", "folded_ring"), ""),
    )
)  # fmt: skip
SERVING = tuple(
    Option(name, about, metavar, kind="value" if metavar else "flag", group=_SERVING,
           )
    for name, about, metavar in (
        ("decode", "one token for each sequence in flight", ""),
        ("prefill", "the prompts of a batch; with --decode whole requests", ""),
        ("disaggregated", "requests: workers of prefill and of decode, each its own", ""),
        ("batch", "sequences in flight (decode) or in a batch (prefill)", "N"),
        ("context", f"decode: tokens in the KV cache of each sequence; {BINARY}", "TOKENS"),
        ("prompt", f"prefill: tokens of a prompt; {BINARY}", "TOKENS"),
        ("answer", f"requests: tokens of an answer; {BINARY}", "TOKENS"),
        ("max_latency", 'limit of TPOT or TTFT, such as "50 ms"', "TIME"),
        ("max_ttft", "requests: limit of the time to the first token", "TIME"),
        ("max_tpot", "requests: limit of the time per output token", "TIME"),
        ("speculative_model", "decode: what drafts tokens, as MODEL; mtp: its own layer", "MODEL"),
        ("speculative_tokens", "tokens drafted in a step", "N"),
        ("acceptance", "chance that a drafted token is accepted: 0.7", "RATE"),
        ("latency", "least latency instead of most throughput", ""),
        ("kv_cache", "data type of the KV cache", "TYPE"),
        ("server", "as --framework: vllm, tensorrt-llm, ... (generic)", "NAME"),
        ("memory_share", "share of the memory that the server fills, as its own option states it "
         "(gpu-memory-utilization, mem-fraction-static)", "X"),
    )
)  # fmt: skip
PROGRAM = (
    Option("dim", f"size of a dim of a program or file: batch=8; {BINARY}; again for each",
           "NAME=N", kind="again", group=_GRAPH),
    Option("input", "shape of an input of a module that states none: 8x3x224x224, "
           "ids=8x128:int64", "SHAPE", kind="again", group=_GRAPH),
)  # fmt: skip
PROGRAM_HELP = "a program: model.pt2, model.onnx, module:function, file.py:function"
GRAPH = (
    Option("graph", "dlrm-a, fft-4096x4096, a YAML file; model.pt2, model.onnx, module:function",
           "NAME|FILE", group=_GRAPH),
    *PROGRAM,
    Option("training", "with the backward pass", kind="flag", group=_GRAPH),
    Option("overlap", "collectives overlap with other computation", kind="flag", group=_GRAPH),
    Option("process_grid", "hpl-NxB on rows and columns of devices, block-cyclic: 2x4, any", "PxQ",
           group=_GRAPH),
)  # fmt: skip
_TRAINING = "with the backward pass"
NUMBERS = Option("precision", "data type of the numbers (as the graph states)", "TYPE")

FASTEST = Option("fastest", "the fastest plan leads, not the simplest within 5 % of it",
                 kind="flag")  # fmt: skip

COMMANDS: dict[str, Command] = {
    "plan": Command(
        "search the whole space for the best plan, with a proof",
        (
            *question(is_needed=False), *FIXED, *SERVING, *GRAPH, MEASURED_FILE,
            Option("top", "plans in the ranking (5)", "N"), OUT_PLAN, FORCE,
            Option("simulated", "on a grid: leading plans to simulate, 0 for none (5)", "N"),
            FASTEST,
            Option("pareto", "Pareto front of time, memory, energy and money", kind="flag"),
            Option("per_operator", "on a grid: also a strategy for each operator", kind="flag"),
            Option("from_", "an earlier plan, to plan again after a loss; or files that start a "
                   "job, to find a better one", "FILE", kind="values", dest="origin"),
            JOB[1], REPORT,
            Option("without", "with --from: number of devices lost", "N"),
            Option("within", "time for all --tokens, such as 30d; with --on CHIP the fewest "
                   "devices that do it", "TIME"),
        ),
        has_detail=True,
    ),
    "estimate": Command(
        "price one given strategy",
        (*question(is_needed=False, model_help=OR_JOB), *FIXED, *SERVING, *JOB, MEASURED_FILE,
         OUT_PLAN, REPORT, FORCE),
        has_detail=True,
    ),
    "fit": Command(
        "memory only: does it fit, and if not, what would fit",
        (*question(is_needed=False, model_help=OR_JOB), *FIXED, *JOB), has_detail=True,
    ),
    "explain": Command(
        "why this plan, why not another; where a measured step loses time",
        (
            *question(is_needed=False, model_help="a plan written by plan --out; the model of a "
                      "strategy given here, with --on; or a file that starts a job"),
            *FIXED,
            *JOB,
            Option("measured", "measured step: 8.1s, 412k tokens/s, 41% (MFU, causal scores), 400 "
                   "TFLOP/s a device", "TIME", group=_JOB),
            Option("measured_memory", "measured memory of the fullest device: 61 GB", "SIZE",
                   group=_JOB),
            Option("trace", "PyTorch profiler trace of its steps (.json, .json.gz), beside the "
                   "prediction", "FILE", group=_JOB),
            Option("picture", "draw the grid and the load of its links; elsewhere the stages over "
                   "time", "FILE.svg"),
            Option("colors", "with --picture: colour the groups of this axis", "AXIS"),
            REPORT, FORCE,
        ),
        has_detail=True,
    ),
    "explore": Command(
        "a page on this machine that answers while the question is changed",
        (
            *question(is_needed=False, model_help=f"{MODEL_HELP}; or a plan as JSON"), *FIXED,
            Option("port", "of this machine (any that is free)", "N", kind="number", default=0),
            Option("no_browser", "print the address, open no browser", kind="flag"),
        ),
    ),
    "compare": Command(
        "the best plan of each known recipe, side by side",
        (*question(is_needed=False, model_help=OR_JOB), *FIXED, *JOB, MEASURED_FILE,
         Option("against", "recipes such as megatron-3,fsdp (all of them)", "NAME,NAME"),
         FASTEST, REPORT, FORCE),
        has_detail=True,
    ),
    "check": Command(
        "is a strategy legal, and which is the nearest legal one",
        (*question(is_needed=False, model_help=OR_JOB), *FIXED, *JOB),
    ),
    "simulate": Command(
        "play the step of a plan, on grids with contention; or flows that share links",
        (
            Option("what", "a plan, or the word: flows", "PLAN.json", kind="needed"),
            Option("file", "after flows: links and flows", "FILE.json", kind="argument"),
            Option("trace", "write a Perfetto trace (.json, .json.gz)", "FILE"),
            Option("picture", "draw the pipeline stages over time", "FILE.svg"),
            FORCE,
        ),
    ),
    "route": Command(
        "route flows over the links of any network, with a proof",
        (
            Option("file", "flows with sender, receivers and bytes", "FILE.json", kind="needed"),
            Option("on", "64xH100, wafer-6x8, a YAML file; without it the links of the file",
                   "SYSTEM"),
            NETWORK,
            Option("paths", "equal parts of each flow, a route for each (1)", "N"),
            Option("seed", "of the search (0)", "N"),
            Option("out", "write a flow file with routes, for simulate flows", "FILE.json"),
            FORCE,
        ),
    ),
    "place": Command(
        "a plan on devices of your choice, priced and simulated",
        (
            Option("plan", "a plan on a grid, as JSON", "PLAN.json", kind="needed"),
            Option("file", "the device of each rank; without it, that of the plan is shown",
                   "PLACEMENT.json", kind="argument"),
            Option("out", "write the placed plan; without a placement, that of the plan",
                   "FILE.json"),
            FORCE,
        ),
    ),
    "partition": Command(
        "cut layers into stages that fit SRAM, a cache or HBM",
        (
            Option("model", "catalog name, Hugging Face id or config.json", kind="argument"),
            Option("layers", "measured layers: YAML, JSON or CSV", "FILE"),
            Option("on", "4xWSE-3, 64xGroq-LPU, a YAML file", "SYSTEM"),
            NETWORK,
            Option("level", "memory that holds the layers (nearest)", "NAME"),
            Option("capacity", "memory of a device for the layers, such as 230MB", "BYTES"),
            Option("objective", "what to minimise (balance)",
                   choices=("count", "balance", "time")),
            Option("batch", "sequences in flight, or in a step (1)", "N"),
            Option("seq", f"context, prompt or sequence; {BINARY}", "TOKENS"),
            Option("groups", "groups of the batch (the best number)", "N"),
            Option("prefill", "prompts instead of decode", kind="flag", excludes="kind"),
            Option("training", "forward and backward, with optimizer state", kind="flag",
                   excludes="kind"),
            Option("precision", "data type of the linear layers (16 bits)", "TYPE"),
            Option("weights", "data type of the resident weights", "TYPE"),
            Option("kv_cache", "data type of the KV cache", "TYPE"),
            Option("optimizer", "preset of bytes per parameter; see show optimizer", "NAME"),
            Option("tp", "devices that split each layer", "N"),
            Option("ep", "of them, devices over which whole experts are spread", "N"),
            Option("picture", "draw the stages", "FILE.svg"),
            REPORT,
            FORCE,
            CALIBRATION,
        ),
        has_detail=True,
    ),
    "fuse": Command(
        "fuse kernels into partitions that run on a chip one by one",
        (
            Option("graph", f"catalog name, file, hpl-NxB, fft-AxB or a model; {PROGRAM_HELP}",
                   kind="needed"),
            Option("on", "catalog name or YAML file: SN10, H100", "CHIP"),
            Option("tp", "chips over which kernels are split (1)", "N"),
            Option("pp", "stages over which repetitions are spread (1)", "N"),
            Option("chips", "tp x pp; every division of it is tried", "N"),
            Option("tile", "length of a tile (the best power of two)", "N"),
            Option("micro_batch", "passes in flight, which share the weights (best up to 64)", "N"),
            Option("link", "one direction of a link between chips", "RATE"),
            Option("tokens", f"sequence length of a model (2048); {BINARY}"),
            *PROGRAM,
            NUMBERS,
            Option("training", _TRAINING, kind="flag"),
            Option("kernel_by_kernel", "no fusion: one kernel after the other", kind="flag"),
            Option("picture", "draw cores over time", "FILE.svg"),
            REPORT,
            FORCE,
        ),
        has_detail=True,
    ),
    "export": Command(
        "write launch files for training frameworks and servers",
        (
            Option("plan", "a plan as JSON; without one, the targets are listed",
                   kind="argument"),
            Option("target", "torch, megatron, megatron-bridge, torchtitan, deepspeed, accelerate, "
                   "axolotl, torchtune, maxtext or chakra; of a plan of serving vllm, sglang or "
                   "tensorrt-llm",
                   kind="argument"),
            Option("out", "folder for the files", "FOLDER", "."),
            Option("launcher", "also what starts them on all hosts",
                   choices=("slurm", "kubernetes")),
            FORCE,
            Option("print", "show the files, write nothing", kind="flag"),
        ),
    ),
    "show model": Command(
        "dims, parameter counts and operators of a model",
        (Option("model", f"{MODEL_HELP}; without one, the names", kind="argument"),),
    ),
    "show chip": Command(
        "rates, memories, power and their sources",
        (Option("chip", "catalog name or YAML file; without one, the names", kind="argument"),),
    ),
    "show system": Command(
        "devices and network levels of a system",
        (Option("system", "64xH100, wafer-6x8, a catalog name or a YAML file; without one, the "
                "names", kind="argument"),),
    ),
    "show framework": Command(
        "what a framework or a server can start, its kernels and its defaults",
        (Option("framework", "NAME or NAME==VERSION; without one, the names", kind="argument"),),
    ),
    "show optimizer": Command(
        "bytes per parameter that a framework keeps",
        (Option("optimizer", "preset; without one, the names", kind="argument"),),
    ),
    "show schema": Command(
        "JSON Schema of an answer as --json prints it",
        (Option("schema", "plan, serving-plan, ...; without one, the names", kind="argument"),),
    ),
    "show completion": Command(
        "a script with which a shell completes commands, options and names",
        (Option("shell", "bash, zsh, fish or tcsh; without one, where each looks for its script",
                kind="argument"),),
    ),
    "show collectives": Command(
        "time of each collective algorithm on a group",
        (
            Option("on", "64xH100, a name or a file", "SYSTEM", is_required=True),
            NETWORK,
            Option("size", "bytes of the full tensor, as 64 MiB", kind="values",
                   is_required=True),
            Option("group", "members of the group: their number, or devices as 0,1,2,8",
                   "N|LIST", is_required=True),
            Option("stride", "devices from member to member (1)", kind="number", default=1),
        ),
    ),
    "show walk": Command(
        "who holds, computes and sends what, frame by frame",
        (
            Option("walk", "tp, tp-sp, tspp, tatp or a collective algorithm; without one, the "
                   "names", kind="argument"),
            Option("group", "members: their number, or the sides of a block as 2x4", "N|RxC"),
            Option("model", "of whose layers it is told (gpt3-175b)", "MODEL"),
            Option("seq", f"tokens of the sequence (2048); {BINARY}", "TOKENS"),
            Option("form", "of a tensor stream: ring, folded_ring, hold, stream, cycle", "NAME"),
            Option("streamed", "which tensor travels (the smaller one)",
                   choices=("weights", "inputs")),
            Option("size", "of a collective: bytes of the full tensor (64 MiB)", "BYTES",
                   kind="values"),
            replace(REPORT, help="write a page to play, to step through and to scrub"),
            FORCE,
        ),
    ),
    "show graph": Command(
        "kernels of a computation, and how they may be split",
        (
            Option("graph", f"catalog name, file, hpl-NxB, fft-AxB or a model; {PROGRAM_HELP}; "
                   "without one, the names", kind="argument"),
            Option("tokens", f"sequence length of a model (2048); {BINARY}"),
            *PROGRAM,
            NUMBERS,
            Option("training", _TRAINING, kind="flag"),
            Option("yaml", "print the graph as a file", kind="flag"),
        ),
    ),
    "show topologies": Command(
        "links, diameter and bisection of each network",
        (Option("devices", "number of devices (16)", kind="number", default=16),),
    ),
    "read": Command(
        "files that start a job, as a question of this program; a program, as its kernels",
        (
            Option("files", "launch script, YAML, TOML, JSON of Megatron-LM, torchtitan, "
                   f"DeepSpeed, accelerate, MaxText, vLLM, ...; or {PROGRAM_HELP}",
                   kind="several", metavar="FILE"),
            Option("on", "devices of the job, instead of those that its files ask for", "SYSTEM",
                   group=_JOB),
            JOB[1],
            *PROGRAM,
            replace(NUMBERS, group=_GRAPH),
            Option("repeats", "how often the whole repeats (1)", "N", group=_GRAPH),
            Option("training", _TRAINING, kind="flag", group=_GRAPH),
            Option("out", "write the graph as a file", "FILE.yaml", group=_GRAPH),
            FORCE,
        ),
        has_detail=True,
    ),
    "sweep": Command(
        "one question over many models, systems and designs; resumable",
        (
            Option("file", "what is asked, fixed and varied (YAML)", "FILE", kind="needed"),
            Option("out", "store results there (SQLite); run again to resume", "FILE.db"),
            Option("workers", "processes (1)", "N", "1"),
            Option("csv", "write all points and results", "FILE"),
            Option("picture", "draw the heat map of the file", "FILE.svg"),
            Option("report", "write the report of the file, pictures next to it (.md), or one page "
                   "to look at (.html)", "FILE.md|html"),
            FORCE,
            Option("least", "choose the points with the least of a result: price_units", "NAME"),
            Option("most", "choose the points with the most of a result: utilisation", "NAME"),
            Option("at_least", "floor of a result of these points: utilisation=0.5; again for each",
                   "NAME=X", kind="again"),
            Option("at_most", "ceiling of a result of these points: price_units=40000", "NAME=X",
                   kind="again"),
        ),
    ),
    "validate": Command(
        "compare predictions with measurements, yours or published",
        (
            Option("measurements", "your rows (JSON array; the published ones)", "FILE"),
            KERNELS,
            CALIBRATION,
            Option("document", "write tables there, and pictures next to it", "FILE.md"),
            REPORT,
            FORCE,
        ),
        has_detail=True,
    ),
    "calibrate": Command(
        "fit the constants of the cost model to measurements",
        (
            Option("file", "measured rows (JSON array; the published ones)", "FILE",
                   kind="argument"),
            KERNELS,
            Option("out", "write the calibration there", "FILE.yaml"),
            FORCE,
        ),
    ),
    "measure": Command(
        "measure this machine: kernels, memory, network, launches; under torchrun all its devices",
        (
            Option("out", "write the calibration there (measured.yaml), rows included; a machine "
                   "that the catalog does not know goes beside it", "FILE.yaml",
                   "measured.yaml"),
            Option("quick", "in half a minute instead of two and a half", kind="flag"),
            FORCE,
        ),
        has_detail=True,
    ),
    "study": Command(
        "rebuild a published figure or question",
        (
            Option("name", "which study, or 'all'; without one they are listed",
                   kind="argument"),
            Option("out", "folder for tables, charts and verdicts", "FOLDER"),
            FORCE,
        ),
    ),
}  # fmt: skip
COMMANDS["serve"] = Command(
    "the best way to serve: plan with --decode, --prefill or both",
    tuple(o for o in COMMANDS["plan"].options
          if o in (*FIXED, *SERVING) or o.name in (
              "model", "on", "network", "rent", "framework", "precision", "weights", "imbalance",
              "cuda_graphs", "calibration", "top", "out", "report", "force")),
)  # fmt: skip
"""A verb in Python only; on the command line it is ``plan --decode`` or ``plan --prefill``."""
PYTHON_ONLY = ("serve",)
FAMILIES = {
    "show": "look at models, graphs, chips, systems, frameworks, optimizers, schemas, collectives, "
    "topologies, walks and completion of shells"
}
"""First words with several commands."""
