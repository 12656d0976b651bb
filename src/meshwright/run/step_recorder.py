"""Records one rank of a step on fake tensors: live bytes by category, messages, and FLOPs.

A tensor counts from the operator that creates it until its last reference is gone. Its category is
known late (a tensor is an activation if a backward pass still finds it), so changes of memory are
stored in order and summed after the step.

Source: the rules of ``torch.distributed._tools.mem_tracker`` of PyTorch 2.13, with which the peak
agrees to the last byte: a wait returns its argument. The operators with which DTensor infers the
shape of a result allocate nothing.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed._tools.fake_collectives  # fake kernels of the collectives
import torch.distributed.tensor.experimental._attention  # operators of context parallelism
from torch import Tensor, nn
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.graph.op import Phase
from meshwright.run.answer import Call
from meshwright.run.moments import Category, Counts, Moments, StepPart, moments_of
from meshwright.run.recorder import COLLECTIVES, Recorder, in_backward
from meshwright.spec.collective import CollectiveKind

aten, functional = torch.ops.aten, torch.ops._c10d_functional


@dataclass(eq=False, slots=True)
class Block:
    """Memory of one tensor and all of its views."""

    born: StepPart
    num_bytes: int = 0
    category: Category | None = None
    freed: StepPart | None = None

    @property
    def found(self) -> Category:
        """Stated category, or that of the passes that create and free the block."""
        if self.category is not None:
            return self.category
        is_kept = self.born is StepPart.FORWARD and self.freed is not StepPart.FORWARD
        return Category.ACTIVATIONS if is_kept else Category.TEMPORARY


FLOPS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}


OF_CONTEXT: dict[Any, tuple[CollectiveKind, int | slice | None]] = {
    torch.ops.cplib.flex_cp_allgather.default: (CollectiveKind.ALL_GATHER, None),
    torch.ops.cplib.flex_cp_allgather_backward.default:
        (CollectiveKind.REDUCE_SCATTER, slice(2)),
}  # fmt: skip
"""Gather of keys and values over cp; one operator under fake tensors."""


OF_TABLES = (aten.mm.default, aten.embedding_dense_backward.default)
"""Operators that make the gradient of a table of words in a backward pass."""


class StepRecorder(Recorder):
    """Dispatch mode of a step; its records are read after the step."""

    collectives = COLLECTIVES | OF_CONTEXT

    def __init__(self, axis_of: Mapping[str, str], vocab_sizes: Iterable[int] = ()) -> None:
        super().__init__(axis_of)
        self.vocab_sizes = frozenset(vocab_sizes)
        """Sizes of the vocabulary: whole, and on this rank."""
        self.flops: Counter[StepPart] = Counter()
        self.stated = StepPart.FORWARD
        """The phase outside of a backward pass."""
        self._blocks: Any = WeakIdKeyDictionary()
        self._changes: list[tuple[Block, tuple[int, StepPart, tuple[int, int]]]] = []
        self._place, self._depth = (0, 0), 0
        self._ran_in = StepPart.FORWARD
        self._paused = 0
        self._resize = torch.UntypedStorage.resize_
        self._finished = False

    @property
    def phase(self) -> StepPart:
        """The part of the step that runs."""
        return StepPart.BACKWARD if in_backward() else self.stated

    @contextmanager
    def during(self, phase: StepPart) -> Iterator[None]:
        """Run a part of the step as one phase; backward passes inside keep their own."""
        before, self.stated = self.stated, phase
        yield
        self.stated = before

    @contextmanager
    def without(self) -> Iterator[None]:
        self._paused += 1
        yield
        self._paused -= 1

    def __enter__(self) -> StepRecorder:
        recorder, resize = self, self._resize

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if (block := recorder._blocks.get(storage)) is not None:
                recorder._change(block, size)
            return result

        torch.UntypedStorage.resize_ = resized
        ShardingPropagator._fake_mode_lock = _Around(self.without)
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        torch.UntypedStorage.resize_ = self._resize
        ShardingPropagator._fake_mode_lock = nullcontext()
        self._finished = True

    def tag(self, tensors: Iterable[Any], category: Category) -> None:
        """State the category of tensors."""
        for tensor in tensors:
            for storage in get_untyped_storages(tensor):
                self._block(storage).category = category

    def _guess(self, tensors: Iterable[Any], category: Category) -> None:
        """State the category of tensors of which none is stated."""
        for tensor in tensors:
            for storage in get_untyped_storages(tensor):
                block = self._block(storage)
                block.category = block.category or category

    def keep(self, made: Any) -> None:
        """State that what a chunk has made is an activation, but for logits."""
        self._guess((each for each in tree_leaves(made) if isinstance(each, Tensor)),
                    Category.ACTIVATIONS)  # fmt: skip

    def tag_gathered(self, modules: nn.Module) -> None:
        """State the category of the weights that FSDP has gathered; call it after the step."""
        for module in modules.modules():
            if isinstance(module, FSDPModule):
                groups = module._get_fsdp_state()._fsdp_param_groups
                for weight in chain.from_iterable(group.fsdp_params for group in groups):
                    gathered = [weight._unsharded_param, *weight.all_gather_outputs]
                    self.tag(gathered, Category.GATHERED)

    def moments(self) -> Moments:
        """Return the memory of each category at every operator of the step."""
        return moments_of((block.found, *change) for block, change in self._changes)

    def counts(self, part: StepPart | None = None) -> Counts:
        """Return the counts by part of the step, sites left out: ``part``, or by phase."""

        def by_part(counted: Counter[Call]) -> Counter[Call]:
            found: Counter[Call] = Counter()
            for call, number in counted.items():
                is_forward = call.phase is Phase.FORWARD
                phase = part or (StepPart.FORWARD if is_forward else StepPart.BACKWARD)
                found[call._replace(phase=phase, site="")] += number
            return found

        return Counts(by_part(self.calls), by_part(self.num_bytes), self.flops.copy())

    def clear(self) -> None:
        """Begin to count anew."""
        for counts in (self.calls, self.num_bytes, self.flops):
            counts.clear()

    def _category_of(self, tensor: Any) -> Category | None:
        found = self._blocks.get(tensor.untyped_storage())
        return None if found is None else found.category

    def _change(self, block: Block, num_bytes: int) -> None:
        if self._finished or num_bytes == block.num_bytes:
            return
        phase = self.phase
        self._changes.append((block, (num_bytes - block.num_bytes, phase, self._place)))
        block.num_bytes = num_bytes
        block.freed = phase if num_bytes == 0 else None

    def _block(self, storage: Any) -> Block:
        block = self._blocks.get(storage)
        if block is None:
            block = Block(self.phase)
            self._blocks[storage] = block
            weakref.finalize(storage, self._change, block, 0).atexit = False
        self._change(block, storage.nbytes())
        return block

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator and record it."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        self._begin(is_task=self.phase is not self._ran_in)
        if func is functional.wait_tensor.default:
            return args[0]
        if self._paused:
            return func(*args, **kwargs)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if (counted := FLOPS.get(func._overloadpacket)) is not None:
            self.flops[self.phase] += counted(*args, **kwargs, out_val=result)
        elif func is torch.ops.fsdp.chunk_cat.default:
            self.tag([*args[0], kwargs["out"]], Category.GRADIENTS)
        elif func is aten._to_copy.default and (found := self._category_of(args[0])) in _COPIES:
            self.tag([result], _COPIES[found])
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                for storage in get_untyped_storages(tensor):
                    block = self._block(storage)
                    if not tensor.is_floating_point():
                        block.category = block.category or Category.TEMPORARY
                    elif (
                        func in OF_TABLES
                        and self.phase is StepPart.BACKWARD
                        and (self.vocab_sizes & set(tensor.shape))
                    ):
                        block.category = block.category or Category.GRADIENTS
                    elif tensor.ndim > 1 and tensor.shape[-1] in self.vocab_sizes:
                        block.category = block.category or Category.LOGITS
        return result

    def _begin(self, *, is_task: bool) -> None:
        """Count an operator, and a new task if a pass or the optimizer begins."""
        task, operator = self._place
        self._place = (task + is_task, 0 if is_task else operator + 1)
        self._ran_in = self.phase

    def _enter_module(self, *called: Any) -> None:
        self._depth += 1
        if self._depth == 1 and self.phase is StepPart.FORWARD:
            self._begin(is_task=True)

    def _leave_module(self, *called: Any) -> None:
        self._depth -= 1

    def phase_of(self, kind: CollectiveKind, axis: str) -> str:
        """Return the phase; reductions that start after a backward pass belong to it."""
        found = super().phase_of(kind, axis)
        is_late = self.stated is StepPart.BACKWARD and found == Phase.FORWARD
        return Phase.INPUT_GRADIENT if is_late else found

    def note(self, kind: CollectiveKind, axis: str, tensors: list[Tensor], args: Any) -> None:
        """Count a collective, and state the category of tensors that cross data-parallel axes."""
        if kind is CollectiveKind.ALL_TO_ALL and not tensors[0].is_floating_point():
            return  # row counts, which experts exchange first
        if kind is CollectiveKind.ALL_TO_ALL and "dp" in axis:
            axis = "ep"  # the same ranks
        super().note(kind, axis, tensors, args)
        # Over cp alone, only attention passes the name of its group as a string.
        is_sharding = "dp" in axis or (axis == "cp" and not any(isinstance(a, str) for a in args))
        if is_sharding and kind in _DATA:
            self._guess(tensors, _DATA[kind])
            if kind is CollectiveKind.REDUCE_SCATTER:
                self._guess([args[0]], Category.GRADIENTS)


class _Around:
    """A context that can be entered repeatedly; each time it makes a new one."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make, self._open = make, list[AbstractContextManager[None]]()

    def __enter__(self) -> None:
        self._open.append(self._make())
        self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)


_COPIES = {Category.WEIGHTS: Category.GATHERED, Category.GRADIENTS: Category.GRADIENTS}
"""Category of a copy in another type: weights for products, and gradients for their sums."""
_DATA = {
    CollectiveKind.ALL_GATHER: Category.GATHERED,
    CollectiveKind.REDUCE_SCATTER: Category.GRADIENTS,
    CollectiveKind.ALL_REDUCE: Category.GRADIENTS,
}
"""Category of the tensors that cross data-parallel axes."""
