"""The price of a sharded program that another planner chose, by the same model of cost.

What one device does is a graph of its own, whose dims are local sizes: kernels have the roofline
of one device, and tensors that stay on the chip follow from the same rule. A tensor that is read in
another placement than it lies in is moved by the collectives of
:func:`meshwright.sharding.algebra.reshard`; once for each placement that is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Brief
from meshwright.dataflow.price import ring_bytes
from meshwright.dataflow.roofline import CalibratedSystem, Links, Roofline
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Dims, Kernel, Operand, Unit, Weight
from meshwright.graph.op import Phase
from meshwright.sharding.algebra import Sharding, payload, reshard, walk
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.solution import SUM, PlacedOperator, PlacedProgram, Placement
from meshwright.spec.workload import OptimizerPreset


@dataclass(frozen=True)
class PlacementChange(Brief):
    """One collective of a solution."""

    tensor: str
    reader: str
    kind: str
    axis: str
    num_bytes: float
    """Bytes of the full tensor on one rank; of an all-to-all its shard [bytes]."""
    time_s: float


@dataclass(frozen=True)
class SolutionPrice(Brief):
    """Time, memory and collectives of a solution on one device, in one step."""

    DERIVED: ClassVar[Mapping[str, str]] = {"step_s": "step_s", "sent_bytes": "sent_bytes"}
    mesh: Mapping[str, int]
    parts_s: Mapping[str, float]
    """Kernels, collectives, update of the weights [s]."""
    held_bytes: float
    product_flops: float
    """Work in products of all devices in one pass, none of it twice [FLOP]."""
    changes: tuple[PlacementChange, ...]
    """Collectives of one pass."""
    num_passes: int

    @property
    def step_s(self) -> float:
        """Time of a step [s]."""
        return sum(self.parts_s.values())

    @property
    def sent_bytes(self) -> Mapping[str, float]:
        """Bytes that a device sends round rings in a step, by mesh dim [bytes]."""
        found = dict.fromkeys(self.mesh, 0.0)
        for one in self.changes:
            sent = ring_bytes(CollectiveKind(one.kind), one.num_bytes, self.mesh[one.axis])
            found[one.axis] += self.num_passes * sent
        return found


def price_solution(
    program: PlacedProgram,
    system: CalibratedSystem,
    *,
    num_passes: int = 1,
    optimizer: OptimizerPreset | None = None,
) -> SolutionPrice:
    """Return the price of a step of a solution.

    Weights take the bytes of the optimizer, where there is one and the program has gradients;
    tensors are counted as for own plans: each result once, views and copies in other placements
    not at all.

    Raises
    ------
    SpecError
        When the mesh has another number of devices than the system.
    """
    world = prod(program.mesh.values())
    if world != system.spec.num_alive:
        mesh = " x ".join(f"{name} {size}" for name, size in program.mesh.items())
        message = f"its mesh {mesh} has {world} devices, the system {system.spec.num_alive}"
        raise SpecError(Fault("--solution", message, f"--on with {world} devices"))
    local = _local_graph(program)
    roofline = Roofline(local, system, 1)
    kernels_s = sum(roofline.kernel_s(number, None) for number in range(len(local.kernels)))
    changes = tuple(_changes(program, _links(program, system)))
    trains = any(one.is_backward for one in program.operators)
    weights = [one for one in program.operators if one.name in program.parameters]
    params = [prod(local_shape(one.shape, one.placement, program.mesh)) for one in weights]
    held, update_s = sum(n * w.word_bytes for n, w in zip(params, weights, strict=True)), 0.0
    if optimizer is not None and trains:
        each = (optimizer.weight_bytes_per_param + optimizer.gradient_bytes_per_param
                + optimizer.state_bytes_per_param)  # fmt: skip
        held = each * sum(params)
        moved = optimizer.step_traffic_bytes_per_param * sum(params)
        update_s = moved / float(roofline.engine.memory_bytes_per_s)
    named = {one.name for one in program.operators}
    held += sum(local.tensor_bytes(one) for one in local.kernels
                if one.name in named and one.phase is not Phase.WEIGHT_GRADIENT)  # fmt: skip
    whole = _local_graph(PlacedProgram({}, program.operators, program.parameters))
    return SolutionPrice(
        mesh=program.mesh,
        parts_s={"kernels_s": num_passes * kernels_s,
                 "collectives_s": num_passes * sum(one.time_s for one in changes),
                 "update_s": update_s},
        held_bytes=held, changes=changes, num_passes=num_passes,
        product_flops=product_flops(whole),
    )  # fmt: skip


def product_flops(graph: DataflowGraph) -> float:
    """Return the work of a graph in products, in one pass over all repetitions [FLOP]."""
    return graph.repeats * sum(
        kernel.flops(graph.sizes) for kernel in graph.kernels if kernel.unit is Unit.MATRIX
    )


def local_shape(
    shape: tuple[int, ...], placement: Placement, mesh: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the sizes on the largest shard: [8, 4] with ``S(0)`` over 4 devices are [2, 4].

    Mesh dims split in their order, and each rounds up.
    """
    sizes = list(shape)
    for degree, place in zip(mesh.values(), placement, strict=False):
        if isinstance(place, int):
            sizes[place] = -(-sizes[place] // degree)
    return tuple(sizes)


def _links(program: PlacedProgram, system: CalibratedSystem) -> dict[str, Links]:
    """Return the links of each mesh dim; the last dim has neighbouring devices."""
    links, stride = {}, 1
    for axis, degree in reversed(tuple(program.mesh.items())):
        links[axis] = system.links(stride, degree)
        stride *= degree
    return links


def _sharding(placement: Placement, mesh: Mapping[str, int]) -> Sharding:
    split: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for axis, place in zip(mesh, placement, strict=True):
        if isinstance(place, int) and mesh[axis] > 1:
            split[str(place)] += (axis,)
    sums = (a for a, place in zip(mesh, placement, strict=True) if place == SUM and mesh[a] > 1)
    return Sharding(split, tuple(sums))


def _changes(program: PlacedProgram, links: Mapping[str, Links]) -> Iterator[PlacementChange]:
    """Yield the collectives of one pass, each tensor once into each placement."""
    mesh, made = program.mesh, set()
    of_name = {one.name: one for one in program.operators}
    for reader in program.operators:
        for one in reader.inputs:
            if one.have == one.want or (one.name, one.want) in made:
                continue
            made.add((one.name, one.want))
            source = of_name[one.name]
            have, want = _sharding(one.have, mesh), _sharding(one.want, mesh)
            for layout, move in walk(have, reshard(have, want)):
                if move.kind is None:
                    continue
                sizes = list(source.shape)
                for dim, axes in payload(layout, move).split.items():
                    for axis in axes:
                        sizes[int(dim)] = -(-sizes[int(dim)] // mesh[axis])
                num_bytes = source.word_bytes * prod(sizes)
                yield PlacementChange(
                    one.name, reader.name, move.kind.value, move.axis, num_bytes,
                    links[move.axis].time_s(move.kind, num_bytes),
                )  # fmt: skip


def _local_graph(program: PlacedProgram) -> DataflowGraph:
    """Return the work of one device as a graph, whose dims are local sizes."""
    builder = _LocalGraph(program)
    for one in program.operators:
        builder.add(one)
    read = {edge.source for kernel in builder.kernels for edge in kernel.inputs}
    outputs = tuple(kernel.name for kernel in builder.kernels if kernel.name not in read)
    return DataflowGraph(
        "solution", tuple(builder.kernels), builder.sizes, {}, outputs, tiled="",
        word_bytes=builder.word_bytes,
    )  # fmt: skip


class _LocalGraph:
    """Kernels and sizes of dims, in the order of the program."""

    def __init__(self, program: PlacedProgram) -> None:
        self.mesh = program.mesh
        self.of_name = {one.name: one for one in program.operators}
        words = [one.word_bytes for one in program.operators if one.kind == "product"]
        self.word_bytes = max(words, default=2.0)
        self.kernels: list[Kernel] = []
        self.sizes: dict[str, int] = {}
        self.maker: dict[str, str] = {}
        """Kernel that wrote the data of each node; views have that of their source."""
        self.gradients = {
            read.name for one in program.operators if one.op == "output" for read in one.inputs
            if self.of_name[read.name].is_backward
        }  # fmt: skip

    def add(self, one: PlacedOperator) -> None:
        """Append the kernels of an operator."""
        if one.kind == "end" or (one.kind == "view" and one.inputs):
            # A view of a moved tensor is of the copy that arrived, not of what the kernel wrote.
            kept = [read.name for read in one.inputs[:1] if read.have == read.want]
            self.maker[one.name] = self.maker.get(kept[0], "") if kept else ""
            return
        reads = [local_shape(self.of_name[read.name].shape, read.want, self.mesh)
                 for read in one.inputs]  # fmt: skip
        written = local_shape(one.shape, one.placement, self.mesh)
        names = self._sources(one)
        if one.kind == "product":
            dims = self._dims(one.name, written)
            inner = self._dims(f"{one.name}.inner", reads[-2][-1:])
            operands = [(*dims[:-1], *inner), (*dims[:-2], *inner, dims[-1])]
            order = [*names[-2:], *names[:-2]]
            added = [dims] * (len(reads) - 2)
            self._kernel(one, Unit.MATRIX, dims, zip(order, [*operands, *added], strict=True))
        elif one.kind in ("attention", "attention_gradient"):
            self._attention(one, reads, names)
        elif one.kind == "lookup" and reads:
            table = Weight(names[0], self._alike(one.name, reads[0]), one.word_bytes)
            rows = zip(names[1:], (self._alike(one.name, r) for r in reads[1:]), strict=True)
            self._kernel(one, Unit.NONE, self._alike(one.name, written), rows, weights=(table,))
        else:
            each = zip(names, (self._alike(one.name, shape) for shape in reads), strict=True)
            elements = max(map(prod, (written, *reads)))
            self._kernel(one, Unit.VECTOR, self._alike(one.name, written), each, elements=elements)
        self.maker[one.name] = one.name

    def _attention(
        self, one: PlacedOperator, reads: list[tuple[int, ...]], names: list[str]
    ) -> None:
        """Append the products of attention: two forward, five of its gradient.

        Queries are [batch, heads, tokens, head_dim], keys and values [batch, heads, keys,
        head_dim]; the gradient reads that of the result first, and makes the scores again.
        """
        first = 0 if one.kind == "attention" else 1
        query, key = reads[first : first + 2]
        batch, heads, tokens, keys, size = self._dims(
            one.name, (*query[:2], query[-2], key[-2], query[-1])
        )
        of = {"t": tokens, "k": keys, "d": size}
        forms = ["tdk", "tkd"] if one.kind == "attention" else ["tdk", "ktd", "tdk", "tkd", "ktd"]
        for number, (rows, inner, columns) in enumerate(map(tuple, forms)):
            operands = ((batch, heads, of[rows], of[inner]), (batch, heads, of[inner], of[columns]))
            name = one.name if number == len(forms) - 1 else f"{one.name}.{number}"
            self._kernel(one, Unit.MATRIX, (batch, heads, of[rows], of[columns]),
                         zip(names[first:], operands, strict=False), name)  # fmt: skip

    def _sources(self, one: PlacedOperator) -> list[str]:
        """Return the inputs of an operator: kernels, or tensors that come from memory or a move."""
        return [
            self.maker.get(read.name) or read.name if read.have == read.want else f"{read.name}'"
            for read in one.inputs
        ]

    def _kernel(
        self, one: PlacedOperator, unit: Unit, dims: Dims, reads: Iterable[tuple[str, Dims]],
        name: str = "", weights: tuple[Weight, ...] = (), elements: float | None = None,
    ) -> None:  # fmt: skip
        phase = Phase.INPUT_GRADIENT if one.is_backward else Phase.FORWARD
        kernel = Kernel(
            name or one.name, unit, dims, tuple(Operand(*read) for read in reads), weights,
            flops_per_point=2.0 if unit is Unit.MATRIX else 1.0, word_bytes=one.word_bytes,
            phase=Phase.WEIGHT_GRADIENT if one.name in self.gradients else phase,
        )  # fmt: skip
        if elements is not None:
            points = prod(self.sizes[dim] for dim in kernel.points)
            kernel = replace(kernel, flops_per_point=elements / points)
        self.kernels.append(kernel)

    def _dims(self, name: str, shape: tuple[int, ...]) -> Dims:
        """Return new dims of some sizes."""
        dims = tuple(f"{name}.{place}" for place in range(len(shape)))
        self.sizes |= dict(zip(dims, shape, strict=True))
        return dims

    def _alike(self, name: str, shape: tuple[int, ...]) -> Dims:
        """Return dims of an elementwise operator: of one size the same in all its tensors."""
        dims = tuple(f"{name}.{size}.{shape[:place].count(size)}"
                     for place, size in enumerate(shape))  # fmt: skip
        self.sizes |= dict(zip(dims, shape, strict=True))
        return dims
