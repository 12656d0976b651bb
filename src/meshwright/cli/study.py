"""``meshwright study NAME``: rebuild a published figure or question.

Studies are not part of this distribution: they are found by the entry point group
``meshwright.studies``, and each of its entries is a ``Collection``. All together take hours: each
is kept, and its files are written, as it ends, and the same command goes on with the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from meshwright.base.files import write_all
from meshwright.sweep.stores import FAILED, Result, Row, SqliteStore, remove_base

ALL = "all"
FOLDER = "studies/"
"""Folder of tables and charts, beside the document of all studies."""
KEPT = "studies.db"
"""File of the finished studies, until all are."""


class Collection(Protocol):
    """Studies of one distribution."""

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles by name."""

    def run(self, name: str, folder: str | None) -> Result:
        """Return a study: ``lines`` of the screen, ``data`` with units in the names, ``files``.

        Parameters
        ----------
        folder
            Folder of the files: tables and charts, the text of each by path. None: no files.
        """

    def documents(self, found: Mapping[str, Result], *, is_one: bool) -> Mapping[str, str]:
        """Return the verdicts of studies in one document, or one for each: its text by path."""


class Finished(SqliteStore):
    """Finished studies in a folder: a file of results, and the files of each study."""

    def __init__(self, folder: Path, *, force: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / KEPT)
        self.write = partial(write_all, folder, force=force)

    def add(self, rows: Iterable[Row]) -> None:
        """Keep studies, then write their files."""
        rows = list(rows)
        super().add(rows)
        self.write(_files(found for _, _, found in rows))


def study(args: Any) -> int:
    """Print a study, or the list of them; with ``--out`` write its files."""
    from meshwright.base.errors import Fault, SpecError, UnknownNameError
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
    if args.name == ALL:
        return _all(titles, folder, args)
    result = run_study({"name": args.name, "folder": None if folder is None else ""})
    if folder is not None:
        files = _files([result]) | _documents({args.name: result}, is_one=False)
        write_all(folder, files, force=args.force)
    show(result["lines"], result["data"], args.json)
    return 0


def _all(titles: Mapping[str, str], folder: Path | None, args: Any) -> int:
    """Print all studies and write their files; 130 where some are left."""
    from meshwright.base.cluster import open_cluster, state_of_code
    from meshwright.base.errors import MeshwrightError
    from meshwright.cli.main import INTERRUPTED, Counter, show, wipe
    from meshwright.sweep.answer import way_on
    from meshwright.sweep.run import run

    asked = [{"name": name, "folder": None if folder is None else FOLDER} for name in titles]
    store = SqliteStore(None) if folder is None else Finished(folder, force=args.force)
    with store, open_cluster(args.on_cluster) as cluster:
        swept = run(
            "study", run_study, asked, store, version=state_of_code(), cluster=cluster,
            progress=None if args.json else Counter("studies"), most_in_block=1,
        )  # fmt: skip
    ended = zip(titles, swept.results, strict=True)
    results = {name: result for name, result in ended if result is not None}
    failed = [f"{name}: {result['reason']}" for name, result in results.items()
              if result["status"] == FAILED]  # fmt: skip
    if failed:
        raise MeshwrightError("; ".join(failed))
    if left := way_on(swept, store.place, "study", "studies"):
        wipe()
        print(*left, file=sys.stderr)
        return INTERRUPTED
    if folder is not None:
        files = _files(results.values()) | _documents(results, is_one=True)
        write_all(folder, files, force=args.force)
        remove_base(folder / KEPT)
    lines = (line for name, result in results.items()
             for line in (f"{name}: {titles[name]}", "", *result["lines"], ""))  # fmt: skip
    show(lines, {name: result["data"] for name, result in results.items()}, args.json)
    return 0


def _files(results: Iterable[Result]) -> dict[str, str]:
    """Return the tables and charts of studies: the text of each by path."""
    return {path: text for found in results for path, text in found.get("files", {}).items()}


def _documents(results: Mapping[str, Result], *, is_one: bool) -> dict[str, str]:
    """Return the verdicts of studies of all collections: the text of each file by path."""
    files: dict[str, str] = {}
    for collection in installed():
        found = {name: results[name] for name in collection.titles if name in results}
        if found:
            files |= collection.documents(found, is_one=is_one)
    return files


def installed() -> Sequence[Collection]:
    """Return the collections of all distributions."""
    from meshwright.base.registry import load_entry_points

    return list(load_entry_points("studies").values())


def run_study(asked: Mapping[str, Any]) -> Result:
    """Return a study by name, with its files by their folder; workers run it."""
    name = asked["name"]
    collection = next(found for found in installed() if name in found.titles)
    return {"status": "found", **collection.run(name, asked["folder"])}
