"""Real data for examples and tests, where it is at hand.

The folder is named by the environment variable SKLEARN_MM_DATA, or else it is
``../shared/data`` beside the project. Without it, loaders return None, and callers fall
back to data that ships with scikit-learn, or skip.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"

# File, target and features of the classic sets of robust regression.
CLASSIC = {
    "hbk": ("hbk.csv", "Y", ("X1", "X2", "X3")),
    "starsCYG": ("starsCYG.csv", "log.light", ("log.Te",)),
    "stackloss": (
        "sm_stackloss.csv",
        "STACKLOSS",
        ("AIRFLOW", "WATERTEMP", "ACIDCONC"),
    ),
    "telef": ("telef.csv", "Calls", ("Year",)),
}


def data_file(name):
    """Path of a file in the data folder, or None."""
    path = Path(os.environ.get("SKLEARN_MM_DATA", _DEFAULT)) / name
    return path if path.exists() else None


def load_classic(name):
    """X and y of a classic set, or None if the data are not at hand."""
    file, target, features = CLASSIC[name]
    path = data_file(f"robust/{file}")
    if path is None:
        return None
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    X = np.array([[float(row[feature]) for feature in features] for row in rows])
    return X, np.array([float(row[target]) for row in rows])
