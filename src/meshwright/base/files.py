"""The one place through which files of the user are read and written.

Regular files are read, up to a size, packed content included: no device, no FIFO, nothing
without an end.

Files are written whole or not at all, and nothing is replaced unasked. Content goes into a file of
another name in the same folder, from there to the disk, and is then moved in one step. Several
files are one step too: a new folder takes its name when all of it is there; in an existing folder a
journal names the files once all are on the disk, and the next reader or writer in that folder
finishes an interrupted step. Existing files stay unless it is forced; a path that is no regular
file (a device, a FIFO, a socket, a folder) is never touched, and a symbolic link is followed only
where it is forced.
"""

from __future__ import annotations

import gzip
import io
import os
import secrets
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from meshwright.base.errors import Fault, SpecError

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


def kind_of_file(mode: int) -> str:
    """Return the kind of a file that is not regular, by its mode; empty for a regular one."""
    return next((kind for is_it, kind in _KINDS if is_it(mode)), "")


SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".sub", ".job")
"""Ends of the names of scripts of shells and queues."""
TREES = (".yaml", ".yml", ".json", ".toml")
PYTHON = ".py"
MOST_BYTES = 256 * 2**20
"""No file of models, systems, flows or plans is that large; one that is, is a slip."""


class _Bounded(io.RawIOBase):
    """A file, unpacked where it is packed, that fails beyond a number of bytes."""

    def __init__(self, file: BinaryIO, most_bytes: int) -> None:
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self.file = gzip.GzipFile(fileobj=file) if is_packed else file
        self.most_bytes = self.left = most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            part = self.file.read(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"its gzip is damaged: {error}") from error
        self.left -= len(part)
        if self.left < 0:
            raise ValueError(f"it has more than {self.most_bytes // 2**20} MiB")
        buffer[: len(part)] = part
        return len(part)


@contextmanager
def _regular(path: Path) -> Iterator[io.BufferedReader]:
    """Open a regular file; a FIFO is not waited for."""
    _settled(path.absolute().parent)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb", closefd=True) as file:
        if kind := kind_of_file(os.fstat(descriptor).st_mode):
            raise ValueError(f"it is {kind}, not a regular file")
        yield file


@contextmanager
def opened(path: Path, *, most_bytes: int = MOST_BYTES) -> Iterator[BinaryIO]:
    """Open a regular file to be read piece by piece, unpacked where gzip packed it.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError
        Where it is no regular file, too large, packed to more than that, or damaged.
    """
    with _regular(path) as file:
        yield cast(BinaryIO, io.BufferedReader(_Bounded(file, most_bytes), 2**16))


def text_of(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a regular file, without a byte order mark, with lines that end in LF.

    Raises
    ------
    OSError, ValueError
        As :func:`opened`, and where it is no UTF-8.
    """
    with opened(path, most_bytes=most_bytes) as file:
        content = file.read()
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


_MOST_DIRECTORY_BYTES = 4 * 2**20
"""Bytes of the list of members of an archive: some 40,000 names."""


class _InPieces(io.BufferedReader):
    """The file of an archive: its directory, which is read at once, has a most size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:  # bytes searched for the directory
            size = _MOST_DIRECTORY_BYTES
        if size > _MOST_DIRECTORY_BYTES:
            raise ValueError(f"its directory has more than {_MOST_DIRECTORY_BYTES // 2**20} MiB")
        return super().read(size)


@contextmanager
def members_of(path: Path, *, most_bytes: int = MOST_BYTES) -> Iterator[Members]:
    """Open a ZIP archive to read its members; all that is read counts against its size.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError
        Where it is no regular file or no archive, too large, packed to more than that, or damaged.
    """
    with _regular(path) as file, _InPieces(file.raw) as pieces:
        try:
            archive = zipfile.ZipFile(pieces)
        except _BAD_ARCHIVE as error:
            raise ValueError(f"it is not a readable archive: {error}") from error
        with archive:
            yield Members(archive, most_bytes)


_BAD_ARCHIVE = (zipfile.BadZipFile, RuntimeError, EOFError, zlib.error)
"""Errors of the library: damage, an unsupported compression, a password."""


class Members:
    """The members of an archive by name."""

    def __init__(self, archive: zipfile.ZipFile, most_bytes: int) -> None:
        self.archive, self.left = archive, most_bytes
        self.names = tuple(archive.namelist())
        if len(set(self.names)) < len(self.names):
            raise ValueError("two members of it have one name")

    def content(self, name: str) -> bytes:
        """Return one member."""
        try:
            with self.archive.open(name) as member:
                content = member.read(self.left + 1)
        except _BAD_ARCHIVE as error:
            raise ValueError(f"its member {name!r} cannot be read: {error}") from error
        self.left -= len(content)
        if self.left < 0:
            raise ValueError("it unpacks to more than is read")
        return content


def unreadable(error: OSError | ValueError) -> Fault:
    """Return the reason why a file cannot be read: a folder, no rights, bytes that are not text."""
    if isinstance(error, UnicodeDecodeError):
        return Fault("", "cannot be read: not UTF-8 text")
    reason = error.strerror if isinstance(error, OSError) else None
    return Fault("", f"cannot be read: {reason or error}")


def in_the_way(path: Path, *, force: bool = False, is_resumed: bool = False) -> Fault | None:
    """Return the reason why a path must not be written, or None.

    Parameters
    ----------
    force
        A regular file may be replaced, a symbolic link be followed.
    is_resumed
        A regular file may be there: a caller that knows its content adds to it.
    """
    is_there = True
    try:
        if kind := kind_of_file(path.stat().st_mode):
            return Fault(str(path), f"is {kind}", "name a regular file")
    except FileNotFoundError:
        is_there = False
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return Fault(str(path), f"cannot be written: {reason}")
    if path.is_symlink() and not force:
        fix = "name that file, or --force to write through the link"
        return Fault(str(path), f"is a symbolic link to {str(path.readlink())!r}", fix)
    if is_there and not force and not is_resumed:
        return Fault(str(path), "exists already", "--force, or another name")
    return None


@contextmanager
def _moving(folder: Path, force: bool) -> Iterator[Callable[[Path], BinaryIO]]:
    """Open files of a folder to be written; they take their names together at the end."""
    token = secrets.token_hex(6)
    journal = folder / f"{_MARK}{token}{_JOURNAL}"
    moves: list[tuple[Path, Path]] = []
    names: list[str] = []

    def opened(path: Path) -> BinaryIO:
        target = _followed(path)
        _settle(target.parent)
        partial = _partial(target, token, len(moves))
        moves.append((partial, target))
        names.append(str(path.relative_to(folder)))
        file = partial.open("xb")
        if target.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        return file

    try:
        yield opened
        _refuse([target for _, target in moves], force=force)
        if len(moves) > 1:
            _promise(journal, names, {target.parent for _, target in moves})
        for partial, target in moves[: len(moves) == 1]:
            partial.replace(target)
    except OSError as error:
        what, name = f"{error.strerror or error}; nothing is written", str(moves[-1][1])
        raise OSError(error.errno, what, name) from error
    finally:
        if journal.exists():
            _keep(journal)
        for partial, _ in moves:
            partial.unlink(missing_ok=True)


_MARK, _PARTIAL, _JOURNAL = ".meshwright-", ".partial", ".journal"
_MOST_JOURNAL_BYTES = 2**20


def _followed(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path


def _partial(target: Path, token: str, index: int) -> Path:
    """Return the temporary file that later takes the name of a target, in the same folder."""
    return target.with_name(f"{_MARK}{token}-{index}{_PARTIAL}")


def _promise(journal: Path, names: Iterable[str], folders: Iterable[Path]) -> None:
    """Write the journal of files that are all on the disk, which from here on are the new ones."""
    draft = journal.with_suffix(_PARTIAL)
    try:
        with draft.open("xb") as file:
            file.write("\0".join(names).encode())
            _to_disk(file)
        for folder in folders:
            _folder_to_disk(folder)
        draft.replace(journal)
    finally:
        draft.unlink(missing_ok=True)
    _folder_to_disk(journal.parent)


def _keep(journal: Path) -> None:
    """Rename the files of a journal that still have temporary names."""
    token = journal.name.removeprefix(_MARK).removesuffix(_JOURNAL)
    with suppress(FileNotFoundError), journal.open("rb") as file:
        for index, name in enumerate(file.read(_MOST_JOURNAL_BYTES).decode().split("\0")):
            target = _followed(journal.parent / name)
            with suppress(FileNotFoundError):
                _partial(target, token, index).replace(target)
    journal.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Finish the promised writes of killed writers in a folder, and delete their old leftovers."""
    for path in folder.glob(f"{_MARK}*"):
        with suppress(OSError, ValueError):
            status = path.lstat()
            if path.suffix == _JOURNAL and stat.S_ISREG(status.st_mode) and _is_own(status):
                _keep(path)
            elif path.suffix == _PARTIAL and time.time() - status.st_mtime > 86400.0:
                shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else path.unlink()


def _is_own(status: os.stat_result) -> bool:
    """Return whether this user owns a file: no one else decides which file takes which name."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


_settled = lru_cache(maxsize=1024)(_settle)
"""Cached form of ``_settle`` for readers: one call for each folder."""


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """Give a folder to be filled, which takes its name when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _settle(folder.parent)
    place = folder.with_name(f"{_MARK}{secrets.token_hex(6)}{_PARTIAL}")
    place.mkdir()
    try:
        yield place
        place.rename(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _refuse(paths: Iterable[Path], *, force: bool) -> None:
    """Raise an error that names each path that must not be written."""
    if faults := [fault for path in paths if (fault := in_the_way(path, force=force))]:
        raise SpecError(faults)


@contextmanager
def writing(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Open a file to be written, which takes its name once it is complete on the disk.

    Raises
    ------
    SpecError
        Where something is in the way.
    OSError
        Where the disk is full or the folder is not to be written to; nothing is left behind.
    """
    _refuse([path], force=force)
    with _moving(path.parent, force) as opened, opened(path) as file:
        yield file
        _to_disk(file)


def write_whole(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write one file; see :func:`write_all`."""
    write_all(path.parent, {path.name: content}, force=force)


def write_all(
    folder: Path, files: Mapping[str, str | bytes], *, force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:  # fmt: skip
    """Write files into a folder, which is created if it is missing, and return their paths.

    They take their names in one step when all are on the disk: a kill leaves the old ones or the
    new ones, and if it interrupts that step, the next reader there finishes it. A file with the
    same content stays. A file that begins with ``#!`` becomes executable.

    Parameters
    ----------
    files
        Content by name; large files may be made when they are asked for.
    progress
        Function called with the number of files written, and the number of those to write.

    Raises
    ------
    SpecError
        With every file in the way; nothing is written.
    OSError
        Where the disk is full or the folder is not to be written to; nothing is left behind.
    """
    paths = {name: folder / name for name in files}
    new = [name for name, path in paths.items() if not _holds(path, files, name)]
    _refuse([paths[name] for name in new], force=force)
    if len(new) > 1 and not folder.exists():
        with _fresh(folder) as place:
            write_all(place, files, progress=progress)
        return [*paths.values()]
    for parent in dict.fromkeys(paths[name].parent for name in new):
        parent.mkdir(parents=True, exist_ok=True)
    with _moving(folder, force) as opened:
        for number, name in enumerate(new, 1):
            with opened(paths[name]) as file:
                content = _encoded(files[name])
                file.write(content)
                if content.startswith(b"#!"):  # who may read it may run it: the umask stays
                    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                    os.fchmod(file.fileno(), mode | (mode & 0o444) >> 2)
                _to_disk(file)
            if progress is not None:
                progress(number, len(new))
    return [*paths.values()]


def _holds(path: Path, files: Mapping[str, str | bytes], name: str) -> bool:
    """Return whether a regular file has the content of an entry already."""
    is_regular = path.is_file() and not path.is_symlink()
    return is_regular and path.read_bytes() == _encoded(files[name])


def _encoded(content: str | bytes) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _folder_to_disk(folder: Path) -> None:
    """Flush the names of a folder to the disk, where the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
