"""Five lines of PyTorch that do what was wanted, with no import of ours."""

from __future__ import annotations

import sympy
from sympy.printing.pytorch import TorchPrinter

from kl_companion.divergences import Divergence, T, W

# log w is at hand in both KLs, and expm1 keeps them accurate where the policies agree
_PRECISE = {
    "reverse_kl": "torch.expm1(log_w) - log_w",
    "forward_kl": "log_w * log_w.exp() - torch.expm1(log_w)",
}


class _Printer(TorchPrinter):
    """Prints constants as numbers: torch functions refuse Python floats."""

    def _print_log(self, expr: sympy.Expr) -> str:
        return f"{float(expr)!r}" if expr.is_number else f"torch.log({self._print(expr.args[0])})"

    def _print_Pow(self, expr: sympy.Expr, rational: bool = False) -> str:
        return f"{self.parenthesize(expr.base, 1000)} ** {float(expr.exp):g}"


def _estimate(divergence: Divergence) -> str:
    if divergence.name in _PRECISE:
        return _PRECISE[divergence.name]
    return str(_Printer().doprint(sympy.expand_log(divergence.dual.subs(T, W))))


def remedy(divergence: Divergence, *, level: str, beta: float = 1.0) -> str:
    """Source of a function ``remedy`` whose value and gradient are unbiased for beta times the divergence.

    It is the ratio of policy to sampling policy, with its gradient, times w f(1/w) (emapg2026, eqs
    (115)-(119)); on-policy pass ``logp.detach()`` as ``behavior_logp``.

    Args:
        divergence: What is wanted.
        level: ``"token"``: one value per token; ``"sequence"``: a scalar from whole sequences.
        beta: Coefficient.
    """
    body = _estimate(divergence)
    log_w = "log_w" in body
    w = "log_w = {}" if log_w else "w = torch.exp({})"
    scale = "" if beta == 1 else f"{beta:g} * "
    if level == "token":
        return "\n".join(
            (
                "import torch",
                "def remedy(logp, ref_logp, behavior_logp):  # on-policy: logp.detach()",
                f"    {w.format('ref_logp - logp')}",
                "    rho = torch.exp(logp - behavior_logp)  # keep its gradient",
                f"    return {scale}rho * ({body})  # one value per token",
            )
        )
    return "\n".join(
        (
            "import torch",
            "def remedy(logp, ref_logp, behavior_logp, completion_mask):",
            "    lp, ref, mu = ((x * completion_mask).sum(-1) for x in (logp, ref_logp, behavior_logp))",
            f"    {w.format('ref - lp')}; rho = torch.exp(lp - mu)  # keep its gradient",
            f"    return ({scale}rho * ({body})).mean()  # on-policy: behavior_logp = logp.detach()",
        )
    )
