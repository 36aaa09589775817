"""Rows of the register that say the same, in one source or in several: each group has one verdict."""

from __future__ import annotations

SAME: tuple[tuple[str, ...], ...] = (
    # values
    ("TM-2.1-vanilla", "EMA-eq76-79"),
    ("TM-2.1-varreduced", "FRPO-P3.3"),
    ("TM-3-lambda-value", "WZ-3.1-lambda"),
    # one decision, differentiated
    ("TM-eq2", "WZ-naive-k1", "SH-K1-path", "EMA-E2-K1", "FRPO-B1-k1grad"),
    ("TM-3-squared-grad", "EMA-eq80", "FRPO-PB.2"),
    ("TM-eq3", "WZ-naive-k3", "EMA-eq81", "FRPO-B1-k3grad"),
    ("WZ-onoff-rho-k1", "WZ-9.2-rho-k1"),
    ("WZ-onoff-rho-k2", "WZ-sample-rho-k2", "WZ-9.2-rho-k2"),
    ("WZ-onoff-sgrho-k2", "WZ-9.2-sgrho-k2"),
    ("WZ-onoff-rho-k3", "WZ-9.2-rho-k3"),
    ("EMA-eq84-86", "EMA-eq87-91", "EMA-tab1-K3pp"),
    ("EMA-eq23", "EMA-eq92-95", "EMA-tab1-K4"),
    ("EMA-eq24", "EMA-eq101-102", "EMA-tab1-K5"),
    ("EMA-F4", "EMA-H-note1"),
    ("WZ-forward-IS", "EMA-eq99-100"),
    # one decision, in the reward
    ("WZ-7.1-k1", "SH-K1-reward", "RPG-2.1-shaping"),
    ("WZ-7.2-k2", "WZ-9.3-k2"),
    # baselines
    ("TM-4.2-LOO-var", "WZ-8.1-LOO"),
    # sequences
    ("TM-eq7", "EMA-eq11-12", "EMA-eq68-72"),
    ("TM-4.2-cumulative", "EMA-eq15"),
    ("TM-4.1-biased", "AI-abstract-partial"),
    ("EMA-eq16", "EMA-eq73-74"),
    # optima
    ("TM-3.1-objective", "EMA-eq127-129", "FRPO-T5.1", "VY-eq4"),
    ("TM-pi-rev", "EMA-eq130-132"),
    ("EMA-eq133-134", "EMA-propI.1", "EMA-tabI-F2R"),
    ("EMA-eq135", "EMA-propI.2", "EMA-tabI-R2F"),
    # the moving anchor
    ("EMA-eq2", "EMA-intro-ema"),
    ("EMA-eq4-6", "EMA-eq29-32", "EMA-lemC.1"),
    ("EMA-lem4.1", "EMA-eq48-54"),
    ("EMA-lem4.2-eq9", "EMA-eq58-59"),
    # top-k
    ("EMA-eq25-26", "EMA-alg1", "EMA-tab1-TopkR"),
    ("EMA-eq27", "EMA-alg2", "EMA-tab1-TopkF"),
    ("EMA-abstract-topk", "EMA-5.3-anyset", "EMA-fig2"),
    # policy-gradient losses
    ("EMA-eq147", "EMA-tab8-K1"),
    ("EMA-eq148", "EMA-tab8-K2"),
    ("EMA-eq149", "EMA-tab8-K5"),
    ("EMA-eq150", "EMA-tab8-K3"),
    ("EMA-eq151", "EMA-tab8-K3pp"),
    ("EMA-eq152", "EMA-tab8-K4"),
    ("EMA-eq153-157", "EMA-fig10"),
    ("EMA-eq158-160", "EMA-fig11"),
    # whole updates
    ("FRPO-1-linear", "FRPO-tab5-maxent"),
    ("FRPO-C1-linear", "FRPO-P3.2-affine"),
    ("FRPO-4.1-rescaled", "FRPO-D1-misweight"),
    ("FRPO-4.3-localgrad", "ZCPO-F6-k3grad"),
    ("ZCPO-F7", "ZCPO-F7-var", "ZCPO-5-gvpo"),
    ("VY-1.2-reverse", "VY-2.2-reverse"),
    ("VY-3-D", "RPG-2.2-weight", "RPG-2.2-corrected"),
    ("QW-tab1-R2-first", "QW-4.3-R2"),
    ("QW-4.3-lennorm", "QW-A-lennorm"),
    # unnormalized divergences
    ("RPG-2.2-k3", "RPG-eq3.2"),
    ("RPG-rem3.3-value", "RPG-D-forward"),
    ("RPG-rem3.5", "RPG-D-reverse"),
    ("RPG-abs-weight", "RPG-1-corrected-loss"),
    ("RPG-abs-equivalence", "RPG-prop4.1"),
    ("RPG-prop3.2-loss", "RPG-tab1-UFKL"),
    ("RPG-prop3.6-loss", "RPG-tab1-URKL"),
    ("RPG-prop3.6-Z", "RPG-L-Z"),
    ("RPG-tab2-UFKL", "RPG-propF.3"),
    ("RPG-tab2-URKL", "RPG-propF.5"),
    ("RPG-propE.1-loss", "RPG-tab4-FKL"),
    ("RPG-propE.3-loss", "RPG-tab4-RKL"),
    ("RPG-eqE.2", "RPG-K3-kl"),
    # clipped losses of RPG
    ("RPG-3.3-A-URKL", "RPG-4.1-decomposition", "RPG-G2-weight-URKL"),
    ("RPG-3.3-A-RKL", "RPG-G2-weight-RKL"),
    ("RPG-3.3-loss", "RPG-G1-objective", "RPG-G1-negation"),
    ("RPG-eqC.3", "RPG-G1-ppo"),
    ("RPG-3.3-matches", "RPG-alg1"),
    ("RPG-3.3-range", "RPG-4.1-C"),
    ("RPG-fig3", "RPG-alg2"),
    ("RPG-alg2-branches", "RPG-G2-loss"),
    # about texts
    ("TM-1-code", "AI-abstract-seen"),
)


def others(id: str) -> tuple[str, ...]:
    """The rows that say the same as this one, in the order of their group."""
    return tuple(other for group in SAME if id in group for other in group if other != id)
