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
  coef <- tryCatch(suppressWarnings(coef({call})), error = function(e) NULL)
  seconds <- proc.time()[["elapsed"]] - begin
  if (length(coef) != ncol(D)) coef <- rep(NA_real_, ncol(D))
  writeBin(c(as.double(coef), seconds), target)
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
        n, p = data[0][0].shape
        with tempfile.TemporaryDirectory() as folder:
            paths = {key: str(Path(folder) / key) for key in ("data", "result")}
            with Path(paths["data"]).open("wb") as file:
                np.array([len(data), n, p], dtype=np.int32).tofile(file)
                for X, y in data:
                    np.asfortranarray(X).ravel(order="F").tofile(file)
                    np.asarray(y, dtype=float).tofile(file)
            script = SCRIPT.format(call=CALLS[name], **paths)
            subprocess.run(
                ["Rscript", "-e", script], check=True, stdout=subprocess.DEVNULL
            )
            found = np.fromfile(paths["result"]).reshape(len(data), p + 2)
        return np.roll(found[:, : p + 1], -1, axis=1), found[:, -1]

    return method
