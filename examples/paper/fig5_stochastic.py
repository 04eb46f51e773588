"""Fig. 5: contrastive Hebbian learning in mini-batches of ten rows, constant step.

Objective and passes against processed mini-batches on MNIST, Fashion-MNIST, KMNIST (the
part of it that is at hand) and greyscale CIFAR-10, with the paper's networks and
energy; scikit-learn's digits if quick or without the data. Inference is unit by unit as
in the paper; the package's own ("block": the modulus iteration with this feedback),
whose passes are others, is run next to it. For constant steps the paper does not give
its rho: 0.05 is used, and 0.5 next to it.

    python examples/paper/fig5_stochastic.py [--quick] [--output FOLDER]
        [--inference coordinate block] [--rows 30000] [--batches 6000]
        [--data mnist fashion_mnist kmnist cifar10_grey]

Curves are means over consecutive mini-batches, bands are between the certified bounds,
and "J" in the table is the objective that the final weights reach on 2000 of the rows,
with inference carried to the end. Curves of runs that diverge leave the picture at its
top.
"""

import math

from _figures import add_row, arguments, legend_beside, save, summary, trainer

import matplotlib.pyplot as plt

from datasets import IMAGES, load_images, load_small_images

from sklearn_mm import ConvergenceDisplay

STEP = 0.02
METHODS = {
    "2 passes": {"criterion": "fixed", "n_passes": 2},
    "4 passes": {"criterion": "fixed", "n_passes": 4},
    "8 passes": {"criterion": "fixed", "n_passes": 8},
    "32 passes": {"criterion": "fixed", "n_passes": 32},
    "SuDeMM, ρ = 0.05": {"criterion": "sudemm", "rho": 0.05},
}
# Run with the package's own inference only.
LOOSE = {"SuDeMM, ρ = 0.5": {"criterion": "sudemm", "rho": 0.5}}
TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST (6,000 characters)",
    "cifar10_grey": "CIFAR-10, greyscale",
    "digits": "digits of scikit-learn",
}


def data(args):
    """Sets at hand by name; the digits if there are none, and if quick."""
    sets = {}
    if not args.quick:
        sets = {name: load_images(name, args.rows) for name in args.data}
        sets = {name: arrays for name, arrays in sets.items() if arrays is not None}
    return sets or {"digits": load_small_images(200 if args.quick else None)}


def main(argv=None):
    args = arguments(
        __doc__,
        argv,
        inference=(str, ["coordinate", "block"], "coordinate (the paper's), block"),
        data=(str, list(IMAGES), "names of data sets"),
        rows=(int, 30000, "rows of each set at most"),
        batches=(int, 6000, "mini-batches at least"),
    )
    n_batches = 20 if args.quick else args.batches
    rows, fit = [], trainer(args)
    for inference in args.inference:
        fits = {}
        for name, (X, y, hidden) in data(args).items():
            X = X.astype("f4")
            methods = {**METHODS, **(LOOSE if inference == "block" else {})}
            for method, params in methods.items():
                model = fit(
                    X,
                    y,
                    hidden,
                    math.ceil(n_batches / (len(y) / 10)),
                    batch_size=10,
                    learning_rate_init=STEP,
                    inference=inference,
                    **params,
                )
                fits.setdefault(name, {})[method] = model
                head = {"inference": inference, "data": name, "method": method}
                row = {**head, **summary(model, X[:2000], y[:2000])}
                add_row(rows, row, args.output / "fig5.csv")
            draw(fits, args.output / f"fig5_{inference}.png", inference)


def draw(fits, path, inference):
    figure, axes = plt.subplots(
        len(fits),
        2,
        figsize=(10.5, 2.6 * len(fits)),
        squeeze=False,
        layout="constrained",
    )
    for row, (name, models) in zip(axes, fits.items(), strict=True):
        longest = max(len(model.history_.passes) for model in models.values())
        start = max(model.history_.upper_bound[0] for model in models.values())
        display = ConvergenceDisplay.from_estimator(
            models, x="updates", average=max(1, longest // 50), ax=row
        )
        low = min(line.get_ydata().min() for line in display.lines_[::2])
        display.ax_.set(yscale="log", ylim=(0.8 * low, 2.0 * start))
        display.ax_.set(title=TITLES[name], xlabel="mini-batches")
        legend_beside(display)
        row[1].set(
            xlabel="mini-batches",
            ylabel="passes per update",
            title=f"{inference} inference",
        )
    save(figure, path)


if __name__ == "__main__":
    main()
