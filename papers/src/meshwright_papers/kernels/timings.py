"""Measured times of single kernels: tables of rows, and predictions of the curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, Num, take_rows
from meshwright.catalog.systems import load_chip, load_system
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import ChipSpec, DType
from meshwright_papers.kernels.curves import (
    CollectiveCurve,
    ContextCurve,
    Curve,
    DecodeCurve,
    DispatchCurve,
    ElementwiseCurve,
    ExpertsCurve,
    GemmCurve,
    KernelDevice,
    LatentBlockCurve,
    kernel_device,
)
from meshwright_papers.kernels.fitted import KernelCurves
from meshwright_papers.kernels.formulas.attention import context_s, decode_s, plain_heads
from meshwright_papers.kernels.formulas.elementwise import elementwise_s
from meshwright_papers.kernels.formulas.experts import ExpertShape, ExpertWords, experts_s
from meshwright_papers.kernels.formulas.gemm import gemm_s
from meshwright_papers.kernels.formulas.latent import (
    ProductTime,
    absorbed_s,
    expanded_heads,
    latent_block_s,
    latent_heads,
    projections_s,
)
from meshwright_papers.kernels.formulas.library_collectives import dispatch_s, library_collective_s

Words = NDArray[np.str_]
DEFAULT_LINK = 63e9
"""Link rate of chips without a standard system: PCIe 5 x16 before headers [bytes/s]."""
RANKS_OF_A_NODE = 8.0

Type = tuple[float, DType]
"""Bytes of a word, and the type of the peak rate of its arithmetic."""
TYPES: Mapping[str, Type] = {
    "bfloat16": (2.0, "bf16"), "fp16": (2.0, "fp16"), "fp8": (1.0, "fp8"),
    "fp8_block": (1.0, "fp8"), "nvfp4": (0.5625, "fp4"),
}  # fmt: skip
EXPERT_TYPES: Mapping[str, tuple[ExpertWords, DType]] = {
    "bfloat16": (ExpertWords(2.0, 2.0), "bf16"),
    "int4_wo": (ExpertWords(0.53, 2.0), "bf16"),
    "fp8": (ExpertWords(1.0, 1.0), "fp8"),
    "fp8_block": (ExpertWords(1.0, 1.0), "fp8"),
    "nvfp4": (ExpertWords(0.5625, 0.5625), "fp4"),
    "w4a16_mxfp4": (ExpertWords(0.53, 2.0), "bf16"),
    "w4a8_mxfp4_mxfp8": (ExpertWords(0.53, 1.03), "fp8"),
}
"""Words of weights and activations, scales included, and the type of the arithmetic."""


Numbers = Mapping[str, FloatArray]
"""Columns by name."""
CurveOf = Callable[[str, str], Curve]
"""The curve of another kernel on the same chip, for a variant."""


@dataclass(frozen=True)
class Place:
    """Chip and links on which kernels ran."""

    chip: ChipSpec
    device: KernelDevice
    link_bytes_per_s: float
    """One direction of all links of a device inside a node [bytes/s]."""


@dataclass(frozen=True)
class Timings:
    """Measured rows of one kernel: columns of equal length."""

    kernel: Kernel
    chips: Words
    """Names of the catalog."""
    words: Mapping[str, Words]
    numbers: Mapping[str, FloatArray]
    measured_s: FloatArray
    held_back: BoolArray

    def __len__(self) -> int:
        return len(self.measured_s)

    def rows(self, chosen: BoolArray | IntArray) -> Timings:
        """Return some of the rows."""
        return take_rows(self, chosen)

    @property
    def variants(self) -> Words:
        """Variant of each row, by which it lies on a curve of its chip."""
        return self.kernel.variants(self)


@dataclass(frozen=True)
class Kernel:
    """One kind of kernel: its columns, and its price."""

    name: str
    words: tuple[str, ...]
    numbers: tuple[str, ...]
    variants: Callable[[Timings], Words]
    seconds: Callable[[Numbers, str, Place, Curve, CurveOf], Num]
    takes: Callable[[Mapping[str, FloatArray]], BoolArray] | None = None
    """Function that marks the rows of a table with these columns that belong to this kernel; None:
    all."""


def place_of(chip_name: str) -> Place:
    """Return a chip with its links."""
    chip = load_chip(chip_name)
    link = DEFAULT_LINK
    if chip.standard_system is not None:
        level = load_system(chip.standard_system).levels[0]
        link = level.bandwidth_bytes_per_s * level.links_per_device
    return Place(chip, kernel_device(chip), link)


# One function for each kernel: columns, a variant, the place and the curve give seconds.


def _gemm(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, GemmCurve)
    word, dtype = TYPES[variant]
    return gemm_s(
        c["m"], c["n"], c["k"], word_bytes=word, device=at.device, curve=curve,
        peak_flops_per_s=at.device.peak_flops_per_s(dtype),
        weight_copies=1.0 if variant == "nvfp4" else 6.0,
    )  # fmt: skip


def _cache_word(variant: str) -> float:
    """Return the bytes of a cached word: ``bfloat16``, or ``fp8`` with computation in bf16."""
    return TYPES[variant][0]


def _context(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, ContextCurve)
    return context_s(
        c["batch"], c["seq_len_q"], plain_heads(c["heads"], c["kv_heads"], c["head_dim"]),
        window=c["window_tokens"], cache_word_bytes=_cache_word(variant),
        peak_flops_per_s=at.device.peak_flops_per_s("bf16"), device=at.device, curve=curve,
    )  # fmt: skip


def _decode(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, DecodeCurve)
    return decode_s(
        c["batch"], c["seq_len_kv"], plain_heads(c["heads"], c["kv_heads"], c["head_dim"]),
        window=c["window_tokens"], cache_word_bytes=_cache_word(variant),
        peak_flops_per_s=at.device.peak_flops_per_s("bf16"), device=at.device, curve=curve,
    )  # fmt: skip


def _latent_context(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, ContextCurve)
    return context_s(
        c["batch"], c["seq_len_q"], expanded_heads(c["local_heads"]), window=0.0,
        cache_word_bytes=_cache_word(variant), device=at.device, curve=curve,
        peak_flops_per_s=at.device.peak_flops_per_s("bf16"),
    )  # fmt: skip


def _latent_decode(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, DecodeCurve)
    return decode_s(
        c["batch"], c["seq_len_kv"], latent_heads(c["local_heads"]), window=0.0,
        cache_word_bytes=_cache_word(variant), device=at.device, curve=curve,
        peak_flops_per_s=at.device.peak_flops_per_s("bf16"),
    )  # fmt: skip


def _absorbed(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, GemmCurve)
    op, _, name = variant.partition("/")
    word, dtype = TYPES[name]
    inner, columns = (128.0, 512.0) if op == "mla_gen_pre" else (512.0, 128.0)
    return gemm_s(
        c["tokens"], columns, inner, products=c["local_heads"], word_bytes=word, weight_copies=1.0,
        peak_flops_per_s=at.device.peak_flops_per_s(dtype), device=at.device, curve=curve,
    )  # fmt: skip


def _latent_block(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, LatentBlockCurve)
    phase, cache_type, linear_type = variant.split("/")
    is_decode, heads = phase == "decode", c["local_heads"]

    def of_type(name: str) -> ProductTime:
        found, (word, dtype) = others("gemm", name), TYPES[name]
        assert isinstance(found, GemmCurve)
        peak = at.device.peak_flops_per_s(dtype)

        def product_s(products: Num, rows: Num, columns: Num, inner: Num) -> Num:
            return gemm_s(
                rows, columns, inner, products=products, word_bytes=word, device=at.device,
                peak_flops_per_s=peak, curve=found,
            )  # fmt: skip

        return product_s

    rows = c["batch"] * c["seq_len_q"]
    products_s = projections_s(rows, heads, of_type(linear_type), is_decode=is_decode)
    if is_decode:
        products_s = products_s + absorbed_s(rows, heads, of_type("bfloat16"))
        core_s = _latent_decode(c, cache_type, at, others("latent_decode", cache_type), others)
    else:
        core_s = _latent_context(c, cache_type, at, others("latent_context", cache_type), others)
    return latent_block_s(
        rows, heads, products_s=products_s, core_s=core_s, is_decode=is_decode, device=at.device,
        curve=curve,
    )  # fmt: skip


def _experts(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, ExpertsCurve)
    words, dtype = EXPERT_TYPES[variant]
    shape = ExpertShape(
        c["tokens"], c["hidden"], c["inter"], c["topk"], c["experts"], c["tp"], c["ep"],
        gated=c["gated"], exponent=c["exponent"],
    )  # fmt: skip
    peak = at.device.peak_flops_per_s(dtype)
    return experts_s(shape, words=words, peak_flops_per_s=peak, device=at.device, curve=curve)


def _collective(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, CollectiveCurve)
    op = variant.rpartition("/")[2]
    kind = CollectiveKind("send" if op == "send_recv" else op)
    return library_collective_s(
        kind, c["message_bytes"], c["num_gpus"], link_bytes_per_s=at.link_bytes_per_s, curve=curve
    )


def _dispatch(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, DispatchCurve)
    direction, mode, _ = variant.split("/")
    word = 1.03 if direction == "dispatch" else 2.0
    copies = c["topk"]
    if mode == "normal":  # a copy for each rank, or node, that holds one of its experts
        ranks = RANKS_OF_A_NODE * c["nodes"]
        copies = ranks * (1.0 - (1.0 - 1.0 / ranks) ** c["topk"])
    return dispatch_s(
        c["tokens"], word * c["hidden"], copies, cores=c["dispatch_sms"],
        link_bytes_per_s=at.link_bytes_per_s, curve=curve,
    )  # fmt: skip


def _elementwise(c: Numbers, variant: str, at: Place, curve: Curve, others: CurveOf) -> Num:
    assert isinstance(curve, ElementwiseCurve)
    reads = {"residual_add": 2.0, "mlp_act": 2.0}.get(variant, 1.0)
    num_bytes = 2.0 * c["tokens"] * c["width"] * (reads + 1.0)
    return elementwise_s(c["tokens"], num_bytes, device=at.device, curve=curve)


def _by(*names: str) -> Callable[[Timings], Words]:
    """Return variants that follow from columns of words; both types of 16 bits are one."""

    def variants(found: Timings) -> Words:
        words = [found.words[name] for name in names]
        parts = [np.where(column == "fp16", "bfloat16", column) for column in words]
        return np.array(["/".join(entry) for entry in zip(*parts, strict=True)], dtype=np.str_)

    return variants


def _is_prompt(numbers: Mapping[str, FloatArray]) -> BoolArray:
    """Return whether each row of attention is a prompt: it has equally many queries and keys."""
    same: BoolArray = numbers["seq_len_q"] == numbers["seq_len_kv"]
    return same


def _is_decode(numbers: Mapping[str, FloatArray]) -> BoolArray:
    return ~_is_prompt(numbers)


_HEADS = ("batch", "seq_len_q", "seq_len_kv", "heads", "kv_heads", "head_dim", "window_tokens")
_LATENT = ("batch", "seq_len_q", "seq_len_kv", "local_heads")

KERNELS: Mapping[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel("gemm", ("dtype",), ("m", "n", "k"), _by("dtype"), _gemm),
        Kernel("context", ("kv_dtype",), _HEADS, _by("kv_dtype"), _context,
               _is_prompt),
        Kernel("decode", ("kv_dtype",), _HEADS, _by("kv_dtype"), _decode,
               _is_decode),
        Kernel("latent_context", ("kv_dtype", "scope"), _LATENT, _by("kv_dtype"),
               _latent_context, _is_prompt),
        Kernel("latent_decode", ("kv_dtype", "scope"), _LATENT, _by("kv_dtype"),
               _latent_decode, _is_decode),
        Kernel("latent_block", ("phase", "kv_dtype", "projection_dtype"), _LATENT,
               _by("phase", "kv_dtype", "projection_dtype"), _latent_block),
        Kernel("latent_products", ("op", "dtype"), ("tokens", "local_heads"), _by("op", "dtype"),
               _absorbed),
        Kernel("experts", ("dtype",),
               ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "gated", "exponent"),
               _by("dtype"), _experts),
        Kernel("collectives", ("library", "mode", "op"), ("num_gpus", "message_bytes"),
               _by("library", "mode", "op"), _collective),
        Kernel("dispatch", ("direction", "mode", "span"),
               ("nodes", "hidden", "tokens", "topk", "dispatch_sms"),
               _by("direction", "mode", "span"), _dispatch),
        Kernel("elementwise", ("kernel",), ("tokens", "width"), _by("kernel"),
               _elementwise),
    )
}  # fmt: skip
"""Kernels in the order in which they are fitted: later ones are built from earlier ones."""


def predicted_s(
    rows: Timings, variant: str, place: Place, curve: Curve, curves: KernelCurves
) -> FloatArray:
    """Return the seconds of rows of one chip and variant on a curve [s].

    ``curves`` has those of other kernels that this one is made of.
    """

    def other(kernel: str, its_variant: str) -> Curve:
        return curves.curve(kernel, its_variant, place.chip)

    found = rows.kernel.seconds(rows.numbers, variant, place, curve, other)
    return np.broadcast_to(np.asarray(found, dtype=float), rows.measured_s.shape)


def groups_of(table: Timings) -> Iterator[tuple[str, str, Timings]]:
    """Yield each chip and variant of a table with its rows."""
    variants = table.variants
    for variant in sorted(set(variants.tolist())):
        for chip in sorted(set(table.chips[variants == variant].tolist())):
            yield chip, variant, table.rows((variants == variant) & (table.chips == chip))
