"""The doctor: what a trainer's own code does, found by running it on a world that can be enumerated."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.monitor.doctor.diagnosis import Diagnosis as Diagnosis
    from kl_companion.monitor.doctor.diagnosis import diagnose as diagnose
    from kl_companion.monitor.doctor.findings import FAULTS as FAULTS
    from kl_companion.monitor.doctor.findings import DoctorFinding as DoctorFinding
    from kl_companion.monitor.doctor.world import Ids as Ids

__getattr__, __all__, __dir__ = lazy(__name__)
