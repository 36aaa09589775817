"""Functions of an unpacked release with all that they call, from files that are planted."""

import math

import pytest
import torch

from kl_companion.frameworks.installed import Distribution, Unavailable
from kl_companion.frameworks.linking import link

FILES = {
    "planted/__init__.py": "import nothing_that_is_installed\n",
    "planted/losses.py": """
import math
import torch
import torch.nn.functional as F
from .tools import twice, LIMIT as LARGEST
from planted.tools import even
from . import tools
from nothing_that_is_installed import logger

HALF = 0.5


def half(x):
    return HALF * x


class Base:
    scale = 3.0


class Loss(Base):
    @staticmethod
    def of(x: "Unknown") -> "Unknown":
        return Loss.scale * twice(half(x))

    def forward(self, x):
        return self.factor * twice(x).clamp(max=LARGEST)


def logged(x):
    if x > 1:
        logger.info("large")
    return math.sqrt(x)


def through_a_module(x):
    return tools.twice(x)


def odd(n):
    return n != 0 and even(n - 1)


@torch.no_grad()
def detached(x):
    return 2 * x


def standing(x):
    return helper(x)


try:
    from nothing_that_is_installed import fast as chosen
except ImportError:

    def chosen(x):
        return F.relu(x)
""",
    "planted/tools.py": """
from .deeper import scaled
from planted.losses import odd

LIMIT: float = 4.0


def twice(x):
    return scaled(x, 2)


def even(n):
    return n == 0 or odd(n - 1)
""",
    "planted/deeper/__init__.py": "from planted.deeper.scales import scaled\n",
    "planted/deeper/scales.py": "def scaled(x, by):\n    return by * x\n",
}


@pytest.fixture
def planted(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Distribution("planted", "0.1", tmp_path)


def linked(planted, name, **given):
    return link(planted, "planted/losses.py", name, given=given)


def test_helpers_are_found_in_the_file_and_through_its_imports(planted):
    assert linked(planted, "half")(6.0) == 3.0
    assert linked(planted, "through_a_module")(5.0) == 10.0


def test_a_method_is_a_function_of_a_stand_in(planted):
    class Stand:
        factor = 10.0

    assert linked(planted, "Loss.forward")(Stand(), torch.tensor(3.0)).item() == 40.0


def test_a_class_has_its_bases_and_static_methods(planted):
    assert linked(planted, "Loss").of(4.0) == 12.0
    assert linked(planted, "Loss.of")(4.0) == 12.0


def test_functions_of_two_files_may_call_each_other(planted):
    assert [linked(planted, "odd")(n) for n in range(4)] == [False, True, False, True]


def test_what_no_standard_module_has_is_missing_when_it_is_read_and_not_before(planted):
    logged = linked(planted, "logged")
    assert logged(1.0) == math.sqrt(1.0)
    with pytest.raises(NameError, match="logger"):
        logged(4.0)


def test_a_decorator_of_gradients_is_kept(planted):
    x = torch.ones((), requires_grad=True)
    assert not linked(planted, "detached")(x).requires_grad


def test_what_is_given_stands_in_everywhere(planted):
    assert linked(planted, "standing", helper=lambda x: -x)(2.0) == -2.0
    assert linked(planted, "half", HALF=5.0)(2.0) == 10.0
    assert linked(planted, "through_a_module", scaled=lambda x, by: by - x)(5.0) == -3.0


def test_of_two_definitions_under_a_condition_one_is_found(planted):
    assert linked(planted, "chosen")(torch.tensor(-1.0)).item() == 0.0


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        ("planted/other.py", "half", r"planted 0\.1 has no file planted/other\.py"),
        ("planted/losses.py", "third", r"planted 0\.1 has no third in planted/losses\.py"),
        ("planted/losses.py", "Loss.backward", r"planted 0\.1 has no Loss\.backward in planted/losses\.py"),
    ],
)
def test_what_is_missing_is_named(planted, file, name, message):
    with pytest.raises(Unavailable, match=message):
        link(planted, file, name)
