"""Losses of a rollout that couple the answers of a batch, and one that does not."""


def squares(ro):
    return (ro.logp - ro.ref_logp) ** 2 / 2 * ro.completion_mask


def total(ro):
    return (ro.logp * ro.completion_mask).sum(-1)


def answer_mean(ro):
    return (squares(ro).sum(-1) / ro.completion_mask.sum(-1)).mean()


def masked_mean(ro):
    return squares(ro).sum() / ro.completion_mask.sum()


def centered(ro):
    return -((ro.rewards - ro.rewards.mean()) * total(ro)).mean()


def normalized(ro):
    return -((ro.rewards - ro.rewards.mean()) / ro.rewards.std() * total(ro)).mean()
