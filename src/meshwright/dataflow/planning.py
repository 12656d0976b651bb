"""A graph on a system: the best degrees, and how each kernel is split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.dataflow.fused_stages import fused_stage_time
from meshwright.dataflow.machine import Machine
from meshwright.dataflow.plan import GraphPlans, Progress, plan_graph
from meshwright.graph.dataflow.graph import DataflowGraph
from meshwright.graph.op import Phase
from meshwright.spec.system import SystemSpec
from meshwright.train.question import default_optimizer, refuse_mixed_chips

DEGREES = ("tp", "pp", "dp")


def machine_named(system: SystemSpec | str, calibration: str = DEFAULT) -> Machine:
    """Return a system with its constants, by name or file."""
    spec = load_system(system) if isinstance(system, str) else system
    refuse_mixed_chips(spec)
    return Machine(spec, load_calibration(spec.chip.family, calibration))


def plan_dataflow(
    graph: DataflowGraph,
    machine: Machine,
    *,
    num_passes: int = 1,
    optimizer: str | None = None,
    hides_network: bool = False,
    allowed: Mapping[str, Collection[int]] | None = None,
    only_best: bool = False,
    progress: Progress | None = None,
) -> GraphPlans:
    """Return the plans of a graph on all devices of a system, the fastest first.

    Parameters
    ----------
    num_passes
        Passes through the graph in one step, over all replicas.
    optimizer
        A preset of the catalog; where the graph trains, None means that of the system.
    hides_network
        Whether collectives run beside the computation of other inputs. On a chip that states an
        array of multiply-adds they always do: its kernels are fused.
    allowed
        Values of ``tp``, ``pp`` and ``dp``, where they are limited.
    only_best
        Whether degrees that a bound shows to be slower are left out, which is faster.
    progress
        Hears how many degrees are done.

    Raises
    ------
    SpecError
        With all faults of the question.
    InfeasibleError
        Where nothing fits.
    """
    trains = any(kernel.phase is Phase.WEIGHT_GRADIENT for kernel in graph.kernels)
    if optimizer is not None and not trains:
        message = f"{graph.name} makes no gradients of weights"
        raise SpecError(Fault("--optimizer", message, "with --training it does"))
    preset = load_optimizer(optimizer) if optimizer else default_optimizer(machine.system)
    fused = fused_stage_time(machine.system.chip)
    return plan_graph(
        graph, machine, num_passes=num_passes, optimizer=preset if trains else None,
        hides_network=hides_network or fused is not None, stage_time=fused,
        is_allowed=_limits(allowed or {}), only_best=only_best, progress=progress,
    )  # fmt: skip


def _limits(allowed: Mapping[str, Collection[int]]) -> Callable[[int, int, int], bool]:
    """Return whether degrees are among the values that are allowed."""

    def is_allowed(*degrees: int) -> bool:
        return all(
            degree in allowed.get(name, (degree,))
            for name, degree in zip(DEGREES, degrees, strict=True)
        )

    return is_allowed
