"""
Robust curve fitting, by changing one name
==========================================

From SciPy's `curve_fit` and `least_squares` to robust fits. Three kinds of problems
from the documentation of `scipy.optimize` are solved twice each: by SciPy's function,
and by the function of this package that takes the same arguments. Some of the data are
wrong, which least squares does not forgive.

1. `curve_fit`: an exponential decay, its start taken from the signature.
2. `curve_fit` with bounds and error bars: a spectral line on a sloping background, with
   spikes from cosmic rays.
3. `least_squares`: the distance of points from a circle, with points of another object.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import curve_fit, least_squares

from sklearn_mm import robust_curve_fit, robust_least_squares

rng = np.random.default_rng(0)


# %%
# A decay
# -------
def decay(t, amplitude, rate, offset):
    """The model: its parameters are those of the function."""
    return amplitude * np.exp(-rate * t) + offset


t = np.linspace(0, 4, 60)
signal = decay(t, 2.5, 1.3, 0.5) + 0.1 * rng.normal(size=t.size)
signal[rng.permutation(t.size)[:15]] += rng.uniform(0.5, 3, 15)  # faults

plain_decay, _ = curve_fit(decay, t, signal)
robust_decay, covariance = robust_curve_fit(decay, t, signal)
print("decay      truth [2.5 1.3 0.5]")
print("  curve_fit       ", plain_decay.round(2))
print("  robust_curve_fit", robust_decay.round(2), "+-", end=" ")
print(np.sqrt(np.diag(covariance)).round(2))


# %%
# A line in a spectrum
# --------------------
# Counts have errors that grow with their root: `sigma` tells which points to trust
# more. Bounds keep the width positive.
def line(wave, height, centre, width, level, slope):
    """A Gaussian on a straight background."""
    bump = height * np.exp(-0.5 * ((wave - centre) / width) ** 2)
    return bump + level + slope * (wave - 500)


wave = np.linspace(480, 520, 120)
truth = np.array([120.0, 503.0, 3.0, 80.0, 0.6])
counts = rng.poisson(line(wave, *truth)).astype(float)
spikes = rng.permutation(120)[:12]
counts[spikes] += rng.uniform(80, 400, 12)
sigma = np.sqrt(np.maximum(counts, 1.0))
start = [50.0, 500.0, 5.0, 50.0, 0.0]
bounds = ([0, 480, 0.5, 0, -5], [1000, 520, 20, 500, 5])

plain_line, _ = curve_fit(line, wave, counts, start, sigma, bounds=bounds)
robust_line, _, info, *_ = robust_curve_fit(
    line, wave, counts, start, sigma, bounds=bounds, full_output=True
)
print("line       truth", truth)
print("  curve_fit       ", plain_line.round(2))
print("  robust_curve_fit", robust_line.round(2))
found = np.isin(spikes, np.flatnonzero(info["outliers"])).sum()
print(f"  spikes found: {found} of 12, noise scale {info['scale']:.2f}")

# %%
# A circle
# --------
# Residuals can be any function of the parameters. `tau`, the width of the kernel, takes
# the place of SciPy's `f_scale`; here it is estimated from the residuals.
angle = rng.uniform(0, 2 * np.pi, 80)
points = np.column_stack([np.cos(angle), np.sin(angle)]) * 2.0 + [1.0, -0.5]
points += 0.05 * rng.normal(size=points.shape)
points[:28] = rng.uniform([0, -4], [4.5, -1], (28, 2))


def distance(x):
    """Signed distance from the circle with centre x[:2] and radius x[2]."""
    return np.hypot(*(points - x[:2]).T) - x[2]


plain_circle = least_squares(distance, [0.0, 0.0, 1.0])
robust_circle = robust_least_squares(distance, [0.0, 0.0, 1.0], tau="auto")
print("circle     truth [1 -0.5 2]")
print("  least_squares       ", plain_circle.x.round(2))
print("  robust_least_squares", robust_circle.x.round(2))

# %%
# All three
# ---------
fig, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
grey, blue = {"color": "0.45", "ls": "--"}, {"color": "C0", "lw": 2}
fine = np.linspace(0, 4, 300)
off = np.abs(signal - decay(t, *robust_decay)) > 0.3  # three noise scales
axes[0].plot(t[~off], signal[~off], ".", color="0.3")
axes[0].plot(t[off], signal[off], "x", color="C3", label="outliers found")
axes[0].plot(fine, decay(fine, *plain_decay), label="curve_fit", **grey)
axes[0].plot(fine, decay(fine, *robust_decay), label="robust_curve_fit", **blue)
axes[0].set(xlabel="time", ylabel="signal", title="Decay with faults")

off = info["outliers"]
axes[1].plot(wave[~off], counts[~off], ".", color="0.3")
axes[1].plot(wave[off], counts[off], "x", color="C3", label="outliers found")
axes[1].plot(wave, line(wave, *plain_line), label="curve_fit", **grey)
axes[1].plot(wave, line(wave, *robust_line), label="robust_curve_fit", **blue)
axes[1].set(xlabel="wavelength (nm)", ylabel="counts", title="Line with spikes")

off = np.abs(robust_circle.fun) > 3 * robust_circle.scale
axes[2].plot(*points[~off].T, ".", color="0.3")
axes[2].plot(*points[off].T, "x", color="C3", label="outliers found")
around = np.linspace(0, 2 * np.pi, 200)
for x, label, style in (
    (plain_circle.x, "least_squares", grey),
    (robust_circle.x, "robust_least_squares", blue),
):
    round_ = x[:2, None] + x[2] * np.array([np.cos(around), np.sin(around)])
    axes[2].plot(*round_, label=label, **style)
axes[2].set(xlabel="x", ylabel="y", title="Circle and another object", aspect="equal")
axes[2].set_ylim(-4.5, 4)  # room for the legend
for ax in axes:
    ax.legend(fontsize=8)
plt.show()
