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
from sklearn.datasets import load_digits

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
    "coleman": (
        "coleman.csv",
        "Y",
        ("salaryP", "fatherWc", "sstatus", "teacherSc", "motherLev"),
    ),
    "education": ("education.csv", "Y", ("X1", "X2", "X3")),
}

# File and hidden layers (the paper's) of the image sets. Keys of the files are X_train
# (n, pixels), y_train and the same of the test part. Of KMNIST a part is at hand.
IMAGES = {
    "mnist": ("mnist.npz", (64,) * 4),
    "fashion_mnist": ("fashion_mnist.npz", (64,) * 4),
    "kmnist": ("kmnist_part.npz", (64,) * 4),
    "cifar10_grey": ("cifar10_grey.npz", (128,) * 3),
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


def load_images(name, n_rows=None, part="train"):
    """Pixels in [0, 1], labels and hidden layers of a set, or None if not at hand."""
    file, hidden = IMAGES[name]
    path = data_file(file)
    if path is None:
        return None
    with np.load(path) as arrays:
        X, y = (arrays[f"{name}_{part}"][:n_rows] for name in "Xy")
    return X / 255.0, y, hidden


def load_small_images(n_rows=None):
    """scikit-learn's digits in the same form: always at hand."""
    X, y = load_digits(return_X_y=True)
    return X[:n_rows] / 16.0, y[:n_rows], (32,) * 4
