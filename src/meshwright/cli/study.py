"""``meshwright study NAME``: rebuild a published figure or question.

Studies are not part of this distribution: they are found by the entry point group
``meshwright.studies``, and each of its entries is a ``Collection``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

ALL = "all"


class StudyResult(Protocol):
    """Result of a study."""

    @property
    def lines(self) -> Sequence[str]:
        """Lines of the screen."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The result as JSON, with units in the names."""


class Collection(Protocol):
    """Studies of one distribution."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles by name."""

    def run(self, name: str) -> StudyResult:
        """Return the result of a study."""

    def files(self, results: Mapping[str, Any], *, one_document: bool) -> Mapping[str, str]:
        """Return tables, charts and verdicts of studies: the text of each file, by its path."""


def study(args: Any) -> int:
    """Print a study, or the list of them; with ``--out`` write its files."""
    from pathlib import Path

    from meshwright.base.cluster import every_answer, open_cluster
    from meshwright.base.errors import Fault, SpecError, UnknownNameError
    from meshwright.base.files import write_all
    from meshwright.cli.main import show
    from meshwright.view.svg import check_drawable

    folder = None if args.out is None else Path(args.out)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise SpecError(Fault("--out", f"{args.out!r} is a file", "name a folder"))
    collections = installed()
    if not collections:
        fix = "they are in a separate distribution: pip install meshwright-papers"
        raise SpecError(Fault("study", "no studies are installed", fix))
    titles = {name: title for found in collections for name, title in found.titles.items()}
    if args.name is None:
        show(tuple(f"{name:<24} {title}" for name, title in titles.items()), titles, args.json)
        return 0
    if args.name != ALL and args.name not in titles:
        raise UnknownNameError("study", args.name, titles)
    if folder is not None:
        check_drawable()
    is_all = args.name == ALL
    results: dict[str, StudyResult] = {}
    files: dict[str, str] = {}
    with open_cluster(args.on_cluster) as cluster:
        asked = list(titles) if is_all else [args.name]
        ran = dict(zip(asked, every_answer(cluster, run_study, asked), strict=True))
    for collection in collections:
        found = {name: ran[name] for name in collection.titles if name in ran}
        results |= found
        if folder is not None and found:
            files |= collection.files(found, one_document=is_all)
    if folder is not None:
        write_all(folder, files, force=args.force)
    lines = [
        line
        for name, result in results.items()
        for line in ([f"{name}: {titles[name]}", "", *result.lines, ""] if is_all else result.lines)
    ]
    data = {name: dict(result.data) for name, result in results.items()}
    show(lines, data if is_all else data[args.name], args.json)
    return 0


def installed() -> list[Collection]:
    """Return the collections of all distributions."""
    from meshwright.base.registry import load_entry_points

    return list(load_entry_points("studies").values())


def run_study(name: str) -> StudyResult:
    """Return the result of a study; workers run it."""
    return next(found for found in installed() if name in found.titles).run(name)
