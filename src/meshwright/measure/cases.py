"""The cases to measure: kernels of one device and collectives, each ready for repeated runs.

A case states its cost relative to others of its kind, so that a case too long for the rest of
the time is known before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.measure.device import CPU, Device, Ranks
from meshwright.spec.measured import KernelName
from meshwright.spec.system import DType

Run = Callable[[], object]

TYPES: dict[DType, str] = {
    "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16",
    "fp8": "float8_e4m3fn",
}  # fmt: skip
"""As PyTorch calls them; tf32 are products of float32 that are allowed to round."""
MI = 2**20
UPDATE_BYTES = 28.0
"""Bytes for each element: Adam reads parameter, gradient and two moments in FP32, and writes all
but one."""
WORDS: dict[str, float] = {
    "copy": 2.0, "triad": 3.0, "norm_forward": 2.0, "norm_backward": 3.0,
    "activation_forward": 2.0, "activation_backward": 3.0, "sum_forward": 3.0,
    "eager_norm_forward": 2.0, "eager_rotary_forward": 2.0, "eager_gated_forward": 3.0,
}  # fmt: skip
"""Words that a fused kernel moves for each element, as ``graph/transformer.py`` counts them."""


@dataclass(frozen=True)
class Probe:
    """One kernel of one shape."""

    kernel: KernelName
    dtype: DType
    shape: tuple[int, ...]
    prepare: Callable[[], Run]
    """Allocates operands and returns the function to time."""
    work: float
    """FLOPs, bytes or runs: times of one kernel and type are about in proportion."""
    num_bytes: float = 0.0
    """Memory that it needs."""
    group: int = 1
    stride: int = 1
    on_host: bool = False
    """Timed on the host: the seconds of launching."""

    @property
    def is_collective(self) -> bool:
        """Whether members wait for one another: the last one determines the time."""
        return self.group > 1

    @property
    def text(self) -> str:
        """Name of the case, for messages."""
        size = "x".join(map(str, self.shape))
        among = f" of {self.group}" if self.is_collective else ""
        return f"{self.kernel}{among} {size} {self.dtype}"


def kernel_cases(device: Device, types: tuple[DType, ...], word: DType) -> Iterator[list[Probe]]:
    """Yield the kernels of one device, those of a kind together, the shortest first.

    Parameters
    ----------
    types
        Types of matrix products.
    word
        Type of activations.
    """
    kernels = Kernels(device, word)
    for dtype in types:
        squares = [(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)]
        others = [(512, 1024, 4096), (2048, 512, 2048), (2048, 4096, 1024), (16, 4096, 4096)]
        shapes = sorted([*squares, *others], key=lambda s: s[0] * s[1] * s[2])
        yield [kernels.matmul(dtype, shape) for shape in shapes]
    for kernel in ("copy", "triad"):
        yield [kernels.streaming(kernel, n * MI) for n in (1, 16, 64, 256)]
    yield [kernels.update(n * MI) for n in (4, 16)]
    for kernel in ("norm", "activation"):
        yield [kernels.elementwise(kernel, n, backward=False) for n in (1, 4, 16)]
        yield [kernels.elementwise(kernel, n, backward=True) for n in (1, 4, 16)]
    for kernel in ("sum", "eager_norm", "eager_rotary", "eager_gated"):
        yield [kernels.elementwise(kernel, n, backward=False) for n in (1, 4, 16)]
    for backward in (False, True):
        shapes_of_attention = [
            (1, 8, length, size) for length in (256, 1024, 4096) for size in (64, 128)
        ]
        yield [kernels.attention(shape, backward=backward) for shape in shapes_of_attention]
    yield [kernels.launch()]


class Kernels:
    """Makes cases of one device; activations have one type."""

    def __init__(self, device: Device, word: DType) -> None:
        self.torch, self.place, self.word = device.torch, device.place, word

    def _random(self, *shape: int, dtype: DType | None = None, grad: bool = False) -> Any:
        """Return normal numbers: zeros draw less power, and run faster, than real operands."""
        made = self.torch.randn(*shape, device=self.place)
        made = made.to(getattr(self.torch, TYPES[dtype or self.word]))
        return made.requires_grad_() if grad else made

    def matmul(self, dtype: DType, shape: tuple[int, int, int]) -> Probe:
        """Return a product (rows x inner) @ (inner x columns)."""
        rows, inner, columns = shape

        def prepare() -> Run:
            self.torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
            left = self._random(rows, inner, dtype=dtype)
            right = self._random(columns, inner, dtype=dtype).t()
            if dtype != "fp8":
                return lambda: left @ right
            one, wide = self.torch.ones((), device=self.place), self.torch.bfloat16
            return lambda: self.torch._scaled_mm(
                left, right, scale_a=one, scale_b=one, out_dtype=wide
            )

        words = rows * inner + inner * columns + rows * columns
        return Probe("matmul", dtype, shape, prepare, 2.0 * rows * inner * columns, 8.0 * words)

    def streaming(self, kernel: KernelName, number: int) -> Probe:
        """Return c = a, or c = a + s b."""

        def prepare() -> Run:
            a, b, c = (self._random(number) for _ in range(3))
            if kernel == "copy":
                return lambda: c.copy_(a)
            return lambda: self.torch.add(a, b, alpha=0.5, out=c)

        return Probe(kernel, self.word, (number,), prepare, float(number), 20.0 * number)

    def update(self, number: int) -> Probe:
        """Return a step of fused Adam in FP32."""

        def prepare() -> Run:
            weight = self._random(number, dtype="fp32", grad=True)
            weight.grad = self._random(number, dtype="fp32")
            optimizer = self.torch.optim.AdamW([weight], lr=1e-9, fused=True)
            return lambda: optimizer.step()

        return Probe("update", "fp32", (number,), prepare, float(number), 32.0 * number)

    def elementwise(self, kernel: str, millions: int, *, backward: bool) -> Probe:
        """Return a norm, an activation or a sum over rows of 1024, or its backward pass."""
        torch, columns = self.torch, 1024
        rows = millions * MI // columns
        functional = torch.nn.functional

        def eager_norm(x: Any, weight: Any) -> Any:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

        def eager_rotary(x: Any, weight: Any) -> Any:
            first, second = x.chunk(2, dim=-1)
            return x * weight + torch.cat((-second, first), dim=-1) * weight

        compute: Callable[[Any, Any], Any] = {
            "norm": lambda x, weight: functional.layer_norm(x, (columns,), weight[0]),
            "activation": lambda x, _: functional.gelu(x),
            "sum": lambda x, weight: x + weight,
            "eager_norm": eager_norm,
            "eager_rotary": eager_rotary,
            "eager_gated": lambda x, weight: functional.silu(x) * weight,
        }[kernel]
        broadcasts = kernel in ("norm", "eager_norm", "eager_rotary")

        def prepare() -> Run:
            x = self._random(rows, columns, grad=backward)
            weight = self._random(1 if broadcasts else rows, columns)
            if not backward:
                return lambda: compute(x, weight)
            made, given = compute(x, weight), self._random(rows, columns)
            return lambda: torch.autograd.grad(made, x, given, retain_graph=True)

        name: Any = f"{kernel}_backward" if backward else f"{kernel}_forward"
        number = rows * columns
        return Probe(name, self.word, (number,), prepare, float(number), 40.0 * number)

    def attention(self, shape: tuple[int, int, int, int], *, backward: bool) -> Probe:
        """Return causal attention, or its backward pass."""
        batch, heads, length, size = shape
        attend = self.torch.nn.functional.scaled_dot_product_attention

        def prepare() -> Run:
            query, key, value = (self._random(*shape, grad=backward) for _ in range(3))
            if not backward:
                return lambda: attend(query, key, value, is_causal=True)
            made = attend(query, key, value, is_causal=True)
            given = self._random(*shape)
            return lambda: self.torch.autograd.grad(
                made, (query, key, value), given, retain_graph=True
            )

        name: KernelName = "attention_backward" if backward else "attention_forward"
        work = float(batch * heads * length * length * size)
        return Probe(name, self.word, shape, prepare, work, 60.0 * batch * heads * length * size)

    def launch(self) -> Probe:
        """Return an addition so small that its launch takes all of its time."""

        def prepare() -> Run:
            a, c = self._random(64), self._random(64)
            return lambda: self.torch.add(a, a, out=c)

        return Probe("launch", self.word, (64,), prepare, 1.0, on_host=True)


def network_cases(device: Device, ranks: Ranks, word: DType) -> Iterator[list[Probe]]:
    """Yield collectives and messages, those of a kind and a group together."""
    if ranks.number == 1:
        return
    groups = Groups(device, ranks)
    sizes = [4**k * 1024 for k in range(9 if device.kind != CPU else 8)]
    for size, stride in groups.layouts:
        if size == 2:
            yield [groups.send(n, stride) for n in sizes]
        for kernel in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            yield [groups.collective(kernel, n, size, stride) for n in sizes]
    for num_bytes in (4 * MI, 16 * MI, 64 * MI):
        yield groups.overlap(num_bytes, word)


class Groups:
    """Makes cases of groups of processes; all groups of one size and stride work at once."""

    def __init__(self, device: Device, ranks: Ranks) -> None:
        self.torch, self.place, self.ranks = device.torch, device.place, ranks
        self.dist = device.torch.distributed
        self._made: dict[tuple[int, int], Any] = {}

    @property
    def layouts(self) -> list[tuple[int, int]]:
        """Size and stride of the groups: in pairs and whole, inside of hosts and between them."""
        inside, number = self.ranks.per_host, self.ranks.number
        found = [(size, 1) for size in sorted({2, inside}) if 1 < size <= inside]
        hosts = number // inside
        found += [(size, inside) for size in sorted({2, hosts}) if 1 < size <= hosts]
        return [(size, stride) for size, stride in found if number % (size * stride) == 0]

    def members(self, size: int, stride: int) -> list[list[int]]:
        """Return the ranks of every group."""
        block = size * stride
        return [
            [start + first + stride * k for k in range(size)]
            for start in range(0, self.ranks.number, block)
            for first in range(stride)
        ]

    def _own(self, size: int, stride: int) -> tuple[Any, list[int]]:
        """Return the group of this process, made once, and its ranks."""
        if (size, stride) not in self._made:
            for members in self.members(size, stride):
                group = self.dist.new_group(members)
                if self.ranks.rank in members:
                    self._made[size, stride] = group, members
        found: tuple[Any, list[int]] = self._made[size, stride]
        return found

    def collective(self, kernel: KernelName, num_bytes: int, size: int, stride: int) -> Probe:
        """Return a collective of one kind; bytes are those of the full tensor on one rank."""
        words = num_bytes // 4 // size * size

        def prepare() -> Run:
            group, _ = self._own(size, stride)
            full = self.torch.ones(words, device=self.place)
            if kernel == "all_reduce":
                return lambda: self.dist.all_reduce(full, group=group)
            part = self.torch.ones(words // size, device=self.place)
            if kernel == "all_gather":
                gather = _either(self.dist, "all_gather_single", "all_gather_into_tensor")
                return lambda: gather(full, part, group=group)
            if kernel == "reduce_scatter":
                scatter = _either(self.dist, "reduce_scatter_single", "reduce_scatter_tensor")
                return lambda: scatter(part, full, group=group)
            given = self.torch.ones(words, device=self.place)
            return lambda: self.dist.all_to_all_single(full, given, group=group)

        return Probe(
            kernel, "fp32", (words * 4,), prepare, float(num_bytes), 3.0 * num_bytes, size, stride
        )

    def send(self, num_bytes: int, stride: int) -> Probe:
        """Return a message there and another one back: a run is two messages."""

        def prepare() -> Run:
            group, members = self._own(2, stride)
            tensor = self.torch.ones(num_bytes // 4, device=self.place)
            first, other = self.ranks.rank == members[0], sum(members) - self.ranks.rank

            def run() -> None:
                if first:
                    self.dist.send(tensor, other, group=group)
                    self.dist.recv(tensor, other, group=group)
                else:
                    self.dist.recv(tensor, other, group=group)
                    self.dist.send(tensor, other, group=group)

            return run

        return Probe(
            "send", "fp32", (num_bytes,), prepare, float(num_bytes), 2.0 * num_bytes, 2, stride
        )

    def overlap(self, num_bytes: int, word: DType) -> list[Probe]:
        """Return products alone, and products while all processes sum a tensor."""
        rows, number = (512 if self.place == CPU else 2048), 8
        size = self.ranks.number

        def prepared(overlapped: bool) -> Run:
            tensor = self.torch.ones(num_bytes // 4, device=self.place)
            left = self.torch.randn(rows, rows, device=self.place)
            left = left.to(getattr(self.torch, TYPES[word]))

            def run() -> None:
                sent = self.dist.all_reduce(tensor, async_op=True) if overlapped else None
                for _ in range(number):
                    left @ left
                if sent is not None:
                    sent.wait()

            return run

        shape = (rows, rows, rows, number, num_bytes)
        made: list[tuple[KernelName, bool]] = [
            ("matmuls_alone", False), ("matmuls_overlapped", True),
        ]  # fmt: skip
        return [
            Probe(name, word, shape, partial(prepared, overlapped), 1.0, 2.0 * num_bytes, size)
            for name, overlapped in made
        ]


def _either(module: Any, name: str, before: str) -> Any:
    """Return a function by the name that it has now, or had before PyTorch 2.13."""
    return getattr(module, name, None) or getattr(module, before)
