"""
Contrastive Hebbian learning on digits
======================================

A network whose activations are inferred, as minimisers of a convex energy, instead of
computed layer by layer. Duality gives certified bounds of its loss, on training data in
every update and on any other data afterwards.
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import ContrastiveHebbianClassifier, ConvergenceDisplay

# %%
# Training
# --------
# Parameters have the names and meaning of `MLPClassifier`. Features are standardised
# internally, so that pixels can be passed as they are; the peer needs a scaler.
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
common = {"hidden_layer_sizes": (64, 64), "max_iter": 20, "random_state": 0}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # twenty epochs are enough here
    model = ContrastiveHebbianClassifier(**common).fit(X_train, y_train)
    peer = make_pipeline(StandardScaler(), MLPClassifier(**common))
    peer.fit(X_train, y_train)
print(f"test accuracy, contrastive Hebbian learning {model.score(X_test, y_test):.3f}")
print(f"test accuracy, back-propagation             {peer.score(X_test, y_test):.3f}")

# %%
# Probabilities
# -------------
# The default loss is the cross-entropy, so that probabilities mean what they say.
for name, fitted in (("contrastive", model), ("back-propagation", peer)):
    probability = fitted.predict_proba(X_test)
    print(
        f"cross-entropy on the test data, {name}: {log_loss(y_test, probability):.3f}"
    )

# %%
# Certified loss on data never seen
# ---------------------------------
lower, upper = model.bounds(X_test, y_test)
print(f"loss on the test data: between {lower:.6f} and {upper:.6f}")

# %%
# How training went
# -----------------
# The bounds are too close to be distinguished, so that the gap between them is drawn
# separately: it stays near or below a thousandth of the loss, with one or two passes
# per update.
figure, axes = plt.subplots(3, 1, sharex=True, figsize=(6.4, 6), layout="constrained")
display = ConvergenceDisplay.from_estimator(model, ax=axes)
display.ax_.set_title("Bounds of the loss, averaged over the mini-batches of an epoch")

# %%
# Activations and weights
# -----------------------
# Activations of hidden layers are non-negative, and many of them are zero. Each unit of
# the first layer compares some pixels (red) with others (blue).
layers = model.activations(X_test)
for k, layer in enumerate(layers, start=1):
    print(f"hidden layer {k}: {(layer > 0).mean():.0%} of the units are active")
fig, axes = plt.subplots(4, 8, figsize=(6, 3.2), layout="constrained")
weights = model.coefs_[0].T[: axes.size]
for ax, weight in zip(axes.flat, weights, strict=True):
    size = abs(weight).max()
    ax.imshow(weight.reshape(8, 8), cmap="coolwarm", vmin=-size, vmax=size)
    ax.set(xticks=[], yticks=[])
fig.suptitle("Weights of 32 units of the first layer")
plt.show()
