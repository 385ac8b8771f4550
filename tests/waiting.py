"""Operations for which a program waits for a GPU."""

import torch

aten = torch.ops.aten
# their result, or its shape, must be known before the program goes on; or they look for errors
FOR_RESULTS = {
    aten._local_scalar_dense, aten.nonzero, aten.is_nonzero, aten.equal, aten.masked_select, aten._unique2,
    aten.repeat_interleave, aten._linalg_check_errors,
}  # fmt: skip
FROM_NUMBERS = {aten.lift_fresh}  # tensors of Python's numbers, copied from memory that is not pinned
WAITING = FOR_RESULTS | FROM_NUMBERS
