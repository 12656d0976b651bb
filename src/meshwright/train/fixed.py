"""What the user fixed: values that no strategy of the space has are told, never skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshwright.base.errors import Fault, SpecError
from meshwright.cost.problem import Problem
from meshwright.sharding.space import divisors, virtual_stage_counts


def check_fixed(problem: Problem, allowed: Mapping[str, Sequence[object]]) -> None:
    """Refuse fixed degrees that the search would never come to.

    Raises
    ------
    SpecError
        Each such value, with the values that are tried.
    """
    tried = tried_degrees(problem) if allowed else {}
    numbers = problem.device_numbers
    devices = " or ".join(str(number) for number in sorted(numbers))
    faults = [
        Fault(name, f"no strategy of {devices} devices has {name} {value}", _listed(tried[name]))
        for name, values in allowed.items()
        for value in values
        if name in tried and value not in tried[name]
    ]
    batch = problem.workload.global_batch_size
    for value in allowed.get("micro_batch_size", ()):
        if isinstance(value, int) and value > batch:
            message = f"{value} sequences, but the global batch has {batch}"
            faults.append(Fault("micro_batch_size", message, f"at most {batch}"))
    if faults:
        raise SpecError(faults)


def tried_degrees(problem: Problem) -> dict[str, set[int]]:
    """Return the values of each degree that the search tries; micro-batches may be any."""
    num_layers = problem.model.num_layers
    parts = {part for number in problem.device_numbers for part in divisors(number)}
    stages = {part for part in parts if part <= num_layers}
    experts = set(divisors(problem.num_experts)) if problem.num_experts else {1}
    return {
        "tp": parts,
        "cp": parts,
        "dp": parts,
        "dp_shard": parts,
        "pp": stages,
        "tatp": parts if problem.has_grid else {1},
        "ep": experts,
        "etp": parts if problem.num_experts else {1},
        "num_virtual_stages": {v for pp in stages for v in virtual_stage_counts(num_layers, pp)},
    }


def _listed(values: Iterable[int]) -> str:
    shown = sorted(values)
    text = ", ".join(str(value) for value in shown[:16])
    return f"tried: {text}" + (", ..." if len(shown) > 16 else "")
