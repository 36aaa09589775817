"""Frameworks are found by their files."""

from kl_companion.frameworks import FRAMEWORKS, framework, registry


def test_a_file_that_assigns_framework_is_an_adapter(tmp_path):
    (tmp_path / "zeta.py").write_text("from x import Framework\n\nFRAMEWORK = Framework()\n")
    (tmp_path / "alpha.py").write_text("FRAMEWORK = None\n")
    (tmp_path / "openrlhf.py").write_text("FRAMEWORK = None\n")
    (tmp_path / "helper.py").write_text("def f():\n    FRAMEWORK = 1\n    return FRAMEWORK == 1\n")
    assert registry._adapters(tmp_path) == ("openrlhf", "alpha", "zeta")


def test_every_adapter_names_itself_as_its_file():
    assert [framework(name).name for name in FRAMEWORKS] == list(FRAMEWORKS)
    assert all(s.name.startswith(f"{name}.") for name in FRAMEWORKS for s in framework(name).settings)
