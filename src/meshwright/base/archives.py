"""Files of a zip archive, read under bounds: nothing is unpacked to the disk, nothing is executed.

A hostile archive may state a directory of gigabytes, a million files, or a file of zeros that is a
thousand times as large as it lies there. All of that is judged before it takes memory.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path

from meshwright.base.files import kind_of_file

MOST_DIRECTORY_BYTES = 4 * 2**20
"""Of the list of files; also of all that is looked through to find it."""
MOST_ENTRIES = 50_000
MOST_MEMBER_BYTES = 64 * 2**20
MOST_RATIO = 200.0
"""Of a file to what it takes in the archive; text compresses 5 to 30 times."""


class _Bounded(BufferedReader):
    """A file from which no more is read at once than a directory may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        limited = size is None or size < 0
        if not limited and size is not None and size > MOST_DIRECTORY_BYTES:
            raise ValueError(f"its directory has more than {MOST_DIRECTORY_BYTES // 2**20} MiB")
        found = super().read(MOST_DIRECTORY_BYTES if limited else size)
        return found


class Archive:
    """The files of one zip archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        entries = archive.infolist()
        if len(entries) > MOST_ENTRIES:
            raise ValueError(f"it has {len(entries):,} files, more than {MOST_ENTRIES:,}")
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) < len(entries):
            raise ValueError("two of its files have one name")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files, as the archive states them."""
        return tuple(self._entries)

    def read(self, name: str, *, most_bytes: int = MOST_MEMBER_BYTES) -> bytes:
        """Return the content of a file.

        Raises
        ------
        ValueError
            Where it is too large, encrypted or damaged.
        """
        entry = self._entries[name]
        if entry.file_size > most_bytes:
            raise ValueError(f"{name} has {entry.file_size:,} bytes, more than {most_bytes:,}")
        if entry.file_size > MOST_RATIO * max(entry.compress_size, 1024):
            ratio = entry.file_size / max(entry.compress_size, 1)
            raise ValueError(f"{name} is {ratio:,.0f} times as large as it lies there")
        try:
            with self._archive.open(entry) as file:
                content = file.read(most_bytes + 1)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            RuntimeError,
            NotImplementedError,
        ) as error:
            raise ValueError(f"{name} is damaged: {error}") from error
        if len(content) > most_bytes:
            raise ValueError(f"{name} has more than {most_bytes:,} bytes")
        return content


@contextmanager
def opened_archive(path: Path) -> Iterator[Archive]:
    """Open a zip archive.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError
        Where it is no regular file, no archive, or its directory is too large.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with _Bounded(FileIO(descriptor, "r", closefd=True)) as file:
        if kind := kind_of_file(os.fstat(descriptor).st_mode):
            raise ValueError(f"it is {kind}, no regular file")
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, OverflowError) as error:
            raise ValueError(f"it is no zip archive: {error}") from error
        with archive:
            yield Archive(archive)
