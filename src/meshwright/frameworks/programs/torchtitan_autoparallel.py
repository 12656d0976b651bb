"""torchtitan whose shardings AutoParallel chooses, on the mesh and under the memory of a plan.

AutoParallel searches placements of every tensor over a mesh of ``fsdp`` and ``tp``. Its bound is
the share of the parameters that a device may hold, here that of the plan; its solution is written
to a file that ``map --solution`` prices.

Source: torchtitan 0.3.0, ``experiments/graph_trainer/llama3/parallelize_autoparallel.py`` and
``configs.py``; meta-pytorch/autoparallel, ``autoparallel/api.py``
(``add_parameter_memory_constraint``), read 2026-11-27.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from meshwright.base.errors import Fault
from meshwright.catalog.torchtitan_models import shipped_config
from meshwright.frameworks.framework import framework
from meshwright.frameworks.launch import degrees, header, micro_batches, shell_script, text_parts
from meshwright.frameworks.launch import torchrun_words as torchrun
from meshwright.frameworks.programs.torchtitan import (
    OWN_PATH,
    Torchtitan,
    options_of,
    words_of_plan,
)
from meshwright.frameworks.torchtitan_models import own_module
from meshwright.graph.parameters import count_parameters
from meshwright.sharding.strategy import Offload, Recompute
from meshwright.train.answer import Plan

MODULE, CONFIG = "torchtitan_autoparallel", "autoparallel"
PARTS = text_parts("torchtitan_autoparallel.txt")
AXES = {"pp": "stages", "cp": "split sequences", "ep": "split experts", "etp": "split experts",
        "dp_replicate": "replicas"}  # fmt: skip
"""Axes that the integration refuses, or does not search."""


@framework("torchtitan_autoparallel", writes="torchtitan-autoparallel")
class TorchtitanAutoParallel(Torchtitan):
    """A job of torchtitan's ``graph_trainer``, sharded by AutoParallel."""

    def refusals(self, plan: Plan) -> Sequence[Fault]:
        """Return the refusals of torchtitan and of AutoParallel."""
        return [*super().refusals(plan), *_refused(plan)]

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script, and the module with the bound of the solver."""
        notes = [
            "step and memory are those of the plan; AutoParallel chooses its own shardings",
            "attention is causal over whole sequences, not over documents",
            "torchtitan 0.3.0 has its own test of AutoParallel disabled: PyTorch after 2026-06-24 "
            "needs an AutoParallel that follows it (torchtitan issue 3699)",
        ]
        words = words_of_plan(plan) | {"async_tp": False, "logit_tiles": None}
        options = [("--module", MODULE), ("--config", CONFIG), *options_of(self.table.write(words))]
        script = shell_script(header(plan, self.table.written, notes), [OWN_PATH],
                              [*torchrun(plan), "-m torchtitan.train"], options)  # fmt: skip
        config = shipped_config(plan.model, plan.workload.precision.matmul)
        base = PARTS["shipped"].substitute(config=config) if config else own_module(plan)
        tail = PARTS["autoparallel"].substitute(share=f"{parameter_share(plan):.6g}")
        return {f"{MODULE}.sh": script, f"{MODULE}.py": f"{base}\n\n{tail}"}


def parameter_share(plan: Plan) -> float:
    """Return the share of all parameters that the fullest device of a plan holds.

    Weights of the device over those of the model, rounded up to a millionth; no less than the
    devices can hold together, 1 / world: 16 GB of weights, of which a device holds 1 GB, are 1/16.
    """
    each = plan.workload.optimizer.weight_bytes_per_param
    whole = count_parameters(plan.model).num_params * each
    held = plan.best.estimate.memory_parts_bytes["weights_bytes"]
    least = 1.0 / int(plan.best.strategy.num_devices)
    return min(1.0, max(least, ceil(1e6 * held / whole) / 1e6))


def _refused(plan: Plan) -> Iterator[Fault]:
    """Yield the faults of a plan that the integration of AutoParallel cannot start."""
    sizes, plan_options, work = degrees(plan), plan.best.plan_options, plan.workload
    sizes["dp_replicate"] *= sizes["dp_shard"] if plan_options.zero_stage == 0 else 1
    for axis, what in AXES.items():
        if sizes[axis] > 1:
            message = f"AutoParallel searches fsdp and tp: no {what}"
            shards = "--zero 3" if plan_options.zero_stage == 0 else f"--dp-shard {sizes['dp']}"
            fix = shards if axis == "dp_replicate" else f"--{axis} 1"
            yield Fault(f"strategy.{axis}", f"{sizes[axis]}: {message}", fix)
    for is_broken, path, what, fix in (
        (plan.model.architecture != "LlamaForCausalLM", "model.architecture",
         f"{plan.model.architecture}: graph_trainer has AutoParallel on fsdp and tp for llama3",
         "a Llama"),
        (work.precision.matmul == "fp8", "workload.precision.matmul",
         "fp8: graph_trainer's llama3 takes no converters", "bf16"),
        (plan_options.recompute is Recompute.NONE, "plan_options.recompute",
         "none: graph_trainer always recomputes", "--recompute selective"),
        (plan_options.offload is not Offload.NONE, "plan_options.offload",
         f"{plan_options.offload}: AutoParallel places no tensor on the host", "--offload none"),
        (micro_batches(plan) > 1, "strategy.micro_batch_size",
         f"{sizes['micro_batch_size']}: AutoParallel traces the batch of a whole step, without "
         "accumulation", f"--mbs {work.global_batch_size // sizes['dp'] or 1}"),
    ):  # fmt: skip
        if is_broken:
            yield Fault(path, what, fix)
