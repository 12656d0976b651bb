"""Launchers of the processes of a job: torchrun, accelerate, deepspeed, mpirun, Slurm, Kubernetes.

A command line is split into the program with its options, and the devices that the launcher states:
hosts, processes on each, and the chips where a cluster is asked for them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from meshwright.base.budget import as_list, as_mapping
from meshwright.base.errors import Fault, MeshwrightError, SpecError
from meshwright.base.units import whole_number
from meshwright.catalog.systems import load_system
from meshwright.frameworks.reading.given import Given, Options, Statement, Tree, of_words
from meshwright.frameworks.reading.shell import base_name, unknown_in


@dataclass(frozen=True)
class Devices:
    """Devices of a job, as far as its launchers state them."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"hosts": "num_hosts", "all": "count", "chip": "chip"}
    num_hosts: int | None = None
    per_host: int | None = None
    total: int | None = None
    """Number of all devices, where stated as one number."""
    chip: str | None = None
    """Name of the chip in the cluster."""

    @property
    def count(self) -> int | None:
        """All devices; one host where none is named."""
        if self.total is not None:
            return self.total
        return None if self.per_host is None else self.per_host * (self.num_hosts or 1)

    @property
    def known_chip(self) -> str:
        """The chip by a name that the catalog knows; empty where it is not stated or not known."""
        named = self.chip or ""
        words: list[str] = [named, *re.split(r"[^A-Za-z0-9]+", named)]
        for word in filter(None, words):
            try:
                load_system(f"{self.count or 1}x{word}")
            except MeshwrightError:
                continue
            return word
        return ""

    @property
    def system(self) -> str | None:
        """System asked for, where the chips and their number are stated."""
        chip = self.known_chip
        return f"{self.count}x{chip}" if chip and self.count else None

    @property
    def example(self) -> str:
        """Example of the system option, with the stated number of devices and the chip if known."""
        return f"such as --on {self.count or 'N'}x{self.known_chip or 'CHIP'}"

    def beside(self, outer: Devices) -> Devices:
        """Return the devices stated here, else those of the enclosing launcher."""
        return Devices(
            self.num_hosts or outer.num_hosts,
            self.per_host or (outer.per_host if self.total is None else None),
            self.total or (outer.total if self.per_host is None else None),
            self.chip or outer.chip,
        )


@dataclass(frozen=True)
class Launch:
    """A program with its options, and the devices on which it runs."""

    program: str
    """Path of a script, name of a module (``-m``) or of a command."""
    words: tuple[str, ...]
    """Arguments of the program."""
    devices: Devices
    launcher: str = ""
    launcher_options: tuple[Statement, ...] = ()
    """Options of a launcher that states more than processes: accelerate."""
    line: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the script sets."""
    copies: int = 1
    """Number of times that the files start it, each on other devices."""
    role: str = ""
    """``prefill`` or ``decode`` of a worker, as the head of a script that we wrote says."""


_FLAGS = frozenset((
    "standalone", "no_python", "module", "m", "run_path", "use_env", "multi_gpu", "use_fsdp",
    "use_deepspeed", "use_megatron_lm", "use_parallelism_config", "debug", "tpu", "cpu", "quiet",
    "same_network", "exclusive", "unbuffered", "u", "l", "label", "master_addr_env",
    "no_local_rank",
    "no_ssh", "save_pid", "enable_cpu_affinity", "allow_run_as_root", "overlap", "kill_on_bad_exit",
))  # fmt: skip
"""Options of launchers that take no value."""


def launch_of(
    words: Sequence[str], line: int = 0, variables: Mapping[str, str] | None = None
) -> Launch | None:
    """Return the launch of a command on devices; None: neither a Python program nor a server.

    Parameters
    ----------
    variables
        Variables before the command or set in the script: a launch script of torchtitan reads them.
    """
    known = variables or {}
    names = [base_name(word) for word in words]
    devices = Devices()
    for start, name in enumerate(names):
        if name == "srun":
            devices = slurm_devices(of_words(_until_program(words[start + 1 :]))[0])
        elif name in ("mpirun", "mpiexec", "mpirun.openmpi"):
            given, _ = of_words(_until_program(words[start + 1 :]))
            count = given.whole("np", "n", "c")
            devices = Devices(total=count) if count else devices
        elif name in _TRAINERS and start + 1 < len(words):
            hosts = known.get("NNODES", "")
            own = Devices(whole_number(hosts))
            return Launch(name, tuple(words[start + 2 :]), own.beside(devices), line=line)
        elif name == "tune" and names[start + 1 : start + 2] == ["run"]:
            found = _launched("torchrun", words[start + 2 :], line)
            if found is not None:
                return replace(found, devices=found.devices.beside(devices))
        elif name == "run_train.sh":
            return _of_torchtitan(words[start:], known, line)
        elif (server := _server_of(words[start])) and names[start + 1 : start + 2] != [server]:
            if name == "vllm" and names[start + 1 : start + 2] != ["serve"]:
                return None  # it measures, or asks a server
            return Launch(server, tuple(words[start + 1 :]), devices, line=line)
        elif name in ("torchrun", "accelerate", "deepspeed") or (
            name in _LAUNCH_MODULES and names[start - 1 : start] == ["-m"]
        ):
            found = _launched(name, words[start + 1 :], line)
            if found is not None:
                return replace(found, devices=found.devices.beside(devices))
        elif re.fullmatch(r"python[0-9.]*", name):
            found = _program(words[start + 1 :], line)
            if found is not None and found.program in _LAUNCH_MODULES:
                continue  # the module is a launcher, of which the next words are read
            if found is not None:
                return replace(found, devices=devices)
    return None


def _of_torchtitan(words: Sequence[str], known: Mapping[str, str], line: int) -> Launch:
    """Return the launch of ``run_train.sh``, which takes variables for the first options."""
    options = {"CONFIG_FILE": "--job.config_file", "MODULE": "--module", "CONFIG": "--config"}
    first = [part for name, option in options.items() if known.get(name)
             for part in (option, known[name])]  # fmt: skip
    each = known.get("NGPU", "8")
    devices = Devices(per_host=whole_number(each))
    return Launch(words[0], (*first, *words[1:]), devices, line=line)


_TRAINERS = ("llamafactory-cli", "axolotl", "trl")
"""Commands with a subcommand as first word: train, sft."""
_SERVERS = ("vllm", "trtllm-serve", "sglang")
_IMAGES = {"vllm-openai": "vllm", "vllm-tpu": "vllm", "vllm": "vllm"}
"""Images of containers that start a server."""
_LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch",
                   "accelerate.commands.launch",
                   "deepspeed.launcher.runner")  # fmt: skip


def _server_of(word: str) -> str | None:
    """Return the server that a command, or an image of containers, is."""
    name = base_name(word)
    if name in _SERVERS:
        return name
    image, colon, _ = name.partition(":")
    return _IMAGES.get(image) if colon or word.count("/") else None


def _until_program(words: Sequence[str]) -> list[str]:
    """Return the options before the first word that is neither an option nor the value of one."""
    kept, takes = [], False
    for word in words:
        if word.startswith("-"):
            takes = "=" not in word and word.lstrip("-").replace("-", "_") not in _FLAGS
        elif takes:
            takes = False
        else:
            break
        kept.append(word)
    return kept


def _launched(name: str, words: Sequence[str], line: int) -> Launch | None:
    """Return the program of a launcher, after the launcher's own options."""
    if name == "accelerate":
        if list(words[:1]) != ["launch"]:
            return None
        words = words[1:]
    own = _until_program(words)
    given, _ = of_words(own)
    rest = words[len(own) :]
    is_module = "m" in given or "module" in given
    found = _program(["-m", *rest] if is_module else rest, line)
    if found is None:
        return None
    hosts = given.text("nnodes", "num_nodes", "num_machines") or ""
    hosts = hosts.rpartition(":")[2]  # of --nnodes 1:4 the most
    each = given.value("nproc_per_node", "num_gpus")
    if each in ("gpu", "auto"):
        each = None
    per_host = given.whole("nproc_per_node", "num_gpus") if each is not None else None
    total = given.whole("num_processes")
    kind = (
        "accelerate" if "accelerate" in name else "deepspeed" if "deepspeed" in name else "torchrun"
    )
    kept = tuple(Statement(one.option, one.value) for one in given.statements)
    return replace(
        found,
        devices=Devices(whole_number(hosts), per_host, total),
        launcher=kind,
        launcher_options=kept,
    )


def _program(words: Sequence[str], line: int) -> Launch | None:
    """Return the script or module behind ``python`` or a launcher."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        if words[index] == "-m" and index + 1 < len(words):
            return Launch(words[index + 1], tuple(words[index + 2 :]), Devices(), line=line)
        index += 2 if words[index] in ("-W", "-X", "-c") else 1
    if index == len(words) or unknown_in(words[index]) == words[index][1:-1]:
        return None
    return Launch(words[index], tuple(words[index + 1 :]), Devices(), line=line)


# ------------------------------------------------------------------------------------ Slurm


def role_of_export(text: str) -> str:
    """Return the role of a worker that the first lines of a script of ours state; else nothing."""
    lines = text.split("\n", 12)[:12]
    if not any(line.startswith("# ") and ", written by meshwright" in line for line in lines):
        return ""
    stated = [line.removeprefix("# role: ") for line in lines if line.startswith("# role: ")]
    role = stated[0].partition(";")[0] if stated else ""
    return role if role in ("prefill", "decode") else ""


def slurm_header(text: str) -> tuple[Devices, dict[str, str]]:
    """Return the devices that ``#SBATCH`` lines ask for, and the variables that Slurm sets."""
    words: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#SBATCH"):
            try:
                words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:  # a quote without its end
                message = f"{line[:60]!r} is not understood: {error}"
                raise SpecError(Fault(f"line {number}", message)) from error
    given, _ = of_words(words)
    devices = slurm_devices(given)
    variables = {}
    if devices.num_hosts:
        for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
            variables[name] = str(devices.num_hosts)
    if devices.per_host:
        for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
            variables[name] = str(devices.per_host)
    if tasks := given.text("ntasks_per_node"):
        variables["SLURM_NTASKS_PER_NODE"] = tasks
        if devices.num_hosts and (each := whole_number(tasks)):
            variables["SLURM_NTASKS"] = str(devices.num_hosts * each)
    return devices, variables


def slurm_devices(given: Given) -> Devices:
    """Return the devices that the options of sbatch or srun state."""
    hosts = given.text("nodes", "N")
    per_host, chip = None, ""
    for name in ("gpus_per_node", "gpus_per_task", "gres", "gpus_on_node"):
        if text := given.text(name):
            parts = text.removeprefix("gpu:").removeprefix("gres/gpu:").split(":")
            chip = parts[0] if len(parts) > 1 and not parts[0].isdigit() else chip
            per_host = whole_number(parts[-1]) or per_host
    tasks = whole_number(given.text("ntasks_per_node") or "")
    if per_host is None and tasks and tasks > 1:
        per_host = tasks  # a process for each device, unless a launcher says otherwise
    gpus = given.text("gpus", "G") or ""
    total = whole_number(gpus.rpartition(":")[2])
    if total is not None and ":" in gpus:
        chip = gpus.partition(":")[0]
    number = whole_number((hosts or "").rpartition("-")[2])
    return Devices(number, per_host, None if per_host else total, chip or None)


# -------------------------------------------------------------------------------- Kubernetes


@dataclass(frozen=True)
class Container:
    """Container of one kind of pod: a shell text, its variables, and its devices."""

    text: str
    variables: Mapping[str, str]
    devices: Devices


def is_manifest(tree: object) -> bool:
    """Return whether a tree is a Kubernetes object, or the services of Docker Compose."""
    return isinstance(tree, Mapping) and (
        {"apiVersion", "kind"} <= set(tree) or isinstance(tree.get("services"), Mapping)
    )


def containers(trees: Sequence[Tree]) -> list[Container]:
    """Return the containers that may start a program, of pods, jobs and their operators.

    All pods of one object are one job: those with chips state its devices, also for a command that
    stands in a pod without (a launcher of MPI, the leader of a group).
    """
    used = [one for tree in trees for one in _services(tree)]
    for tree in trees:
        pods = list(_pods(tree, 1))
        chips = [one for one in pods if _chips(one[2])]
        if not chips:
            continue
        hosts = sum(count for count, _, _ in chips)
        _, pod, spec = chips[0]
        labels = " ".join(map(str, as_mapping(pod.get("nodeSelector")).values())) or None
        devices = Devices(hosts, _chips(spec), None, labels)
        found: dict[str, Container] = {}
        for _, _, container in pods:
            command = [*(as_list(container.get("command")) or _started_by(container)),
                       *as_list(container.get("args"))]  # fmt: skip
            variables = {
                str(one.get("name")): str(one["value"])
                for one in map(as_mapping, as_list(container.get("env")))
                if "value" in one
            }
            words = [_NAMED.sub(r"${\1}", str(word)) for word in command]
            if text := _shell_text(words):
                found.setdefault(text, Container(text, variables, devices))
        used += found.values()
    return used


def _chips(container: Tree) -> int | None:
    """Return the accelerators that a container asks for; None: none, or not as a number."""
    limits = as_mapping(as_mapping(container.get("resources")).get("limits"))
    counts = [str(value) for key, value in limits.items() if str(key) in _RESOURCES]
    return whole_number(counts[0]) if counts else None


def _services(tree: Tree) -> Iterator[Container]:
    """Yield the containers of Docker Compose."""
    for one in map(as_mapping, as_mapping(tree.get("services")).values()):
        words, entry = _command_of(one.get("command")), _command_of(one.get("entrypoint"))
        entry = entry or [*_started_by(one)]
        resources = as_mapping(as_mapping(one.get("deploy")).get("resources"))
        reserved = as_mapping(resources.get("reservations"))
        counts = [device.get("count", len(as_list(device.get("device_ids"))) or None)
                  for device in map(as_mapping, as_list(reserved.get("devices")))]  # fmt: skip
        each = counts[0] if counts and isinstance(counts[0], int) else None
        stated = one.get("environment")
        pairs = dict(str(pair).partition("=")[::2] for pair in as_list(stated))
        variables = {str(name): str(value) for name, value in (as_mapping(stated) or pairs).items()}
        yield Container(_shell_text([*entry, *words]), variables,
                        Devices(per_host=each))  # fmt: skip


def _command_of(stated: object) -> list[str]:
    """Return the words of a command that Docker Compose has as text or as a list."""
    return stated.split() if isinstance(stated, str) else [*map(str, as_list(stated))]


def is_image(text: str) -> bool:
    """Return whether a text is a Dockerfile."""
    lines = (line.split() for line in text.splitlines() if line.strip()[:1] not in ("", "#"))
    first = next((words[0] for words in lines if words[0] != "ARG"), "")
    return first == "FROM"


def image_text(text: str) -> str:
    """Return the entry point and command of the image of a Dockerfile, as shell text."""
    lines: list[str] = []
    parts = {"ENTRYPOINT": "", "CMD": ""}
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            image = rest.strip().partition(" ")[0]
            lines, server = [], _server_of(image)
            parts = {"ENTRYPOINT": image if server else "", "CMD": ""}
        elif name in ("ENV", "ARG"):
            pair = rest if "=" in rest else "=".join(rest.split(None, 1))
            lines += [f"export {pair}"] if name == "ENV" or "=" in pair else []
        elif name in parts:
            if name == "ENTRYPOINT":
                parts["CMD"] = ""
            parts[name] = _words_of(rest.strip())
    return "\n".join([*lines, " ".join(parts.values()).strip()])


def _words_of(stated: str) -> str:
    """Return a command of a Dockerfile, in JSON or as shell text."""
    try:
        words = json.loads(stated)
    except ValueError:
        return stated
    return _shell_text(list(map(str, words))) if isinstance(words, list) else stated


def _started_by(container: Tree) -> tuple[str, ...]:
    """Return the server that an image starts by itself."""
    image = str(container.get("image") or "")
    return (image,) if _server_of(image) else ()


_NAMED = re.compile(r"\$\((\w+)\)")
"""Variables in the notation of containers."""
_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")


def _pods(tree: object, replicas: int) -> Iterator[tuple[int, Tree, Tree]]:
    """Yield (pods, their spec, container) of everything below an object."""
    if isinstance(tree, Mapping):
        least = tree.get("minReplicas") or None  # of KServe; 0: none while nobody asks
        own = tree.get("replicas", tree.get("parallelism", tree.get("completions", least)))
        count = replicas * own if isinstance(own, int) and not isinstance(own, bool) else replicas
        size = tree.get("size")
        others = size - 1 if "workerTemplate" in tree and isinstance(size, int) else 1
        for one in (*as_list(tree.get("containers")), *_predictor(tree)):
            if isinstance(one, Mapping):
                yield count, tree, one
        for key, value in tree.items():
            if key != "containers":
                yield from _pods(value, count * (others if key == "workerTemplate" else 1))
    elif isinstance(tree, list):
        for value in tree:
            yield from _pods(value, replicas)


def _predictor(tree: Tree) -> Iterator[Options]:
    """Yield the container of a KServe predictor in the Hugging Face runtime, which runs vLLM.

    Source: KServe 0.16, Hugging Face runtime and multi-node inference (``workerSpec``).
    """
    model, workers = as_mapping(tree.get("model")), as_mapping(tree.get("workerSpec"))
    if as_mapping(model.get("modelFormat")).get("name") != "huggingface":
        return
    stated = str(model.get("storageUri") or "")
    words = [f"--model_id={stated.removeprefix('hf://')}"] if stated.startswith("hf://") else []
    words += [f"--{axis}-parallel-size={workers[f'{axis}ParallelSize']}"
              for axis in ("tensor", "pipeline") if f"{axis}ParallelSize" in workers]  # fmt: skip
    yield {**model, "command": ["vllm", "serve", *words]}


def _shell_text(command: Sequence[str]) -> str:
    """Return a command of a container as shell text."""
    if len(command) >= 3 and base_name(command[0]) in ("bash", "sh") and "c" in command[1]:
        return " ".join(command[2:])
    return " ".join(word if "${" in word else shlex.quote(word) for word in command)
