"""What LARS, LAMB and NovoGrad share: one step over many tensors, in as few passes over memory as the formula allows.

A step takes one of two paths, tensor by tensor:

- **host** (:mod:`.host`): plain float32 and float64 tensors on the CPU. Norms are host numbers, and the
  update is one of torch's fused CPU kernels, called so that it computes this optimizer's formula; small
  tensors are finished while they are still in the cache.
- **lanes** (:mod:`.lanes`): everything else, such as CUDA, sharded (``DTensor``) and half-precision
  parameters and compiled steps. Norms are a vector on the device, reduced across shards, the update is a
  chain of ``torch._foreach_*`` and nothing waits for the device (except ``nonfinite="raise"``, which reads
  one flag a lane).
"""
