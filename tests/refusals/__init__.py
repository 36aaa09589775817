"""What the package says to bad input: a catalogue of cases, every message made by running one.

>>> from tests.refusals import CASES, run
>>> run(CASES[0]).exception
'ValueError'
"""

from tests.refusals.case import Case as Case
from tests.refusals.case import Exit as Exit
from tests.refusals.case import Refusal as Refusal
from tests.refusals.case import parts as parts
from tests.refusals.case import run as run
from tests.refusals.case import unclear as unclear
from tests.refusals.catalog import CASES as CASES
from tests.refusals.catalog import GROUPS as GROUPS
