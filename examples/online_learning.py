"""
Online learning with ``partial_fit``
====================================

Rows arrive a few at a time and are thrown away after use. Each batch is predicted
before it is learned, which gives an honest accuracy over time (progressive validation).
Halfway through, the world changes: images are turned upside down, and the network
adapts.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from sklearn_mm import ContrastiveHebbianClassifier

# %%
# A stream of rows
# ----------------
X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)


def stream(n_batches, size=50):
    """Batches of digits; from the middle on, upside down."""
    for i in range(n_batches):
        rows = rng.choice(len(y), size=size)
        batch = X[rows] if i < n_batches // 2 else X[rows].reshape(-1, 8, 8)[:, ::-1]
        yield batch.reshape(size, -1), y[rows]


# %%
# Predict first, then learn
# -------------------------
# The classes have to be known from the start; the first batch decides on the units in
# which features are taken in. `history_` holds the updates of the last call, with their
# certified bounds.
model = ContrastiveHebbianClassifier(
    (64,), batch_size=10, learning_rate_init=2e-3, random_state=0
)
accuracy, upper, lower = [], [], []
for i, (batch, labels) in enumerate(stream(120)):
    if i > 0:
        accuracy.append(model.score(batch, labels))
    model.partial_fit(batch, labels, classes=np.arange(10))
    upper.append(model.history_.upper_bound.mean())
    lower.append(model.history_.lower_bound.mean())
print(f"accuracy before the change {np.mean(accuracy[40:59]):.3f}")
print(f"right after it             {np.mean(accuracy[59:64]):.3f}")
print(f"at the end                 {np.mean(accuracy[-10:]):.3f}")

# %%
# Over time
# ---------
fig, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 6), layout="constrained")
batches = np.arange(1, 120)  # the first batch is not predicted
axes[0].plot(batches, accuracy, ".", color="C0", alpha=0.5)
for part in (batches < 60, batches >= 60):  # no mean goes across the change
    smooth = np.convolve(np.array(accuracy)[part], np.ones(5) / 5, mode="valid")
    axes[0].plot(batches[part][4:], smooth, color="C0")
axes[0].set(ylabel="accuracy on the next\n50 rows, mean of 5", ylim=(0, 1.03))
axes[1].plot(upper)
axes[1].set(ylabel="loss of the batch,\nupper bound")
axes[2].semilogy((np.array(upper) - lower) / upper)
axes[2].set(ylabel="gap between the\nbounds / loss", xlabel="batch of 50 rows")
for ax in axes:
    ax.axvline(60, color="0.6", linestyle=":")
axes[0].annotate("images turned", (61, 0.1), color="0.4")
plt.show()
