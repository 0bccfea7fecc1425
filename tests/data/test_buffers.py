from __future__ import annotations

import torch

from rueda.data.buffers import Buffers


def test_memory_is_not_given_again_while_anything_refers_to_it() -> None:
    buffers = Buffers()
    holders = {
        "the tensor": lambda tensor: tensor,
        "a view": lambda tensor: tensor[1:, :2],
        "an array": lambda tensor: tensor.numpy(),
        "a detached one": lambda tensor: tensor.detach(),
        "autograd": lambda tensor: (tensor * torch.ones(4, 4, requires_grad=True)).sum(),
    }
    for name, hold in holders.items():
        tensor = buffers.take((4, 4), torch.float32)
        address = tensor.data_ptr()
        held = hold(tensor)
        del tensor
        others = [buffers.take((4, 4), torch.float32) for _ in range(3)]
        assert address not in [other.data_ptr() for other in others], name
        del held, others
    addresses = {buffers.take((4, 4), torch.float32).data_ptr() for _ in range(10)}
    assert len(addresses) == 1


def test_another_shape_gets_other_memory_and_reuse_can_be_turned_off() -> None:
    buffers = Buffers()
    assert buffers.take((2, 3), torch.float32).shape == (2, 3)
    assert buffers.take((3, 2), torch.float64).dtype == torch.float64
    held = [Buffers(reuse=False).take((2,), torch.uint8) for _ in range(2)]
    assert held[0].data_ptr() != held[1].data_ptr()
