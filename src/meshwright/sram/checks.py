"""Whether layers and batches can be split as the user says."""

from __future__ import annotations

from meshwright.base.errors import Fault, SpecError
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import stack
from meshwright.spec.system import SystemSpec
from meshwright.sram.computed import STRUCTURE
from meshwright.sram.setting import Setting


def check_degrees(setting: Setting) -> None:
    """Refuse degrees that the rules of the axes forbid.

    Raises
    ------
    SpecError
        Every rule that is broken, with the nearest legal change.
    """
    tp, ep, chip = setting.tensor_degree, setting.expert_degree, setting.system.chip
    if tp % ep:
        raise SpecError(Fault("ep", f"{ep} does not divide tp {tp}", "a divisor of tp"))
    if ep > 1 and not setting.problem.num_experts:
        raise SpecError(Fault("ep", f"{setting.model.name} has no experts", "ep 1"))
    columns = stack([setting.strategy(1)])
    tile = {"tile_rows": chip.tile_rows, "tile_columns": chip.tile_columns}
    case = Case(setting.model, setting.workload, STRUCTURE, columns, **tile)
    refused = all_refusals(setting.model, setting.workload, columns, STRUCTURE, **tile)
    faults = [
        Fault(refusal.name, refusal.text(case, 0), refusal.rule.nearest_legal_fix(case))
        for refusal in refused
    ]
    if faults:
        raise SpecError(faults)


def check_groups(num_groups: int | None, batch: int) -> None:
    """Refuse more groups than there are sequences.

    Raises
    ------
    SpecError
        Saying how many there may be.
    """
    if num_groups is not None and num_groups > batch:
        raise SpecError(
            Fault("groups", f"{num_groups} groups of a batch of {batch}", f"at most {batch}")
        )


def check_group(tensor_degree: int, system: SystemSpec) -> None:
    """Refuse stages of more devices than there are.

    Raises
    ------
    SpecError
        Saying how many there are.
    """
    if tensor_degree > system.num_alive:
        message = f"a stage of {tensor_degree} devices, but {system.name} has {system.num_alive}"
        raise SpecError(Fault("tp", message, f"at most {system.num_alive}"))
