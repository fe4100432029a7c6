"""Every experiment at a size at which it runs in a moment."""

# by experiment: options that keep every trial small; the words are those of its options
TINY = {
    "feature-scaling": {"seeds": 1, "rates": (1e-3, 1e-1), "steps": 20},
    "batchnorm-convergence": {"seeds": 1, "factors": (1.0, 5.0), "steps": 60, "width": 20},
    "batchnorm-noise": {"seeds": 2, "norms": ("batch", "layer"), "batches": (4, 16), "steps": 10, "width": 20},
    "covariate-shift": {"seeds": 2, "steps": 40, "width": 20},
    "norm-before-activation": {"seeds": 2, "steps": 20, "width": 20},
    "padding": {"seeds": 2, "lengths": (16, 8), "longest": 16, "features": 4, "batch": 8},
    "recurrent": {"seeds": 2, "cells": ("gru",), "width": 8, "length": 6, "lengths": (6, 12), "steps": 4, "batch": 4},
    "gradients-at-init": {
        "seeds": 2,
        "depths": (1, 2),
        "widths": (8, 16),
        "width": 8,
        "depth": 1,
        "batch": 2,
        "context": 8,
    },
    "residual-growth": {"seeds": 1, "depth": 3, "width": 8, "heads": 1, "steps": 3, "batch": 2, "context": 8},
    "learning-rate": {
        "seeds": 1,
        "rates": (1e-3, 1.0),
        "depth": 1,
        "width": 8,
        "heads": 1,
        "steps": 4,
        "batch": 2,
        "context": 8,
    },
    "without-norm": {"seeds": 1, "depths": (1, 2), "width": 8, "heads": 1, "steps": 3, "batch": 2, "context": 8},
    "centring": {"seeds": 2, "depth": 1, "width": 8, "heads": 1, "steps": 3, "batch": 2, "context": 8},
    "bias-terms": {"seeds": 2, "depth": 1, "width": 8, "heads": 1, "steps": 3, "batch": 2, "context": 8},
    "cost": {"seeds": 2, "widths": (8, 16), "depth": 1, "heads": 1, "batch": 2, "context": 8, "rounds": 2},
}
