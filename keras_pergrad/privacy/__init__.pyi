from keras_pergrad.privacy.audit import AuditResult as AuditResult
from keras_pergrad.privacy.audit import audit_privacy as audit_privacy
from keras_pergrad.privacy.batch_sizes import (
    BatchSizeComparison as BatchSizeComparison,
)
from keras_pergrad.privacy.batch_sizes import BatchSizePlan as BatchSizePlan
from keras_pergrad.privacy.clipping_variants import (
    AdaptiveClippedMean as AdaptiveClippedMean,
)
from keras_pergrad.privacy.clipping_variants import (
    AutomaticClippedMean as AutomaticClippedMean,
)
from keras_pergrad.privacy.corrected_adam import corrected as corrected
from keras_pergrad.privacy.private_search import SearchResult as SearchResult
from keras_pergrad.privacy.private_search import search as search
from keras_pergrad.privacy.statement import Statement as Statement
from keras_pergrad.privacy.training import PrivateTraining as PrivateTraining
