"""``horovod.torch.elastic``: training that goes on when workers are lost and when new ones come.

::

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, num_epochs):
            for batch, (images, labels) in enumerate(loader):
                train_on(images, labels)
                sampler.record_batch(batch, batch_size)
                state.commit()
            sampler.set_epoch(state.epoch + 1)

    sampler = hvd.elastic.ElasticSampler(dataset)
    train(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0))

===========  =========================================================================================
``run``      calls the training function, again after each change (:mod:`rueda.hvd.common.elastic`)
``state``    what survives a change: models, optimizers, samplers and other values (:class:`TorchState`)
``sampler``  which examples each worker still has to train on in this epoch (:class:`ElasticSampler`)
===========  =========================================================================================
"""

from rueda.hvd.common.elastic import ObjectState, State, run
from rueda.hvd.torch.elastic.sampler import ElasticSampler
from rueda.hvd.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
