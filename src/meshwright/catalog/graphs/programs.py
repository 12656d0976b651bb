"""Graphs from programs by name: a file of PyTorch, ONNX or StableHLO, or a function of Python."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.graphs.exported import graph_of
from meshwright.catalog.graphs.onnx_files import import_onnx
from meshwright.catalog.graphs.stablehlo_files import read_stablehlo
from meshwright.catalog.graphs.torch_export import (
    graph_of_program,
    import_torch,
    quiet,
    torch_or_refusal,
)
from meshwright.catalog.graphs.torch_files import read_exported
from meshwright.catalog.graphs.tracing import as_foreign, first_line
from meshwright.spec.graph import GraphSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_][\w.]*|.+\.py):(?P<function>[A-Za-z_][\w.]*)")
_INPUT = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>[1-9][0-9]*(x[1-9][0-9]*)*)(?::(?P<type>\w+))?"
)


_STABLEHLO = (".mlir", ".stablehlo")


def is_program(text: str) -> bool:
    """Return whether a text names a file of a program, or a function of Python."""
    return text.lower().endswith((".pt2", ".onnx", ".py", *_STABLEHLO)) or bool(
        _FUNCTION.fullmatch(text)
    )


def is_code(text: str) -> bool:
    """Return whether a text names a function of Python, which is run when it is read."""
    return bool(_FUNCTION.fullmatch(text))


def read_program(
    text: str,
    *,
    sizes: Mapping[str, int] | None = None,
    inputs: Sequence[str] = (),
    repeats: int = 1,
) -> GraphSpec:
    """Return the graph of a program.

    Parameters
    ----------
    text
        ``model.pt2``, as ``torch.export.save`` writes it; ``model.onnx``; ``model.mlir``, the text
        of StableHLO; or ``module:function`` or ``file.py:function``. The function returns a module
        with its inputs, ``(module, arguments)`` or ``(module, arguments, keywords)``, a module
        alone, an ``ExportedProgram``, or a :class:`GraphSpec`. It is called on the meta device,
        where tensors have no memory, and where it cannot run there once more without. A function is
        code and is run with the rights of who asks; files are data, and nothing in them is run.
    sizes
        Sizes of dims, by name: parameters of the function of these names, else dims of the inputs,
        as they are named in the graph or by their place (``x.0``).
    inputs
        Shapes of the inputs of a module alone: ``8x3x224x224``, or with a name and a type
        ``ids=8x128:int64``. The module is taken as in inference.
    repeats
        Number of repetitions of the whole graph.

    Raises
    ------
    SpecError
        A file or a function that is none, a size that does not fit, dynamic dims without a size.
    UnsupportedError
        Operators that are not known, or a package that is not installed.
    """
    named, given = _FUNCTION.fullmatch(text), dict(sizes or {})
    if inputs and not named:
        raise SpecError(Fault("--input", "the file states its inputs", "bind dims with --dim"))
    if named:
        return _of_function(named["module"], named["function"], given, inputs, repeats)
    if not Path(text).is_file():
        raise SpecError(Fault("", "there is no such file"), origin=text)
    if text.lower().endswith(".py"):
        fault = Fault("", "names no function that makes a program", f"such as {text}:function")
        raise SpecError(fault, origin=text)
    if text.lower().endswith(".onnx"):
        return import_onnx(text, sizes=given, repeats=repeats)
    is_text = text.lower().endswith(_STABLEHLO)
    fix = "write it as text of StableHLO" if is_text else "write it with torch.export.save"
    with as_foreign(text, fix):
        program = read_stablehlo(Path(text)) if is_text else read_exported(Path(text))
        return graph_of(program, name=Path(text).stem, sizes=given, repeats=repeats)


def _of_function(
    module: str, function: str, sizes: dict[str, int], inputs: Sequence[str], repeats: int
) -> GraphSpec:
    """Return the graph of the result of a function, or of a module that has this name."""
    torch, origin = torch_or_refusal(), f"{module}:{function}"
    made = _found(module, function, origin)
    if not isinstance(made, torch.nn.Module) and callable(made):
        made = _called(torch, made, sizes, origin)
    shared: dict[str, Any] = {"name": function.lower(), "sizes": sizes, "repeats": repeats}
    parts = made if isinstance(made, tuple | list) else (made,)
    if inputs and (len(parts) != 1 or not isinstance(made, torch.nn.Module)):
        raise SpecError(Fault("--input", f"{origin} states its inputs", "bind dims with --dim"))
    if isinstance(made, GraphSpec):
        return made
    if isinstance(made, torch.export.ExportedProgram):
        return graph_of_program(made, **shared)
    if not isinstance(parts[0], torch.nn.Module) or len(parts) > 3:
        message = f"makes a {type(made).__name__}"
        fix = "return (module, inputs), an ExportedProgram or a GraphSpec"
        raise SpecError(Fault("", message, fix), origin=origin)
    if len(parts) == 1 and not inputs:
        fault = Fault("--input", f"{origin} states no inputs", "such as --input 8x3x224x224")
        raise SpecError(fault)
    if len(parts) == 1:
        return import_torch(parts[0], *_inputs(torch, parts[0].eval(), inputs), **shared)
    first, *others = parts[1:]
    named: dict[str, Any] = dict(
        first if isinstance(first, Mapping) else others[0] if others else {}
    )
    placed = () if isinstance(first, Mapping) else first
    placed = (placed,) if isinstance(placed, torch.Tensor) else placed
    return import_torch(parts[0], placed, named, **shared)


def _found(module: str, function: str, origin: str) -> Any:
    """Return an object of a module of Python by name; its folder is searched, as Python does it."""
    path = Path(module)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise SpecError(Fault("", "there is no such file"), origin=origin)
    folder = str(path.parent.resolve()) if is_file else ""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with quiet():
            loaded = _executed(path) if is_file else import_module(module)
    except (Exception, SystemExit) as error:
        message = f"cannot be imported: {_said(error)}"
        fix = "name a module:function, or file.py:function"
        raise SpecError(Fault("", message, fix), origin=origin) from error
    try:
        return reduce(getattr, function.split("."), loaded)
    except AttributeError as error:
        public = [name for name in dir(error.obj) if not name.startswith("_")]
        raise UnknownNameError(f"function of {module}", function, public) from error


def _said(error: BaseException) -> str:
    """Return the kind of an error and its message, if it has one."""
    kind, said = type(error).__name__, first_line(error)
    return kind if said == kind else f"{kind}: {said}"


def _executed(path: Path) -> ModuleType:
    """Return a file of Python as a module."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _called(
    torch: ModuleType, function: Callable[..., object], sizes: dict[str, int], origin: str
) -> object:
    """Return the result of a function, without memory if possible; remove the sizes it takes."""
    taken = [p.name for p in inspect.signature(function).parameters.values()
             if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]  # fmt: skip
    keywords = {name: sizes.pop(name) for name in taken if name in sizes}
    try:
        with torch.device("meta"), quiet():
            return function(**keywords)
    except (Exception, SystemExit):  # some modules compute with numbers while they are made
        pass
    try:
        with quiet():
            return function(**keywords)
    except (Exception, SystemExit) as error:
        message = _said(error)
        fix = "a function that needs no arguments but sizes"
        raise SpecError(Fault("", message, fix), origin=origin) from error


def _inputs(
    torch: ModuleType, module: nn.Module, texts: Sequence[str]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return tensors of the stated shapes where the module is: by place, and by name."""
    held = next(module.parameters(), torch.zeros(0, device="meta"))
    arguments, keywords = [], {}
    for text in texts:
        read = _INPUT.fullmatch(text)
        kind = getattr(torch, read["type"] or "", held.dtype) if read else None
        if read is None or not isinstance(kind, torch.dtype) or (read["type"] and not hasattr(
            torch, read["type"])):  # fmt: skip
            fix = "such as 8x3x224x224, or ids=8x128:int64"
            raise SpecError(Fault("--input", f"{text!r} is not a shape", fix))
        tensor = torch.zeros(
            [int(size) for size in read["shape"].split("x")], dtype=kind, device=held.device
        )
        if read["name"]:
            keywords[read["name"]] = tensor
        else:
            arguments.append(tensor)
    return arguments, keywords
