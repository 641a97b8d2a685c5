"""Private training: from a budget for epsilon to a checked statement."""

from keras_pergrad.privacy.audit import AuditResult, audit_privacy
from keras_pergrad.privacy.training import PrivateTraining

__all__ = ["AuditResult", "PrivateTraining", "audit_privacy"]
