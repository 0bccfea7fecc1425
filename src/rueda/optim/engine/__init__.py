"""The code that LARS, LAMB and NovoGrad share: a step over many tensors with as few passes over memory as possible.

Each tensor takes one of two paths:

- **host** (:mod:`.host`): plain float32 and float64 tensors on the CPU. Norms are Python numbers, and the update is one
  of torch's fused CPU kernels, called such that it computes the formula of this optimizer; small tensors are finished
  while they are still in the cache.
- **lanes** (:mod:`.lanes`): all other tensors, such as CUDA, sharded (``DTensor``) and half-precision parameters, and
  compiled steps. A lane is a list of tensors that are stepped together. Norms are a vector on the device, all-reduced
  over the shards; the update is a chain of operations on one matrix that holds all tensors (:mod:`.blocks`). Nothing
  waits for the device: which tensors were not finite is read one step later (:mod:`.late`).
"""
