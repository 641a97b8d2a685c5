from keras_pergrad.influence.attribution import Influence as Influence
from keras_pergrad.influence.attribution import Top as Top
from keras_pergrad.influence.fisher_information import fisher as fisher
from keras_pergrad.influence.fisher_parts import (
    DiagonalFisher as DiagonalFisher,
)
from keras_pergrad.influence.fisher_parts import (
    KroneckerFisher as KroneckerFisher,
)
