"""One-line mistakes in the rules, row by row of docs/scenarios.md, and what finds each.

The simulation need not find these: each has a test of its own, which must fail.
"""

from tests.mutations import rows_of_diego as diego
from tests.mutations import rows_of_iris as iris
from tests.mutations import rows_of_others as others
from tests.mutations import rows_of_sokovan as sokovan
from tests.mutations.row_mutation import RowMutation

ROWS: tuple[RowMutation, ...] = (
    *iris.S0_1,
    *iris.S0_2,
    *iris.S0_3,
    *iris.S0_4,
    *iris.S0_5,
    *iris.S0_6,
    *iris.S0_6_MASS_LOSS,
    *iris.S0_7,
    *iris.S0_8,
    *iris.S0_9,
    *iris.S0_10,
    *iris.S0_11,
    *others.S1_1,
    *others.S1_2,
    *others.S1_3,
    *others.S1_6,
    *others.S1_7,
    *diego.S2_1,
    *others.S2_2,
    *diego.S2_3,
    *diego.S2_4,
    *diego.S2_5,
    *sokovan.S3_1,
    *sokovan.S3_2,
    *sokovan.S3_3,
    *sokovan.S3_4,
    *sokovan.S3_5,
    *sokovan.S3_6,
    *sokovan.S3_7,
    *others.S4_1,
    *others.S4_2,
    *others.S4_3,
    *others.S4_4,
    *others.SUBMISSION,
    *others.DEPENDENCIES,
)
