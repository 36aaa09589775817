"""The checker of shapes and types that pytest puts around the functions of kl_companion (pyproject.toml)."""

from beartype import BeartypeConf, beartype

# An int is welcome where a float is asked for, as everywhere in Python's typing.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
