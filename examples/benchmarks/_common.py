"""What the benchmark scripts share."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

# One thread, before NumPy loads its BLAS: ratios of times mean something then.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# Modules beside this folder: data sets, bundle adjustment.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def print_environment() -> None:
    """Machine and versions, so that figures can be placed."""
    import numpy
    import scipy
    import sklearn

    import sklearn_mm

    print(
        f"# {platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, numpy {numpy.__version__}, "
        f"scipy {scipy.__version__}, scikit-learn {sklearn.__version__}, "
        f"sklearn_mm {sklearn_mm.__version__}"
    )


def output_directory(path: str) -> Path:
    """The directory, made if need be."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory
