"""What every registered sampled estimator is expected to be, derived by hand; never imported by the book.

Per estimator: its value v(w), the gradient weight h(w) when it is differentiated, and the divergences
that the two placements descend. One line for a new estimator.
"""

from sympy import Rational, log, sqrt, symbols

w = symbols("w", positive=True)
REVERSE, FORWARD = {"reverse_kl": 1}, {"forward_kl": 1}
HALF = Rational(1, 2)

# whose value is biased on purpose; of every other one the mean is its target
BIASED = {"k2"}
# name: (value, weight in the loss, objective in the loss, objective in the reward; None = no named one)
EXPECTED = {
    "k1": (-log(w), 1, {}, REVERSE),
    "k2": (log(w) ** 2 / 2, -log(w), REVERSE, None),
    "k3": (w - 1 - log(w), 1 - w, FORWARD, {"reverse_kl": 1, "forward_kl": -1}),
    "k3_plus_plus": (w - 1 - log(w), -log(w), REVERSE, {"reverse_kl": 1, "forward_kl": -1}),
    "k4": (-log(w), -log(w), REVERSE, REVERSE),
    "k5": (w * log(w), 1 - w, FORWARD, None),
    "k_lambda(0.5)": (
        (w - 1) / 2 - log(w),
        1 - w / 2,
        {"forward_kl": HALF},
        {"reverse_kl": 1, "forward_kl": -HALF},
    ),
    "kf_plus_plus(reverse_kl)": (
        w - 1 - log(w),
        -log(w),
        REVERSE,
        {"reverse_kl": 1, "forward_kl": -1},
    ),
    "kf_plus_plus(forward_kl)": (w * log(w) - w + 1, 1 - w, FORWARD, None),
    "kf_plus_plus(jensen_shannon)": (
        (w * log(w) - (1 + w) * log((1 + w) / 2)) / 2,
        -log((1 + w) / 2) / 2,
        {"jensen_shannon": 1},
        None,
    ),
    "kf_plus_plus(squared_hellinger)": (
        (1 - sqrt(w)) ** 2 / 2,
        (1 - sqrt(w)) / 2,
        {"squared_hellinger": 1},
        {"squared_hellinger": 2, "forward_kl": -HALF},
    ),
    "kf_plus_plus(pearson)": (
        (1 - w) ** 2 / w,
        2 / w - 2,
        {"pearson": 1},
        {"pearson": HALF, "forward_kl": -1},
    ),
    "kf_plus_plus(neyman)": ((1 - w) ** 2, 1 - w**2, {"neyman": 1}, {"neyman": -1, "forward_kl": 2}),
    "kf_plus_plus(total_variation)": (
        abs(1 - w) / 2,
        None,  # -sign(w - 1)/2, compared by its numbers
        {"total_variation": 1},
        None,
    ),
    "kf_plus_plus(amari_alpha(0.5))": (
        4 * (1 + w / 3 - 4 * w ** Rational(1, 4) / 3),
        4 * (1 - w ** Rational(1, 4)),
        {"amari_alpha(0.5)": 1},
        {"amari_alpha(0.5)": Rational(4, 3), "forward_kl": -Rational(4, 3)},
    ),
    "kf_plus_plus(power_divergence(1.5))": (
        4 / (3 * sqrt(w)) + 2 * w / 3 - 2,
        2 / sqrt(w) - 2,
        {"power_divergence(1.5)": 1},
        {"power_divergence(1.5)": Rational(2, 3), "forward_kl": -Rational(2, 3)},
    ),
}

# f(2) of every registered divergence, normalized to f'(1) = 0, by hand
F_AT_TWO = {
    "reverse_kl": 2 * log(2) - 1,
    "forward_kl": 1 - log(2),
    "jensen_shannon": (2 * log(2) - 3 * log(Rational(3, 2))) / 2,
    "squared_hellinger": (3 - 2 * sqrt(2)) / 2,
    "pearson": 1,
    "neyman": HALF,
    "total_variation": HALF,
    # 4/(1 - a^2) (1 - 2^((1 + a)/2)) + 2/(1 - a) (t - 1) at a = 1/2
    "amari_alpha(0.5)": Rational(16, 3) * (1 - 2 ** Rational(3, 4)) + 4,
    # (2^a - 1 - a)/(a (a - 1)) at a = 3/2
    "power_divergence(1.5)": (2 * sqrt(2) - Rational(5, 2)) / Rational(3, 4),
}
