"""Estimators of members of families, which are no registered divergences."""

import subprocess
import sys

import pytest

from kl_companion import audit

DIVERGENCES = {
    "power_divergence(0.37)": "power divergence (0.37)",
    "amari_alpha(0.21)": "Amari alpha divergence (0.21)",
    "skewed_forward_kl(0.23)": "skewed forward KL (0.23)",
    "skewed_reverse_kl(0.23)": "skewed reverse KL (0.23)",
    "generalized_jensen_shannon(0.3)": "generalized Jensen-Shannon divergence (0.3)",
}
FORMS = ("kf_plus_plus({})", "f_divergence({})", "top_k_f_divergence({}, 1)")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_an_estimator_is_judged_by_its_target_and_not_by_its_name(divergence, form):
    name, words = form.format(divergence), DIVERGENCES[divergence]
    verdict = audit(name, scale=1.0, off_policy=False)
    assert verdict.matches == pytest.approx({f"token_{divergence}": 1.0})
    assert verdict.as_meant
    assert f"That is what {name} estimates ({words})." in " ".join(str(verdict).split())


def test_nothing_has_to_be_audited_before():
    code = (
        "from kl_companion import audit; print(audit('kf_plus_plus(amari_alpha(0.19))', scale=1.0).headline)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("another divergence\n", 0), run.stderr
