"""Settings and notebooks made for tests."""

import os

# Before torch is imported anywhere: tests run on few cores, beside other work, without a network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import nbformat
import pytest


@pytest.fixture
def make_notebook():
    """Return a function that writes a notebook from a parameters cell and further code cells."""

    def make(path, parameters, *cells):
        v4 = nbformat.v4
        tagged = v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
        notebook = v4.new_notebook(cells=[tagged, *map(v4.new_code_cell, cells)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return make
