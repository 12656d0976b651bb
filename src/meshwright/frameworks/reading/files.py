"""From files to a job: the program that they start, its devices and its options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwright.base.budget import Budget
from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import PYTHON, SCRIPTS, TREES
from meshwright.catalog.files import read_text
from meshwright.frameworks.framework import readers
from meshwright.frameworks.reading.given import (
    Given,
    Options,
    Statement,
    Tree,
    any_of,
    canonical,
    names_in,
    of_tree,
    of_words,
)
from meshwright.frameworks.reading.job import JobContext, ReadJob, job_of
from meshwright.frameworks.reading.launchers import (
    Devices,
    Launch,
    containers,
    image_text,
    is_image,
    is_manifest,
    launch_of,
    role_of_export,
    slurm_header,
)
from meshwright.frameworks.reading.python import PythonFile
from meshwright.frameworks.reading.shell import Script, as_written, base_name, read_script
from meshwright.frameworks.reading.trees import trees_of
from meshwright.frameworks.reading.unread import unread_command, unread_tree

MOST_TREE, MOST_SCRIPT = 16 * 2**20, 2**20
"""Largest file of options, and largest script [bytes]."""


@dataclass
class _Files:
    """Files given: texts of scripts and trees by name, in the order of the user."""

    scripts: dict[str, str] = field(default_factory=dict)
    trees: dict[str, list[Options]] = field(default_factory=dict)
    modules: dict[str, PythonFile] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)
    """Limits on the work of following all of their scripts."""


def read_job(
    paths: Sequence[str | Path],
    *,
    num_devices: Callable[[], int | None] | None = None,
    variables: Mapping[str, str] | None = None,
    stated: Iterable[str] = (),
) -> ReadJob:
    """Return the job that files start.

    Parameters
    ----------
    num_devices
        Devices of the system that the user names; they count before those of the files.
    variables
        Values of shell variables that no file sets.
    stated
        Options of this program that the user gives beside the files.

    Raises
    ------
    SpecError
        A file that cannot be read, no job or several in them, and every option that is wrong,
        missing, or that changes the price and is not read.
    """
    known = dict(variables or {})
    files = _open(paths, known)
    origin = ", ".join(str(path) for path in paths)
    found = _launches(files, known, origin)
    asked = frozenset(stated)
    if found:
        launch, script, devices, origin = found
        given, loose = _options_of(launch, files)
        given.notes += script.notes
        name = _reader_of(launch, given)
        assert name is not None
        setting = _setting(files, script, devices, num_devices, launch, asked)
        if loose:
            given.add(Given([Statement("(word)", list(loose), origin)]))
    else:
        name, given = _tree_job(files, known, origin)
        setting = _setting(files, Script(), Devices(), num_devices, None, asked)
    job = job_of(readers[name], given, setting, origin)
    unused = sorted({*files.trees, *files.modules} - files.used)
    if unused and found:
        fault = Fault("", f"no option of {origin} names it", "leave it out")
        raise SpecError(fault, origin=unused[0])
    return job


def _open(paths: Sequence[str | Path], variables: Mapping[str, str]) -> _Files:
    files = _Files()
    for path in map(Path, paths):
        suffix = path.suffix.lower()
        text = read_text(path, most_bytes=MOST_TREE if suffix in TREES else MOST_SCRIPT)
        files.folders.append(path.parent)
        if suffix in TREES:
            files.trees[path.name] = trees_of(text, suffix, str(path))
        elif suffix == PYTHON:
            files.modules[path.name] = PythonFile(text, path.name, variables)
        elif suffix in (*SCRIPTS, "") or text.startswith("#!") or is_image(text):
            files.scripts[path.name] = image_text(text) if is_image(text) else text
        else:
            allowed = "shell scripts, YAML, JSON, TOML and Python files are read"
            raise SpecError(
                Fault("", f"found a file of kind {suffix!r}", allowed), origin=str(path)
            )
    return files


def _launches(
    files: _Files, variables: dict[str, str], origin: str
) -> tuple[Launch, Script, Devices, str] | None:
    """Return the one program that scripts and manifests start, with its script and devices."""
    found: list[tuple[Launch, Script, Devices, str]] = []
    started: list[str] = []
    for name, text in files.scripts.items():
        try:
            around, own = slurm_header(text)
        except SpecError as error:
            raise SpecError(error.faults, origin=name) from error
        others = {other: more for other, more in files.scripts.items() if other != name}
        found += _started(text, own | variables, others, around, name, started, files)
    for name, trees in files.trees.items():
        for one in containers([tree for tree in trees if is_manifest(tree)]):
            files.used.add(name)
            values = dict(one.variables) | variables
            found += _started(one.text, values, files.scripts, one.devices, name, started, files)
    distinct = {_identity(one[0], files): one for one in reversed(found)}
    if len(distinct) > 1:
        places = ", ".join(f"line {one[0].line}" for one in reversed(distinct.values()))
        message = f"starts {len(distinct)} programs: {places}"
        raise SpecError(Fault("", message, "a file with one of them"), origin=origin)
    if not distinct and (files.scripts or started):
        seen = f"; it starts {', '.join(started[:4])}" if started else ""
        raise SpecError(Fault("", f"starts no program that is read{seen}", _known()), origin=origin)
    if not distinct:
        return None
    launch, script, devices, place = next(iter(distinct.values()))
    ports = {of_words(one[0].words)[0].peek("port") for one in found}  # one of each copy
    return replace(launch, copies=len(ports)), script, devices, place


def _identity(launch: Launch, files: _Files) -> tuple[object, ...]:
    """Return a key that differs between jobs: the program, and the options that are read."""
    given, loose = _options_of(launch, files)
    reader = readers[_reader_of(launch, given) or ""]
    is_ignored = any_of(reader.table.ignored).match
    stated = [(canonical(one.option), str(one.value)) for one in given.statements]
    options = sorted(pair for pair in stated if not is_ignored(pair[0]))
    return launch.program, loose, tuple(options)


def _started(
    text: str, variables: Mapping[str, str], others: Mapping[str, str], around: Devices,
    name: str, started: list[str], files: _Files,
) -> list[tuple[Launch, Script, Devices, str]]:  # fmt: skip
    """Return the programs that are known among those of a shell text; name the others."""
    try:
        script = read_script(text, stated=variables, others=others, budget=files.budget)
    except SpecError as error:
        raise SpecError(error.faults, origin=name) from error
    found = []
    for command in script.commands:
        launch = launch_of(command.words, command.line, command.variables)
        words = command.words if launch is None else (launch.program,)
        if unread := unread_command(words):
            raise SpecError(unread.fault, origin=f"{name}:{command.line}")
        if launch is None:
            started.append(as_written(command.words[0]))
            continue
        given, _ = _options_of(launch, files)
        if _reader_of(launch, given) is None:
            started.append(as_written(launch.program))
            continue
        place = f"{name}:{launch.line}"
        launch = replace(launch, variables=command.variables, role=role_of_export(text))
        found.append((launch, script, launch.devices.beside(around), place))
    return found


def _reader_of(launch: Launch, given: Given) -> str | None:
    return _own([name for name in readers if readers[name].starts(launch, given)])


def _holders(tree: Tree) -> list[str]:
    """Return the readers of which a tree is a file."""
    stated = names_in(tree)
    return [name for name, reader in readers.items() if reader.holds(stated)]


def _own(names: Sequence[str]) -> str | None:
    """Return the reader of a program rather than that of the program under it."""
    kinds = {
        name: type(readers[name])
        for name in sorted(names, key=lambda name: readers[name].is_general)
    }
    return next(
        (name for name, kind in kinds.items()
         if not any(issubclass(other, kind) for other in kinds.values() if other is not kind)),
        None,
    )  # fmt: skip


def _options_of(launch: Launch, files: _Files) -> tuple[Given, tuple[str, ...]]:
    """Return the options of a command: its words, and the Python file that it starts or names."""
    given, loose = of_words(launch.words)
    program, named = base_name(launch.program), given.peek("config")
    if "." in program and not program.endswith(PYTHON):  # a module, of -m
        program = program.rpartition(".")[2] + PYTHON
    for name, module in files.modules.items():
        if name == program or named in module.trees():
            files.used.add(name)
            given.add(of_tree(_tree_of(module, named), name))
    return given, loose


def _tree_of(module: PythonFile, named: str | None) -> Options:
    """Return the one configuration of a Python file that a program reads.

    Raises
    ------
    SpecError
        There are none or several, or a statement may change it that is not followed.
    """
    trees = {
        name: tree for name, tree in module.trees().items()
        if _holders(tree)
    }  # fmt: skip
    if named is None and len(trees) == 1:
        named = next(iter(trees))
    if named is None or named not in trees:
        message = f"builds no {named}" if named else "builds several configurations"
        fix = f"--set CONFIG=NAME, one of {', '.join(trees)}"
        if not trees:
            message = "builds no configuration of a program that is read"
            fix = f"{_known()}; {module.name}:FUNCTION for the graph of a module"
        raise SpecError(Fault("", message, fix), origin=module.name)
    if faults := module.unread(named):
        raise SpecError(faults, origin=module.name)
    table = module.trees().get("", {}).get("MODEL")
    stated = {"MODEL": table} if isinstance(table, Mapping) and "architectures" in table else {}
    return {"config": named} | stated | trees[named]


def _tree_job(files: _Files, variables: Mapping[str, str], origin: str) -> tuple[str, Given]:
    """Return the reader of trees that stand alone, and their options."""
    found: dict[str, Given] = {}
    every = dict(files.trees)
    for name, module in files.modules.items():
        every[name] = [_tree_of(module, variables.get("CONFIG"))]
    for file, trees in every.items():
        for tree in trees:
            reader = _own(_holders(tree))
            if reader is None and (unread := unread_tree(tree)):
                raise SpecError(unread.fault, origin=file)
            if reader is None:
                keys = ", ".join(list(tree)[:5])
                message = f"is not a file of a supported program: it has {keys}"
                raise SpecError(Fault("", message, _known()), origin=file)
            files.used.add(file)
            given = of_tree(_plain(tree), file)
            found.setdefault(reader, Given()).add(given)
    own = _own(list(found))
    if own and all(isinstance(readers[own], type(readers[other])) for other in found):
        for given in found.values():
            found[own].add(given)
        return own, found[own]
    message = f"are files of several programs: {', '.join(found)}"
    raise SpecError(Fault("", message, "files of one job"), origin=origin)


def _plain(tree: Tree) -> Options:
    """Return a tree with names as they are looked up: without dashes."""
    return {
        canonical(key): _plain(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
    }


def _known() -> str:
    return "known: " + ", ".join(readers[name].table.title for name in readers)


def _setting(
    files: _Files, script: Script, devices: Devices,
    num_devices: Callable[[], int | None] | None, launch: Launch | None, stated: frozenset[str],
) -> JobContext:  # fmt: skip
    count = num_devices() if num_devices is not None else None
    count = count or devices.count

    def content(named: str) -> Tree:
        """Return a file that an option names: given beside it, written by the script, or near."""
        name = base_name(named)
        suffix = Path(name).suffix.lower()
        if name in files.trees:
            files.used.add(name)
            return _plain(files.trees[name][0])
        if name in script.files:
            return _plain(trees_of(script.files[name], suffix or ".json", name)[0])
        for path in _places(files.folders, named):
            if path.is_file() and suffix in TREES:
                text = read_text(path, most_bytes=MOST_TREE)
                return _plain(trees_of(text, suffix, str(path))[0])
        raise SpecError(
            Fault("", "the file is not there", f"give it as well: ... {as_written(name)}"),
            origin=as_written(named),
        )

    return JobContext(devices, count, content, launch, stated)


def _places(folders: Sequence[Path], named: str) -> Iterator[Path]:
    """Yield the possible paths of a file that an option names.

    Beside the files; then where the command may be started: in a folder above them, such as the
    root of a repository with examples, or in the folder in which the user is.
    """
    for folder in folders:
        yield from (folder / named, folder / base_name(named))
    for folder in folders:
        yield from (above / named for above in folder.resolve().parents)
    yield Path(named)
