"""Documentation that the two estimators share."""

PARAMETERS = """hidden_layer_sizes : int or array-like of int, default=(64,)
        Units of the hidden layers.

    loss : {"squared_error", "huber", "log_loss"} or object, default="LOSS"
        Loss of the outputs. "log_loss", for classifiers only, is the cross-entropy of
        their softmax. An object of `sklearn_mm.losses`, or one of your own with the
        methods of :class:`sklearn_mm.losses.Loss`, can be given as well.

    huber_width : float, default=1.35
        Where the Huber loss turns from quadratic to linear, in standard deviations of
        the targets (for a classifier, in units of the class indicators).

    activation : {"relu", "hard_sigmoid", "hard_tanh", "identity"}, default="relu"
        The box that activations of hidden units are confined to: [0, inf), [0, 1],
        [-1, 1] or none. Towards a feedback of zero, they are clipped to it.

    standardize : bool, default=True
        Whether features are centred and scaled inside, so that results do not depend
        on their units. Columns of like kind, such as the pixels of an image, get one
        common scale; sparse features are scaled, not centred. `coefs_` and
        `intercepts_` are those of the units of X. The first call of `partial_fit`
        decides on centre and scale.

    criterion : {"sudemm", "regemm", "fixed", "alternating"} or object, \
            default="sudemm"
        When inference is accurate enough for an update:

        - "sudemm": the gap between the bounds is at most `rho` times the decrease that
          a gradient step guarantees, ``||g||^2 / (2 L)``, with L verified by
          backtracking if ``solver="gd"``. Otherwise two tests have to hold: the paper's
          stochastic one, gap ``<= rho / 2 * ||g||^2``, and the same for half a bound of
          the squared error that unfinished inference leaves in the gradient g;
        - "regemm": the upper bound has closed the fraction `eta` of the gap that the
          previous one left. Needs full batches. Its guarantee, a bound that never
          rises, is for ``solver="gd"``;
        - "fixed": after `n_passes` passes, whatever the bounds say;
        - "alternating": after `n_passes` passes from the activations of the previous
          update, which are kept for all rows. A baseline; needs full batches, and
          memory that grows with their number.

        An object of `sklearn_mm.criteria` can be given as well.

    feedback : float or "auto", default="auto"
        Weight of a layer's residual relative to that of the layer before it, in (0, 1].
        At 1 the energy is that of the paper; towards 0 training becomes
        back-propagation. Values below ``1e-100 ** (1 / n_hidden_layers)`` are replaced
        by it: numbers cannot tell them from zero.
        "auto" is 0.003 for up to four hidden layers and ``1e-12 ** (1 /
        n_hidden_layers)`` for more, which float32 can hold; 1 with ``solver="gd"``,
        whose steps a small feedback makes short.

    solver : {"adam", "sgd", "gd"}, default="adam"
        How weights are updated: "gd" is the plain gradient step of length 1/L, with L
        found by backtracking on full batches.

    learning_rate_init : float or "auto", default="auto"
        Step length of "adam" and "sgd". "auto" is 0.001. Where `fit` makes mini-batches
        of fewer than 50,000 rows and the solver is "adam", it is that times
        ``min(4, sqrt(50000 / n_samples))``.

    learning_rate : {"constant", "invscaling"}, default="constant"
        Under "invscaling", "sgd" divides the step length in update t by
        ``t ** power_t`` and `rho` by ``t ** (2 * power_t)``: with ``momentum=0`` these
        schedules satisfy the conditions of the paper's convergence proof.

    power_t : float, default=0.6
        Exponent of "invscaling", in (0.5, 1].

    momentum : float, default=0.9
        Momentum of "sgd", in [0, 1).

    average : bool, default=True
        Whether the fitted weights are an average over the last updates of "adam" or
        "sgd": exponential, over the last tenth of all updates and 500 at most. (That
        of ``SGDRegressor(average=True)`` counts all updates alike.) Predictions,
        `bounds` and early stopping are about the average; `history_` and `loss_curve_`
        are about the iterates, from which `partial_fit` and `warm_start` go on. There
        is none with ``solver="gd"`` or ``criterion="regemm"``, whose theorems are about
        the last iterate.

    batch_size : int, "auto" or None, default="auto"
        Rows of a mini-batch. None means full batches, which are worked through in
        chunks, with activations recomputed and thrown away. "auto" is None where the
        criterion or the solver needs it, and ``min(200, n_samples)`` otherwise.

    inference : {"block", "coordinate"}, default="block"
        With "block", a pass works on whole layers and batches: forward and backward
        through the network where this contracts, i.e. with a small feedback or small
        weights, and by the modulus iteration elsewhere. With "coordinate" it minimises
        the energy over one unit after the other, as in the paper, and is much slower.

    rho : float, default=0.5
        Accuracy asked for by "sudemm". With strong feedback, where errors of unfinished
        inference have a direction in common, mini-batches need a smaller one (0.05).

    eta : float, default=0.5
        Fraction of the gap that "regemm" asks to be closed, in (0, 1).

    n_passes : int, default=8
        Passes of "fixed" and "alternating". A pass goes through all layers; the clamped
        phase, which starts from the free one, makes fewer.

    max_passes : int, default=200
        Largest number of passes, in training and prediction. An update for which it
        was not enough is made in part only.

    inference_tol : float, default=1e-12
        Relative duality gap to which `predict` and `bounds` infer. Activations, and
        with them predictions, are then accurate to about its square root.

    alpha : float or "auto", default="auto"
        The penalty ``alpha / 2 * ||W||^2`` is added to the *mean* loss. (MLPRegressor
        divides its `alpha` by the number of rows in a batch.) It keeps weights, and
        with them the number of passes, small. "auto" is 5e-5, or
        ``1 / n_samples`` if that is larger and `fit` makes mini-batches.

    max_iter : int, default=300
        Largest number of epochs.

    tol : float, default=1e-4
        Training ends when the loss (or the validation score) has not improved by `tol`
        for `n_iter_no_change` epochs. With ``solver="gd"`` or ``criterion="regemm"``
        it also ends when the criterion's own measure of progress is below `tol` times
        the loss.

    early_stopping : bool, default=False
        Whether to set rows aside and keep the weights that score best on them.

    validation_fraction : float, default=0.1
        Fraction of rows to set aside.

    n_iter_no_change : int, default=10
        Number of epochs without improvement before training ends.

    shuffle : bool, default=True
        Whether mini-batches are drawn anew in every epoch.

    warm_start : bool, default=False
        Whether `fit` continues from the weights (and the units of targets) of the
        previous call.

    chunk_size : int, default=None
        Rows whose activations are held at a time in full batches, prediction and
        `bounds`; None means 512.

    n_jobs : int, default=None
        Number of workers that share the chunks; None means 1 unless in a
        :obj:`joblib.parallel_config` context, which also decides on their kind
        (threads, if it does not say). The result does not depend on it.

    random_state : int, RandomState instance or None, default=None
        Seed of initial weights, mini-batches and validation rows.

    verbose : int, default=0
        Whether to print a line for every epoch."""

ATTRIBUTES = """coefs_ : list of ndarray of shape (n_units, n_units_of_next_layer)
        Weights.

    intercepts_ : list of ndarray of shape (n_units_of_next_layer,)
        Biases.

    n_layers_ : int
        Number of layers, input and output among them.

    n_outputs_ : int
        Number of outputs.

    n_iter_ : int
        Number of epochs.

    loss_curve_ : list of float
        Mean upper bound of the loss, penalty included, in every epoch.

    loss_ : float
        Last value of `loss_curve_`.

    best_loss_ : float
        Smallest value of `loss_curve_`.

    validation_scores_ : list of float or None
        Validation score after every epoch, with ``early_stopping=True``.

    best_validation_score_ : float or None
        Largest of the `validation_scores_`.

    history_ : Bunch
        One entry per update: ``upper_bound``, ``lower_bound``, ``gap``, ``passes``,
        ``work`` (passes, discarded ones included), ``satisfied``, ``epoch`` (from
        zero) and others. :class:`ConvergenceDisplay` draws it.

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, where X has names that are all strings."""

NOTES = """Activations of the hidden layers are not computed by a rule but inferred, as
    minimisers of a convex energy, once with the output left free and once clamped to
    the target. The loss is the difference of the two energies, and duality encloses it
    between bounds, which decide how accurate inference has to be [1]_.

    The gradient in use is that of the certified upper bound with ``solver="gd"``, for
    which the theorems are, and wherever feedback is strong. Elsewhere it is that of the
    upper bound of a nearby network, whose biases differ, row by row, by what is left of
    the free phase's optimality conditions, and for which this phase is exact: after few
    passes it is by far the better estimate of the gradient of the loss.

    Under "adam", and under "sgd" with momentum, the criterion says that the gradient in
    use is accurate relative to its own size; the theorems are about plain gradient
    steps: ``solver="gd"``, or ``solver="sgd", momentum=0,
    learning_rate="invscaling"``. For the latter the paper proves that the gradients
    come arbitrarily close to zero, not that they converge to it.

    With float32 data all of training runs in float32 as long as ``feedback **
    -n_hidden_layers`` is at most 1e12, which "auto" makes sure of, unless bounds of
    successive updates are compared (``solver="gd"``, ``criterion="regemm"``). What
    rounding does is to change biases in their last digit, row by row. `bounds` are
    computed in float64 whatever the data.

    X may be larger than memory: a memory map, or any array with a shape, a dtype and
    slices of rows (HDF5, Zarr), is read chunk by chunk, and mini-batches are drawn from
    one stretch of rows after another; the blocks of a Dask array are worked on where
    they are, in full batches. For streams there is `partial_fit`. An interrupt (Ctrl-C)
    after the first update ends training with the last finished one.

    References
    ----------
    .. [1] C. Zach and H. Le, "Truncated Inference for Latent Variable Optimization
       Problems: Application to Robust Estimation and Learning", ECCV 2020."""
