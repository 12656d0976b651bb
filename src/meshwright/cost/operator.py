"""One operator on one device: the rates of the device, GEMM, attention, the rest.

Rates follow from a chip, its calibration and the software stack. The time of a matrix product
(GEMM) follows from its tiles, waves, the rate of the matrix unit and memory traffic; that of the
attention core from its FLOPs and separate rates; that of all other operators from their traffic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import (
    FloatArray,
    Num,
    ceil_div,
    column,
    larger,
    positive_part,
    smaller,
    where,
)
from meshwright.base.errors import Fault, SpecError
from meshwright.graph.op import Op, OpKind
from meshwright.graph.recurrence import (
    STATE_WORD_BYTES,
    Scan,
    repeated_scan_flops_per_token,
    scan_flops_per_token,
)
from meshwright.sharding.local_sizes import RESIDUAL_STREAM, LocalLayer
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.model import AttentionSpec, WeightFormat
from meshwright.spec.system import ChipSpec, DType
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

ACCUMULATOR_BYTES = 4.0
"""Sums are kept in FP32."""
BLOCKS_SHARE = 0.25
"""Share of the on-chip memory for work in progress: sums, and as much of operands that arrive. The
rest is for resident tensors and for streams."""


@dataclass(frozen=True)
class CoreArray:
    """Equal cores on a mesh: the array of multiply-adds in each, and the links between them.

    The mesh is the one of sides within a factor of two that leaves the fewest cores out.
    """

    num_cores: float
    rows: float
    columns: float
    noc_bytes_per_s: float
    """One direction of the link between two neighbours; a core receives from both sides at once."""
    sums_bytes: float
    """Most bytes of sums in one core."""
    sram_bytes_per_s: float = math.inf
    """Bandwidth of the memories of all cores together [bytes/s]; infinite: not known, no bound."""

    @cached_property
    def mesh(self) -> tuple[int, int]:
        """Cores along the sides, the shorter one first."""
        number = int(self.num_cores)
        longest = math.isqrt(number)
        sides = range(max(1, math.ceil(math.sqrt(number / 2.0))), longest + 1)
        shorter = max(sides or [longest], key=lambda side: side * (number // side))
        return shorter, number // shorter

    @cached_property
    def layouts(self) -> FloatArray:
        """Parts of the rows, the columns and the inner size of a product, and cores of a band.

        The mesh is cut across its shorter side into bands, one for each part of the inner size;
        rows are split over one side of a band, columns over the other. Shape (4, layouts).
        """
        short, long = self.mesh
        bands = [band for band in range(1, short + 1) if short % band == 0]
        found = [(*sides, short / band, band) for band in bands
                 for sides in ((band, long), (long, band))]  # fmt: skip
        return np.array(found, dtype=float).T


@dataclass(frozen=True)
class DeviceRates:
    """Rates of one device; each a number, or a column of perturbed numbers."""

    matmul_flops_per_s: Num
    """Reached by large matrix products in the type of the linear layers [FLOP/s]."""
    logits_flops_per_s: Num
    """Reached by large matrix products in the activation type: logits [FLOP/s]."""
    attention_forward_flops_per_s: Num
    attention_backward_flops_per_s: Num
    memory_bytes_per_s: Num
    """Reached by matrix products and copies [bytes/s]."""
    elementwise_bytes_per_s: Num
    """Reached by norms and elementwise kernels [bytes/s]."""
    launch_s: Num
    """Host time to launch one kernel [s]."""
    host_s: Num
    """Host time of one operator [s]."""
    room_bytes: float
    """On-chip memory for resident tensors and for streams: all but ``BLOCKS_SHARE`` [bytes]."""
    tile_rows: float
    tile_columns: float
    num_cores: float
    activation_bytes: float
    """Bytes of one activation word."""
    matmul_word_bytes: float
    """Bytes of one operand of a linear layer."""
    core_array: CoreArray | None = None
    """Arrays of the chip and the network on it, where it states them; then rates above are
    peaks."""
    vector_flops_per_s: Num | None = None
    """Rate of the vector units, in FP32; None: not known [FLOP/s]."""
    grouped_efficiency: Num = 1.0
    """Share of their rate that products of several experts on one device reach [1]."""
    expert_passes: Num = 1.0
    """Bytes that routing moves over the least bytes [1]."""
    expert_kernels: Num = 0.0
    """Exposed launches of each narrow product of one expert [1]."""
    separate_accumulation_kernel: bool = False
    """Gradients of a micro-batch are added in a separate pass."""
    freezes_weights: bool = False
    """Gradients of weights are not computed."""
    weight_format: WeightFormat | None = None
    """Format in which frozen weights rest: each pass widens them before their product."""

    @property
    def num_gradients(self) -> float:
        """Products of the backward pass for each forward one: of inputs, and of trained weights."""
        return 1.0 if self.freezes_weights else 2.0


def is_launched(chip: ChipSpec, software: SoftwareStack) -> bool:
    """Return whether the host launches each kernel: no recorded graph, and no dataflow chip."""
    return not (chip.is_dataflow or software.cuda_graphs)


def operator_s(chip: ChipSpec, software: SoftwareStack, calibration: CalibrationOf[Num]) -> Num:
    """Return the host time of one operator of a training step [s]; 0 where none is launched."""
    if not is_launched(chip, software):
        return 0.0
    return calibration.launch_s if software.compiled else calibration.operator_s


def exposed_launch_s(busy_s: Num, num_operators: Num, rates: DeviceRates) -> Num:
    """Return the seconds a busy time grows by launches: the host paces the kernels."""
    return positive_part(num_operators * rates.host_s - busy_s)


def stated_rate(chip: ChipSpec, dtype: DType) -> float:
    """Return the dense peak of a chip for products in a type [FLOP/s].

    Raises
    ------
    SpecError
        When the chip has no rate for the type; names the types that it has.
    """
    peak = chip.product_flops_per_s(dtype)
    if peak is not None:
        return peak
    types = chip.matmul_flops_per_s.keys() | ({"fp32"} & chip.vector_flops_per_s.keys())
    known = ", ".join(sorted(types))
    fix = f"it has {known}: --precision {chip.word}"
    raise SpecError(Fault("precision", f"{chip.name} has no rate for {dtype}", fix))


def reached_rate(chip: ChipSpec, dtype: DType, calibration: CalibrationOf[Num]) -> Num:
    """Return the rate of large matrix products [FLOP/s]: measured, or a share of the peak.

    The peak itself where the chip states the intake of its cores: the share then follows.
    """
    peak = stated_rate(chip, dtype)
    if chip.noc_bytes_per_s is not None:
        return peak
    for name, best in chip.best_matmul_flops_per_s.items():
        if BYTES_OF[name] == BYTES_OF[dtype] and chip.matmul_flops_per_s.get(name) == peak:
            return best
    return peak * calibration.matmul_efficiency


def sustained_share(chip: ChipSpec, calibration: CalibrationOf[Num]) -> Num:
    """Return the share of their rate that products keep in whole steps [1].

    It is fitted to chips with products priced by a constant, and holds the part that this constant
    leaves out: how the cores are fed. Where the arrays of a chip and the network on it give that
    part, a share fitted to other families would count it twice; a share of its own family still
    holds.
    """
    if chip.noc_bytes_per_s is not None and not calibration.is_calibrated:
        return 1.0
    return calibration.matmul_sustained_efficiency


def device_rates(
    chip: ChipSpec, precision: Precision, software: SoftwareStack, calibration: CalibrationOf[Num],
    *, speed_factor: Num = 1.0, freezes_weights: bool = False,
) -> DeviceRates:  # fmt: skip
    """Return the rates of one device; ``speed_factor`` is the share of its cores that work.

    Low-precision linear layers leave attention, logits and elementwise work in the activation
    type, so they have their own rate. Scales of rows are applied to sums outside of the matrix
    units, which then reach the rate of the activation type.
    """
    bandwidth = chip.main_memory.bandwidth_bytes_per_s
    if bandwidth is None:
        message = "unknown, but every price needs it"
        raise SpecError(Fault(f"chip {chip.name}: memories[-1].bandwidth", message))
    activation_peak = stated_rate(chip, precision.activation) * speed_factor
    sustained = sustained_share(chip, calibration) * speed_factor
    logits_rate = linear_rate = reached_rate(chip, precision.activation, calibration)
    if not precision.row_scales:
        linear_rate = reached_rate(chip, precision.matmul, calibration)
        if BYTES_OF[precision.matmul] < BYTES_OF[precision.activation]:
            linear_rate = linear_rate * calibration.narrow_matmul_efficiency
    num_cores, core_array = float(chip.num_cores or 1), None
    if chip.noc_bytes_per_s is not None:
        core_array = CoreArray(
            num_cores=num_cores,
            rows=float(chip.array_rows or chip.tile_rows),
            columns=float(chip.array_columns or chip.tile_columns),
            noc_bytes_per_s=chip.noc_bytes_per_s,
            sums_bytes=BLOCKS_SHARE / 2.0 * chip.memories[0].capacity_bytes / num_cores,
            sram_bytes_per_s=chip.memories[0].bandwidth_bytes_per_s or math.inf,
        )
    kernels: Num = 1.0
    if software.attention_kernels == "portable":
        kernels = calibration.portable_attention_efficiency
    passes = calibration.eager_traffic_factor if software.eager else 1.0
    launch_s = calibration.launch_s if is_launched(chip, software) else 0.0
    return DeviceRates(
        matmul_flops_per_s=linear_rate * sustained,
        logits_flops_per_s=logits_rate * sustained,
        attention_forward_flops_per_s=activation_peak
        * (calibration.attention_forward_efficiency * kernels),
        attention_backward_flops_per_s=activation_peak
        * (calibration.attention_backward_efficiency * kernels),
        memory_bytes_per_s=bandwidth * calibration.memory_efficiency,
        elementwise_bytes_per_s=bandwidth * (calibration.elementwise_efficiency / passes),
        launch_s=launch_s,
        host_s=launch_s,
        room_bytes=(1.0 - BLOCKS_SHARE) * chip.memories[0].capacity_bytes
        if len(chip.memories) > 1
        else 0.0,
        tile_rows=float(chip.tile_rows),
        tile_columns=float(chip.tile_columns),
        num_cores=num_cores,
        activation_bytes=BYTES_OF[precision.activation],
        matmul_word_bytes=BYTES_OF[precision.matmul],
        core_array=core_array,
        vector_flops_per_s=chip.vector_flops_per_s.get("fp32"),
        grouped_efficiency=calibration.grouped_matmul_efficiency,
        expert_passes=calibration.expert_traffic_factor,
        expert_kernels=calibration.expert_kernels,
        separate_accumulation_kernel=not software.fused_gradient_accumulation
        and not freezes_weights,
        freezes_weights=freezes_weights,
    )


@dataclass(frozen=True)
class OpCost:
    """One operator on one device and one micro-batch; 0.0 where an operator lacks a part.

    Computation includes the time added by the main memory; ``stream_*`` is added by links.
    """

    forward_s: Num = 0.0
    input_gradient_s: Num = 0.0
    weight_gradient_s: Num = 0.0
    forward_memory_s: Num = 0.0
    """Part of it in kernels that the main memory limits [s]."""
    backward_memory_s: Num = 0.0
    stream_forward_s: Num = 0.0
    stream_backward_s: Num = 0.0
    forward_flops: Num = 0.0
    backward_flops: Num = 0.0
    forward_traffic_bytes: Num = 0.0
    backward_traffic_bytes: Num = 0.0
    forward_link_bytes: Num = 0.0
    """Bytes that stream during the computation, counted on each link they cross."""
    backward_link_bytes: Num = 0.0
    forward_kernels: Num = 0.0
    backward_kernels: Num = 0.0
    forward_waits: Num = 0.0
    """1 where the stream is sent before or after the computation, not during it."""
    backward_waits: Num = 0.0
    forward_chunks: Num = 1.0
    """Messages that a sub-tensor which streams over tatp is cut into."""
    backward_chunks: Num = 1.0


def memory_bound_cost(op: Op, layer: LocalLayer, rates: DeviceRates) -> OpCost:
    """Return a norm, an elementwise operator, a lookup, a permutation or the loss."""
    num_bytes: Num = 0.0
    for tensor in op.traffic:
        word = rates.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        num_bytes = num_bytes + word * layer.rows_of(op) * layer.width(tensor)
    if op.kind is OpKind.ROUTE:
        num_bytes = num_bytes * rates.expert_passes
    forward, backward = (words * num_bytes for words in op.words_per_element)
    if op.kind is OpKind.EMBEDDING and rates.freezes_weights:
        backward = 0.0 * backward
    return OpCost(
        forward_s=traffic_s(forward, rates),
        input_gradient_s=traffic_s(backward, rates),
        forward_memory_s=traffic_s(forward, rates),
        backward_memory_s=traffic_s(backward, rates),
        forward_traffic_bytes=forward,
        backward_traffic_bytes=backward,
        forward_kernels=1.0,
        backward_kernels=1.0,
    )


def traffic_s(num_bytes: Num, rates: DeviceRates) -> Num:
    """Return the seconds of a memory-bound kernel that moves ``num_bytes``."""
    return num_bytes / rates.elementwise_bytes_per_s


GRADIENT_ACCUMULATION_BYTES = 8.0
"""Reading and writing an FP32 gradient for each parameter and micro-batch."""
SEPARATE_ACCUMULATION_BYTES = 10.0
"""Bytes of a separate pass that adds gradients, which reads the new 16-bit gradient too."""


def partial_gradients_bytes(num_params: Num, parts: Num, word_bytes: Num) -> Num:
    """Return the traffic of the sums of a weight gradient that is made in parts [bytes].

    Each of the parts - 1 sums reads two gradients and writes one, 3 (parts - 1) w P. A head of
    128,256 x 4,096 in 8 parts of BF16: 22.1e9. Reading and writing by other kernels is not in it.

    Source: torchtitan 0.3.0 ``components/loss.py``, ``ChunkedLossWrapper``; Liger Kernel 0.6
    ``ops/fused_linear_cross_entropy.py``.
    """
    return 3.0 * (parts - 1.0) * word_bytes * num_params


class MatmulShape(NamedTuple):
    """Equal products (rows x inner) @ (inner x columns): numbers, or columns of shape (rows,)."""

    num_products: Num
    rows: Num
    inner: Num
    columns: Num

    @property
    def num_params(self) -> Num:
        """Weights that take part in the products [1]."""
        return self.num_products * self.inner * self.columns

    @property
    def passes(self) -> tuple[tuple[Num, Num, Num], ...]:
        """Rows, inner size and columns of Y = X W, dX = dY W^T and dW = X^T dY."""
        _, rows, inner, columns = self
        return (rows, inner, columns), (rows, columns, inner), (inner, rows, columns)


def memory_bound_s(compute_s: Num, memory_s: Num) -> Num:
    """Return the time of a kernel that the main memory limits [s]; 0 where arithmetic does.

    Of 3 ms of arithmetic and 4 ms of traffic all 4 ms: arithmetic twice as fast saves nothing.
    """
    return where(memory_s > compute_s, memory_s, 0.0)


@dataclass(frozen=True)
class ProductCost:
    """Seconds of arithmetic, seconds of memory, and bytes of one matrix product."""

    compute_s: Num
    memory_s: Num
    traffic_bytes: Num

    @property
    def time_s(self) -> Num:
        """The slower of both [s]."""
        return larger(self.compute_s, self.memory_s)

    @property
    def memory_bound_s(self) -> Num:
        """All of it where the memory is slower [s], else 0."""
        return memory_bound_s(self.compute_s, self.memory_s)


NO_PRODUCT = ProductCost(0.0, 0.0, 0.0)


class Products(NamedTuple):
    """The products of a linear layer."""

    forward: ProductCost
    to_input: ProductCost
    to_weight: ProductCost


def matmul_shape(op: Op, layer: LocalLayer) -> MatmulShape:
    """Return the products on this device: over all rounds, where a tensor streams over tatp."""
    inner: Num = 1.0
    for dim in op.contracted:
        inner = inner * layer.size(dim)
    columns: Num = 0.0
    for tensor in op.outputs:
        columns = columns + layer.width(tensor)
    rows = layer.rows_of(op)
    if op.is_grouped:
        experts = layer.size("experts")
        return MatmulShape(experts, ceil_div(rows, experts), inner, columns)
    return MatmulShape(1.0, rows, inner, columns)


def matmul_cost(op: Op, layer: LocalLayer, rates: DeviceRates) -> OpCost:
    """Return a linear layer with all of its operands on the device."""
    shape, word = matmul_shape(op, layer), word_of(op, rates)
    made = products(op, shape, whole_traffic_bytes(shape, word, rates), rates)
    inputs, outputs = stored_shares(op, layer)
    casts = cast_s(shape, word, rates, input_times=inputs, output_times=outputs)
    cost = products_cost(made, 1.0, 2.0 * shape.rows * shape.num_params, casts, rates)
    if not rates.separate_accumulation_kernel:
        return cost
    # Gradients are added to those before by a kernel of its own.
    num_bytes = SEPARATE_ACCUMULATION_BYTES * shape.num_params
    added_s = num_bytes / rates.memory_bytes_per_s
    return replace(
        cost,
        weight_gradient_s=cost.weight_gradient_s + added_s,
        backward_memory_s=cost.backward_memory_s + added_s,
        backward_traffic_bytes=cost.backward_traffic_bytes + num_bytes,
        backward_kernels=cost.backward_kernels + 1.0,
    )


def widened(cost: OpCost, op: Op, layer: LocalLayer, rates: DeviceRates) -> OpCost:
    """Return a linear layer with frozen weights: each pass reads them as stored and widens them.

    The copy is made for the product of the forward pass, and again for the gradient of its inputs.
    """
    if rates.weight_format is None or "vocab" in op.output.dims:
        return cost
    stored = rates.weight_format.bytes_of(op.region, rates.activation_bytes)
    moved = (stored + rates.activation_bytes) * matmul_shape(op, layer).num_params
    copied_s = traffic_s(moved, rates)
    return replace(
        cost,
        forward_s=cost.forward_s + copied_s,
        input_gradient_s=cost.input_gradient_s + copied_s,
        forward_memory_s=cost.forward_memory_s + copied_s,
        backward_memory_s=cost.backward_memory_s + copied_s,
        forward_traffic_bytes=cost.forward_traffic_bytes + moved,
        backward_traffic_bytes=cost.backward_traffic_bytes + moved,
        forward_kernels=cost.forward_kernels + 1.0,
        backward_kernels=cost.backward_kernels + 1.0,
    )


def widened_bytes(op: Op, layer: LocalLayer, rates: DeviceRates) -> Num:
    """Return the bytes of the wide copy of frozen weights that are stored narrow [bytes]."""
    if rates.weight_format is None or op.kind is not OpKind.MATMUL or "vocab" in op.output.dims:
        return 0.0
    return rates.activation_bytes * matmul_shape(op, layer).num_params


def stored_shares(op: Op, layer: LocalLayer) -> tuple[Num, Num]:
    """Return the shares of inputs, and of gradients of outputs, that a device stores [1].

    With sequence parallelism a column-split product gathers its inputs over tp and a row-split one
    the gradients of its outputs: both are cast first and gathered in the narrow type.
    Source: NVIDIA Transformer Engine, and torchtitan's Float8 tensor parallelism.
    """
    stored = layer.axes.rows[RESIDUAL_STREAM]
    if "tp" not in stored or "tp" in layer.axes.rows[op.name] or op.is_grouped:
        return 1.0, 1.0
    share = layer.token_shard / layer.tokens
    is_row_split = any("tp" in layer.axes.dims.get(dim, ()) for dim in op.contracted)
    return (1.0, share) if is_row_split else (share, 1.0)


def word_of(op: Op, rates: DeviceRates) -> float:
    """Return the bytes of an operand: logits are made in the type of the activations."""
    return rates.activation_bytes if "vocab" in op.output.dims else rates.matmul_word_bytes


def products(op: Op, shape: MatmulShape, moved: Sequence[Num], rates: DeviceRates) -> Products:
    """Return the three products of one shape, given the main-memory bytes of each.

    Each expert is a separate product; one alone on its device is grouped with nothing, and reaches
    the rate of other products. In a narrow type its casts and scales are launched one by one, after
    the host has learned the number of its rows, so that these launches are exposed.
    """
    is_logits = "vocab" in op.output.dims
    rate = rates.logits_flops_per_s if is_logits else rates.matmul_flops_per_s
    launches_s: Num = 0.0
    if op.is_grouped:
        rate = rate * where(shape.num_products > 1.0, rates.grouped_efficiency, 1.0)
        is_narrow = word_of(op, rates) < rates.activation_bytes
        launches_s = shape.num_products * rates.expert_kernels * rates.launch_s * is_narrow
    forward, to_input, to_weight = (
        ProductCost(
            matmul_compute_s(shape.num_products, *size, rate, rates) + launches_s,
            traffic / rates.memory_bytes_per_s,
            traffic,
        )
        for size, traffic in zip(shape.passes, moved, strict=True)
    )
    return Products(forward, to_input, NO_PRODUCT if rates.freezes_weights else to_weight)


def whole_traffic_bytes(
    shape: MatmulShape, word: float, rates: DeviceRates
) -> tuple[Num, Num, Num]:
    """Return the main-memory bytes of the three products, each a separate kernel."""
    forward, to_input, to_weight = (
        matmul_traffic_bytes(shape.num_products, *size, word, rates) for size in shape.passes
    )
    return forward, to_input, to_weight + GRADIENT_ACCUMULATION_BYTES * shape.num_params


def products_cost(
    made: Products, rounds: Num, flops: Num, casts: tuple[Num, Num], rates: DeviceRates
) -> OpCost:
    """Return a linear layer that works in equal rounds.

    Parameters
    ----------
    flops
        FLOPs of the forward pass, all rounds together.
    casts
        Seconds of casting inputs and output gradients, from :func:`cast_s` [s].
    """
    return OpCost(
        forward_s=rounds * made.forward.time_s + casts[0],
        input_gradient_s=rounds * made.to_input.time_s + casts[1],
        weight_gradient_s=rounds * made.to_weight.time_s,
        forward_memory_s=rounds * made.forward.memory_bound_s + casts[0],
        backward_memory_s=casts[1]
        + rounds * (made.to_input.memory_bound_s + made.to_weight.memory_bound_s),
        forward_flops=flops,
        backward_flops=rates.num_gradients * flops,
        forward_traffic_bytes=rounds * made.forward.traffic_bytes,
        backward_traffic_bytes=rounds
        * (made.to_input.traffic_bytes + made.to_weight.traffic_bytes),
        forward_kernels=rounds,
        backward_kernels=rates.num_gradients * rounds,
    )


def cast_s(
    shape: MatmulShape, word: float, rates: DeviceRates, *, input_times: Num = 1.0,
    output_times: Num = 1.0,
) -> tuple[Num, Num]:  # fmt: skip
    """Return the seconds of casting inputs, and gradients of outputs, to a narrower type [s].

    Read wide, write narrow twice, along rows and along columns: activations and their gradients
    are stored in the activation type; a product in FP8 casts its input forward and its output
    gradient backward, both in the layouts of two products. 0 where both types are equally wide.

    Parameters
    ----------
    input_times, output_times
        Rounds in which a device casts a new part of its tensor [1].
    """

    def seconds(num_elements: Num) -> Num:
        if word >= rates.activation_bytes:
            return 0.0 * num_elements
        return traffic_s(num_elements * (rates.activation_bytes + 2.0 * word), rates)

    rows = shape.num_products * shape.rows
    return seconds(rows * shape.inner * input_times), seconds(rows * shape.columns * output_times)


def matmul_compute_s(
    count: Num, rows: Num, inner: Num, columns: Num, rate: Num, rates: DeviceRates
) -> Num:
    """Return the arithmetic seconds of ``count`` products (rows x inner) @ (inner x columns).

    waves * cores * 2 tile_rows tile_columns inner / rate with
    waves = ceil(count ceil(rows/tile_rows) ceil(columns/tile_columns) / cores). Products smaller
    than one wave leave cores idle.

    Parameters
    ----------
    count
        Products in one kernel: experts of a grouped product, otherwise 1 [1].
    rows, inner, columns
        Local sizes of each [1].
    rate
        Rate of large products [FLOP/s].

    Valid for: dense products; the best tile of a library may be smaller, so products of less
    than a wave are priced high (conservative). A chip that states the arrays of its cores and the
    network that feeds them is priced by :func:`blocked_product_s`.
    """
    if rates.core_array is not None:
        return blocked_product_s(
            count, rows, inner, columns, rate, rates.matmul_word_bytes, rates.core_array
        )
    # Whole tiles in whole waves: a wave takes as long as if all cores worked on full tiles.
    tiles = count * ceil_div(rows, rates.tile_rows) * ceil_div(columns, rates.tile_columns)
    waves = ceil_div(tiles, rates.num_cores)
    tile_flops = 2.0 * rates.tile_rows * rates.tile_columns * inner
    return waves * rates.num_cores * tile_flops / rate


def blocked_product_s(
    count: Num, rows: Num, inner: Num, columns: Num, peak: Num, word_bytes: float, cores: CoreArray
) -> Num:
    """Return the seconds of ``count`` products (rows x inner) @ (inner x columns) [s].

    Of each product a core has a piece of m x k by k x n. Its array of R x C keeps a tile of the
    output, of the left or of the right operand, and streams the third size past it:
    ceil(m/R) ceil(n/C) max(k, R), ceil(m/R) ceil(k/C) max(n, R) or ceil(k/R) ceil(n/C) max(m, R)
    cycles, and R + C to fill and drain. Operands are in the memories of the cores, evenly; cores
    of one row of the mesh multicast their rows of the left operand along it, those of one column
    their columns of the right one, again for each block of s x s sums that fits a core: a link
    carries w k max(m, n, m n / s) bytes. Bands with parts of the inner size add their sums over
    the links between them, 4 m n for each core of a band's side. The best of all layouts counts;
    several products take turns, or one band each. The clock is the one at which all arrays reach
    the peak. However they are laid out, the memories of the cores read both operands and write the
    result at least once: count w (rows inner + inner columns + rows columns) bytes.

    Parameters
    ----------
    count, rows, inner, columns
        Sizes of the products [1].
    peak
        Peak of all cores [FLOP/s].
    word_bytes
        Bytes of one word of an operand.
    cores
        The cores, their arrays and their network.

    Source: derived in docs/explanation/die.md; links counted one by one in the tests. Multicasts as
    in van de Geijn and Watts 1997 (SUMMA), Concurrency: Practice and Experience 9(4). Valid for:
    operands that are in the SRAM of the chip.
    """
    high, wide = cores.rows, cores.columns
    cycle_s = 2.0 * cores.num_cores * high * wide / peak
    word_s, sum_s = word_bytes / cores.noc_bytes_per_s, ACCUMULATOR_BYTES / cores.noc_bytes_per_s
    per_side = 1.0 / math.sqrt(cores.sums_bytes / ACCUMULATOR_BYTES)
    # layouts along the first axis, candidates along the second
    is_column = any(np.ndim(size) for size in (count, rows, inner, columns))
    split: tuple[FloatArray, ...] = tuple(cores.layouts[..., None] if is_column else cores.layouts)
    row_parts, column_parts, parts, band = split
    m, n = ceil_div(rows, row_parts), ceil_div(columns, column_parts)
    m_tiles, n_tiles = ceil_div(m, high), ceil_div(n, wide)
    m_cycles, n_cycles = larger(m, high), larger(n, high)
    link_words = larger(larger(m, n), m * n * per_side)

    def piece_s(k: Num) -> Num:
        """Return the seconds of a core's piece: the slower of its array and its links."""
        cycles = smaller(
            m_tiles * n_tiles * larger(k, high),
            smaller(m_tiles * ceil_div(k, wide) * n_cycles, ceil_div(k, high) * n_tiles * m_cycles),
        )
        return larger((cycles + (high + wide)) * cycle_s, k * link_words * word_s)

    added_s = (parts > 1) * band * sum_s * m * n
    found = count * (piece_s(ceil_div(inner, parts)) + added_s)
    if np.ndim(count) or count != 1.0:
        found = smaller(found, ceil_div(count, parts) * piece_s(inner))
    best: FloatArray = column(found).min(axis=0)
    moved_bytes = count * word_bytes * (rows * inner + inner * columns + rows * columns)
    return larger(best, moved_bytes / cores.sram_bytes_per_s)


def matmul_traffic_bytes(
    count: Num, rows: Num, inner: Num, columns: Num, word_bytes: Num, rates: DeviceRates
) -> Num:
    """Return the bytes that products move: operands read once, results written once.

    On a chip that is priced by its cores they are read as :func:`least_operand_bytes` says. Where
    the only memory is on the chip there is no room beside it, and nothing is read twice.
    """
    read = word_bytes * inner * (rows + columns)
    if rates.core_array is not None and rates.room_bytes > 0.0:
        read = least_operand_bytes(rows, inner, columns, word_bytes, rates.room_bytes)
    return count * (read + rates.activation_bytes * rows * columns)


def least_operand_bytes(
    rows: Num, inner: Num, columns: Num, word_bytes: Num, room_bytes: Num
) -> Num:
    """Return the bytes read of the operands of a product beside a room on chip [bytes].

    The least of three orders: a room of R bytes holds a block of p x q FP32 sums, and each operand
    is read once for each block of the other, w inner columns rows / p + w rows inner columns / q;
    or parts of one operand, L, in turn, and the other is read once for each, max(1, L / R) times.
    More room is never more traffic, and a little more a little less. 8192 x 8192 x 8192 words of
    2 bytes, 134 MB each, beside 64 MiB: parts 134 + 2 x 134 = 403 MB; blocks with sides of 4096
    2 x 2 x 134 = 537 MB.

    Parameters
    ----------
    rows, inner, columns
        Sizes of the product [1].
    word_bytes
        Bytes of one word of an operand.
    room_bytes
        R [bytes].

    Source: least traffic of a product in two levels of memory, Hong and Kung 1981 (STOC 13).
    """
    left, right = word_bytes * rows * inner, word_bytes * inner * columns
    sums = room_bytes / ACCUMULATOR_BYTES
    p = smaller(rows, larger(np.sqrt(sums), sums / columns))
    blocks = right * (rows / p) + left * (columns / smaller(columns, sums / p))
    left_in_parts = left + right * larger(left / room_bytes, 1.0)
    right_in_parts = right + left * larger(right / room_bytes, 1.0)
    return smaller(blocks, smaller(left_in_parts, right_in_parts))


ALIGNED_WORDS = 8
"""Matrix units take operands with rows of a multiple of this many 16-bit words."""


UNALIGNED_SHARE = 0.5
"""Share of the FP32 vector rate that unaligned attention reaches."""


def attended_fraction(
    sequence_length: Num, window: float | None, causal: bool, *, is_chunked: bool = False
) -> Num:
    """Return the share of the s x s score matrix that a kernel computes [1].

    Full: 1. Causal: (s + 1) / 2s. Sliding window w < s, causal: (w s - w (w - 1) / 2) / s^2.
    Chunks of w tokens, causal inside each: (w + 1) / 2s.
    """
    if not causal:
        return sequence_length / sequence_length
    if window is None:
        return (sequence_length + 1.0) / (2.0 * sequence_length)
    seen = smaller(float(window), sequence_length)
    if is_chunked:
        return (seen + 1.0) / (2.0 * sequence_length)
    return (seen * sequence_length - seen * (seen - 1.0) / 2.0) / (
        sequence_length * sequence_length
    )


def index_score_flops(spec: AttentionSpec) -> float:
    """Return the FLOPs of an index for each pair of tokens: 2 heads x head size [FLOP].

    Every rank of tp scores all pairs, in the forward pass alone: the choice has no gradient. 64
    heads of 128 make 16,384. Source: DeepSeek-V3.2, equation 1; ``DeepseekV32Indexer``.
    """
    return 2.0 * spec.index_heads * spec.index_head_size


def attention_s(
    flops: Num, flops_per_s: Num, traffic_bytes: Num, rates: DeviceRates
) -> ProductCost:
    """Return the cost of the attention core in a pass: arithmetic beside traffic."""
    return ProductCost(flops / flops_per_s, traffic_bytes / rates.memory_bytes_per_s, traffic_bytes)


def unaligned_attention_s(flops: Num, rates: DeviceRates) -> Num:
    """Return the seconds of plain attention with a head size that is no multiple of 8 words.

    Operands that do not start at 16 bytes keep batched products off the matrix units; the vector
    units reach about half of their rate there (assumed; head sizes 108 and 150 of the BigScience
    experiments on A100 show it).
    Source: NVIDIA Deep Learning Performance, Matrix Multiplication Background, section 2.1.
    """
    assert rates.vector_flops_per_s is not None
    return flops / (UNALIGNED_SHARE * rates.vector_flops_per_s)


def attention_cost(op: Op, layer: LocalLayer, rates: DeviceRates, *, causal: bool) -> OpCost:
    """Return the attention core: FLOPs of the two products over the scores that are computed.

    2 s_q s_k (score size + value size) for each head, times the share that the mask leaves; cp
    and tatp split the queries evenly (zig-zag order under a causal mask). Plain products that
    materialise the scores compute all of them and mask afterwards, those of packed documents too.

    Source: Dao 2023 (FlashAttention-2), section 4.1, for the backward pass.
    """
    spec, is_whole = op.attention, op.is_materialized_attention
    assert spec is not None
    length, tokens, heads = layer.sequence_length, layer.rows_of(op), layer.size("query_heads")
    if not is_whole and layer.attended_length is not None:
        length = layer.attended_length
    share = attended_fraction(
        length, spec.most_keys, causal and not is_whole, is_chunked=spec.window_kind == "chunked"
    )
    # Joined tokens are rows of a matrix that is shorter by the stride.
    stride = float(spec.stride or 1)
    if spec.stride is not None:
        joined = attended_fraction(length / stride, spec.chosen_keys, causal)
        share = share + joined / stride
    per_score = 2.0 * (spec.head_size + spec.rope_head_size + spec.value_head_size)
    # Two products over the scores that are computed: Q K^T, and P V.
    flops = tokens * length * share * heads * per_score
    indexed = tokens * length * attended_fraction(length / stride, None, causal) / stride
    indexed = indexed * index_score_flops(spec)
    width = sum((layer.width(tensor) for tensor in op.inputs), layer.width(op.output))
    traffic = rates.activation_bytes * tokens * width
    written = 0.0 if op.moved is None else rates.activation_bytes * tokens * length * heads
    forward, backward = (words * written for words in op.words_per_element)
    # Backward over forward: 2 with kept probabilities, two gradients for each of the two products;
    # 2.5 for flash attention, which computes the scores again (Dao 2023, section 4.1).
    backward_flops = (2.0 if is_whole else 2.5) * flops
    flops = flops + indexed
    core = attention_s(flops, rates.attention_forward_flops_per_s, traffic, rates)
    core_back = attention_s(
        backward_flops, rates.attention_backward_flops_per_s, 2.0 * traffic, rates
    )
    if is_whole and spec.head_size % ALIGNED_WORDS and rates.vector_flops_per_s:
        core = ProductCost(unaligned_attention_s(flops, rates), 0.0, traffic)
        core_back = ProductCost(unaligned_attention_s(backward_flops, rates), 0.0, 2.0 * traffic)
    return OpCost(
        forward_s=core.time_s + traffic_s(forward, rates),
        input_gradient_s=core_back.time_s + traffic_s(backward, rates),
        forward_memory_s=core.memory_bound_s + traffic_s(forward, rates),
        backward_memory_s=core_back.memory_bound_s + traffic_s(backward, rates),
        forward_flops=flops,
        backward_flops=backward_flops,
        forward_traffic_bytes=traffic + forward,
        backward_traffic_bytes=2.0 * traffic + backward,
        forward_kernels=1.0 if op.moved is None else 4.0,
        backward_kernels=2.0 if op.moved is None else 6.0,
    )


SCAN_KERNELS = {"mamba2": (5.0, 10.0), "gated_delta": (7.0, 12.0), "kda": (7.0, 12.0)}
"""Kernels of a scan, forward and backward. Source: state-spaces/mamba,
``_mamba_chunk_scan_combined_fwd``; flash-linear-attention, ``chunk_gated_delta_rule_fwd``."""
STATE_TRIPS = 2.0
"""One kernel writes the state of each chunk and another reads it, at least."""


def local_scan(op: Op, layer: LocalLayer, sequence_length: Num) -> Scan:
    """Return the scan over the heads and groups of a device."""
    spec = op.recurrence
    assert spec is not None
    groups = layer.size("state_key") / float(spec.state_size)
    return Scan(spec, sequence_length, layer.size("inner_heads"), groups)


def scan_bytes(op: Op, layer: LocalLayer, scan: Scan, rates: DeviceRates) -> Num:
    """Return the bytes that a scan moves forward: its inputs and outputs, states of chunks."""
    width = sum((layer.width(tensor) for tensor in op.inputs), layer.width(op.output))
    states = STATE_TRIPS * STATE_WORD_BYTES * scan.state_words / scan.chunk
    return layer.rows_of(op) * (rates.activation_bytes * width + states)


def scan_cost(op: Op, layer: LocalLayer, rates: DeviceRates) -> OpCost:
    """Return a scan: the slower of its arithmetic and its traffic, as an attention core.

    Kernels compute whole chunks and mask afterwards. The backward pass has two gradients for each
    product, and repeats products that were not kept. Rates are those of the attention core, because
    both work on small tiles with vector arithmetic between the products (assumed, not fitted).

    Source: FLOPs of :func:`scan_flops_per_token`.
    """
    scan, tokens = local_scan(op, layer, layer.sequence_length), layer.rows_of(op)
    flops = tokens * scan_flops_per_token(scan)
    backward_flops = 2.0 * flops + tokens * repeated_scan_flops_per_token(scan)
    traffic = scan_bytes(op, layer, scan, rates)
    kernels = SCAN_KERNELS[scan.spec.kind]
    core = attention_s(flops, rates.attention_forward_flops_per_s, traffic, rates)
    core_back = attention_s(
        backward_flops, rates.attention_backward_flops_per_s, 2.0 * traffic, rates
    )
    return OpCost(
        forward_s=core.time_s,
        input_gradient_s=core_back.time_s,
        forward_memory_s=core.memory_bound_s,
        backward_memory_s=core_back.memory_bound_s,
        forward_flops=flops,
        backward_flops=backward_flops,
        forward_traffic_bytes=traffic,
        backward_traffic_bytes=2.0 * traffic,
        forward_kernels=kernels[0],
        backward_kernels=kernels[1],
    )
