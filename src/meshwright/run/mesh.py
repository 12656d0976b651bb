"""Process groups of each axis, the tokens of each rank, and collectives with a recorded purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import meshwright.streams  # noqa: F401, the forms register themselves
from meshwright.graph.op import Phase
from meshwright.run.recorder import Recorder
from meshwright.run.scale import Job
from meshwright.run.step_recorder import StepRecorder
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import REUSED_AXES, ContextKind, Streamed
from meshwright.streams.forms import TensorStream, streams

GROUPS = (
    "tp", "tatp", "cp", "dp", "dp_replicate", "pp", "tp*tatp", "dp_shard*cp", "dp*cp", "ep", "edp",
    "edp_shard",
)  # fmt: skip
"""Groups of the layers and the optimizer: of one axis, or of several axes together."""
DATA_GROUPS = ("dp_shard*cp", "dp_replicate", "edp_shard", "pp")
"""Groups whose collectives PyTorch itself calls: FSDP and pipelines."""
PARTS = {"dp": ("dp_shard", "dp_replicate"), "edp": ("edp_shard", "edp_replicate")}


@dataclass
class Axis:
    """The group of this process along an axis, and its collectives.

    Each collective takes its site and its phase, which the recorder stores with the bytes. An axis
    of one rank sends nothing.
    """

    name: str
    ranks: tuple[int, ...]
    index: int
    recorder: Recorder
    group: Any = None

    @property
    def size(self) -> int:
        """Ranks along the axis."""
        return len(self.ranks)

    def gather(self, x: Tensor, dim: int, site: str, phase: Phase) -> Tensor:
        """Return the parts of all ranks joined along a dim: the all-gather of equal parts."""
        if self.size == 1:
            return x
        part = x.movedim(dim, 0).contiguous()
        whole = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        with self.recorder.saying(self.name, site, phase):
            dist.all_gather_into_tensor(whole, part, group=self.group)
        return whole.movedim(0, dim)

    def scatter_sum(self, x: Tensor, dim: int, site: str, phase: Phase) -> Tensor:
        """Return this rank's part of the sum over all ranks: the reduce-scatter."""
        if self.size == 1:
            return x
        whole = x.movedim(dim, 0).contiguous()
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        with self.recorder.saying(self.name, site, phase):
            dist.reduce_scatter_tensor(part, whole, group=self.group)
        return part.movedim(0, dim)

    def sum(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        """Return the sum over all ranks: the all-reduce."""
        return self._reduced(x, dist.ReduceOp.SUM, site, phase)

    def largest(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        """Return the elementwise maximum over all ranks: an all-reduce."""
        return self._reduced(x, dist.ReduceOp.MAX, site, phase)

    def _reduced(self, x: Tensor, how: Any, site: str, phase: Phase) -> Tensor:
        if self.size == 1:
            return x
        made = x.contiguous().clone()
        with self.recorder.saying(self.name, site, phase):
            dist.all_reduce(made, how, group=self.group)
        return made

    def exchange(
        self, x: Tensor, sends: Sequence[int], receives: Sequence[int], site: str, phase: Phase
    ) -> Tensor:
        """Return the rows that all ranks send to this one, ordered by rank: the all-to-all.

        Parameters
        ----------
        sends, receives
            Rows of the first dim for each rank, and from each.
        """
        if self.size == 1:
            return x
        made = x.new_empty(sum(receives), *x.shape[1:])
        with self.recorder.saying(self.name, site, phase):
            dist.all_to_all_single(made, x.contiguous(), list(receives), list(sends), self.group)
        return made


@dataclass
class Mesh:
    """All groups of one process."""

    job: Job
    rank: int
    device: torch.device
    recorder: StepRecorder = field(init=False)
    axes: dict[str, Axis] = field(default_factory=dict)

    def __post_init__(self) -> None:
        degree = int(degree_of("tp*tatp", self.job.strategy))
        words = self.job.model.vocab_size
        self.recorder = StepRecorder({}, {words // degree, -(-words // degree)})

    def __getitem__(self, name: str) -> Axis:
        return self.axes[name]

    @property
    def options(self) -> Any:
        """Plan options of the job."""
        return self.job.plan_options

    @property
    def splits_tokens(self) -> bool:
        """Whether tokens rest split over tp: sequence parallelism."""
        return bool(self.options.sequence_parallel) and self["tp"].size > 1

    def form_of(self, axis: str) -> TensorStream:
        """Return the form in which tensors travel over an axis: a ring over cp."""
        return streams["ring" if axis == "cp" else str(self.options.stream_form)]

    @cached_property
    def tokens(self) -> Tensor:
        """Positions in the sequence of the tokens that rest on this rank."""
        return self.tokens_of(self["cp"].index, self["tatp"].index, self["tp"].index)

    @property
    def splits(self) -> tuple[tuple[Axis, bool], ...]:
        """Axes that share the vocabulary, outermost first, and whether each splits tokens."""
        both = ((self["tatp"], True), (self["tp"], self.splits_tokens))
        return tuple((axis, splits_tokens) for axis, splits_tokens in both if axis.size > 1)

    @property
    def words(self) -> Tensor:
        """Token ids whose rows of the vocabulary this rank holds."""
        axis = self["tp*tatp"]
        return torch.arange(self.job.model.vocab_size).tensor_split(axis.size)[axis.index]

    def tokens_of(self, cp: int | None, tatp: int | None, tp: int | None) -> Tensor:
        """Return the token positions of a rank; None: an axis that does not split them.

        cp deals 2 cp parts, part i and part 2 cp - 1 - i to rank i, so that early and late tokens
        balance under a causal mask; Ulysses deals cp parts. tatp, then tp split them in a row.
        """
        positions = torch.arange(self.job.sequence_length, device=self.device)
        if cp is not None:
            parts = self["cp"].size
            if self.options.context_kind is ContextKind.ULYSSES:
                positions = positions.chunk(parts)[cp]
            else:
                dealt = positions.chunk(2 * parts)
                positions = torch.cat([dealt[cp], dealt[2 * parts - 1 - cp]])
        if tatp is not None:
            positions = positions.chunk(self["tatp"].size)[tatp]
        if tp is not None and self.splits_tokens:
            positions = positions.chunk(self["tp"].size)[tp]
        return positions


def coordinates(job: Job) -> list[dict[str, int]]:
    """Return the coordinates of each rank; ranks count along the innermost axis first.

    Experts regroup the devices of tp, cp and dp: ep innermost, then the copies of the experts.
    """
    s, order = job.strategy, job.plan_options.axis_order
    sizes = [range(int(getattr(s, axis))) for axis in reversed(order)]
    found = [dict(zip(reversed(order), place, strict=True)) for place in product(*sizes)]
    keeps_apart = job.plan_options.zero_stage > 0
    inner = [axis for axis in order if axis in REUSED_AXES and axis != "dp_replicate"]
    reused = inner if keeps_apart else [*inner, "dp_replicate"]
    for place in found:
        number, stride = 0, 1
        for axis in reused:
            number += place[axis] * stride
            stride *= int(getattr(s, axis))
        place["ep"], place["edp_shard"] = number % int(s.ep), number // int(s.ep)
        place["edp_replicate"] = place["dp_replicate"] if keeps_apart else 0
    return found


def groups_of(job: Job, name: str) -> Iterator[tuple[int, ...]]:
    """Yield the groups of an axis, or of a product of axes; every rank is in one of them.

    ``tp/2`` are runs of two ranks of tp.
    """
    name, _, shared = name.partition("/")
    members = [part for axis in name.split("*") for part in PARTS.get(axis, (axis,))]
    places = coordinates(job)
    dense = ("tp", "tatp", "cp", "dp_shard", "dp_replicate", "pp")
    of_experts = ("ep", "edp_shard", "edp_replicate", "pp", "tatp")
    known = of_experts if members[0] in of_experts[:3] else dense
    others = [axis for axis in known if axis not in members]
    by_key: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        by_key.setdefault(tuple(place[axis] for axis in others), []).append(rank)
    for ranks in by_key.values():
        ordered = sorted(ranks, key=lambda rank: [places[rank][a] for a in reversed(members)])
        length = int(shared or len(ordered))
        yield from (tuple(ordered[i : i + length]) for i in range(0, len(ordered), length))


def heads_axis(job: Job) -> str:
    """Return the axes that share the heads and columns of a layer."""
    return "tp*tatp" if job.plan_options.streamed is Streamed.INPUTS else "tp"


def shared_groups(job: Job) -> list[str]:
    """Return the groups of ranks that hold the same key head, such as ``tp/2`` for pairs."""
    degree = int(degree_of(heads_axis(job), job.strategy))
    shares = {degree // a.num_kv_heads for a in job.model.attentions if a.num_kv_heads < degree}
    return [f"{heads_axis(job)}/{length}" for length in sorted(shares)]


def make_mesh(job: Job, rank: int, device: torch.device) -> Mesh:
    """Return the mesh of a process; all processes make all groups in the same order."""
    mesh = Mesh(job, rank, device)
    made: dict[tuple[str, tuple[int, ...]], Any] = {}
    for name in (*GROUPS, *shared_groups(job)):
        for ranks in groups_of(job, name):
            # FSDP does not state the axis of a call, so its groups are not shared with other axes.
            key = (name if name in DATA_GROUPS else "", ranks)
            if len(ranks) > 1 and key not in made:
                made[key] = dist.new_group(list(ranks))
            if rank in ranks:
                mesh.axes[name] = Axis(name, ranks, ranks.index(rank), mesh.recorder, made.get(key))
                if name in DATA_GROUPS and key in made:
                    mesh.recorder.axis_of[made[key].group_name] = name
    return mesh
