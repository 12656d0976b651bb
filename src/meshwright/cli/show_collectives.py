"""``meshwright show collectives --on SYSTEM --size 64 MiB --group 8``: algorithms side by side."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the system, the group and the size."""
    parser.add_argument("--on", required=True, metavar="SYSTEM", help="64xH100, a name or a file")
    parser.add_argument("--size", nargs="+", required=True, help="the full tensor, as 64 MiB")
    parser.add_argument("--group", type=int, required=True, help="members of the group")
    parser.add_argument("--stride", type=int, default=1, help="devices from member to member")


def run(args: argparse.Namespace) -> int:
    """Print the algorithms of every kind of collective that apply, fastest first."""
    from meshwright.catalog.systems import load_system
    from meshwright.cli.output import show
    from meshwright.collectives.group import make_group
    from meshwright.collectives.selection import timed_algorithms
    from meshwright.report.collectives import collectives_lines, collectives_record
    from meshwright.spec.collective import CollectiveKind

    system = load_system(args.on)
    num_bytes = check(args, system.num_devices)
    group = make_group(system.levels, float(args.stride), float(args.group))
    comparison = {str(kind): timed_algorithms(kind, num_bytes, group) for kind in CollectiveKind}
    title = f"{system.name}: groups of {args.group}, stride {args.stride}"
    lines = collectives_lines(title, num_bytes, system.levels, group, comparison)
    record = collectives_record(
        system.name, args.stride, num_bytes, system.levels, group, comparison
    )
    show(lines, record, args.json)
    return 0


def check(args: argparse.Namespace, num_devices: int) -> float:
    """Return the size in bytes; a group that is none, or one that does not fit, is an error."""
    from meshwright.base.errors import Fault, SpecError
    from meshwright.base.units import parse_quantity

    faults, num_bytes = [], 0.0
    try:
        num_bytes = parse_quantity(" ".join(args.size), "bytes")
    except ValueError as error:
        faults.append(Fault("--size", str(error)))
    if args.group < 2:
        faults.append(Fault("--group", f"{args.group} is no group; at least 2 members"))
    if args.stride < 1:
        faults.append(Fault("--stride", f"{args.stride} is no distance; at least 1 device"))
    elif args.group * args.stride > num_devices:
        faults.append(
            Fault(
                "--group",
                f"{args.group} members {args.stride} apart need {args.group * args.stride} "
                f"devices; the system has {num_devices}",
                f"at most {num_devices // args.stride} members at this stride",
            )
        )
    if not faults and num_bytes <= 0:
        faults.append(Fault("--size", f"{num_bytes:g} bytes are nothing to send"))
    if faults:
        raise SpecError(faults)
    return num_bytes
