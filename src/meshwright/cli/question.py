"""Arguments that the commands share: the model, the system, the workload, and what is fixed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.spec.workload import Training
    from meshwright.strategy.strategy import Strategy, Structure

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "tatp")
OTHER_DEGREES = {"dp_shard": "dp-shard", "num_virtual_stages": "vpp", "micro_batch_size": "mbs"}
CHOICES = {
    "recompute": ("none", "selective", "full"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zero_bubble"),
    "context_kind": ("ring", "ulysses"),
    "offload": ("none", "optimizer", "activations", "weights", "all"),
    "zero_stage": ("0", "1", "2", "3"),
    "sequence_parallel": ("on", "off"),
    "overlap_data_parallel": ("on", "off"),
}
_OPTION_OF = {"context_kind": "cp-kind", "zero_stage": "zero", "sequence_parallel": "sp",
              "overlap_data_parallel": "dp-overlap"}  # fmt: skip


def add_question(parser: argparse.ArgumentParser, *, is_needed: bool = True) -> None:
    """Declare model, system and workload; ``is_needed`` is False where a file may hold them."""
    parser.add_argument(
        "model",
        nargs=None if is_needed else "?",
        help="catalog name, Hugging Face id, config.json or its folder",
    )
    parser.add_argument(
        "--on", required=is_needed, metavar="SYSTEM", help="64xH100, wafer-6x8, a YAML file"
    )
    parser.add_argument("--seq", metavar="TOKENS", help="tokens of a sequence; 8k is 8192")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences of a step")
    parser.add_argument("--workload", metavar="FILE", help="a YAML file instead of the options")
    parser.add_argument("--precision", default="bf16", help="type of the linear layers (bf16)")
    parser.add_argument("--optimizer", metavar="NAME", help="bytes per parameter: show optimizer")
    parser.add_argument("--tokens", metavar="N", help="tokens of the whole run, such as 15T")
    parser.add_argument("--imbalance", type=float, default=1.0, metavar="X",
                        help="load of the busiest expert rank over the mean (1)")  # fmt: skip
    parser.add_argument("--cuda-graphs", action="store_true", help="kernel launches are recorded")
    parser.add_argument("--async-tp", action="store_true", help="tp communication is decomposed")
    parser.add_argument("--dropout", action="store_true", help="dropout keeps its masks")
    parser.add_argument(
        "--calibration", default="uncalibrated", metavar="NAME", help=argparse.SUPPRESS
    )


def add_fixed(parser: argparse.ArgumentParser, *, several: bool) -> None:
    """Declare degrees and choices that the user fixes; lists of them where ``several``."""
    group = parser.add_argument_group(
        "fix a degree or a choice" + (" (or several: 2,4)" if several else "")
    )
    for name in DEGREES:
        group.add_argument(
            f"--{name}", metavar="N", help=argparse.SUPPRESS if name == "etp" else None
        )
    for name, option in OTHER_DEGREES.items():
        group.add_argument(f"--{option}", dest=name, metavar="N")
    for name, values in CHOICES.items():
        option = _OPTION_OF.get(name, name)
        group.add_argument(f"--{option}", dest=name, metavar="|".join(values))


def workload_of(args: argparse.Namespace) -> Training:
    """Return the training workload of the arguments.

    Raises
    ------
    SpecError
        An option is missing or wrong.
    """
    from meshwright.base.errors import Fault, SpecError
    from meshwright.base.units import parse_quantity
    from meshwright.catalog.workloads import load_workload
    from meshwright.planner import training
    from meshwright.spec.workload import Precision, SoftwareStack
    from meshwright.spec.workload import Training as TrainingSpec

    absent = [name for name, value in (("MODEL", args.model), ("--on", args.on)) if value is None]
    if absent:
        raise SpecError([Fault(name, "is needed") for name in absent])
    if args.workload:
        loaded = load_workload(args.workload)
        if not isinstance(loaded, TrainingSpec):
            raise SpecError(
                Fault("kind", f"{loaded.kind} is no training workload"), origin=args.workload
            )
        return loaded
    faults = [
        Fault(option, "is needed", "or a file with --workload")
        for option, value in (("--seq", args.seq), ("--global-batch", args.global_batch))
        if value is None
    ]
    if faults:
        raise SpecError(faults)
    fields: dict[str, Any] = {
        "sequence_length": whole_number("--seq", args.seq, kilo=1024),
        "global_batch_size": args.global_batch,
        "precision": Precision(matmul=args.precision),
        "software": SoftwareStack(
            cuda_graphs=args.cuda_graphs, async_tensor_parallel=args.async_tp, dropout=args.dropout
        ),
        "expert_load_imbalance": args.imbalance,
        "optimizer": args.optimizer,
    }
    if args.tokens:
        try:
            fields["total_tokens"] = parse_quantity(args.tokens, "tokens")
        except ValueError as error:
            raise SpecError(Fault("--tokens", str(error))) from error
    return training(args.on, **fields)


def whole_number(option: str, text: str, *, kilo: int = 1000) -> int:
    """Return a positive whole number; ``k`` multiplies it."""
    from meshwright.base.errors import Fault, SpecError

    digits, factor = (text[:-1], kilo) if text[-1:] in ("k", "K") else (text, 1)
    if not digits.isdigit() or int(digits) < 1:
        fault = Fault(
            option, f"found {text!r}, expected a whole number above 0", "such as 4096 or 4k"
        )
        raise SpecError(fault)
    return int(digits) * factor


def allowed_of(args: argparse.Namespace) -> dict[str, list[object]]:
    """Return the values that the user fixed, by the names that the search uses."""
    allowed: dict[str, list[object]] = {}
    for name in (*DEGREES, *OTHER_DEGREES):
        text = getattr(args, name)
        if text is not None:
            option = "--" + OTHER_DEGREES.get(name, name)
            allowed[name] = [whole_number(option, part) for part in text.split(",")]
    for name, values in CHOICES.items():
        text = getattr(args, name)
        if text is not None:
            allowed[name] = [_choice(name, part, values) for part in text.split(",")]
    return allowed


def _choice(name: str, text: str, values: Iterable[str]) -> object:
    """Return one value of a structural choice."""
    from meshwright.base.errors import Fault, SpecError, nearest
    from meshwright.strategy.strategy import ContextKind, Offload, Recompute, ScheduleKind

    if text not in values:
        option = "--" + _OPTION_OF.get(name, name)
        raise SpecError(Fault(option, f"found {text!r}", nearest(text, values)))
    kinds = {"recompute": Recompute, "schedule": ScheduleKind, "context_kind": ContextKind,
             "offload": Offload, "zero_stage": int}  # fmt: skip
    return text == "on" if name not in kinds else kinds[name](text)


def strategy_of(args: argparse.Namespace, num_devices: int) -> tuple[Strategy, Structure]:
    """Return the one strategy that the arguments state; dp takes the devices that are left.

    Defaults: sequence parallelism with tp, ZeRO-1 with data parallelism, 1F1B (interleaved with
    virtual stages), nothing recomputed.
    """
    from meshwright.base.errors import Fault, SpecError
    from meshwright.strategy.strategy import Recompute, ScheduleKind, Structure, make_strategy

    allowed = allowed_of(args)
    faults = [
        Fault(f"--{name}", f"one value is needed, found {len(values)}")
        for name, values in allowed.items()
        if len(values) != 1
    ]
    if faults:
        raise SpecError(faults)
    one: dict[str, Any] = {name: values[0] for name, values in allowed.items()}
    model_degree = 1
    for name in ("tp", "cp", "pp", "tatp"):
        model_degree *= one.get(name, 1)
    dp = one.pop("dp", max(num_devices // model_degree, 1))
    shard = one.get("dp_shard", dp)
    degrees = {k: one[k] for k in (*DEGREES, *OTHER_DEGREES) if k in one}
    strategy = make_strategy(**{**degrees, "dp_shard": shard, "dp_replicate": dp / shard})
    interleaved = strategy.num_virtual_stages > 1
    default = ScheduleKind.INTERLEAVED if interleaved else ScheduleKind.ONE_F_ONE_B
    shards_something = shard * strategy.cp > 1
    structure = Structure(
        sequence_parallel=one.get("sequence_parallel", strategy.tp > 1),
        context_kind=one.get("context_kind", Structure.context_kind),
        zero_stage=one.get("zero_stage", 1 if shards_something else 0),
        recompute=one.get("recompute", Recompute.NONE),
        schedule=one.get("schedule", default),
        offload=one.get("offload", Structure.offload),
        overlap_data_parallel=one.get("overlap_data_parallel", True),
        overlap_tensor_parallel=args.async_tp,
    )
    return strategy, structure
