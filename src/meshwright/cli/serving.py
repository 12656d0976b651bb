"""``plan --decode`` and ``plan --prefill``: the arguments and the answer of a serving question."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from meshwright.cli.question import (
    allowed_of,
    imbalance,
    option_of,
    read_model_and_system,
    refuse_idle,
)
from meshwright.cli.reading import (
    Reading,
    one_of,
    quantity,
    whole_number,
)

if TYPE_CHECKING:
    from pathlib import Path

    from meshwright.spec.workload import Decode, Prefill


SERVING_ONLY = ("batch", "context", "prompt", "max_latency", "latency", "kv_cache", "weights",
                "server")  # fmt: skip
"""Options that say nothing about training."""
_OTHER_KIND = {"context": "prefill", "prompt": "decode"}


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
    group.add_argument("--server", metavar="NAME", help="vllm, tensorrt-llm, ... (generic)")
    group.add_argument("--weights", metavar="TYPE", help="type of the resident weights")


def is_serving(args: argparse.Namespace) -> bool:
    """Return whether the question is one of serving."""
    return bool(args.decode or args.prefill)


def run_serving(
    reading: Reading, args: argparse.Namespace, path: Path | None, top: int | None
) -> int:
    """Search, write, print."""
    from meshwright.cli.output import next_command, show_screen
    from meshwright.serve.answer import save_serving, serving_to_data
    from meshwright.serve.report import serving_lines, serving_screen
    from meshwright.serve.serve import serve

    model, system = read_model_and_system(reading, args)
    workload = reading.value(serving_workload, args)
    allowed = reading.value(allowed_of, args)
    reading.done()
    plan = serve(
        model, system, workload,
        objective="latency" if args.latency else "throughput", allowed=allowed,
        server=args.server or "generic", top=top or 5, calibration=args.calibration,
        command=" ".join(["meshwright", *sys.argv[1:]]),
    )  # fmt: skip
    if path is not None:
        save_serving(plan, path)
    show_screen(
        lambda: serving_screen(plan, next_command=next_command(args)),
        lambda: serving_lines(plan), lambda: serving_to_data(plan), args,
    )  # fmt: skip
    return 0


def serving_workload(args: argparse.Namespace) -> Decode | Prefill:
    """Return the workload of the arguments.

    Raises
    ------
    SpecError
        Every option that is missing or wrong.
    """
    from meshwright.spec.workload import Decode, Prefill, SoftwareStack

    reading = Reading()
    length = "context" if args.decode else "prompt"
    other = "prompt" if args.decode else "context"
    refuse_idle(reading, args, (other,), f"is of use with --{_OTHER_KIND[length]} only")
    numbers = {}
    for name, kilo in (("batch", 1000), (length, 1024)):
        text = getattr(args, name)
        if text is None:
            reading.fault(f"--{name}", "is needed")
        else:
            numbers[name] = reading.value(whole_number, f"--{name}", text, kilo=kilo)
    limit_s = None
    if args.max_latency is not None:
        limit_s = reading.value(quantity, "--max-latency", args.max_latency, "s")
    shared: dict[str, Any] = {
        "precision": reading.value(precision_of, args),
        "expert_load_imbalance": reading.value(imbalance, args.imbalance or "1"),
        "software": SoftwareStack(cuda_graphs=args.cuda_graphs),
    }
    reading.done()
    shared["batch_size"] = numbers["batch"]
    if args.decode:
        tokens = numbers["context"]
        return Decode(context_length=tokens, max_time_per_output_token_s=limit_s, **shared)
    tokens = numbers["prompt"]
    return Prefill(prompt_length=tokens, max_time_to_first_token_s=limit_s, **shared)


def precision_of(args: argparse.Namespace) -> Any:
    """Return the types of matrix products, weights and cache."""
    from typing import get_args

    from meshwright.spec.chip import DType
    from meshwright.spec.workload import Precision

    reading, types = Reading(), get_args(DType)
    stated = {"matmul": "precision", "weight": "weights", "kv_cache": "kv_cache"}
    found = {
        field: reading.value(one_of, option_of(name), getattr(args, name), types)
        for field, name in stated.items()
        if getattr(args, name) is not None
    }
    reading.done()
    return Precision.model_validate({"weight": found.get("matmul", "bf16"), **found})
