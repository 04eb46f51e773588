"""What a user writes, for type checkers: `mypy` reads it, and so does `pyright`.

Two lines are wrong on purpose. Without `py.typed` neither checker would see that.
"""

import numpy as np

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    HalfQuadraticRobustRegressor,
    RobustRegressor,
    robust_curve_fit,
    robust_least_squares,
)
from sklearn_mm.criteria import Criterion, Memory, RelaxedGeneralized, Trial
from sklearn_mm.kernels import Kernel, get_kernel


class RelativeGap(Criterion):
    def satisfied(self, trial: Trial, memory: Memory) -> bool:
        return trial.gap <= 0.1 * trial.lower


rng = np.random.default_rng(0)
X, y = rng.normal(size=(100, 2)), rng.normal(size=100)
kernel: Kernel = get_kernel("tukey")
width: float = kernel.tuning_constant()
model = HalfQuadraticRobustRegressor(kernel, criterion=RelativeGap()).fit(X, y)
predicted = model.predict(X)
RobustRegressor(kernel="tukey", scale=1.0, cv=3).fit(X, y)
ContrastiveHebbianClassifier((64, 64), batch_size=20, feedback=0.1).fit(X, y > 0)
popt, pcov = robust_curve_fit(lambda x, a: a * x, X[:, 0], y, scale=1.0)
result = robust_least_squares(lambda x: x - y[:2], [0.0, 0.0], tau="auto")

RelativeGap(eta=0.5)  # type: ignore[call-arg]
eta: str = RelaxedGeneralized().eta  # type: ignore[assignment]
