"""Restore and rescale: the state of a checkpoint for a query of another shape, in metadata time.

Pure decisions: `plan` (operators and key groups), `additions` (operators that are new), `target`
(the bytes of a restored directory). Storage: `state` and `source` find what is restored, `inplace`
rescales a directory, `materialize` makes a new one, with `copies`; `markers` and `exclusive` keep
others away meanwhile. State itself is never rewritten here: partitions cut their part of it out of
the files when they load a manifest.
"""

from sparkckpt.restoration.inplace import rescale
from sparkckpt.restoration.materialize import restore
from sparkckpt.restoration.report import OperatorReport, RescaleReport, RestoreReport

__all__ = ["OperatorReport", "RescaleReport", "RestoreReport", "rescale", "restore"]
