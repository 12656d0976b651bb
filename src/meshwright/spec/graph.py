"""A computation as kernels with named dims, as a file states it.

In a file a tensor is written with its dims after it: ``query[tokens, heads, head_dim]``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from meshwright.spec.declaration import Bytes, Count, Declaration, MessageBytes, Source

Dims = tuple[str, ...]
Unit = Literal["matrix", "vector", "none"]
Phase = Literal["forward", "input_gradient", "weight_gradient"]

_TENSOR = re.compile(
    r"\s*(?P<name>[^\s\[\]]+)\s*\[(?P<dims>[^\[\]]*)\](?:\s+of\s+(?P<word>[0-9.]+)\s+bytes?)?\s*"
)


@dataclass(frozen=True)
class NamedTensor:
    """A tensor by its name and the names of its dims."""

    name: str
    dims: Dims
    word_bytes: float | None = None
    """Bytes of one element; None: the word of the graph."""

    def __str__(self) -> str:
        word = "" if self.word_bytes is None else f" of {self.word_bytes:.17g} bytes"
        return f"{self.name}[{', '.join(self.dims)}]{word}"


def read_tensor(text: Any) -> NamedTensor:
    """Return the tensor that a text names.

    Raises
    ------
    ValueError
        Where the text is not of the form ``NAME[DIM, DIM]``, optionally with ``of 4 bytes``.
    """
    if isinstance(text, NamedTensor):
        return text
    found = _TENSOR.fullmatch(text) if isinstance(text, str) else None
    try:
        word = float(found["word"]) if found and found["word"] else None
    except ValueError:
        word = 0.0
    if found is None or (word is not None and not word > 0):
        raise ValueError(f"expected NAME[DIM, DIM] or NAME[DIM] of 4 bytes, found {text!r}")
    dims = tuple(dim.strip() for dim in found["dims"].split(",")) if found["dims"].strip() else ()
    if not all(dims):
        raise ValueError(f"a dim is empty in {text!r}")
    return NamedTensor(found["name"], dims, word)


def _written_bytes(number: float) -> str:
    return f"{number:.17g} B"


TensorText = Annotated[NamedTensor, BeforeValidator(read_tensor), PlainSerializer(str)]
WordBytes = Annotated[Bytes, PlainSerializer(_written_bytes)]


class MessageSpec(Declaration):
    """Extra bytes that a kernel sends beyond those of its split."""

    kind: Literal["send", "broadcast"]
    size_bytes: Annotated[MessageBytes, PlainSerializer(_written_bytes)]


class KernelSpec(Declaration):
    """One operation over named dims; see ``graph.kernels.kernel.Kernel``."""

    unit: Unit
    reads: tuple[TensorText, ...] = ()
    weights: tuple[TensorText, ...] = ()
    writes: Dims
    whole: Dims = ()
    """Dims that no split may cut."""
    is_sum: bool = False
    in_place: bool = False
    """It writes in place of an earlier tensor and needs no further memory."""
    messages: tuple[MessageSpec, ...] = ()
    flops_per_point: float | None = Field(default=None, ge=0, le=1e12)
    """FLOPs of each point; None: 2 for a product, which multiplies and adds; 1 for all else."""
    word_bytes: WordBytes | None = None
    phase: Phase = "forward"


class GraphSpec(Declaration):
    """Kernels, the sizes of their dims, the inputs and the outputs."""

    name: str
    about: str = ""
    sources: Mapping[str, Source] = Field(default_factory=dict)
    tiled: str
    """The dim that passes through a chip in tiles."""
    word_bytes: WordBytes = 2.0
    numbers_per_word: Count = 1
    """2 where words are complex numbers: the width of a number decides the rate of arithmetic."""
    repeats: Count = 1
    dims: Mapping[str, Count]
    inputs: Mapping[str, Dims] = Field(default_factory=dict)
    constants: Dims = ()
    """Inputs that have no gradient."""
    outputs: Dims
    output_layouts: Mapping[str, str] = Field(default_factory=dict)
    """The dim over which an output has to be split, or ``whole``; the others are free."""
    kernels: Mapping[str, KernelSpec]
