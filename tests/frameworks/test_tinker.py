"""Two functions of one name: in RL the batch's mean is subtracted, in the distillation it is not."""

import ast
from types import SimpleNamespace

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.frameworks import setting, tinker
from kl_companion.frameworks.installed import find, known
from kl_companion.tabular.populations import large_batches, population_tree


def samples():
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=True)
    return problem.rollout(problem.logits, torch.tensor([0, 5, 9, 12]))


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("distills", [False, True])
def test_one_datum_of_all_answers_is_one_datum_for_each(distills, discount):
    r = samples()
    assert len(set(r.completion_mask.sum(-1).tolist())) > 1
    data, clients = [], []
    for i, row in enumerate(r.sampled_from):
        inputs = {"logprobs": row, "mask": r.completion_mask[i], "advantages": row * 0}
        inputs["target_tokens"] = r.tokens[i]
        model_input = SimpleNamespace(append_int=lambda _: None)
        held = {name: tinker._Data(x) for name, x in inputs.items()}
        data.append(SimpleNamespace(model_input=model_input, loss_fn_inputs=held))
        clients.append(tinker._Known(torch.cat([row[:1], r.ref_logp[i]])))
    known = tinker.functions()
    if distills:
        tinker._run(known.distillation(data, clients, [0] * 4, 1.0, discount))
    else:
        tinker._run(known.rl(data, clients, 1.0, discount))
    each = torch.stack([datum.loss_fn_inputs["advantages"].x for datum in data])
    torch.testing.assert_close(tinker.advantages(r, discount, distills=distills), each, rtol=0, atol=1e-12)


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("discount", [0, 1])
def test_a_mean_is_subtracted_in_rl(discount, eos):
    """Of sums it is no baseline: minus the mean KL of a token, times the gradient of the mean length."""
    place = population_tree(3, 2, parts=9, seed=4, eos=eos)
    rl, distillation = (
        large_batches(setting(f"tinker.{name}kl_discount_{discount}").exact, place).gradient
        for name in ("", "distillation_")
    )
    logits = place.problem.logits.clone().requires_grad_()
    every = place.problem.rollout(logits)
    chance = (every.logp * every.completion_mask).sum(-1).exp()
    length = (chance * every.completion_mask.sum(-1)).sum()
    kl = (chance * ((every.logp - every.ref_logp) * every.completion_mask).sum(-1)).sum()
    (longer,) = torch.autograd.grad(length, logits, retain_graph=True)
    wanted = distillation - discount * (kl / length).detach() * longer
    torch.testing.assert_close(rl, wanted, rtol=0, atol=1e-12)
    assert (longer.norm() > 1e-3) == eos
    if discount:
        (per_token,) = torch.autograd.grad(kl / length, logits)
        torch.testing.assert_close(rl, length.detach() * per_token, rtol=0, atol=1e-12)


def defaults(file, name):
    tree = ast.parse((find(*known("tinker")).root / file).read_text())
    (body,) = [n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    given = {n.target.id: n.value for n in body if isinstance(n, ast.AnnAssign) and n.value}
    return [ast.literal_eval(given[n]) for n in ("kl_penalty_coef", "kl_discount_factor", "loss_fn")]


def test_defaults_of_tinker():
    assert defaults("tinker_cookbook/rl/train.py", "Config") == [0.0, 0.0, "importance_sampling"]
    file = "tinker_cookbook/distillation/train_on_policy.py"
    assert defaults(file, "Config") == [1.0, 0.0, "importance_sampling"]
