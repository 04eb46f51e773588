"""
Bring your own kernel and criterion
===================================

A robust kernel is three functions, a criterion is one. Both are passed as objects, to
the regressor and to `robust_least_squares`, and the certified bounds come for free.
"""

import matplotlib.pyplot as plt
import numpy as np

from sklearn_mm import ConvergenceDisplay, HalfQuadraticRobustRegressor
from sklearn_mm.criteria import Criterion
from sklearn_mm.kernels import Kernel


# %%
# A kernel whose weights fall linearly with the residual
# ------------------------------------------------------
# For squared residuals z in units of the kernel's width, weight(z) = 1 - sqrt(z) up to
# one. Integrating half of it gives the loss, and solving for u the penalty, such that
# ``loss(z) = min_u u z / 2 + penalty(u)``.
class Triangle(Kernel):
    name = "triangle"

    def weight(self, z):
        return 1.0 - np.sqrt(np.minimum(z, 1.0))

    def loss(self, z):
        z = np.minimum(z, 1.0)
        return z / 2 - z * np.sqrt(z) / 3

    def penalty(self, u):
        return (1.0 - np.minimum(u, 1.0)) ** 3 / 6


# %%
# That is worth a check, numerically:
kernel = Triangle()
z, u = np.linspace(0, 3, 50), np.linspace(0, 1, 2001)
bound = u * z[:, None] / 2 + kernel.penalty(u)
print(
    f"loss = min of the bound: {np.abs(bound.min(axis=1) - kernel.loss(z)).max():.1e}"
)
print(f"width for 95 % efficiency: {kernel.tuning_constant():.3f} noise scales")


# %%
# A criterion that asks for a relative gap
# ----------------------------------------
# `satisfied` says when weights are good enough; `excessive`, which is optional, when
# they are needlessly so, which makes the search look for looser ones.
class RelativeGap(Criterion):
    def satisfied(self, trial, memory):
        return trial.gap <= 0.2 * trial.lower

    def excessive(self, trial, memory):
        return trial.gap < 0.1 * trial.lower


# %%
# Both at work
# ------------
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3))
y = X @ [1.0, -2.0, 0.5] + 3.0 + 0.2 * rng.normal(size=300)
y[:120] += rng.uniform(2, 20, size=120)
models = {
    name: HalfQuadraticRobustRegressor(
        kernel, criterion=criterion, init="ols", random_state=0
    ).fit(X, y)
    for name, criterion in {"own": RelativeGap(), "regemm": "regemm"}.items()
}
for name, model in models.items():
    print(
        f"{name:8s} coefficients {model.coef_.round(2)} in {model.n_iter_} iterations"
    )

# %%
# The criterion of our own asks for a small gap at once, and so the first updates trust
# the poor start; ReGeMM begins with a wide gap, and needs half as many updates.
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
r = np.linspace(0, 1.5, 200)
axes[0].plot(r, kernel.loss(r**2), label="loss")
axes[0].plot(r, kernel.weight(r**2), label="weight")
axes[0].set(xlabel="residual / width", title="The kernel")
axes[0].legend()
for ax, (name, model) in zip(axes[1:], models.items(), strict=True):
    ConvergenceDisplay.from_estimator(model, ax=ax)
    ax.set(title=f"Bounds, criterion: {name}", yscale="log")
low, high = zip(*(ax.get_ylim() for ax in axes[1:]), strict=True)
for ax in axes[1:]:
    ax.set_ylim(min(low), max(high))
plt.show()
