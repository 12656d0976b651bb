"""``plan --decode`` and ``plan --prefill``: the arguments and the answer of a serving question."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from meshwright.cli.question import allowed_of, whole_number

if TYPE_CHECKING:
    from meshwright.base.errors import Fault
    from meshwright.spec.workload import Decode, Prefill


def add_serving(parser: argparse.ArgumentParser) -> None:
    """Declare what is served."""
    group = parser.add_argument_group("serving instead of training")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--decode", action="store_true", help="one token for each sequence in flight")
    kind.add_argument("--prefill", action="store_true", help="the prompts of a batch")
    group.add_argument("--batch", metavar="N", help="sequences in flight (decode) or of a batch")
    group.add_argument("--context", metavar="TOKENS", help="decode: tokens in the cache of each")
    group.add_argument("--prompt", metavar="TOKENS", help="prefill: tokens of a prompt")
    group.add_argument(
        "--max-latency", metavar="TIME", help='TPOT or TTFT allowed, such as "50 ms"'
    )
    group.add_argument("--latency", action="store_true", help="least latency instead of throughput")
    group.add_argument("--kv-cache", metavar="TYPE", help="type of the KV cache")
    group.add_argument("--weights", metavar="TYPE", help="type of the resident weights")


def is_serving(args: argparse.Namespace) -> bool:
    """Return whether the question is one of serving."""
    return bool(args.decode or args.prefill)


def run_serving(args: argparse.Namespace) -> int:
    """Search, write, print."""
    from pathlib import Path

    from meshwright.cli.output import show
    from meshwright.planner.serving import serve
    from meshwright.report.serving import serving_lines
    from meshwright.serving_plans import save_serving, serving_to_data

    plan = serve(
        args.model, args.on, serving_workload(args),
        objective="latency" if args.latency else "throughput", allowed=allowed_of(args),
        top=args.top, calibration=args.calibration,
        command=" ".join(["meshwright", *sys.argv[1:]]),
    )  # fmt: skip
    if args.out:
        save_serving(plan, Path(args.out))
    show(serving_lines(plan), serving_to_data(plan), args.json)
    return 0


def serving_workload(args: argparse.Namespace) -> Decode | Prefill:
    """Return the workload of the arguments.

    Raises
    ------
    SpecError
        An option is missing or wrong.
    """
    from meshwright.base.errors import SpecError
    from meshwright.spec.workload import Decode, Prefill, SoftwareStack

    faults = _missing(args)
    if faults:
        raise SpecError(faults)
    shared: dict[str, Any] = {
        "batch_size": whole_number("--batch", args.batch),
        "precision": _precision(args),
        "software": SoftwareStack(cuda_graphs=args.cuda_graphs),
        "expert_load_imbalance": args.imbalance,
    }
    limit_s = _limit_s(args.max_latency)
    if args.decode:
        context = whole_number("--context", args.context, kilo=1024)
        return Decode(context_length=context, max_time_per_output_token_s=limit_s, **shared)
    prompt = whole_number("--prompt", args.prompt, kilo=1024)
    return Prefill(prompt_length=prompt, max_time_to_first_token_s=limit_s, **shared)


def _missing(args: argparse.Namespace) -> list[Fault]:
    """Return the options that are needed and not given."""
    from meshwright.base.errors import Fault

    length = ("--context", args.context) if args.decode else ("--prompt", args.prompt)
    needed = (("MODEL", args.model), ("--on", args.on), ("--batch", args.batch), length)
    return [Fault(name, "is needed") for name, value in needed if value is None]


def _precision(args: argparse.Namespace) -> Any:
    """Return the types of matrix products, weights and cache."""
    from typing import get_args

    from meshwright.base.errors import Fault, SpecError, nearest
    from meshwright.spec.chip import DType
    from meshwright.spec.workload import Precision

    types = {
        "matmul": ("--precision", args.precision),
        "weight": ("--weights", args.weights or args.precision),
        "kv_cache": ("--kv-cache", args.kv_cache or "bf16"),
    }
    faults = [
        Fault(option, f"found {value!r}", nearest(value, get_args(DType)))
        for option, value in types.values()
        if value not in get_args(DType)
    ]
    if faults:
        raise SpecError(faults)
    return Precision(**{name: value for name, (_, value) in types.items()})


def _limit_s(text: str | None) -> float | None:
    """Return the latency that is allowed [s]."""
    from meshwright.base.errors import Fault, SpecError
    from meshwright.base.units import parse_quantity

    if text is None:
        return None
    try:
        return parse_quantity(text, "s")
    except ValueError as error:
        raise SpecError(Fault("--max-latency", str(error))) from error
