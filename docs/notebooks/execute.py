"""Run the notebooks of this folder anew, in place: ``python docs/notebooks/execute.py [NAME ...]``.

``--check`` writes nothing and says where the outputs as text differ from those that are there:
numbers in three digits, pictures not at all. Needs what ``pip install '.[test]'`` installs.
"""

import difflib
import re
import sys
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import vl_convert
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from PIL import Image
from traitlets import default

FOLDER = Path(__file__).parent
START = "; ".join(
    ("import altair, pandas", "altair.renderers.enable('svg')",
     "pandas.options.display.width = 100", "pandas.options.display.max_colwidth = 90")
)  # fmt: skip
"""Readers of the docs see pictures; whoever runs a notebook has charts that answer the mouse."""
MOST_BYTES = 150_000
"""Of a notebook."""
MOST_SVG = 40_000
"""Letters of a picture; larger ones are kept as pixels."""
SVG, PNG = "image/svg+xml", "image/png"
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


class Kernel(AsyncKernelManager):
    """The Python that runs this, whatever other kernels are installed."""

    @default("kernel_spec_manager")
    def _native_kernel_alone(self):
        return KernelSpecManager(kernel_dirs=[])


def executed(path):
    """Return a notebook with the outputs of this environment, run in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        NotebookClient(
            notebook, kernel_manager_class=Kernel, kernel_name="python3", record_timing=False,
            timeout=300, extra_arguments=[f"--IPKernelApp.exec_lines={START}", "--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        ).execute()  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    for data in outputs(notebook):
        if len(data.get(SVG, "")) > MOST_SVG:
            data[PNG] = b64encode(pixels(data.pop(SVG))).decode()
    return notebook


def pixels(svg):
    """Return a picture as PNG of few colours."""
    file = BytesIO()
    with Image.open(BytesIO(vl_convert.svg_to_png(svg, scale=1.5))) as image:
        image.quantize(64, Image.Quantize.FASTOCTREE).save(file, "PNG", optimize=True)
    return file.getvalue()


def outputs(notebook):
    """Yield the outputs of all cells, by type."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("data", {"text/plain": output.get("text", "")})


def texts(notebook):
    """Return the outputs as text, line by line, with numbers in three digits."""
    shown = [data for data in outputs(notebook) if not {SVG, PNG} & data.keys()]
    lines = [line for data in shown for line in data["text/plain"].splitlines()]
    return [NUMBER.sub(lambda n: f"{float(n[0].replace(',', '')):.3g}", line) for line in lines]


def main(words):
    """Run the notebooks that are named, or all; return whether any output differs."""
    names = [word for word in words if word != "--check"]
    paths = [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    differences = []
    for path in paths:
        before, after = nbformat.read(path, as_version=4), executed(path)
        if "--check" in words:
            files = f"{path.name} as it is", f"{path.name} anew"
            differences += difflib.unified_diff(texts(before), texts(after), *files, lineterm="")
            continue
        text = nbformat.writes(after) + "\n"
        assert len(text) <= MOST_BYTES, f"{path.name} has {len(text):,} bytes"
        path.write_text(text, encoding="utf-8")
    print("\n".join([*differences, f"{len(paths)} run"]))
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
