"""Fig. 4: contrastive Hebbian learning in full batches.

Objective against epochs and against accumulated inference passes, on a subset of MNIST
(scikit-learn's digits if quick or without the data), for 2, 3, 4 and 32 passes, ReGeMM,
SuDeMM, and a baseline that alternates one pass with each step. The paper's settings:
784-64(x4)-10, its energy (feedback 1, no penalty), inference unit by unit, at most 40
passes, the same constant step for all; the paper does not give its length, so that
several are tried. The package's own inference ("block": the modulus iteration with this
feedback), whose passes are others, is run next to it.

    python examples/paper/fig4_full_batch.py [--quick] [--output FOLDER]
        [--inference coordinate block] [--steps 0.1 0.03 0.003] [--rows 1000]
        [--epochs 300]

Bands are between the certified bounds of an update; "J" in the table is the objective
that the final weights reach, with inference carried to the end. Curves of runs that
diverge leave the picture at its top.
"""

from _figures import add_row, arguments, legend_beside, save, summary, trainer

import matplotlib.pyplot as plt

from datasets import load_images, load_small_images

from sklearn_mm import ConvergenceDisplay

METHODS = {
    "2 passes": {"criterion": "fixed", "n_passes": 2},
    "3 passes": {"criterion": "fixed", "n_passes": 3},
    "4 passes": {"criterion": "fixed", "n_passes": 4},
    "32 passes": {"criterion": "fixed", "n_passes": 32},
    "ReGeMM": {"criterion": "regemm"},
    "SuDeMM": {"criterion": "sudemm"},
    "alternating": {"criterion": "alternating", "n_passes": 1},
}


def main(argv=None):
    args = arguments(
        __doc__,
        argv,
        inference=(str, ["coordinate", "block"], "coordinate (the paper's), block"),
        steps=(float, [0.1, 0.03, 0.003], "lengths of the step"),
        rows=(int, 1000, "digits"),
        epochs=(int, 300, "updates"),
    )
    n_rows, epochs = (60, 12) if args.quick else (args.rows, args.epochs)
    data = None if args.quick else load_images("mnist", n_rows)
    X, y, hidden = load_small_images(n_rows) if data is None else data
    X = X.astype("f4")
    rows, fit = [], trainer(args)
    for inference in args.inference:
        fits = {}
        for step in args.steps:
            for name, params in METHODS.items():
                model = fit(
                    X,
                    y,
                    hidden,
                    epochs,
                    batch_size=None,
                    learning_rate_init=step,
                    max_passes=40,
                    inference=inference,
                    **params,
                )
                fits.setdefault(step, {})[name] = model
                head = {"inference": inference, "step": step, "method": name}
                row = {**head, **summary(model, X, y)}
                add_row(rows, row, args.output / "fig4.csv")
        name = "digits of scikit-learn" if data is None else f"MNIST, {n_rows:,} digits"
        draw(
            fits,
            args.output / f"fig4_{inference}.png",
            f"{name}, {inference} inference",
        )


def draw(fits, path, title):
    figure, axes = plt.subplots(
        2 * len(fits),
        2,
        figsize=(10.5, 4.8 * len(fits)),
        height_ratios=(3, 1) * len(fits),
        squeeze=False,
        layout="constrained",
    )
    for i, (step, models) in enumerate(fits.items()):
        block = axes[2 * i : 2 * i + 2]
        top = 1.6 * max(model.history_.upper_bound[0] for model in models.values())
        low = min(model.history_.upper_bound.min() for model in models.values())
        for column, x in zip(block.T, ("updates", "passes"), strict=True):
            display = ConvergenceDisplay.from_estimator(models, x=x, ax=column)
            display.ax_.set(yscale="log", ylim=(0.8 * low, top))
            legend_beside(display)
        block[1, 0].set_xlabel("epoch")
        for ax in block[:, 1]:
            ax.set_xscale("log")
        block[0, 0].set_title(f"{title}, step {step:g}", loc="left")
    save(figure, path)


if __name__ == "__main__":
    main()
