"""Fig. 4: contrastive Hebbian learning in full batches.

Objective against epochs and against accumulated inference passes, on a subset of MNIST
(scikit-learn's digits if quick or without the data), for 2, 3, 4 and 32 passes, ReGeMM,
SuDeMM, and a baseline that alternates one pass with each step. The paper's settings:
784-64(x4)-10, its energy (feedback 1, no penalty), inference unit by unit, at most 40
passes, the same constant step for all. Block inference, which has other pass counts, is
run beside it.

    python examples/paper/fig4_full_batch.py [--quick] [--output FOLDER]
        [--inference coordinate block]

Bands are between the certified bounds of an update; "J" in the table is the objective
that the final weights reach, with inference carried to the end.
"""

from _figures import add_row, arguments, legend_beside, save, summary, train

import matplotlib.pyplot as plt

from datasets import load_images, load_small_images

from sklearn_mm import ConvergenceDisplay

STEP = 0.1
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
    modes = (str, ["coordinate", "block"], "coordinate (the paper's), block")
    args = arguments(__doc__, argv, inference=modes)
    n_rows, epochs = (60, 12) if args.quick else (500, 300)
    data = None if args.quick else load_images("mnist", n_rows)
    X, y, hidden = load_small_images(n_rows) if data is None else data
    rows = []
    for inference in args.inference:
        models = {}
        for name, params in METHODS.items():
            models[name] = train(
                X,
                y,
                hidden,
                epochs,
                batch_size=None,
                learning_rate_init=STEP,
                max_passes=40,
                inference=inference,
                **params,
            )
            method = {"inference": inference, "method": name}
            row = {**method, **summary(models[name], X, y)}
            add_row(rows, row, args.output / "fig4.csv")
        draw(models, args.output / f"fig4_{inference}.png", inference)


def draw(models, path, inference):
    figure, axes = plt.subplots(
        2,
        2,
        figsize=(10.5, 4.8),
        height_ratios=(3, 1),
        sharex="col",
        layout="constrained",
    )
    top = 1.6 * max(model.history_.upper_bound[0] for model in models.values())
    low = min(model.history_.upper_bound.min() for model in models.values())
    for column, x in zip(axes.T, ("updates", "passes"), strict=True):
        display = ConvergenceDisplay.from_estimator(models, x=x, ax=column)
        display.ax_.set(yscale="log", ylim=(0.8 * low, top))
        legend_beside(display)
    axes[1, 0].set_xlabel("epoch")
    axes[1, 1].set_xscale("log")
    axes[0, 0].set_title(f"Full batches, inference {inference!r}", loc="left")
    save(figure, path)


if __name__ == "__main__":
    main()
