"""Formulas with one fault each, and whether the laws of ``meshwright.audit`` find it.

    python benchmarks/audit_mutants.py                 all mutants
    python benchmarks/audit_mutants.py kv_cache tp_sum  some of them

A mutant is a text of one file in the place of another. Each runs in a process of its own on a copy
of the sources, with the same panel of questions, and is found where an answer breaks a law, or
where half of a rate helps. The last process has no fault, and finds nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = Path(__file__).parent.parent / "src"


class Mutant(NamedTuple):
    """A fault in a formula."""

    name: str
    path: str
    """Below ``src/meshwright``."""
    right: str
    wrong: str
    panel: str
    """Rooms whose questions show it."""


MUTANTS = (
    # Memory of training.
    Mutant("weights_halved", "cost/memory.py",
           "weights = held(optimizer.weight_bytes_per_param, 3)",
           "weights = held(optimizer.weight_bytes_per_param / 2.0, 3)", "train"),
    Mutant("weights_sharded_from_zero_2", "cost/memory.py",
           "weights = held(optimizer.weight_bytes_per_param, 3)",
           "weights = held(optimizer.weight_bytes_per_param, 2)", "train"),
    Mutant("gradients_forgotten", "cost/memory.py", "MemoryPart.GRADIENTS: gradients,",
           "MemoryPart.GRADIENTS: gradients * 0.0,", "train"),
    Mutant("gradients_sharded_from_zero_1", "cost/memory.py",
           "gradients = held(optimizer.gradient_bytes_per_param, 2)",
           "gradients = held(optimizer.gradient_bytes_per_param, 1)", "train"),
    Mutant("state_of_moments_alone", "cost/memory.py",
           "states = held(optimizer.state_bytes_per_param + optimizer.update_bytes_per_param, 1)",
           "states = held(optimizer.state_bytes_per_param - 4.0, 1)", "train"),
    Mutant("state_sharded_without_zero", "cost/memory.py",
           "states = held(optimizer.state_bytes_per_param + optimizer.update_bytes_per_param, 1)",
           "states = held(optimizer.state_bytes_per_param, 0)", "train"),
    Mutant("kept_gather_forgotten", "cost/memory.py",
           "gathered = whole_stage if plan_options.keeps_gathered else whole_layers",
           "gathered = whole_layers", "train"),
    Mutant("one_micro_batch_in_flight", "cost/memory.py",
           "activations = state.kept_bytes * state.in_flight",
           "activations = state.kept_bytes * 1.0", "train"),
    Mutant("activations_of_a_tenth", "cost/memory.py",
           "activations = state.kept_bytes * state.in_flight",
           "activations = 0.1 * state.kept_bytes * state.in_flight", "train"),
    Mutant("part_outside_of_the_sum", "cost/parts.py",
           "return reduce(operator.add, self.columns.values())",
           "return reduce(operator.add, list(self.columns.values())[1:])", "train"),
    Mutant("host_state_forgotten", "cost/memory.py",
           "(offload.has_optimizer, optimizer.state_bytes_per_param, 1),", "", "train"),
    Mutant("host_capacity_ignored", "cost/memory.py",
           "kept <= host_of(problem).capacity_bytes",
           "kept <= 100.0 * host_of(problem).capacity_bytes", "train"),
    # Time of a step.
    Mutant("flops_halved", "cost/operator.py", "return waves * rates.num_cores * tile_flops / rate",
           "return 0.5 * waves * rates.num_cores * tile_flops / rate", "train serve"),
    Mutant("no_weight_gradients", "cost/operator.py",
           "weight_gradient_s=rounds * made.to_weight.time_s,",
           "weight_gradient_s=0.0 * made.to_weight.time_s,", "train"),
    Mutant("no_backward_of_inputs", "cost/operator.py",
           "input_gradient_s=rounds * made.to_input.time_s + casts[1],",
           "input_gradient_s=0.0 * made.to_input.time_s + casts[1],", "train"),
    Mutant("recomputation_free", "cost/pipeline.py",
           "TimePart.RECOMPUTE: m * slowest.recompute_s,",
           "TimePart.RECOMPUTE: 0.0 * slowest.recompute_s,", "train"),
    Mutant("one_micro_batch_computes", "cost/pipeline.py",
           "TimePart.COMPUTE: m * (slowest.forward_s + gradients_s),",
           "TimePart.COMPUTE: 1.0 * (slowest.forward_s + gradients_s),", "train"),
    Mutant("no_bubble", "schedule/pipeline_schedules.py",
           "return (num_stages - 1) * (forward_s + backward_input_s + backward_weight_s",
           "return 0.0 * (num_stages - 1) * (forward_s + backward_input_s", "train"),
    Mutant("hbm_doubled_for_the_update", "cost/step.py", "return traffic / memory_bytes_per_s",
           "return traffic / (2.0 * memory_bytes_per_s)", "train"),
    Mutant("memory_rate_tripled", "cost/operator.py",
           "memory_bytes_per_s=bandwidth * calibration.memory_efficiency,",
           "memory_bytes_per_s=3.0 * bandwidth * calibration.memory_efficiency,", "train serve"),
    Mutant("update_free_on_the_host", "cost/step.py",
           "exposed = exposed + host_update_s(state, shards, plan_options, optimizer, host)",
           "exposed = exposed", "train"),
    Mutant("links_ten_times_as_fast", "collectives/ring.py",
           "return gather_steps(span) * message_s(span), share / span.bandwidth_bytes_per_s",
           "return gather_steps(span) * message_s(span), share / span.bandwidth_bytes_per_s / 10.0",
           "train serve"),
    Mutant("links_twice_as_fast", "collectives/ring.py",
           "return gather_steps(span) * message_s(span), share / span.bandwidth_bytes_per_s",
           "return gather_steps(span) * message_s(span), share / span.bandwidth_bytes_per_s / 2.0",
           "train serve"),
    Mutant("tp_sum_forgotten", "cost/pipeline.py",
           "TimePart.TP_COMM: m * slowest.tp_s + slowest.per_step_s,",
           "TimePart.TP_COMM: 0.0 * slowest.tp_s + slowest.per_step_s,", "train"),
    Mutant("expert_exchange_forgotten", "cost/pipeline.py",
           "TimePart.EP_COMM: of_axes[TimePart.EP_COMM] - paired_s,",
           "TimePart.EP_COMM: 0.0 * of_axes[TimePart.EP_COMM],", "train"),
    Mutant("sends_forgotten", "cost/pipeline.py", "TimePart.PP_COMM: sends_s * (p > 1) + m",
           "TimePart.PP_COMM: 0.0 * sends_s * (p > 1) + m", "train"),
    Mutant("gradients_never_summed", "cost/step.py",
           "summed = show(_all_reduce(kinds, buckets, optimizer), gradient_s)",
           "summed = show(_all_reduce(kinds, buckets, optimizer).times(0.0), gradient_s)", "train"),
    Mutant("gather_of_zero_3_lost", "cost/step.py",
           "forward, backward = show(gathered, forward_s), show(again + reduced, shared_s)",
           "forward, backward = show(gathered.times(0.0), forward_s), show(reduced, shared_s)",
           "train"),
    Mutant("energy_without_idle_power", "cost/energy.py",
           'parts["idle_j"] = idle_w * step_s * num_devices',
           'parts["idle_j"] = 0.0 * step_s * num_devices', "train"),
    Mutant("money_of_one_device", "cost/money.py",
           "return step_s * num_devices * (rent / SECONDS_PER_HOUR)",
           "return step_s * (rent / SECONDS_PER_HOUR)", "train serve"),
    Mutant("utilization_of_half_of_the_peak", "train/price.py",
           "peak = stated_rate(problem", "peak = 2.0 * stated_rate(problem", "train"),
    # Serving.
    Mutant("kv_cache_of_one_sequence", "serve/price.py",
           "kv_cache_bytes=held.cache_bytes * sequences,",
           "kv_cache_bytes=held.cache_bytes * 1.0,", "serve"),
    Mutant("serving_weights_halved", "serve/price.py", "weights_bytes=held.weights_bytes,",
           "weights_bytes=0.5 * held.weights_bytes,", "serve"),
    Mutant("caches_beyond_the_room", "serve/price.py",
           "free = positive_part(self.cache_bytes)", "free = positive_part(0.1 * self.cache_bytes)",
           "serve"),
    Mutant("tokens_by_clients", "serve/price.py",
           "answer * requests_per_s(in_flight, clients.first_s, latency_s, answer)",
           "in_flight / latency_s", "serve"),
    Mutant("wait_outside_of_the_latency", "serve/price.py",
           "latency_s, whole = time.total_s, passes.whole",
           "latency_s, whole = time.total_s - time.launch_s - time.host_s, passes.whole", "serve"),
    Mutant("prefill_of_every_stage", "serve/price.py",
           "prompts_per_s = strategy.micro_batch_size * strategy.dp / bottleneck_s",
           "prompts_per_s = 2.0 * strategy.micro_batch_size * strategy.dp / bottleneck_s", "serve"),
    # Graphs, fusion, stages.
    Mutant("kernels_without_bytes", "dataflow/roofline.py",
           "self.moved_bytes(number, sizes, cut) / float(rate)", "0.0", "graph"),
    Mutant("graph_products_free", "dataflow/roofline.py",
           "return product_s(product_shape(kernel, sizes), engine, least_s)",
           "return least_s", "graph"),
    Mutant("graph_of_half_of_its_layers", "dataflow/search.py",
           "layers, passes = -(-self.graph.repeats // pp),",
           "layers, passes = -(-self.graph.repeats // pp // 2),", "graph"),
    Mutant("graph_update_free", "dataflow/search.py",
           "moved = params * self.optimizer.step_traffic_bytes_per_param", "moved = 0.0", "graph"),
    Mutant("fused_weights_never_read", "dataflow/fusion/price.py",
           "setup_s=(sets @ problem.setup_bytes) / grid.dram_bytes_per_s,",
           "setup_s=0.0 * (sets @ problem.setup_bytes) / grid.dram_bytes_per_s,", "graph"),
    Mutant("fused_dram_ten_times_as_fast", "dataflow/fusion/price.py",
           "grid.frequency_hz, moved / grid.dram_bytes_per_s",
           "grid.frequency_hz, moved / grid.dram_bytes_per_s / 10.0", "graph"),
    Mutant("stage_weights_halved", "sram/question.py",
           '"weights": column("weight_bytes", number),',
           '"weights": 0.5 * column("weight_bytes", number),', "graph"),
)  # fmt: skip


def panel(rooms: str) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield questions, each a function of what weakens its system."""
    import meshwright as mw

    def asked(verb: Any, *models: str, on: str, **options: Any) -> tuple[str, Callable[[Any], Any]]:
        return f"{models} {on} {options}", lambda weaken: verb(*models, on=weaken(on), **options)

    if "train" in rooms:
        common: dict[str, Any] = {"seq": 4096, "global_batch": 64}
        for more in (
            {"dp": 8, "zero": 3, "reshard": "on"},
            {"dp": 8, "zero": 3, "reshard": "off"},
            {"dp": 8, "zero": 3, "reshard": "on", "dp_overlap": "off"},
            {"dp": 8, "zero": 2},
            {"dp": 8, "zero": 1, "dp_overlap": "off"},
            {"dp": 8, "zero": 0, "dp_overlap": "off"},
            {"dp": 8, "zero": 0},
            {"tp": 8, "dp": 1, "mbs": 4},
            {"tp": 2, "pp": 4, "dp": 1, "schedule": "1f1b"},
            {"pp": 8, "dp": 1, "schedule": "gpipe"},
            {"tp": 2, "dp": 4, "recompute": "full"},
            {"dp": 8, "zero": 1, "offload": "optimizer"},
            {"dp": 8, "zero": 3, "offload": "state"},
            {"dp": 8, "zero": 2, "optimizer": "adam-fp32"},
        ):
            yield asked(mw.estimate, "llama3-8b", on="8xH100", **(common | more))
        for more in (
            {"dp": 32, "zero": 0, "dp_overlap": "off", "mbs": 1, "global_batch": 32},
            {"dp": 32, "zero": 3, "dp_overlap": "off", "mbs": 1, "global_batch": 32},
        ):
            yield asked(mw.estimate, "opt-13b", on="32xA100", **(common | {"seq": 2048} | more))
        yield asked(mw.estimate, "llama3-70b", on="16xA100", tp=16, dp=1, **common)
        yield asked(mw.estimate, "qwen3-30b-a3b", on="16xH100", ep=8, tp=1, pp=1, dp=16, zero=1,
                    **common)  # fmt: skip
        yield asked(mw.estimate, "deepseek-v3", on="16xH100", tp=1, pp=1, dp=16, zero=3, ep=16,
                    offload="state", **common)  # fmt: skip
        yield asked(mw.plan, "llama3-70b", on="8xH100", top=1, offload="all", **common)
        yield asked(mw.plan, "megatron-530b", on="16xH100", top=1, zero=3,
                    **(common | {"seq": 2048}))  # fmt: skip
    if "serve" in rooms:
        yield asked(mw.serve, "llama3-70b", on="8xH100", batch=1, context=512,
                    tp=8, cuda_graphs=True)  # fmt: skip
        yield asked(mw.serve, "llama3-8b", on="1xH100", batch=64, context=8192)
        yield asked(mw.serve, "llama3-8b", on="1xH100", batch=4096, context=8192)
        yield asked(mw.serve, "llama3-70b", on="8xH100", batch=8, prompt=8192, tp=8)
        yield asked(mw.serve, "llama3-8b", on="2xH100", batch=8, prompt=8192, pp=2)
        yield asked(mw.serve, "llama3-8b", on="8xH100", batch=256,
                    prompt=4096, answer=256)  # fmt: skip
    if "graph" in rooms:
        yield asked(mw.map, "llama3.2-1b", on="4xH100", seq=1024, passes=8)
        yield asked(mw.map, "llama3.2-1b", on="2xH100", seq=1024, passes=8,
                    training=True)  # fmt: skip
        yield asked(mw.map, "fft-1g", on="8xA100", passes=8)
        yield asked(mw.fuse, "gpt3-175b-layer", on="SN10")
        yield asked(mw.fuse, "pythia-70m", on="SN10", tokens=512)
        yield asked(mw.partition, "llama3-8b", on="64xH100", level="hbm", batch=4, seq=512)


def judge(rooms: str) -> None:
    """Print the laws that the answers of a panel break, as JSON."""
    import warnings

    from audit_campaign import helped, law_of

    from meshwright.base.errors import MeshwrightError, UnlawfulError

    warnings.simplefilter("ignore")
    broken: list[str] = []
    for text, question in panel(rooms):
        try:
            answer = question(lambda on: on)
            broken += helped(question, answer) if "zero': 3" in text else ()
        except UnlawfulError as error:
            broken += map(law_of, error.broken)
        except MeshwrightError as error:
            print(f"{text}: {error}", file=sys.stderr)
    print(json.dumps(sorted(set(broken))))


def main() -> None:
    """Judge each mutant, and print what found it."""
    if sys.argv[1:2] == ["--judge"]:
        judge(sys.argv[2])
        return
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.name in sys.argv[1:]]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "src"
        shutil.copytree(SOURCES, copied)
        sound = Mutant("no fault", "audit/__init__.py", "", "", "train serve graph")
        for mutant in (*chosen, sound):
            file = copied / "meshwright" / mutant.path
            text = file.read_text(encoding="utf-8")
            if mutant.right not in text:
                print(f"{mutant.name:32} its formula is no longer there")
                missed.append(mutant.name)
                continue
            file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
            run = subprocess.run(
                [sys.executable, __file__, "--judge", mutant.panel], capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": str(copied)}, check=False,
            )  # fmt: skip
            file.write_text(text, encoding="utf-8")
            laws = json.loads(run.stdout) if run.stdout else [run.stderr.splitlines()[-1]]
            print(f"{mutant.name:32} {'; '.join(laws) or 'NOT FOUND'}", flush=True)
            if run.stderr and not laws:
                print(run.stderr)
            if not laws and mutant is not sound:
                missed.append(mutant.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} are found; not: {', '.join(missed)}")


if __name__ == "__main__":
    main()
