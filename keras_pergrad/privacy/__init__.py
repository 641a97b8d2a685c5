"""Private training: from a budget for epsilon to a checked statement."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_pergrad.privacy.audit import AuditResult, audit_privacy
    from keras_pergrad.privacy.training import PrivateTraining
else:
    from keras_pergrad.common.lazy_names import lazy

    __getattr__ = lazy(
        __name__,
        {
            "audit": ("AuditResult", "audit_privacy"),
            "training": ("PrivateTraining",),
        },
    )

__all__ = ["AuditResult", "PrivateTraining", "audit_privacy"]
