"""Hugging Face's Trainer: LAMB, a scaled and warmed-up rate, and the noise scale of the gradients in its logs."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from rueda.integrations.transformers import NoiseScaleCallback
from rueda.optim import LAMB, parameter_groups
from rueda.optim.adapters import torch_scheduler
from rueda.optim.scaling import rate_factor
from rueda.optim.schedules import assemble

num_steps, base_batch = 12, 4
arguments = TrainingArguments(
    output_dir="trained", max_steps=num_steps, per_device_train_batch_size=4, gradient_accumulation_steps=4,
    logging_steps=4, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
)  # fmt: skip

set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
tokens = torch.randint(0, 64, (512, 16), generator=torch.Generator().manual_seed(1)).cumsum(1) % 64
data = [{"input_ids": row, "labels": row} for row in tokens]

batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
rates = assemble(
    base_rate=0.005, peak_rate=0.005 * rate_factor("sqrt", batch / base_batch),
    num_steps=num_steps, warmup_steps=4, schedule="cosine",
)  # fmt: skip
optimizer = LAMB(parameter_groups(model, weight_decay=0.01), lr=rates(0))
trainer = Trainer(
    model, arguments, train_dataset=data, optimizers=(optimizer, torch_scheduler(optimizer, rates)),
    callbacks=[NoiseScaleCallback(every=1)],
)  # fmt: skip
trainer.train()
if trainer.is_world_process_zero():
    for row in trainer.state.log_history:
        if "loss" in row:
            print({name: round(float(row[name]), 4) for name in ("step", "loss", "learning_rate", "noise_scale_low")})
