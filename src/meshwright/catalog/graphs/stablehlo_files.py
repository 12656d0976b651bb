"""Programs of StableHLO in the text form of MLIR, as JAX, torch_xla and others write it.

No part of a file is run and no other package is needed. Sizes must be fixed. An argument of the
program is an input; where the file states places in the source (``debug_info``), one that lies
inside of a structure, as ``params['w']``, is a weight. So is a constant of many elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from string import ascii_letters
from typing import Any

from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import opened
from meshwright.catalog.graphs.control_flow import COUNT
from meshwright.catalog.graphs.operators import RULES as OPERATORS
from meshwright.catalog.graphs.stablehlo_text import (
    Group,
    Item,
    Operation,
    TensorType,
    groups_of,
    lines_of,
    operation,
    types_of,
)
from meshwright.catalog.graphs.traced import (
    Block,
    Input,
    Meta,
    ProgramStep,
    Ref,
    TensorMeta,
    TracedProgram,
)
from meshwright.catalog.graphs.tracing import refuse_unknown

MOST_BYTES = 64 * 2**20
"""Most bytes of one program."""
_MOST_CALLS = 100_000
_WEIGHT_ELEMENTS = 64
"""A constant of more elements is a weight, unless all of them are one number."""
_BYTECODE = b"ML\xefR"
_SPELLINGS = (
    ("sub", "subtract negate divide multiply power remainder atan2 maximum minimum and or xor not "
     "abs cbrt ceil floor sine cosine tan exponential exponential_minus_one log log_plus_one "
     "logistic rsqrt sqrt tanh sign round_nearest_afz round_nearest_even is_finite popcnt clamp "
     "count_leading_zeros shift_left shift_right_arithmetic shift_right_logical compare select "
     "complex real imag reduce_precision uniform_quantize uniform_dequantize map "
     "stochastic_convert erf erfc erf_inv asin acos acosh asinh atan atanh sinh cosh lgamma "
     "digamma polygamma zeta "
     "bessel_i1e conj is_inf is_neg_inf is_pos_inf next_after square square_root softplus"),
    ("add", "add"),
    ("alias", "convert bitcast_convert optimization_barrier copy"),
    ("view", "reshape dynamic_reshape"),
    ("permute", "transpose"),
    ("slice", "slice dynamic_slice pad dynamic_pad real_dynamic_slice"),
    ("slice_scatter", "dynamic_update_slice"),
    ("cat", "concatenate"),
    ("flip", "reverse"),
    ("sort", "sort top_k"),
    ("zeros", "constant iota rng rng_bit_generator dynamic_iota create_token"),
    ("linalg_cholesky", "cholesky"),
    ("linalg_solve_triangular", "triangular_solve"),
    ("expand", "broadcast_in_dim dynamic_broadcast_in_dim broadcast broadcast_select"),
    ("einsum", "dot_general dot"),
    ("convolution", "convolution dynamic_conv"),
    ("sum", "reduce"),
    ("avg_pool2d", "reduce_window"),
    ("avg_pool2d_backward", "select_and_scatter"),
    ("placed", "gather scatter torch_index_select dynamic_gather"),
    ("fft_fftn", "fft"),
    ("batch_norm", "batch_norm_inference batch_norm_training"),
    ("call", "call while case if composite custom_call return"),
)  # fmt: skip
RULES: Mapping[str, str] = {name: rule for rule, names in _SPELLINGS for name in names.split()}
"""Operator of PyTorch that stands for an operation, without its dialect."""
_SAME_CALLS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
     "xla.sdy.FuncResultSharding", "LayoutConstraint", "mhlo.copy"}
)  # fmt: skip
"""Calls of a compiler that return their argument."""
_ELEMENTS: Mapping[str, tuple[str, float]] = {
    "f64": ("float64", 8.0), "f32": ("float32", 4.0), "f16": ("float16", 2.0),
    "bf16": ("bfloat16", 2.0), "tf32": ("float32", 4.0), "i1": ("bool", 1.0),
    "complex": ("complex64", 8.0), "!quant.uniform": ("int8", 1.0),
    **{f"{sign}{bits}": (f"{name}{bits}", bits / 8) for sign, name in
       (("i", "int"), ("si", "int"), ("ui", "uint")) for bits in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip


def read_stablehlo(path: Path) -> TracedProgram:
    """Return the program of a file; for use inside of ``as_foreign``.

    Raises
    ------
    OSError, ValueError
        Where it is no text of MLIR, or has no function to start with.
    SpecError, UnsupportedError
        A size that is open; operations that are not known.
    """
    with opened(path, most_bytes=MOST_BYTES) as file:
        content = file.read()
    if content.startswith(_BYTECODE):
        raise ValueError("it is MLIR bytecode; write its text (as_text, or stablehlo-opt)")
    return program_of(content.decode(), str(path))


def program_of(text: str, origin: str) -> TracedProgram:
    """Return the program of a text; see :func:`read_stablehlo`."""
    items = groups_of(text)
    functions: dict[str, _Function] = {}
    _collect(items, functions)
    if not functions:
        raise ValueError("it holds no function (func.func)")
    return _Reader(functions, _places(items), origin).program()


@dataclass
class _Function:
    """One function: its arguments with types and places, and its body."""

    name: str
    arguments: list[tuple[str, TensorType, str]]
    body: Group
    is_public: bool


def _collect(items: Sequence[Item], functions: dict[str, _Function]) -> None:
    """Collect the functions of a module."""
    for line in lines_of(items):
        words = [item for item in line if isinstance(item, str)]
        body = next((i for i in reversed(line) if isinstance(i, Group) and i.opened == "{"), None)
        if not words or body is None:
            continue
        if words[0].strip('"') in ("module", "builtin.module"):
            _collect(body.items, functions)
        elif words[0] == "func.func":
            name = next(word for word in words if word.startswith("@")).strip('@"')
            given = next(i for i in line if isinstance(i, Group) and i.opened == "(")
            is_public = "private" not in words
            functions[name] = _Function(name, list(_arguments(given)), body, is_public)


def _arguments(group: Group) -> Iterator[tuple[str, TensorType, str]]:
    """Yield name, type and place in the source of each argument of a function or a block."""
    items = [item for item in group.items if item != "\n"]
    starts = [p for p, item in enumerate(items) if isinstance(item, str) and item[0] == "%"]
    for start, end in zip(starts, [*starts[1:], len(items)], strict=True):
        part = items[start:end]
        types = types_of(part)
        place = ""
        if "loc" in part:
            held = part[part.index("loc") + 1]
            place = str(held.items[0]) if isinstance(held, Group) and held.items else ""
        yield str(part[0]), types[0] if types else TensorType((), "token"), place


def _places(items: Sequence[Item]) -> dict[str, str]:
    """Return the texts of the places that a file names, ``#loc1 = loc("x")``."""
    found = {}
    for line in lines_of(items):
        if len(line) >= 4 and str(line[0]).startswith("#loc") and line[1:3] == ["=", "loc"]:
            held = line[3]
            first = held.items[0] if isinstance(held, Group) and held.items else ""
            if isinstance(first, str) and first.startswith('"'):
                found[str(line[0])] = first.strip('"')
    return found


@dataclass
class _Scope:
    """Facts on the values of one region while it is read."""

    metas: dict[str, Meta] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Values of constants that are one whole number."""
    names: dict[str, str] = field(default_factory=dict)
    """Name of each value in the program."""


class _Reader:
    """Reads the operations of a file as calls of PyTorch, functions as blocks."""

    def __init__(
        self, functions: Mapping[str, _Function], places: Mapping[str, str], origin: str
    ) -> None:
        self.functions, self.places, self.origin = functions, places, origin
        self.blocks: dict[str, tuple[Block, int]] = {}
        self.open: list[str] = []
        self.weights: list[Input] = []
        self.unknown: dict[str, str] = {}
        self.number = 0

    def program(self) -> TracedProgram:
        """Return the program of the function ``main``, or of the only public one."""
        public = [found for found in self.functions.values() if found.is_public]
        main = self.functions.get("main") or (public[0] if len(public) == 1 else None)
        if main is None:
            listed = ", ".join(self.functions)
            raise ValueError(f"it should have a function main; found: {listed[:200]}")
        scope, inputs = _Scope(), []
        for name, kind, place in main.arguments:
            place = self.places.get(place, place.strip('"'))
            meta = self._meta(kind, name)
            inner = re.fullmatch(r"[\w.]+?((\[.+)|(\.[\w.]+))", place)
            is_weight = inner is not None and meta.is_real
            known = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", place) or name.lstrip("%")
            known = re.sub(r"[^\w.-]", "_", known)
            known += f".{name.lstrip('%')}" if known in scope.names.values() else ""
            scope.names[name] = known
            scope.metas[name] = meta
            inputs.append(Input(known, meta, known if is_weight else "", is_weight))
        steps, outputs, _ = self._region(main.body.items, scope)
        refuse_unknown(self.unknown, RULES, self.origin)
        return TracedProgram(
            inputs=(*inputs, *self.weights),
            steps=tuple(steps),
            outputs=tuple(value.name for value in outputs if isinstance(value, Ref)),
            version="StableHLO",
        )

    def _meta(self, kind: TensorType, name: str) -> TensorMeta:
        """Return the facts on a tensor of a type."""
        if None in kind.shape or kind.element.startswith("*"):
            shown = ", ".join("?" if size is None else str(size) for size in kind.shape)
            fault = Fault(name, f"its shape is [{shown}]", "lower it with fixed shapes")
            raise SpecError(fault, origin=self.origin)
        dtype, word = _ELEMENTS.get(kind.element, ("", 0.0))
        if kind.element.startswith(("f8", "f6", "f4")):
            dtype, word = f"float{kind.element[1]}", 1.0 if kind.element[1] == "8" else 0.5
        if kind.element in ("token", "", "none"):
            dtype, word = "bool", 1.0
        if not dtype:
            raise ValueError(f"{name} is of no type of elements that is known ({kind.element})")
        return TensorMeta(tuple(size for size in kind.shape if size is not None), dtype, word)

    def _region(
        self, items: Sequence[Item], scope: _Scope
    ) -> tuple[list[ProgramStep], list[object], int]:
        """Return the calls of a region, its outputs, and how many calls it stands for."""
        steps: list[ProgramStep] = []
        size = 0
        for line in lines_of(items):
            if str(line[0]).startswith("^"):
                continue
            read = operation(line)
            kind = read.name.rpartition(".")[2]
            if kind == "return":
                return steps, [self._ref(name, scope) for name in read.operands], size
            if kind not in RULES:
                self.unknown.setdefault(read.name, f"{self.origin}.{(read.results or ('',))[0]}")
                kind = "constant"
            made, work = self._steps(kind, read, scope)
            steps += made
            size += work
            if size > _MOST_CALLS:
                raise ValueError(f"it calls more than {_MOST_CALLS:,} operations")
        return steps, [], size

    def _ref(self, name: str, scope: _Scope) -> object:
        name = name.removesuffix("#0") if name not in scope.names else name
        if name not in scope.names:
            raise ValueError(f"{name} is used before it is made")
        return Ref(scope.names[name])

    def _block(self, group: Group, scope: _Scope, names: Sequence[str] = ()) -> tuple[Block, int]:
        """Return a region as a block; it sees what stands around it."""
        label = next((line for line in lines_of(group.items)), [])
        given = list(names)
        if label and str(label[0]).startswith("^"):
            held = next((i for i in label if isinstance(i, Group) and i.opened == "("), None)
            found = list(_arguments(held)) if held else []
            given = [name for name, _, _ in found]
        inner = _Scope(dict(scope.metas), dict(scope.numbers), dict(scope.names))
        for name in given:
            self.number += 1
            inner.names[name] = f"{name.lstrip('%')}.{self.number}"
            inner.numbers.pop(name, None)
        if label and str(label[0]).startswith("^"):
            inner.metas |= {name: self._meta(kind, name) for name, kind, _ in found}
        steps, outputs, size = self._region(group.items, inner)
        inputs = tuple(inner.names[name] for name in given)
        return Block(inputs, tuple(steps), tuple(outputs)), size

    def _called(self, name: str) -> tuple[Block, int]:
        """Return a function as a block, and how many calls it stands for."""
        if name in self.open:
            raise ValueError(f"the function {name} calls itself")
        if name not in self.blocks:
            if name not in self.functions:
                raise ValueError(f"the function {name} is called and is not in the file")
            found, scope = self.functions[name], _Scope()
            self.open.append(name)
            for argument, kind, _ in found.arguments:
                scope.names[argument] = f"{name}.{argument.lstrip('%')}"
                scope.metas[argument] = self._meta(kind, argument)
            steps, outputs, size = self._region(found.body.items, scope)
            self.open.pop()
            inputs = tuple(scope.names[argument] for argument, _, _ in found.arguments)
            self.blocks[name] = Block(inputs, tuple(steps), tuple(outputs)), size
        return self.blocks[name]

    def _steps(self, kind: str, read: Operation, scope: _Scope) -> tuple[list[ProgramStep], int]:
        """Return the calls for an operation, and how many calls they stand for."""
        self.number += 1
        kinds = read.makes[-1:] if len(read.results) == 1 else read.makes
        outputs: list[tuple[str, Meta]] = []
        for result, made in zip(read.results, kinds, strict=False):
            meta, name = self._meta(made, result), f"{kind}.{self.number}"
            name = f"{name}.{result.partition('#')[2]}" if "#" in result else name
            while any(name == other for other, _ in outputs):
                name += "_"
            scope.names[result], scope.metas[result] = name, meta
            outputs.append((name, meta))
        name = f"{kind}.{self.number}"
        if kind in ("while", "case", "if", "call", "composite", "custom_call"):
            return self._flow(kind, name, read, tuple(outputs), scope)
        if kind == "constant":
            return self._constant(name, read, outputs, scope), 1
        given = [self._ref(operand, scope) for operand in read.operands]
        metas = [self._of(operand, scope) for operand in read.operands]
        steps = list(_Spelled(name, read, given, metas, tuple(outputs)).steps(kind))
        return steps, len(steps)

    def _of(self, name: str, scope: _Scope) -> TensorMeta:
        found = scope.metas.get(name, scope.metas.get(name.removesuffix("#0")))
        if not isinstance(found, TensorMeta):
            raise ValueError(f"{name} is used before it is made")
        return found

    def _constant(
        self, name: str, read: Operation, outputs: Sequence[tuple[str, Meta]], scope: _Scope
    ) -> list[ProgramStep]:
        """Return the call for a constant; none where it is held as a weight."""
        if not outputs:
            return []
        ((made, meta),) = outputs[:1]
        held = next((i for i in read.items if isinstance(i, Group) and i.opened == "<"), Group(""))
        word = held.items[0] if len(held.items) == 1 else ""
        if isinstance(word, str) and re.fullmatch(r"-?\d+", word):
            scope.numbers[read.results[0]] = int(word)
        is_large = isinstance(meta, TensorMeta) and prod(map(int, meta.shape)) > _WEIGHT_ELEMENTS  # type: ignore[arg-type]
        is_splat = isinstance(word, str) and bool(word) and not word.startswith('"')
        if is_large and not is_splat:
            is_real = isinstance(meta, TensorMeta) and meta.is_real
            self.weights.append(Input(made, meta, made, is_weight=is_real))
            return []
        return [ProgramStep(name, "zeros", {}, tuple(outputs))]

    def _flow(
        self, kind: str, name: str, read: Operation, outputs: tuple[tuple[str, Meta], ...],
        scope: _Scope,
    ) -> tuple[list[ProgramStep], int]:  # fmt: skip
        """Return the call of a function, a branch or a loop."""
        given: list[object] = []
        if kind == "while":
            names = read.operands[::2] if "=" in _words(read) else ()
            carried = read.operands[1::2] if names else read.operands
            inner = _Scope({**scope.metas, **{
                name: self._meta(kind, name) for name, kind in zip(names, read.makes, strict=False)
            }}, scope.numbers, scope.names)  # fmt: skip
            (test, _), (body, size) = (self._block(r, inner, names) for r in read.regions)
            given = [self._ref(operand, scope) for operand in carried]
            arguments: dict[str, Any] = {"0": test, "1": body, "2": given, "3": []}
            count = self._iterations(read.regions, names, carried, scope)
            if count is not None:
                arguments[COUNT] = count
            step = ProgramStep(name, "while_loop", arguments, outputs)
            return [step], size * (1 if count is None else count) + 1
        if kind in ("case", "if"):
            blocks = [self._block(region, scope) for region in read.regions]
            arguments = {str(n): block for n, (block, _) in enumerate(blocks)}
            index = self._ref(read.operands[0], scope)
            step = ProgramStep(name, "cond", {"index": index, **arguments, "given": []}, outputs)
            return [step], max(size for _, size in blocks) + 1
        given = [self._ref(operand, scope) for operand in read.operands]
        if kind == "custom_call" and read.callee in _SAME_CALLS:
            return [ProgramStep(name, "alias", {"self": given[0]}, outputs)], 1
        if kind == "custom_call" and read.callee not in self.functions:
            self.unknown.setdefault(f"custom_call @{read.callee}", f"{self.origin}.{name}")
            return [], 0
        block, size = self._called(read.callee)
        return [ProgramStep(name, "call", {"0": block, "1": given}, outputs)], size + 1

    def _iterations(
        self, regions: Sequence[Group], names: Sequence[str], carried: Sequence[str], scope: _Scope
    ) -> int | None:
        """Return the iterations of a loop that counts from one number to another; else None."""
        tests, bodies = ([operation(line) for line in lines_of(r.items) if str(line[0])[0] != "^"]
                         for r in regions)  # fmt: skip
        if not names:
            heads = [next(iter(lines_of(region.items)), []) for region in regions]
            groups = [next((i for i in h if isinstance(i, Group)), Group("")) for h in heads]
            tested, changed = ([name for name, _, _ in _arguments(group)] for group in groups)
        else:
            tested = changed = list(names)
        numbers = [dict(scope.numbers), dict(scope.numbers)]
        for known, part in zip(numbers, (tests, bodies), strict=True):
            for read in part:
                held = [i for i in read.items if isinstance(i, Group) and i.opened == "<"]
                word = held[0].items[0] if held and len(held[0].items) == 1 else ""
                if read.name.endswith(".constant") and re.fullmatch(r"-?\d+", str(word)):
                    known[read.results[0]] = int(str(word))
        compare = next((read for read in tests if read.name.endswith(".compare")), None)
        ends = tests[-1].operands if tests else ()
        if compare is None or compare.results != tuple(ends):
            return None
        place, limit = compare.operands[0], numbers[0].get(compare.operands[1])
        if "LT" not in _words(compare) or place not in tested or limit is None:
            return None
        at = tested.index(place)
        start, last = scope.numbers.get(carried[at]), bodies[-1].operands[at]
        grown = next((read for read in bodies if read.results == (last,)), None)
        if start is None or grown is None or not grown.name.endswith(".add"):
            return None
        by = [numbers[1].get(operand) for operand in grown.operands if operand != changed[at]]
        if changed[at] not in grown.operands or len(by) != 1 or not by[0] or by[0] < 0:
            return None
        return max(0, -(-(limit - start) // by[0]))


def _words(read: Operation) -> list[str]:
    """Return the words of an operation, those in round and pointed brackets too."""
    found: list[str] = []
    waiting = list(read.items)
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, str):
            found.append(item)
        elif item.opened in "(<":
            waiting = [*item.items, *waiting]
    return found


@dataclass(frozen=True)
class _Spelled:
    """One operation as calls of PyTorch."""

    name: str
    read: Operation
    given: Sequence[object]
    metas: Sequence[TensorMeta]
    outputs: tuple[tuple[str, Meta], ...]

    def steps(self, kind: str) -> Iterator[ProgramStep]:
        """Yield the calls."""
        if RULES[kind] in _OWN:
            yield from getattr(self, f"_{RULES[kind]}")(kind)
            return
        operator, arguments = RULES[kind], dict[str, object]()
        if operator in ("sub", "add", "cat"):
            arguments["tensors"] = list(self.given)
        elif operator != "zeros":
            arguments["self"] = self.given[0]
        if operator == "slice_scatter":
            arguments["src"] = self.given[1]
        if operator == "linalg_solve_triangular":
            arguments["B"] = self.given[1]
        found = self.read.numbers("dim", "dims", "dimension", "permutation", "dimensions")
        if found and operator in ("permute", "flip"):
            arguments["dims"] = found
        elif found and operator in ("cat", "sort"):
            arguments["dim"] = found[0]
        if operator == "alias":
            for value, output in zip(self.given, self.outputs, strict=False):
                yield ProgramStep(output[0], "alias", {"self": value}, (output,))
            return
        yield self._step(operator, arguments)

    def _step(
        self, operator: str, arguments: Mapping[str, object],
        outputs: tuple[tuple[str, Meta], ...] | None = None,
    ) -> ProgramStep:  # fmt: skip
        return ProgramStep(self.name, operator, arguments, outputs or self.outputs)

    @property
    def _made(self) -> TensorMeta:
        meta = self.outputs[0][1]
        assert isinstance(meta, TensorMeta)
        return meta

    def _turned(
        self, part: str, value: object, meta: TensorMeta, order: Sequence[int]
    ) -> tuple[list[ProgramStep], object, TensorMeta]:
        """Return the call that puts axes in another order, its result, and facts on it."""
        turned = TensorMeta(tuple(meta.shape[a] for a in order), meta.dtype, meta.word_bytes)
        name = f"{self.name}.{part}"
        step = ProgramStep(name, "permute", {"self": value, "dims": list(order)}, ((name, turned),))
        return [step], Ref(name), turned

    def _expand(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a view with axes of one element, and its repetition."""
        meta, shape = self._made, list(self._made.shape)
        dims = self.read.numbers("dims", "broadcast_dimensions")
        if kind == "broadcast":
            dims = list(range(len(shape) - len(self.metas[0].shape), len(shape)))
        order = sorted(range(len(dims)), key=lambda place: dims[place])
        steps, value, given = self._turned("order", self.given[0], self.metas[0], order)
        ones: list[Any] = [1] * len(shape)
        for place, size in zip(sorted(dims), given.shape, strict=True):
            ones[place] = size
        name = f"{self.name}.ones"
        seen = TensorMeta(tuple(ones), meta.dtype, meta.word_bytes)
        yield from steps
        yield ProgramStep(name, "view", {"self": value}, ((name, seen),))
        yield self._step("expand", {"self": Ref(name)})

    def _einsum(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a product over the axes that both operands name."""
        ranks = [len(meta.shape) for meta in self.metas[:2]]
        batches = self._sides("batching_dims", "batching_dimensions")
        summed = self._sides("contracting_dims", "contracting_dimensions")
        if kind == "dot":
            summed = ([ranks[0] - 1], [0])
        letters = iter(ascii_letters)
        words: list[dict[int, str]] = [{}, {}]
        result = ""
        for left, right in zip(*batches, strict=True):
            words[0][left] = words[1][right] = letter = next(letters)
            result += letter
        for left, right in zip(*summed, strict=True):
            words[0][left] = words[1][right] = next(letters)
        for word, rank in zip(words, ranks, strict=True):
            for axis in range(rank):
                if axis not in word:
                    word[axis] = next(letters)
                    result += word[axis]
        parts = ["".join(word[a] for a in range(rank)) for word, rank in
                 zip(words, ranks, strict=True)]  # fmt: skip
        equation = f"{','.join(parts)}->{result}"
        yield self._step("einsum", {"equation": equation, "tensors": list(self.given[:2])})

    def _sides(self, short: str, generic: str) -> tuple[list[int], list[int]]:
        """Return the axes of both operands that an attribute names."""
        found = [list(map(int, words)) for words in self.read.lists(short)]
        if len(found) == 2:
            return found[0], found[1]
        sides = [self.read.numbers(f"{side}_{generic}") for side in ("lhs", "rhs")]
        return sides[0], sides[1]

    def _convolution(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a convolution between the orders of axes of PyTorch."""
        numbers = self.read.lists("dim_numbers", "dimension_numbers")
        if len(numbers) != 3:
            raise ValueError(f"{self.name}: the axes of a convolution are not stated")
        left, right, out = numbers
        space = [str(axis) for axis in range(len(left) - 2)]
        groups = (self.read.numbers("feature_group_count") or [1])[0]
        batches = (self.read.numbers("batch_group_count") or [1])[0]
        dilated = max(self.read.numbers("lhs_dilate", "lhs_dilation") or [1]) > 1
        value, given = self.given[0], self.metas[0]
        steps, value, given = self._turned(
            "input", value, given, [left.index(word) for word in ("b", "f", *space)]
        )
        yield from steps
        if batches > 1:  # groups of the batch are groups of channels
            shape = list(given.shape)
            shape[:2] = [int(shape[0]) // batches, int(shape[1]) * batches]  # type: ignore[arg-type]
            cut = TensorMeta((batches, shape[0], given.shape[1], *shape[2:]), given.dtype,
                             given.word_bytes)  # fmt: skip
            for part, operator, meta in (
                ("batches", "view", cut),
                ("turned", "permute", TensorMeta(
                    (cut.shape[1], cut.shape[0], *cut.shape[2:]), cut.dtype, cut.word_bytes)),
                ("groups", "view", TensorMeta(tuple(shape), cut.dtype, cut.word_bytes)),
            ):  # fmt: skip
                name = f"{self.name}.{part}"
                order = [1, 0, *range(2, len(cut.shape))]
                yield ProgramStep(name, operator, {"self": value, "dims": order}, ((name, meta),))
                value = Ref(name)
        first = ("i", "o") if dilated and groups == 1 else ("o", "i")
        steps, weight, _ = self._turned(
            "weight", self.given[1], self.metas[1], [right.index(word) for word in (*first, *space)]
        )
        yield from steps
        meta = self._made
        order = [out.index(word) for word in ("b", "f", *space)]
        made = TensorMeta(tuple(meta.shape[a] for a in order), meta.dtype, meta.word_bytes)
        name = f"{self.name}.out"
        yield ProgramStep(
            name,
            "convolution",
            {"input": value, "weight": weight, "bias": None, "groups": max(groups, batches),
             "transposed": dilated and groups == 1},
            ((name, made),),
        )  # fmt: skip
        back = [order.index(axis) for axis in range(len(order))]
        yield self._step("permute", {"self": Ref(name), "dims": back})

    def _sum(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a reduction of the first operand: a sum, or one that needs whole axes."""
        dims = self.read.numbers("dimensions")
        words = {word.rpartition(".")[2] for word in _words(self.read)}
        for region in self.read.regions:
            words |= {operation(line).name.rpartition(".")[2] for line in lines_of(region.items)
                      if str(line[0])[0] != "^"}  # fmt: skip
        is_sum = "add" in words and len(self.outputs) == 1
        if not dims:
            yield self._step("alias", {"self": self.given[0]})
        else:
            yield self._step("sum" if is_sum else "amax", {"self": self.given[0], "dim": dims})

    def _avg_pool2d(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a function of windows, or of all places before each where windows are that long."""
        window = self.read.numbers("window_dimensions")
        meta, given = self._made, self.metas[0]
        wide = [axis for axis, size in enumerate(window) if size > 1]
        if not wide:
            yield self._step("relu", {"self": self.given[0]})
        elif meta.shape == given.shape and all(window[a] == given.shape[a] for a in wide):
            yield self._step("cumsum", {"self": self.given[0], "dim": wide})
        else:
            order = [*(a for a in range(len(window)) if a not in wide), *wide]
            steps, value, _ = self._turned("input", self.given[0], given, order)
            yield from steps
            name = f"{self.name}.out"
            made = TensorMeta(tuple(meta.shape[a] for a in order), meta.dtype, meta.word_bytes)
            size = [window[axis] for axis in wide]
            yield ProgramStep(
                name, f"avg_pool{len(wide)}d", {"self": value, "kernel_size": size}, ((name, made),)
            )
            back = [order.index(axis) for axis in range(len(order))]
            yield self._step("permute", {"self": Ref(name), "dims": back})

    def _avg_pool2d_backward(self, kind: str) -> Iterator[ProgramStep]:
        yield self._step("avg_pool2d_backward", {"grad_output": self.given[1]})

    def _fft_fftn(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a transform over the last axes."""
        length = self.read.numbers("length", "fft_length")
        is_real = any("RFFT" in word for word in _words(self.read))
        dims = list(range(-len(length), 0))
        operator = "fft_rfftn" if is_real else "fft_fftn"
        yield self._step(operator, {"self": self.given[0], "dim": dims})

    def _batch_norm(self, kind: str) -> Iterator[ProgramStep]:
        keys = ["input", "weight", "bias", "running_mean", "running_var"]
        arguments: dict[str, object] = dict(zip(keys, self.given, strict=False))
        arguments["training"] = kind == "batch_norm_training"
        operator = "batch_norm" if len(self.outputs) == 1 else "_native_batch_norm_legit"
        yield self._step(operator, arguments)

    def _placed(self, kind: str) -> Iterator[ProgramStep]:
        """Yield a move of elements to or from places that numbers name."""
        shapes = [list(map(int, meta.shape)) for meta in self.metas]  # type: ignore[arg-type]
        made = list(map(int, self._made.shape))  # type: ignore[arg-type]
        vector = (self.read.numbers("index_vector_dim") or [len(shapes[1])])[0]
        ids = [axis for axis in range(len(shapes[1])) if axis != vector]
        if kind == "scatter":
            window = self.read.numbers("update_window_dims")
            gone = {*self.read.numbers("inserted_window_dims"),
                    *self.read.numbers("input_batching_dims")}  # fmt: skip
            kept = [axis for axis in range(len(shapes[0])) if axis not in gone]
            count = len(self.outputs)
            update = shapes[2 * len(self.given) // 3] if count > 1 else shapes[2]
            rest = [axis for axis in range(len(update)) if axis not in window]
            own = [f"o{axis}" for axis in range(len(made))]
            put: list[str] = [""] * len(update)
            moved = set(gone)
            for axis, place in zip(kept, window, strict=True):
                whole = update[place] == made[axis]
                put[place] = f"o{axis}" if whole else f"w{place}"
                moved |= set() if whole else {axis}
            numbers = [""] * len(shapes[1])
            for axis, place in zip(ids, rest, strict=True):
                numbers[axis] = put[place] = f"i{axis}"
            numbers = [word or "vector" for word in numbers]
            before = [f"b{axis}" if axis in moved else own[axis] for axis in range(len(made))]
            at = len(self.given) // 3
            for place, output in enumerate(self.outputs):
                tensors = [self.given[place], self.given[at], self.given[at + 1 + place]]
                yield ProgramStep(
                    output[0], "placed",
                    {"tensors": tensors, "keys": [before, numbers, put], "writes": own}, (output,),
                )  # fmt: skip
            return
        if kind == "torch_index_select":
            yield self._step("index_select", {
                "self": self.given[0], "index": self.given[1],
                "dim": (self.read.numbers("dim") or [0])[0]})  # fmt: skip
            return
        offsets = self.read.numbers("offset_dims")
        gone = {*self.read.numbers("collapsed_slice_dims"),
                *self.read.numbers("operand_batching_dims")}  # fmt: skip
        kept = [axis for axis in range(len(shapes[0])) if axis not in gone]
        out = [f"o{axis}" for axis in range(len(made))]
        rest = [axis for axis in range(len(made)) if axis not in offsets]
        keys = [f"s{axis}" for axis in range(len(shapes[0]))]
        for axis, place in zip(kept, offsets, strict=True):
            if shapes[0][axis] == made[place]:
                keys[axis] = out[place]
        numbers = [""] * len(shapes[1])
        for axis, place in zip(ids, rest, strict=True):
            numbers[axis] = out[place]
        for axis, place in zip(self.read.numbers("operand_batching_dims"),
                               self.read.numbers("start_indices_batching_dims"),
                               strict=True):  # fmt: skip
            keys[axis] = numbers[place]
        numbers = [word or "vector" for word in numbers]
        yield self._step("placed", {
            "tensors": list(self.given[:2]), "keys": [keys, numbers], "writes": out})  # fmt: skip


_OWN = frozenset(
    {"expand", "einsum", "convolution", "sum", "avg_pool2d", "avg_pool2d_backward", "fft_fftn",
     "batch_norm", "placed"}
)  # fmt: skip
"""Operators whose arguments do not follow from operands alone."""
assert {rule for rule, _ in _SPELLINGS} - {"call"} <= OPERATORS.keys()
