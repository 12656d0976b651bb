"""A program of ``torch.export`` as plain data, and its graph: no PyTorch is needed for either.

A tensor that is overwritten is a new tensor, and so is all that shows a part of it: later reads are
put together from the last writes, as PyTorch does by functionalization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.base.budget import Budget
from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.graphs.control_flow import is_flow, scanned, steps_of, with_counts
from meshwright.catalog.graphs.expressions import Expression
from meshwright.catalog.graphs.operators import RULES, made_by
from meshwright.catalog.graphs.rules.calls import Made, OpCall, reshaped
from meshwright.catalog.graphs.traced import (
    Input,
    Meta,
    ProgramStep,
    Ref,
    TensorMeta,
    TracedProgram,
    all_steps,
)
from meshwright.catalog.graphs.tracing import (
    GraphBuilder,
    Value,
    refuse_unknown,
    refuse_wrong_names,
)
from meshwright.spec.graph import GraphSpec

DimNames = Mapping[str, Sequence[str]]


def graph_of(
    program: TracedProgram,
    *,
    name: str,
    repeats: int = 1,
    dims: DimNames | None = None,
    sizes: Mapping[str, int] | None = None,
    tiled: str | None = None,
    origin: str = "",
) -> GraphSpec:
    """Return the graph of a program.

    Parameters
    ----------
    sizes
        Sizes of dims of inputs, by their name in the graph, or by their place (``x.0``). Every dim
        that the program leaves open needs one.
    origin
        Source of the program, for error messages; its name where there is none.

    Raises
    ------
    UnsupportedError
        Where the program has operators that are not known: all of them.
    SpecError
        Where a size is missing or does not fit, or a name of ``dims`` is none.
    """
    origin, unknown = origin or name, dict[str, str]()
    for step in all_steps(program.steps):
        makes_tensors = any(isinstance(meta, TensorMeta) for _, meta in step.outputs)
        if step.rule not in RULES and makes_tensors and not is_flow(step):
            unknown.setdefault(step.operator, f"{origin}.{step.name}")
    refuse_unknown(unknown, RULES, origin)
    steps, faults, counted = with_counts(program.steps, sizes or {})
    if faults:
        raise SpecError(faults, origin=origin)
    program = replace(program, steps=steps)
    sizes = {name: size for name, size in (sizes or {}).items() if name not in counted}
    bound = _bound(program, sizes, origin, dims)
    reader = _ProgramReader(program, origin, bound, repeats=repeats > 1)
    outputs = reader.read(dims or {})
    about = f"Imported from {program.version}."
    return reader.to.graph(name, outputs, origin=origin, repeats=repeats, tiled=tiled, about=about)


_MOST_CALLS = 100_000
"""Most calls of operators, repeated ones after an overwrite included; a model has some 100 a
layer."""
Place = tuple[str, int]
"""An input and the number of one of its axes."""


def _bound(
    program: TracedProgram, sizes: Mapping[str, int], name: str, dims: DimNames | None
) -> dict[str, int]:
    """Return a size for each symbol of a program.

    Raises
    ------
    SpecError
        Symbols without a size, a size out of their range, or of a dim that is fixed.
    """
    at = {
        (entry.name, axis): size
        for entry in program.given
        if isinstance(entry.meta, TensorMeta)
        for axis, size in enumerate(entry.meta.shape)
    }
    open_at = {place: size for place, size in at.items() if isinstance(size, Expression)}
    symbols = {symbol for size in open_at.values() for symbol in size.symbols}
    if not symbols and not sizes:
        return {}
    trial = {symbol: max(2, program.examples.get(symbol, 2)) for symbol in symbols}
    places = places_of(program, name, dims, trial)
    faults, bound = [], {}
    for place, size in wanted_sizes(sizes, places, name).items():
        stated, key = at[place], _spelled(place)
        symbol = next(iter(sorted(stated.symbols)), "") if isinstance(stated, Expression) else ""
        number = stated.solved(symbol, size) if isinstance(stated, Expression) else None
        if number is not None:
            bound[symbol] = number
            faults += _outside(program.ranges.get(symbol), number, f"--dim {key}")
        elif stated != size:
            message = f"is {stated} in this program"
            faults.append(Fault(f"--dim {key}", message, "export it with dynamic shapes"))
    for symbol in sorted(symbols - bound.keys()):
        shown = [
            word
            for word, found in places.items()
            if any(place in open_at and symbol in open_at[place].symbols for place in found)
        ]
        best = min(shown, key=lambda word: (word in map(_spelled, at), len(word)))
        faults.append(Fault(f"--dim {best}", "has no size", f"such as --dim {best}=8"))
    if faults:
        raise SpecError(faults, origin=name)
    return bound


def _outside(stated: tuple[int | None, int | None] | None, number: int, key: str) -> list[Fault]:
    """Return a complaint where a number is out of the range that a program states for a symbol."""
    low, high = stated or (None, None)
    if (low is None or number >= low) and (high is None or number <= high):
        return []
    least = f"at least {low}" if high is None else f"from {low} to {high}"
    return [Fault(key, f"{number} is out of range", least)]


def _spelled(place: Place) -> str:
    return f"{place[0]}.{place[1]}"


def places_of(
    program: TracedProgram, name: str, dims: DimNames | None, bound: Mapping[str, int] | None = None
) -> dict[str, list[Place]]:
    """Return the places of each dim of the inputs, by its name in the graph and by its place."""
    reader = _ProgramReader(program, name, bound or {}, repeats=True)
    spec = reader.to.graph(name, reader.read(dims or {}), origin=name)
    found: dict[str, list[Place]] = {}
    tensors = [(e.name, e.meta) for e in program.given if isinstance(e.meta, TensorMeta)]
    for key, meta in tensors:
        named = iter(spec.inputs.get(key, ()))
        for axis, size in enumerate(reader.shape_of(key, meta)):
            found.setdefault(_spelled((key, axis)), []).append((key, axis))
            if size > 1 and (dim := next(named, None)):
                found.setdefault(dim, []).append((key, axis))
    if "batch" not in found:  # an axis of one element is no dim
        found["batch"] = [(key, 0) for key, meta in tensors if len(meta.shape) > 1]
    return found


def wanted_sizes(
    sizes: Mapping[str, int], places: Mapping[str, Sequence[Place]], name: str
) -> dict[Place, int]:
    """Return the size of each axis of the inputs that is to have one."""
    faults = [
        Fault(f"--dim {dim}", "is not a dim of an input", f"one of {', '.join(places)}")
        for dim in sizes
        if dim not in places
    ]
    if faults:
        raise SpecError(faults, origin=name)
    return {place: size for dim, size in sizes.items() for place in places[dim]}


_SAME = frozenset({"alias", "detach", "to", "type_as", "contiguous", "dropout", ""})
"""Operators that return a view of all of a tensor in its own order; empty: an overwriting
operator."""
_RESHAPED = frozenset(
    {"view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"}
)
_REORDERED = frozenset({"permute", "t", "numpy_T", "transpose", "swapaxes", "swapdims"})
_PARTS = frozenset({"slice", "narrow", "split", "split_with_sizes", "chunk"})
_PLACES = frozenset({"select", "unbind"})
_OTHER_VIEWS = frozenset({"expand", "expand_as", "diagonal", "unfold", "view_as_real", "real"})
_VIEWS = _SAME | _RESHAPED | _REORDERED | _PARTS | _PLACES | _OTHER_VIEWS
_MAY_COPY = frozenset({"reshape", "reshape_as", "flatten", "contiguous"})
"""Operators that return a view only of a tensor that lies in its own order."""


@dataclass(frozen=True)
class _View:
    """A tensor that shows another tensor, or a part of it."""

    source: str
    root: str
    """The tensor at the bottom, which is not itself a view."""
    step: ProgramStep
    place: int
    """Index among the outputs of the step."""
    is_reordered: bool
    """Whether it does not lie in its own order."""


def _word_bytes(program: TracedProgram) -> float:
    """Return the bytes of a word of a graph: from its inputs, or from most of its results.

    All other tensors state theirs. Weights say little about it: they may be packed, or wider than
    the results. Whole numbers, such as indices of rows, count only where there is nothing else.
    """
    given = [entry.meta for entry in program.given]
    made = [meta for step in program.steps for _, meta in step.outputs]
    held = [entry.meta for entry in program.inputs]
    for metas, is_any in ((given, False), (made, False), (held, False), ([*held, *made], True)):
        words = Counter(
            meta.word_bytes
            for meta in metas
            if isinstance(meta, TensorMeta) and (is_any or meta.is_real)
        )
        if words:
            return words.most_common(1)[0][0]
    return 2.0


def _names(steps: Sequence[ProgramStep]) -> Iterator[tuple[str, str]]:
    """Yield other names for calls that overwrite: ``relu_`` has the result of ``relu``."""
    taken = {step.name for step in steps}
    used: Counter[str] = Counter()
    for step in steps:
        if step.rule != step.operator:
            name = step.rule
            while name in taken:
                used[step.rule] += 1
                name = f"{step.rule}_{used[step.rule]}"
            taken.add(name)
            yield step.name, name


class _ProgramReader:
    """Reads the steps of one program in order."""

    def __init__(
        self, program: TracedProgram, name: str, bound: Mapping[str, int], *, repeats: bool
    ) -> None:
        self.program, self.name, self.bound, self.repeats = program, name, bound, repeats
        self.metas: dict[str, Meta] = {entry.name: entry.meta for entry in program.inputs}
        self.known: dict[str, object] = {}
        self.views: dict[str, _View] = {}
        self.writes: Counter[str] = Counter()
        """Number of times that each tensor at the bottom was overwritten."""
        self.seen: dict[str, int] = {}
        """Number of overwrites of the bottom tensor when each view was made."""
        self.names = dict(_names(program.steps))
        self.budget = Budget(steps=_MOST_CALLS)
        self.to = GraphBuilder(_word_bytes(program))

    def read(self, dims: DimNames) -> list[Value]:
        """Read inputs, then weights and buffers, then all operators; return the outputs."""
        tensors = {e.name: e.meta for e in self.program.given if isinstance(e.meta, TensorMeta)}
        refuse_wrong_names(dims, {name: m.shape for name, m in tensors.items()}, self.name)
        for entry in sorted(self.program.inputs, key=lambda entry: bool(entry.held_as)):
            self.known[entry.name] = self._input(entry, dims.get(entry.name))
        for step in self.program.steps:
            self._run(step)
        found = map(self._value, self.program.outputs)
        return [value for value in found if isinstance(value, Value)]

    def _input(self, entry: Input, dims: Sequence[str] | None) -> Value | Meta:
        """Return an input, a weight or a buffer; anything but a tensor is returned unchanged."""
        meta = entry.meta
        if not isinstance(meta, TensorMeta):
            return self._number(meta)
        shape = self.shape_of(entry.name, meta)
        if 0 in shape:
            message = f"has the shape {shape}"
            raise SpecError(Fault(entry.name, message, "sizes above 0"), origin=self.name)
        if entry.is_weight:
            return self.to.weight(entry.held_as, shape, meta.word_bytes)
        is_held = bool(entry.held_as)
        return self.to.input(
            entry.held_as or entry.name, shape, meta.word_bytes, dims,
            is_constant=is_held or not (meta.requires_grad or (self.repeats and meta.is_real)),
            is_held=is_held,
        )  # fmt: skip

    def shape_of(self, name: str, meta: TensorMeta) -> list[int]:
        """Return the sizes of a tensor, those of open dims as they are bound."""
        found = [self._number(size) for size in meta.shape]
        sizes = [size for size in found if isinstance(size, int) and size >= 0]
        if len(sizes) < len(found):
            message = f"has the shape [{', '.join(map(str, found))}]"
            fix = "no size may depend on data"
            raise SpecError(Fault(name, message, fix), origin=self.name)
        return sizes

    def _number(self, size: Meta) -> Meta:
        """Return a size as a number; a size that depends on data is returned unchanged."""
        if not isinstance(size, Expression):
            return size
        try:
            number = size.value(self.bound)
        except ValueError as error:
            raise SpecError(Fault("size", str(error)), origin=self.name) from error
        return size if number is None else number

    def _run(self, step: ProgramStep) -> None:
        """Read one step: its outputs are known from then on, an overwritten tensor is new."""
        self.metas |= dict(step.outputs)
        if step.blocks:
            self._run_blocks(step)
            return
        made = self._made(step)
        for place, ((name, _), value) in enumerate(zip(step.outputs, made, strict=True)):
            self.known[name] = value
            source = step.written or self._shown(step)
            if source:
                shown = self.views.get(source)
                root = shown.root if shown else source
                made_by_step = replace(step, operator="") if step.written else step
                is_reordered = step.operator in _REORDERED | _OTHER_VIEWS
                is_reordered |= bool(shown and shown.is_reordered)
                self.views[name] = _View(source, root, made_by_step, place, is_reordered)
                self.seen[name] = self.writes[root]
        if step.written and made:
            self._overwrite(step.written, made[0])

    def _run_blocks(self, step: ProgramStep) -> None:
        """Read the steps of the blocks that a step runs, as often as it runs them."""
        along, length = self.metas.get(scanned(step)), 1
        if isinstance(along, TensorMeta):
            length = self.shape_of(scanned(step), along)[0]
        for inner in steps_of(step, self.metas, length=length):
            self.budget.spend(steps=1, at=step.name)
            self._run(inner)

    def _shown(self, step: ProgramStep) -> str:
        """Return the tensor of which a step returns a view; empty where it makes a new one."""
        source = next((v.name for v in step.arguments.values() if isinstance(v, Ref)), "")
        if step.operator not in _VIEWS or not source or not step.outputs:
            return ""
        before, after = (self.metas.get(name) for name in (source, step.outputs[0][0]))
        are_tensors = isinstance(before, TensorMeta) and isinstance(after, TensorMeta)
        is_cast = not are_tensors or before.dtype != after.dtype  # type: ignore[union-attr]
        shown = self.views.get(source)
        is_copy = step.operator in _MAY_COPY and bool(shown and shown.is_reordered)
        is_new = step.operator == "dropout" and bool(step.arguments.get("train"))
        return "" if is_cast or is_copy or is_new else source

    def _value(self, name: str) -> object:
        """Return the value of a name, after all overwrites since it was made."""
        view = self.views.get(name)
        if view is not None and self.seen[name] != self.writes[view.root]:
            source, step = self._value(view.source), view.step
            self.known[name] = self._made(step)[view.place] if step.operator else source
            self.seen[name] = self.writes[view.root]
        return self.known.get(name)

    def _overwrite(self, name: str, value: object) -> None:
        """Put a value at the place of a tensor, and of all that it shows."""
        at, put = name, value
        while (view := self.views.get(at)) is not None:
            self.budget.spend(steps=1, at=name)
            put, at = self._put_back(view, self._value(view.source), put), view.source
        self.known[at] = put
        self.writes[at] += 1
        self.known[name], self.seen[name] = value, self.writes[at]

    def _put_back(self, view: _View, source: object, part: object) -> object:
        """Return a tensor in which the part behind a view is replaced by another one."""
        step, operator = view.step, view.step.operator
        if not isinstance(source, Value) or not isinstance(part, Value) or operator in _SAME:
            return part
        if operator in _RESHAPED:
            return reshaped(self.to, step.name, part, source.shape)
        if operator == "permute":
            order = [source.axis(axis) for axis in step.arguments["dims"]]
            return part.permuted([order.index(axis) for axis in range(len(order))])
        if operator in _REORDERED:
            return self._called(step, {**self._arguments(step), "self": part}, [source.shape])
        if operator in _PARTS | _PLACES:
            way = "slice_scatter" if operator in _PARTS else "select_scatter"
            put = {"self": source, "src": part, "dim": step.arguments.get("dim", 0)}
            return self._called(ProgramStep(way, way, put, ()), put, [source.shape])
        message = f"is overwritten, and shows a part of another tensor by {operator!r}"
        raise SpecError(Fault(step.name, message, "copy it first (clone)"), origin=self.name)

    def _made(self, step: ProgramStep) -> Sequence[object]:
        """Return the outputs of a step; its kernel has the name of the module with its weight."""
        metas = [meta for _, meta in step.outputs]
        tensors = [meta for meta in metas if isinstance(meta, TensorMeta)]
        if len(tensors) != len(metas) or not metas:
            return [self._number(metas[0])] if len(metas) == 1 else [None] * len(metas)
        shapes = [self.shape_of(step.name, meta) for meta in tensors]
        if len(shapes) == 1 and 0 in shapes[0]:
            return [None]
        made = self._called(step, self._arguments(step), shapes)
        return made if isinstance(made, list) else [made] * len(metas)

    def _called(
        self, step: ProgramStep, arguments: Mapping[str, object], shapes: Sequence[Sequence[int]]
    ) -> Made:
        self.budget.spend(steps=1, at=step.name)
        name = self.names.get(step.name, step.name)
        weight = arguments.get("weight")
        if isinstance(weight, Value) and weight.is_weight and weight.source.endswith(".weight"):
            name = weight.source.removesuffix(".weight")
        meta = step.outputs[0][1] if step.outputs else None
        first = next((v for v in arguments.values() if isinstance(v, Value)), None)
        word = meta.word_bytes if isinstance(meta, TensorMeta) else first and first.word_bytes
        call = OpCall(name, arguments, shapes, word or self.to.word_bytes)
        return made_by(
            self.to, step.rule, call, node=step.name, written=step.operator, origin=self.name
        )

    def _arguments(self, step: ProgramStep) -> dict[str, object]:
        return {key: self._argument(value) for key, value in step.arguments.items()}

    def _argument(self, value: object) -> object:
        if isinstance(value, list | tuple):
            return [self._argument(entry) for entry in value]
        return self._value(value.name) if isinstance(value, Ref) else value
