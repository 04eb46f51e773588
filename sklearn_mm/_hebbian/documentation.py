"""Documentation that the two estimators share."""

PARAMETERS = """hidden_layer_sizes : int or array-like of int, default=(64,)
        Number of units in each hidden layer.

    loss : {"squared_error", "huber", "log_loss"} or object, default="LOSS"
        Loss of the outputs. "log_loss", for classifiers only, is the cross-entropy of
        the softmax of the outputs. An object with the attributes and methods of
        :class:`sklearn_mm.losses.Loss`, which `fit` checks, can be passed as well.

    huber_width : float, default=1.35
        Error at which the Huber loss turns from quadratic to linear, in robust
        standard deviations of the targets (1.48 times the median absolute deviation;
        for a classifier, in units of the class indicators).

    activation : {"relu", "hard_sigmoid", "hard_tanh", "identity"}, default="relu"
        Interval to which the activations of hidden units are confined: [0, inf),
        [0, 1], [-1, 1] or the whole real line. As the feedback tends to zero, the
        activations are clipped to it.

    standardize : bool, default=True
        Whether to centre and scale the features internally, so that results do not
        depend on their units. Columns of the same kind, such as the pixels of an image,
        share a common scale. Sparse features are scaled but not centred. `coefs_` and
        `intercepts_` refer to the original units of X. With `partial_fit`, centre and
        scale are determined in the first call.

    criterion : {"sudemm", "regemm", "fixed", "alternating"} or object, \
            default="sudemm"
        How accurately activations are inferred before an update. Inference stops when:

        - "sudemm": the gap between the bounds is at most `rho` times the decrease that
          a gradient step guarantees, ``||g||^2 / (2 L)``, with L verified by
          backtracking if ``solver="gd"``. Otherwise, two conditions must hold: the
          stochastic one of the paper, gap ``<= rho / 2 * ||g||^2``, and the same for
          half of a bound of the squared error that incomplete inference leaves in the
          gradient g. The first condition means that the loss is known accurately
          compared with what a step can gain, and the second one that the gradient is
          accurate compared with its own size;
        - "regemm": the upper bound has closed the fraction `eta` of the gap left by the
          previous one. Requires full batches. The guarantee that the bound never
          increases holds for ``solver="gd"``;
        - "fixed": `n_passes` passes have been made, regardless of the bounds;
        - "alternating": `n_passes` passes have been made, starting from the
          activations of the previous update, which are stored for all rows. This is a
          baseline. It requires full batches, and memory grows with their size.

        An object of `sklearn_mm.criteria` can be passed as well.

    feedback : float or "auto", default="auto"
        Weight of the residual of a layer relative to that of the previous layer, in
        (0, 1]. With 1, the energy is that of the paper. As the feedback tends to 0,
        training becomes back-propagation. Values below
        ``1e-100 ** (1 / n_hidden_layers)`` are replaced by this number, since they are
        numerically equivalent to zero. "auto" is 0.003 for up to four hidden layers and
        ``1e-12 ** (1 / n_hidden_layers)`` for more, which float32 can represent. With
        ``solver="gd"``, "auto" is 1, because a small feedback leads to short steps.

    solver : {"adam", "sgd", "gd"}, default="adam"
        Optimiser of the weights. "gd" is the plain gradient step of length 1/L, with L
        found by backtracking on full batches.

    learning_rate_init : float or "auto", default="auto"
        Step length of "adam" and "sgd". "auto" is 0.001. If `fit` uses mini-batches
        with "adam" and there are fewer than 50,000 rows, it is multiplied by
        ``min(4, sqrt(50000 / n_samples))``.

    learning_rate : {"constant", "invscaling"}, default="constant"
        Learning rate schedule. With "invscaling", "sgd" divides the step length in
        update t by ``t ** power_t`` and `rho` by ``t ** (2 * power_t)``. With
        ``momentum=0``, these schedules satisfy the conditions of the convergence proof
        in the paper.

    power_t : float, default=0.6
        Exponent of "invscaling", in (0.5, 1].

    momentum : float, default=0.9
        Momentum of "sgd", in [0, 1).

    average : bool, default=True
        Whether the fitted weights are an average over the last updates of "adam" or
        "sgd". The average is exponential, over the last tenth of all updates and at
        most 500 of them. (``SGDRegressor(average=True)`` gives all updates the same
        weight.) Predictions, `bounds` and early stopping use the average. `history_`
        and `loss_curve_` refer to the iterates, from which `partial_fit` and
        `warm_start` continue. No average is computed with ``solver="gd"`` or
        ``criterion="regemm"``, because their theorems refer to the last iterate.

    batch_size : int, "auto" or None, default="auto"
        Size of mini-batches. If None, full batches are used; they are processed in
        chunks, and activations are recomputed rather than stored. "auto" is None if the
        criterion or the solver requires it, and ``min(200, n_samples)`` otherwise.

    inference : {"block", "coordinate"}, default="block"
        Inference algorithm. With "block", a pass processes whole layers and batches:
        forward and backward through the network if this is a contraction, i.e. with a
        small feedback or small weights, and by the modulus iteration otherwise. With
        "coordinate", it minimises the energy over one unit after another, as in the
        paper, which is much slower.

    rho : float, default=0.5
        Accuracy required by "sudemm". With a feedback close to 1, small mini-batches
        may need a smaller value, such as 0.05, for stable training.

    eta : float, default=0.5
        Fraction of the gap that "regemm" has to close, in (0, 1).

    n_passes : int, default=8
        Number of passes for "fixed" and "alternating". A pass visits all layers. The
        clamped phase, which starts from the free phase, makes fewer passes.

    max_passes : int, default=200
        Maximum number of passes, in training and prediction. If it is not sufficient
        for an update, only part of the update is made.

    inference_tol : float, default=1e-12
        Relative duality gap for inference in `predict` and `bounds`. Activations, and
        therefore predictions, are accurate to about its square root.

    alpha : float or "auto", default="auto"
        Strength of the L2 penalty ``alpha / 2 * ||W||^2``, which is added to the *mean*
        loss. (MLPRegressor divides its `alpha` by the number of rows in a batch.) The
        penalty keeps the weights small, and thereby the number of passes. "auto" is
        2e-4 with ``loss="log_loss"`` and 5e-5 otherwise, or ``1 / n_samples`` if that
        is larger and `fit` uses mini-batches.

    max_iter : int, default=300
        Maximum number of epochs.

    tol : float, default=1e-4
        Tolerance for the stopping criterion. Training stops when the loss (or the
        validation score) has not improved by `tol` for `n_iter_no_change` epochs. With
        ``solver="gd"`` or ``criterion="regemm"``, it also stops when the progress as
        measured by the criterion is below `tol` times the loss.

    early_stopping : bool, default=False
        Whether to set aside a fraction of the rows for validation, and to keep the
        weights with the best score on them.

    validation_fraction : float, default=0.1
        Fraction of rows to set aside for validation.

    n_iter_no_change : int, default=10
        Number of epochs without improvement before training stops.

    shuffle : bool, default=True
        Whether to draw new mini-batches in each epoch.

    warm_start : bool, default=False
        Whether `fit` continues from the weights (and the units of the targets) of the
        previous call.

    chunk_size : int, default=None
        Number of rows whose activations are held in memory at a time, in full batches,
        prediction and `bounds`. If None, it is 256.

    n_jobs : int, default=None
        Number of workers that process chunks in parallel. ``None`` means 1 unless in a
        :obj:`joblib.parallel_config` context, which also selects the backend (threads
        by default). The result does not depend on it.

    random_state : int, RandomState instance or None, default=None
        Controls the initial weights, the mini-batches and the choice of validation
        rows. Pass an int for reproducible output across multiple function calls.

    verbose : int, default=0
        If positive, print one line per epoch, including the validation score if
        ``early_stopping=True``."""

ATTRIBUTES = """coefs_ : list of ndarray of shape (n_units, n_units_of_next_layer)
        Weights of each layer.

    intercepts_ : list of ndarray of shape (n_units_of_next_layer,)
        Biases of each layer.

    n_layers_ : int
        Number of layers, including input and output.

    n_outputs_ : int
        Number of outputs.

    n_iter_ : int
        Number of epochs.

    loss_curve_ : list of float
        Mean upper bound of the loss, including the penalty, in each epoch.

    loss_ : float
        Last value of `loss_curve_`.

    best_loss_ : float
        Smallest value of `loss_curve_`.

    validation_scores_ : list of float or None
        Validation score after each epoch, if ``early_stopping=True``.

    best_validation_score_ : float or None
        Best value of `validation_scores_`.

    history_ : Bunch
        One entry per update: ``upper_bound``, ``lower_bound``, ``gap``, ``passes``
        (some of which may leave out the last layers), ``work`` (passes, including
        discarded ones), ``satisfied``, ``epoch`` (counted from zero) and others. Use
        :class:`ConvergenceDisplay` to plot it.

    n_features_in_ : int
        Number of features seen during fit.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit. Defined only when X has feature names that
        are all strings."""

NOTES = """Activations of the hidden layers have no closed form. They are inferred
    as minimisers of a convex energy, once with free outputs and once with the outputs
    clamped to the targets. The loss is the difference of the two energies. Duality
    gives lower and upper bounds of it, which determine how accurate inference has to be
    [1]_.

    With ``solver="gd"``, to which the theorems apply, and whenever the feedback is
    strong, the gradient is that of the certified upper bound. Otherwise it is the
    gradient of the upper bound of a nearby network. The biases of this network differ,
    row by row, by the residual of the optimality conditions of the free phase, so that
    this phase is exact. After a few passes, this is a far better estimate of the
    gradient of the loss.

    With "adam", and with "sgd" and momentum, the criterion ensures that the gradient is
    accurate relative to its own size. The theorems cover plain gradient steps:
    ``solver="gd"``, or ``solver="sgd", momentum=0, learning_rate="invscaling"``. For
    the latter, the paper proves that the gradients come arbitrarily close to zero, not
    that they converge to zero.

    With float32 data, training takes place in float32 as long as ``feedback **
    -n_hidden_layers`` is at most 1e12, which holds for "auto", unless bounds of
    successive updates are compared (``solver="gd"``, ``criterion="regemm"``). Rounding
    has the effect of changing the last digit of the biases, row by row. `bounds` are
    always computed in float64.

    X may be larger than memory: a memory map, or any array with a shape, a dtype and
    slices of rows (HDF5, Zarr), is read chunk by chunk, and mini-batches are drawn from
    consecutive sections of the rows. The blocks of a Dask array are processed on the
    workers that hold them, and predictions for it are Dask arrays, computed when they
    are read. Use `partial_fit` for streams. If training
    is interrupted (Ctrl-C) after the first update, the result of the last completed
    update is kept.

    References
    ----------
    .. [1] C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization
       Problems: Application to Robust Estimation and Learning", ECCV 2020."""
