"""The constants that only measurements can settle, each with its plausible interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Generic

from meshwright.base.arrays import FloatArray, N
from meshwright.spec.declaration import Declaration


class Tail(Declaration):
    """Distance of measured times on one side of their prediction: one in ten lies further.

    The distance, in ln(measured / predicted), is ``distance * prod(factor ** degree)`` over the
    traits of a question.
    """

    distance: float
    """Distance of questions without any trait, in ln(measured / predicted)."""
    factors: Mapping[str, float]
    """Factor of the distance by trait, for each degree of it."""


class Spread(Declaration):
    """Distance of measurements from predictions: an interval that holds four of five."""

    slower: Tail
    faster: Tail


class Between(Declaration):
    """Differences between sources of measurements, as standard deviations of ln(time).

    A source is one software on one kind of machine: its jobs share factors of the resources.
    """

    common: float
    """Factor that all resources share."""
    resources: Mapping[str, float]
    """Factor of each resource alone, by name."""
    job: Tail
    """Error of each job around the factors of its source; wider for some traits."""
    job_scatter: float
    """Standard deviation of the logarithm of this error, which differs between sources."""


@dataclass(frozen=True)
class CalibrationOf(Generic[N]):
    """Constants of one family of chips: one number each, or one column of draws each."""

    matmul_efficiency: N
    """Share of the data-sheet rate that large matrix products reach; not used where the chip has
    a measured best rate."""
    matmul_sustained_efficiency: N
    """Share of that rate, or of the measured one, which products keep in whole training steps: the
    chip is warm, operands are real numbers and come from memory."""
    narrow_matmul_efficiency: N
    """Share of the sustained rate that products of 8 and of 4 bits keep."""
    attention_forward_efficiency: N
    """Share of the data-sheet rate that fused attention reaches forward (head size 128, long)."""
    attention_backward_efficiency: N
    """Share of the data-sheet rate that fused attention reaches backward."""
    portable_attention_efficiency: N
    """Share of both that kernels reach which were not written for the chip."""
    grouped_matmul_efficiency: N
    """Share of the sustained rate that the products of many small experts reach."""
    expert_traffic_factor: N
    """Bytes that routing moves over the least bytes: sorting, padding, permuting, scaling rows."""
    expert_kernels: N
    """Exposed launches of each narrow product of one expert: casts and scales, behind counts that
    the host waits for."""
    memory_efficiency: N
    """Share of the main memory bandwidth that streaming kernels reach."""
    elementwise_efficiency: N
    """Share of the main memory bandwidth that norms, activations and casts reach."""
    fast_network_efficiency: N
    """Share of link bandwidth that collectives reach inside a host, a scale-up domain, a grid."""
    slow_network_efficiency: N
    """Share of link bandwidth that collectives reach on the network between hosts."""
    eager_traffic_factor: N
    """Bytes of single elementwise operators over those of fused ones."""
    overlap_slowdown: N
    """Computation under communication takes this much longer, as a fraction."""
    launch_s: N
    """Time between kernels that are launched one by one; recorded graphs have none."""
    operator_s: N
    """Host time of one operator of a training step that is run call by call: modules, autograd,
    the launches of its kernels. Compiled programs have ``launch_s`` instead."""
    collective_launch_s: N
    """Start of a collective, paid once by each."""
    jitter: N
    """Spread s of the step time: n devices take 1 + s sqrt(2 ln n)."""
    memory_margin_fraction: N
    """Share of the memory left free, as a guard of the search."""
    allocator_factor: N
    """Bytes that the allocator holds over those of all tensors: rests of its blocks."""
    communication_buffer_bytes: N
    """Memory of the runtime and of the communication library on each device."""
    communicator_bytes: N
    """Buffers of the communicators of each axis of more than one device, added to that [bytes]."""
    checkpoint_s: N
    """Pause of one checkpoint."""
    restart_s: N
    """Seconds from a failure until the run computes again, lost steps left out."""
    mtbf_device_hours: N
    """Mean hours between failures that stop the run, of one device."""
    family: str = "generic"
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Lowest and highest plausible value of each constant, by field name."""
    is_calibrated: bool = False
    """Fitted to measurements of this family; otherwise results say so."""
    source: str = ""
    spread: Spread | None = None
    """Distance of measurements from prices; None: not known, no measurement was left out of a
    fit."""
    between: Between | None = None
    """Differences between sources; None: not known."""


Calibration = CalibrationOf[float]
CalibrationColumns = CalibrationOf[FloatArray]

_OTHER = ("family", "intervals", "is_calibrated", "source", "spread", "between")
CONSTANTS = tuple(entry.name for entry in fields(CalibrationOf) if entry.name not in _OTHER)
"""Names of the constants, in order."""


def constants_of(calibration: Calibration) -> dict[str, tuple[float, float, float]]:
    """Return each constant by its name: its value, the lowest and the highest plausible one."""
    values = {name: getattr(calibration, name) for name in CONSTANTS}
    known = calibration.intervals
    return {name: (value, *known.get(name, (value, value))) for name, value in values.items()}


def calibration_columns(
    calibration: Calibration, draws: Mapping[str, FloatArray]
) -> CalibrationColumns:
    """Return the calibration with a column in place of each named constant.

    Parameters
    ----------
    draws
        Columns of equal length by constant; constants that are not named keep their one number.
    """
    wrong = [name for name in draws if name not in CONSTANTS]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not a constant of a calibration")
    return replace(calibration, **draws)  # type: ignore[arg-type,return-value]


@dataclass(frozen=True)
class ServingConstantsOf(Generic[N]):
    """Constants of a chip that serving adds to those of training.

    They price the reading of products of few rows and of attention over a cache, and the time of
    a server in addition to its kernels.
    """

    prompt_rate_share: N
    """Share of the sustained matrix rate that products of a forward pass reach."""
    few_rows_rate_share: N
    """Share of that rate which products with fewer rows than a tile, or fewer tiles than cores,
    reach."""
    expert_rate_share: N
    """Share of that rate which the grouped products of several experts reach: their tiles are
    filled worse, and each ends its own."""
    weight_read_share: N
    """Share of ``memory_efficiency`` reached by products that are limited by reading weights."""
    cache_read_share: N
    """Share of ``memory_efficiency`` that attention reaches when it reads the KV cache."""
    shared_cache_extra: N
    """A key head that g query heads share is read 1 + this x (1 - 1/g) times."""
    core_pull: N
    """Times its share of the bandwidth that one core draws, where one core reads a head of a
    sequence."""
    collective_start_share: N
    """Start of a collective of a library inside a pass over ``collective_launch_s``."""
    collective_rate_share: N
    """Share of ``fast_network_efficiency`` that collectives of a library reach in a host."""
    one_shot_start_s: N
    """Start of an all-reduce in which each device reads all messages; infinity: no such kernel."""
    two_shot_start_s: N
    """Start of an all-reduce in which each device adds up a part [s]."""
    shot_link_share: N
    """Share of the bandwidth inside a host that both reach."""
    host_step_s: N
    """Seconds of the server in each pass: scheduling, sampling, answers."""
    host_sequence_s: N
    """Seconds of the server for each sequence of the pass."""
    host_prompt_s: N
    """Seconds of the server for each request until its first token: its place in the queue, and the
    answer on its way back. Other requests do not wait for it."""
    host_token_s: N
    """More of it for each token of the prompt: text to tokens, copies between processes [s]."""
    steps_ahead: N
    """Steps already scheduled when a request arrives, for which it waits."""
    prompts_together: N
    """Prompts of equal requests that keep passing together, under servers that mix phases."""
    latent_rate_share: N
    """Rate of attention over cached latents (MLA) over that of attention in training steps."""
    expert_read_share: N
    """Share of ``weight_read_share`` reached where the weights of routed experts are read."""
    attention_rate_share: N
    """Rate of attention in a pass over the one that training steps reach."""
    kernel_start_s: N
    """Seconds between the end of a kernel of a recorded graph and the full rate of the next."""
    low_latency_start_s: N
    """Start of dispatch in the low-latency mode on one host [s]."""
    low_latency_turn_s: N
    """More of it each time that the hosts double [s]."""
    throughput_start_s: N
    """Start of dispatch in the throughput mode on one host [s]."""
    throughput_turn_s: N
    """More of it each time that the hosts double [s]."""
    dispatch_inner_share: N
    """Share of the bandwidth inside a host that dispatch reaches."""
    dispatch_outer_share: N
    """Share of the bandwidth between hosts that dispatch reaches."""
    reduction_s: N
    """Seconds of each sum over the cores of a chip that waits for the one before: operands go out
    to all cores, partial sums come back. 0 where the efficiencies of products hold it, as on
    GPUs."""


ServingConstants = ServingConstantsOf[float]

SERVING_CONSTANTS = tuple(entry.name for entry in fields(ServingConstantsOf))


@dataclass(frozen=True)
class SramConstants:
    """Constants of a chip that serves from SRAM, added to arithmetic and reading."""

    reduction_s: float = 0.0
    """As in :class:`ServingConstantsOf`."""
    factor: float | None = None
    """Factor within which constants fitted without a published figure foresee it, for every such
    figure; None: no figure is of this family of chips."""

    @property
    def is_calibrated(self) -> bool:
        """Whether constants are fitted to figures of these chips."""
        return self.factor is not None


FREE_SUMS = SramConstants()
"""Constants of chips with caches, and of all chips where nothing is fitted."""

NEUTRAL = ServingConstants(
    prompt_rate_share=1.0, few_rows_rate_share=1.0, expert_rate_share=1.0,
    weight_read_share=1.0, cache_read_share=1.0, shared_cache_extra=0.0,
    core_pull=math.inf, collective_start_share=1.0, collective_rate_share=1.0,
    one_shot_start_s=math.inf, two_shot_start_s=math.inf, shot_link_share=1.0,
    host_step_s=0.0, host_sequence_s=0.0, host_prompt_s=0.0, host_token_s=0.0,
    steps_ahead=0.0, prompts_together=1.0, latent_rate_share=1.0, expert_read_share=1.0,
    attention_rate_share=1.0, kernel_start_s=0.0,
    low_latency_start_s=0.0, low_latency_turn_s=0.0, throughput_start_s=0.0, throughput_turn_s=0.0,
    dispatch_inner_share=1.0, dispatch_outer_share=1.0, reduction_s=0.0,
)  # fmt: skip
"""Passes as the constants of the chip make them, and a server that takes no time."""
