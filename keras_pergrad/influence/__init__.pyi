from keras_pergrad.influence.attribution import Influence as Influence
from keras_pergrad.influence.attribution import Top as Top
from keras_pergrad.influence.fisher_information import (
    DiagonalFisher as DiagonalFisher,
)
from keras_pergrad.influence.fisher_information import (
    KroneckerFisher as KroneckerFisher,
)
from keras_pergrad.influence.fisher_information import fisher as fisher
