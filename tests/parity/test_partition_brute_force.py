"""The time objective against every cut, number of groups and number of replicas, priced apart."""

from itertools import combinations, pairwise
from math import ceil, log

import numpy as np
import pytest
from sampled import sampled

from meshwright.catalog.calibration import DEFAULT, load_calibration, load_sram
from meshwright.catalog.footprint_files import FootprintFile, LayerFootprint
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack
from meshwright.sram.partition import Cut, partition, partition_measured
from meshwright.sram.question import (
    PartitionProblem,
    StageDevices,
    layers_of_model,
    measured_layers,
)
from meshwright.sram.search import group_choices

RECORDED = SoftwareStack(cuda_graphs=True)


def all_cuts(num_layers, most_stages):
    """Yield the ends of the stages of every cut without empty ones."""
    for number in range(1, min(most_stages, num_layers) + 1):
        for inner in combinations(range(1, num_layers), number - 1):
            yield [0, *inner, num_layers]


def occupied_s(layers, devices, ends):
    """Return what each stage takes: its layers, and its send to the next or back to the first."""
    found, last = [], len(ends) - 2
    for stage, (first, stop) in enumerate(pairwise(ends)):
        target = stage + 1 if stage < last else 0
        sent = layers.output_bytes[[stop - 1]] * (last > 0)
        level = devices.level_between(stage, target)
        found.append(layers.layer_s[first:stop].sum() + devices.send_s(level, sent)[0])
    return found


def has_room(layers, ends, room_bytes):
    held = layers.loads.resident_bytes
    return all(
        held[first:stop].sum() + layers.loads.transient_bytes[first:stop].max() <= room_bytes
        for first, stop in pairwise(ends)
    )


@pytest.mark.parametrize("groups", sampled([3, 1, None], 1))
@pytest.mark.parametrize(
    ("model", "system", "level", "work"),
    [
        ("pythia-160m", "7xSN40L", "sram", Decode(batch_size=5, context_length=512)),
        ("pythia-70m", "12xH100", "hbm", Decode(batch_size=3, context_length=512)),
        ("pythia-70m", "6xWSE-3", "sram", Decode(batch_size=16, context_length=2048)),
        ("pythia-160m", "9xGroq-LPU", "sram", Decode(batch_size=4, context_length=512)),
        ("pythia-160m", "5xGroq-LPU", "sram", Prefill(batch_size=3, prompt_length=64)),
    ],
)
def test_no_cut_of_a_model_is_faster(model, system, level, work, groups):
    spec = load_system(system)
    work = work.model_copy(update={"software": RECORDED, "precision": Precision.on(spec.chip)})
    plan = partition(model, spec, work, Cut(objective="time", level=level, num_groups=groups))
    names = [memory.name for memory in spec.chip.memories]
    constants = load_calibration(spec.chip.family, DEFAULT)
    level_of_memory, sums = names.index(level), load_sram(spec.chip, DEFAULT)
    problem = PartitionProblem(
        load_model(model), spec, work, constants, level=level_of_memory, sram=sums
    )
    devices = StageDevices(spec, constants)
    best = 0.0
    for number in [groups] if groups else group_choices(problem):
        size = ceil(work.batch_size / number)
        (layers,) = layers_of_model(problem, [size], work.batch_size)
        for ends in all_cuts(len(layers.names), spec.num_devices):
            if not has_room(layers, ends, problem.room_bytes):
                continue
            stages = occupied_s(layers, devices, ends)
            late = 1 + constants.jitter * (2 * log(len(stages))) ** 0.5
            tokens = work.batch_size * (1 if isinstance(work, Decode) else work.prompt_length)
            replicas = spec.num_devices // len(stages)
            best = max(best, replicas * tokens / (max(sum(stages), number * max(stages)) * late))
    assert plan.fits
    assert plan.rates.tokens_per_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("devices", range(1, 10))
@pytest.mark.parametrize("seed", range(5))
def test_no_cut_of_measured_layers_is_faster(devices, seed):
    rng = np.random.default_rng(seed)
    layers = tuple(
        LayerFootprint(
            name=f"{number}", size_bytes=float(rng.integers(20, 120)) * 1e6,
            time_s=float(rng.integers(5, 90)) * 1e-6,
            output_bytes=float(rng.integers(0, 3)) * 16384.0,
        )
        for number in range(7)
    )  # fmt: skip
    file, spec = FootprintFile(name="random", layers=layers), load_system(f"{devices}xGroq-LPU")
    plan = partition_measured(file, Cut(objective="time"), spec)
    known = measured_layers(file)
    line = StageDevices(spec, load_calibration(spec.chip.family, DEFAULT))
    best = max(
        (
            (devices // (len(ends) - 1)) / max(occupied_s(known, line, ends))
            for ends in all_cuts(7, devices)
            if has_room(known, ends, spec.chip.memories[0].capacity_bytes)
        ),
        default=None,
    )
    assert plan.fits == (best is not None)
    if best is not None:
        assert plan.passes_per_s == pytest.approx(best, rel=1e-9)
