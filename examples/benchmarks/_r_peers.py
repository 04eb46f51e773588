"""Robust regressions of R: a batch of data sets for each process."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

CALLS = {
    "R lmrob": "lmrob.fit(D, y, lmrob.control())",
    "R lmrob KS2014": 'lmrob.fit(D, y, lmrob.control("KS2014"))',
    "R ltsReg": "ltsReg(X, y)",
    "R rlm MM": 'rlm(D, y, method = "MM", maxit = 100)',
}
# Coefficients are written intercept first; a fit that fails is a row of NA.
SCRIPT = """
suppressMessages({{library(robustbase); library(MASS)}})
source <- file("{data}", "rb"); target <- file("{result}", "wb")
shape <- readBin(source, "integer", 3L)
for (i in seq_len(shape[1])) {{
  X <- matrix(readBin(source, "double", shape[2] * shape[3]), shape[2])
  y <- readBin(source, "double", shape[2])
  D <- cbind(1, X)
  set.seed(i)
  begin <- proc.time()[["elapsed"]]
  fit <- tryCatch(suppressWarnings({call}), error = function(e) NULL)
  seconds <- proc.time()[["elapsed"]] - begin
  values <- tryCatch({values}, error = function(e) NULL)
  size <- {n_values} * ncol(D)
  if (length(values) != size) values <- rep(NA_real_, size)
  writeBin(c(as.double(values), seconds), target)
}}
close(target)
"""


def available() -> bool:
    """Whether R and the two packages are installed."""
    if shutil.which("Rscript") is None:
        return False
    needs = "q(status = !all(sapply(c('robustbase', 'MASS'), requireNamespace)))"
    return subprocess.run(["Rscript", "-e", needs], capture_output=True).returncode == 0


def batch(name):
    """A method that fits a batch of data sets of one shape in one process of R."""

    def method(data, seeds):
        found, seconds = _run(data, CALLS[name], "coef(fit)", 1)
        return found[0], seconds

    return method


def with_errors(data):
    """Coefficients of lmrob, intercept last, and their standard errors."""
    values = "c(coef(fit), sqrt(diag(fit$cov)))"
    found, _ = _run(data, CALLS["R lmrob"], values, 2)
    return found


def _run(data, call, values, n_values):
    """Vectors of one value per coefficient, the intercept's last, and seconds."""
    n, p = data[0][0].shape
    with tempfile.TemporaryDirectory() as folder:
        paths = {key: str(Path(folder) / key) for key in ("data", "result")}
        with Path(paths["data"]).open("wb") as file:
            np.array([len(data), n, p], dtype=np.int32).tofile(file)
            for X, y in data:
                np.asfortranarray(X).ravel(order="F").tofile(file)
                np.asarray(y, dtype=float).tofile(file)
        script = SCRIPT.format(call=call, values=values, n_values=n_values, **paths)
        subprocess.run(["Rscript", "-e", script], check=True, stdout=subprocess.DEVNULL)
        found = np.fromfile(paths["result"]).reshape(len(data), -1)
    vectors = found[:, :-1].reshape(len(data), n_values, p + 1)
    return np.roll(vectors, -1, axis=2).swapaxes(0, 1), found[:, -1]
