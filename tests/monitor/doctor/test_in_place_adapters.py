"""The doctor on TRL with LoRA: the reference is the model without its adapters, or with its first ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kl_companion.frameworks import trl_example
from kl_companion.llm.packaged import fetched_packages
from kl_companion.monitor.doctor import diagnose

pytestmark = pytest.mark.real


def trainer(folder: Path, *, wrapped: bool) -> Any:
    """TRL's GRPO trainer of a tiny model with LoRA: given a configuration, or a model that has adapters."""
    import peft
    import transformers
    import trl
    from datasets import Dataset

    start = trl_example.save_start(folder / "start")
    lora = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = transformers.AutoModelForCausalLM.from_pretrained(start)
    return trl.GRPOTrainer(
        model=peft.get_peft_model(model, lora) if wrapped else str(start),
        reward_funcs=trl_example.reward,
        args=trl_example.settings(folder / "out", beta=0.04),
        train_dataset=Dataset.from_dict({"prompt": ["12", "3"]}),
        processing_class=transformers.AutoTokenizer.from_pretrained(start),
        **({} if wrapped else {"peft_config": lora}),
    )


@pytest.mark.parametrize("wrapped", [False, True], ids=["of the base model", "of an earlier run"])
def test_the_reference_of_adapters_is_found_and_nothing_is_changed(tmp_path: Path, wrapped: bool) -> None:
    with fetched_packages(), trl_example.quiet():
        examined = trainer(tmp_path, wrapped=wrapped)
        before = {name: x.clone() for name, x in examined.model.state_dict().items()}
        found = diagnose(examined, update=False)
        after = examined.model.state_dict()
    assert examined.ref_model is None
    assert found.healthy
    assert "measured to the reference" in " ".join(f.said for f in found.findings if f.level == "fine")
    assert before.keys() == after.keys()
    assert all(bool((after[name] == x).all()) for name, x in before.items())
