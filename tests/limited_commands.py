"""Commands under limits of memory and CPU time, each in a process of its own.

A server imports the whole program once and forks for each command, so that a command costs what it
does and not the second that imports take.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
from pathlib import Path

import meshwright
from meshwright.cli.main import main

SOURCES = Path(meshwright.__file__).parent
IMPORTED = [
    ".".join(("meshwright", *path.relative_to(SOURCES).with_suffix("").parts))
    for path in sorted(SOURCES.rglob("*.py"))
    if not path.stem.startswith("__")
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([*IMPORTED, "tree_sitter_bash", "limited_commands"])
MOST_BYTES, MOST_CPU_S = 4 * 10**9, 60


STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")


def ended(folder, *words, most_bytes=MOST_BYTES, most_cpu_s=MOST_CPU_S):
    """Return exit status and messages of a command; killed where it takes more than it may."""
    status, out, err = _forked(_limited, folder, words, most_bytes, most_cpu_s)
    assert "Traceback" not in err, err
    assert "memory is short" not in err
    return status, out + err


def watched(folder, *words):
    """Return what a command prints, then what it started and which files of its folder it opened.

    Files whose path has ``untold`` count wherever they are.
    """
    _, out, err = _forked(_watched, folder, words)
    told, _, touched = out.rpartition("touched: ")
    return told + err, touched.strip()


def _forked(target, folder, words, *limits):
    with tempfile.TemporaryDirectory() as beside:
        outputs = [Path(beside) / name for name in ("out", "err")]
        arguments = (target, folder, words, outputs, dict(os.environ), limits)
        command = FORKS.Process(target=_run, args=arguments)
        command.start()
        command.join()
        return command.exitcode, *(path.read_text("utf-8") for path in outputs)


def _run(target, folder, words, outputs, environment, limits):
    """Run a command in this process, as ``python -m meshwright`` does."""
    for stream, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["meshwright", *words]
    target(*limits)


def _limited(most_bytes, most_cpu_s):
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s))
    sys.exit(main())


def _watched():
    seen = []
    sys.addaudithook(lambda event, args: seen.append((event, args)))
    main()
    here = str(Path.cwd())
    opened = [str(args[0]) for event, args in tuple(seen) if event == "open"]
    touched = {event for event, _ in seen if event in STARTS}
    touched |= {path for path in opened if path.startswith(here) or "untold" in path}
    sys.stdout.write(f"touched: {sorted(touched)}\n")
