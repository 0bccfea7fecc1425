"""``rueda scale``: a serial PyTorch script runs on N workers, unchanged, and does the same training.

The script knows nothing of workers: it has a ``DataLoader``, a model, an optimizer, a loop, ``print`` and
``torch.save``. Every worker runs it from its first line to its last. What differs between the workers is replaced in
torch itself, before the script starts:

=====================  =================================================================================================
:mod:`.loader`         every worker draws the batch that the serial script would draw, and keeps its share of it
:mod:`.backward`       every backward pass ends with the gradient of the entire batch, the same on all workers
:mod:`.draws`          dropout and noise of a batch are drawn for the entire batch, and each worker uses its rows
:mod:`.batch_norm`     batch norm uses the statistics of the share, or those of the entire batch
:mod:`.files`          rank 0 alone writes files; those of the others go to a private folder
:mod:`.steps`          what must be equal on all workers is compared while they train
:mod:`.weak`           with ``--weak``: the script's batch for each worker, and a rate that follows
:mod:`.evaluation`     with ``--share-evaluation``: forward passes without gradients are shared out
:mod:`.losses`         shares are weighed by what their loss divides by
:mod:`.verification`   the first shared gradients are compared with those of the script on one worker
=====================  =================================================================================================

**Which loops train is never guessed.** A loader gives every worker the entire batch until a backward pass has followed
one of its batches; from then on its batches are shared out. A step on entire batches gives the same gradient on every
worker, so both kinds of steps, in any order, are the serial script's. Evaluation never comes to a backward pass, and
sees all data on every worker.

**The gradient.** A worker with n of the batch's B examples has the gradient g of the mean over its share. The gradient
of the mean over the batch is the sum of n/B g over the workers: the average over N workers of (n N / B) g. For equal
shares the factor is 1, so the script's own backward pass runs as it is.
"""
