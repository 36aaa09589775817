"""A file of the user's that exits, parses the command line, or imports when its function is called."""

import argparse
import os
import subprocess
import sys
import time

import pytest

from kl_companion import audit, audit_update
from kl_companion.cli import main
from kl_companion.monitor.doctor import diagnose

K2 = "0.5 * (logp - ref_logp) ** 2"


@pytest.fixture
def mine(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def refused(arguments, capsys):
    assert main([*map(str, arguments), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize(
    "leaves",
    ["sys.exit(0)", "sys.exit()", "sys.exit('done')", "raise SystemExit(3)", "quit()", "os._exit(0)"],
)
def test_no_file_ends_an_audit_with_a_status_of_its_own(mine, capsys, leaves):
    inside = mine(
        "import os, sys\n"
        f"def term(logp, ref_logp, mask):\n    {leaves}\n"
        f"def whole(logp, rewards, mask):\n    {leaves}\n"
        f"def step(model, batch):\n    {leaves}\n"
    )
    for arguments in (
        ["audit", f"{inside}:term", "--want", "reverse_kl"],
        ["audit", f"{inside}:whole", "--update", "--want", "E[R]"],
        ["doctor", f"{inside}:step"],
    ):
        assert "called sys.exit(" in refused(arguments, capsys)
    outside = mine(f"import os, sys\ndef term(logp, ref_logp):\n    return {K2}\n{leaves}\n", "outside.py")
    for verb in ("audit", "doctor"):
        assert "importing" in (said := refused([verb, f"{outside}:term"], capsys))
        assert "sys.exit(" in said
    assert os._exit.__module__ == "posix"


def test_nor_from_python():
    def term(logp, ref_logp):
        sys.exit(0)

    def whole(logp, rewards):
        sys.exit(0)

    def step(model, batch):
        sys.exit(0)

    for ask in (lambda: audit(term), lambda: audit_update(whole), lambda: diagnose(step)):
        with pytest.raises(ValueError, match=r"called sys.exit\(0\)"):
            ask()


PARSING = f"""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, {{option}})
scale = parser.parse_args().scale
def term(logp, ref_logp):
    return scale * {K2}
"""


def test_a_file_that_parses_the_command_line_gets_none(mine, capsys):
    """As `python mine.py`: its defaults hold, whatever kl-companion was given."""
    path = mine(PARSING.format(option="default=0.5"))
    assert main(["audit", f"{path}:term", "--want", "reverse_kl", "--scale", "1"]) == 0
    out, err = capsys.readouterr()
    assert "0.5 x reverse KL" in out
    assert "parses the command line when it is imported" in err
    assert "usage" not in err


def test_a_file_that_refuses_its_command_line(mine, capsys):
    said = refused(["audit", f"{mine(PARSING.format(option='required=True'))}:term"], capsys)
    assert "parses the command line when it is imported and refuses it" in said
    assert "required: --scale" in said
    assert "usage" not in said
    with pytest.raises(SystemExit):  # parsers are as they were
        argparse.ArgumentParser().parse_args(["--unknown"])


def test_imports_that_a_loss_makes_when_it_is_called(mine, tmp_path, capsys):
    """Its folder stays on the path while the audit runs, and so does what the file has put there."""
    mine("def squared(x):\n    return 0.5 * x**2\n", "near_by_helper.py")
    (tmp_path / "elsewhere").mkdir()
    mine("one = 1.0\n", "elsewhere/far_off_helper.py")
    path = mine(
        f"import sys\nsys.path.insert(0, {str(tmp_path / 'elsewhere')!r})\n"
        "def term(logp, ref_logp):\n"
        "    from near_by_helper import squared\n"
        "    from far_off_helper import one\n"
        "    return one * squared(logp - ref_logp)\n"
    )
    search, arguments = sys.path[:], sys.argv
    assert main(["audit", f"{path}:term", "--want", "reverse_kl", "--quiet"]) == 0
    assert (sys.path, sys.argv) == (search, arguments)
    assert "near_by_helper" in sys.modules
    for name in ("near_by_helper", "far_off_helper"):
        del sys.modules[name]
    capsys.readouterr()


JAX = """
from functools import partial
import jax
import jax.numpy as jnp
from flax import struct
from nothing_here.rl import register

@struct.dataclass
class Config:
    beta: float = 0.5

@register("grpo")
@partial(jax.jit, static_argnames=("config",))
def term(logp, ref_logp, mask, config: Config = Config()):
    kl = 0.5 * jnp.square(logp - jax.lax.stop_gradient(ref_logp)) * mask.astype(jnp.float32)
    return config.beta * jnp.sum(kl, axis=-1).mean()

def of_batch(batch):
    return 0.5 * (jnp.square(batch["logp"] - batch["ref_logp"]) * batch["mask"]).sum(axis=-1).mean()
"""
MLX = """
import mlx.core as mx
import mlx.nn as nn
def term(student_logits: mx.array, teacher_logits: mx.array, mask: mx.array):
    p, q = nn.log_softmax(student_logits, axis=-1), nn.log_softmax(teacher_logits, axis=-1)
    return (mx.sum(mx.exp(p) * (p - q), axis=-1) * mask).sum(axis=-1).mean()
"""


# by hand: half a square has the gradient of the reverse KL, here times beta; sum of pi log(pi / ref) is it
@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (JAX, "term", "term minimizes 0.5 x reverse KL, next token"),
        (JAX, "of_batch", "of_batch minimizes reverse KL, next token"),
        (MLX, "term", "term minimizes reverse KL, next token"),
    ],
)
def test_losses_in_jax_and_mlx_run_in_pytorch(mine, capsys, text, name, said):
    assert main(["audit", f"{mine(text)}:{name}", "--scale", "1"]) == 0
    out, err = capsys.readouterr()
    assert said in out
    assert "PyTorch stands in for" in err
    assert ("not installed: nothing_here" in err) is (text is JAX)
    assert not any(n in sys.modules for n in ("jax", "mlx", "nothing_here"))


def test_relative_imports_of_a_package_that_is_not_executed(mine, capsys):
    mine("raise RuntimeError", "package/__init__.py")
    mine(f"def k2(logp, ref_logp):\n    return {K2}\n", "package/helpers.py")
    text = "from .helpers import k2\nfrom .gone import x\n"
    text += "def term(logp, ref_logp):\n    return k2(logp, ref_logp)\n"
    loss = mine(text, "package/losses.py")
    assert main(["audit", f"{loss}:term", "--scale", "1"]) == 0
    out, err = capsys.readouterr()
    assert "term minimizes reverse KL, next token" in out
    assert "not installed: .package.gone" in err


def test_a_method_is_of_the_class_that_was_named(mine, capsys):
    text = "import abc\nclass Base(abc.ABC):\n    beta = 1.0\n"
    text += "    @abc.abstractmethod\n    def kind(self): pass\n"
    text += f"    def loss(self, logp, ref_logp):\n        return self.beta * {K2}\n"
    text += "class Mine(Base):\n    beta = 0.25\n    def kind(self): return 2\n"
    assert main(["audit", f"{mine(text)}:Mine.loss", "--scale", "1", "--quiet"]) == 0
    assert "Mine.loss minimizes 0.25 x reverse KL, next token" in capsys.readouterr().out


GRADIENTS_OFF = "import torch\ntorch.set_grad_enabled(False)\n"
STEP = "def step(model, batch):\n    return model(batch['input_ids'], batch['attention_mask']).logits.sum()\n"


@pytest.mark.parametrize("verb", ["audit", "doctor"])
def test_gradients_that_are_switched_off(mine, capsys, verb):
    import torch

    path = mine(f"{GRADIENTS_OFF}def f(logp, ref_logp):\n    return {K2}\n{STEP}")
    name = "f" if verb == "audit" else "step"
    assert f"{path} switches gradients off when it is executed" in refused([verb, f"{path}:{name}"], capsys)
    assert torch.is_grad_enabled()


def test_what_torch_has_compiled(mine, capsys):
    path = mine(
        "import torch\nfrom torch import Tensor\n@torch.jit.script\n"
        f"def f(logp: Tensor, ref_logp: Tensor) -> Tensor:\n    return {K2}\n"
    )
    assert "f is compiled by torch.jit, expected the Python function" in refused(
        ["audit", f"{path}:f"], capsys
    )


def test_a_pasted_text_that_exits_or_reads_the_command_line(monkeypatch, capsys):
    import io

    for text, message in (
        ("import sys\nsys.exit(0)\n", "importing the text failed with sys.exit(0)"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\n"
            "p.parse_args()\n",
            "the text parses the command line when it is imported and refuses it",
        ),
    ):
        loss = f"{text}def f(logp, ref_logp):\n    return {K2}\n"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(loss.encode())))
        assert message in refused(["audit", "-"], capsys)


def test_ctrl_c_is_one_line(mine, capsys):
    path = mine("def f(logp, ref_logp):\n    raise KeyboardInterrupt\n")
    assert main(["audit", f"{path}:f", "--quiet"]) == 130
    assert capsys.readouterr().err == "kl-companion: interrupted\n"


def test_neither_threads_nor_exit_handlers_go_on(mine):
    path = mine(
        "import atexit, os, threading, time\natexit.register(lambda: os._exit(0))\n"
        "threading.Thread(target=time.sleep, args=(100,)).start()\n"
        "def f(logp, ref_logp):\n    raise ValueError('mine')\n"
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "kl_companion.cli", "audit", f"{path}:f"], capture_output=True
    )
    assert done.returncode == 2
    assert b"f raised ValueError: mine" in done.stderr
    assert time.monotonic() - begin < 60
