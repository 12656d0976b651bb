"""Files are read up to a size, and written whole or not at all; replaced only where forced."""

import errno
import gzip
import os
import resource
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from meshwright.base.errors import SpecError
from meshwright.base.files import MOST_BYTES, members_of, text_of, write_all, write_whole, writing

OLD, NEW = "precious\n", "new\n"


def entries(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_has_the_content_and_the_usual_rights(tmp_path):
    path = tmp_path / "plan.json"
    usual = tmp_path / "usual"
    usual.touch()
    write_whole(path, NEW)
    assert path.read_text() == NEW
    assert path.stat().st_mode == usual.stat().st_mode
    assert entries(tmp_path) == ["plan.json", "usual"]


def test_a_file_that_is_there_stays_unless_forced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(OLD)
    path.chmod(0o640)
    with pytest.raises(SpecError, match=r"notes.txt: exists already \(--force, or another name"):
        write_whole(path, NEW)
    assert path.read_text() == OLD
    write_whole(path, NEW, force=True)
    assert path.read_text() == NEW
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_same_content_may_be_written_again(tmp_path):
    path = tmp_path / "plan.json"
    write_whole(path, NEW)
    before = path.stat().st_ino
    write_whole(path, NEW)
    assert path.stat().st_ino == before


def test_a_symbolic_link_is_followed_only_where_forced_and_stays_one(tmp_path):
    there, folder = tmp_path / "there", tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "real", tmp_path / "link"
    target.write_text(OLD)
    link.symlink_to(target)
    with pytest.raises(SpecError, match=r"link: is a symbolic link to .*real"):
        write_whole(link, NEW)
    write_whole(link, NEW, force=True)
    assert (link.is_symlink(), target.read_text()) == (True, NEW)
    link.unlink()
    link.symlink_to(there)
    with pytest.raises(SpecError, match="symbolic link"):
        write_whole(link, NEW)
    assert not there.exists()
    write_whole(link, NEW, force=True)
    assert there.read_text() == NEW


def test_a_circle_of_links_is_told(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(SpecError, match=r"cannot be written: .*symbolic links"):
        write_whole(link, NEW, force=True)


def make(kind, path):
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)  # a whole path may be too long for one
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")


def identity(path):
    """Return the inode and its kind; other processes move the times of a device."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_mode, found.st_rdev


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a folder", "a device"])
def test_what_is_no_regular_file_is_never_touched(tmp_path, monkeypatch, kind, force):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x"
    make(kind, path)
    before = identity(path)
    with pytest.raises(SpecError, match=f"x: is {kind}"):
        write_whole(path, NEW, force=force)
    assert identity(path) == before
    assert entries(tmp_path) == ["x"]


def test_several_files_are_written_all_or_none(tmp_path):
    (tmp_path / "b").write_text(OLD)
    (tmp_path / "c").mkdir()
    files = {"a/deep": NEW, "b": NEW, "c": NEW}
    with pytest.raises(SpecError) as error:
        write_all(tmp_path, files)
    assert [fault.path for fault in error.value.faults] == [str(tmp_path / n) for n in "bc"]
    assert entries(tmp_path) == ["b", "c"]
    (tmp_path / "c").rmdir()
    write_all(tmp_path, files, force=True)
    assert [(tmp_path / name).read_text() for name in files] == [NEW] * 3


def test_what_fails_in_the_second_of_two_leaves_neither(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        synced.append(descriptor)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=r"No space left on device; nothing is written: '.*b'"):
        write_all(tmp_path, {"a": NEW, "b": NEW})
    assert entries(tmp_path) == []


def half_written(path, then):
    with writing(path) as file:
        file.write(b"half")
        then()


def test_an_interrupt_leaves_nothing(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_written(tmp_path / "t.json", interrupt)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("old", [None, OLD])
def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, old):
    """No file grows beyond 4 KiB in the process that writes: the kernel refuses the rest."""
    path = tmp_path / "plan.json"
    if old:
        path.write_text(old)
    code = (
        "import sys; from pathlib import Path; from meshwright.base.files import write_whole\n"
        "write_whole(Path(sys.argv[1]), 'x' * 100_000, force=True)"
    )

    def small():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path)], preexec_fn=small, capture_output=True
    )
    assert b"File too large; nothing is written" in done.stderr
    assert entries(tmp_path) == (["plan.json"] if old else [])
    assert old is None or path.read_text() == old


def test_a_file_that_appears_meanwhile_stays(tmp_path):
    path = tmp_path / "t.json"
    with pytest.raises(SpecError, match="exists already"):
        half_written(path, lambda: path.write_text(OLD))
    assert path.read_text() == OLD
    assert entries(tmp_path) == ["t.json"]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"a: 1\n", "a: 1\n"), (b"\xef\xbb\xbfa\r\nb\rc", "a\nb\nc"), ("\u00fc".encode(), "\u00fc")],
)
def test_text_is_read_as_editors_write_it(tmp_path, content, text):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert text_of(path) == text


@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_what_has_no_end_is_not_read(tmp_path, kind):
    path = tmp_path / "x"
    make(kind, path)
    if kind == "a device":
        path = Path("/dev/zero")
    with pytest.raises(ValueError, match=f"it is {kind}, not a regular file"):
        text_of(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ValueError, match="it has more than 256 MiB"):
        text_of(path)
    path.write_text("four")
    assert text_of(path, most_bytes=4) == "four"
    with pytest.raises(ValueError, match="more than"):
        text_of(path, most_bytes=3)


def test_scripts_keep_the_umask_and_old_parts_go(tmp_path):
    old, new = (tmp_path / f".meshwright-{name}.partial" for name in ("old", "new"))
    old.touch(), new.touch()
    os.utime(old, (0, 0))
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "run.sh", "#!/bin/sh\n")
    finally:
        os.umask(before)
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o700
    assert not old.exists()
    assert new.exists()


STOPPED = """
import os, signal, sys
from pathlib import Path
from meshwright.base.files import write_all

def one(folder, most):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"):
            seen += 1
            if seen > most:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    write_all(folder, {name: "new" for name in ("a", "b", "deep/c")}, force=True)

for most, folder in enumerate(sys.argv[1:]):
    if not (child := os.fork()):
        one(Path(folder), most)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""For each folder: write three files and be killed, each time one call of the system later."""


@pytest.mark.parametrize("is_new", [False, True])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path, is_new):
    names = ("a", "b", "deep/c")
    folders = [tmp_path / str(number) / "out" for number in range(60)]
    for folder in folders:
        (folder.parent if is_new else folder / "deep").mkdir(parents=True)
        for name in () if is_new else names:
            (folder / name).write_text("old")
    words = [sys.executable, "-B", "-c", STOPPED, *map(str, folders)]
    ends = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert (ends[0], ends[-1]) == ("-9", "0")
    raw = [{path.read_text() for path in folder.rglob("[abc]")} for folder in folders]
    assert ({"old", "new"} in raw) == (not is_new)  # also between two moves
    for folder, end, found in zip(folders, ends, raw, strict=True):
        if not found:
            assert (end, is_new, folder.exists()) == ("-9", True, False)
            continue
        assert len({text_of(folder / name) for name in names}) == 1
        assert end == "-9" or found == {"new"}
        write_all(folder, dict.fromkeys(names, "newer"), force=True)
        assert [(folder / name).read_text() for name in names] == ["newer"] * 3
        assert not list(folder.rglob("*.journal"))


def test_an_interrupt_between_two_moves_is_late(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text(OLD)
    moved = []

    def replace(path, target, do=Path.replace):
        moved.append(target.name)
        if moved[-1] == "b" and moved.count("b") == 1:
            raise KeyboardInterrupt
        return do(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path, dict.fromkeys("abc", NEW), force=True)
    assert {text_of(tmp_path / name) for name in "cab"} == {NEW}
    assert entries(tmp_path) == ["a", "b", "c"]


def test_a_journal_moves_only_what_lies_beside_its_place(tmp_path):
    """Whoever is handed a folder with a journal in it loses no file elsewhere."""
    there, folder = tmp_path / "there", tmp_path / "folder"
    folder.mkdir()
    there.write_text(OLD)
    (folder / "link").symlink_to(there)
    (folder / ".meshwright-0-0.partial").write_text("evil")
    (folder / ".meshwright-0-1.partial").write_text("evil")
    (folder / ".meshwright-0.journal").write_text(f"link\0../there\0{there}")
    (folder / "x").write_text("x")
    assert text_of(folder / "x") == "x"
    assert there.read_text() == OLD


def test_archives_and_packed_files_are_read_up_to_a_size(tmp_path):
    archive, packed = tmp_path / "a.zip", tmp_path / "a.txt"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("small", b"abc")
        file.writestr("bomb", b"0" * 5_000_000)
    with members_of(archive, most_bytes=1000) as members:
        assert members.content("small") == b"abc"
        with pytest.raises(ValueError, match="unpacks to more"):
            members.content("bomb")
    packed.write_bytes(gzip.compress(b"0" * 5_000_000))
    assert archive.stat().st_size + packed.stat().st_size < 20_000
    with pytest.raises(ValueError, match="more than 1 MiB"):
        text_of(packed, most_bytes=2**20)
