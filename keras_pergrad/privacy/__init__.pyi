from keras_pergrad.privacy.audit import AuditResult as AuditResult
from keras_pergrad.privacy.audit import audit_privacy as audit_privacy
from keras_pergrad.privacy.training import PrivateTraining as PrivateTraining
