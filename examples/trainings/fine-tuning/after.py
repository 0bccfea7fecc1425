"""Fine-tune a small BERT to tell good reviews from bad ones."""

import argparse
import random

import rueda
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    get_scheduler,
)

WORDS = {1: ["good", "great", "lovely", "clever"], 0: ["bad", "dull", "awful", "silly"]}
OTHERS = ["the", "a", "film", "book", "song", "story", "was", "is", "and", "but", "very", "quite", "today"]


def reviews(count, seed):
    """Write reviews of different lengths; most of their judging words fit their label."""
    rng = random.Random(seed)
    rows = {"text": [], "label": []}
    for number in range(count):
        label = number % 2
        words = rng.choices(OTHERS, k=rng.randint(3, 20))
        words += [rng.choice(WORDS[label if rng.random() < 0.85 else 1 - label]) for _ in range(3)]
        rows["text"].append(" ".join(rng.sample(words, len(words))))
        rows["label"].append(label)
    return Dataset.from_dict(rows)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--warmup-ratio", type=float, default=0.1)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--output", default="tuned")
args = parser.parse_args()

torch.manual_seed(0)
world = rueda.init()
device = world.device

# Tokenizer, model and data are made here; elsewhere they are downloaded, with from_pretrained and load_dataset.
words = ["[PAD]", "[UNK]", *OTHERS, *WORDS[0], *WORDS[1]]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
config = BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    hidden_dropout_prob=args.dropout, attention_probs_dropout_prob=args.dropout,
)  # fmt: skip
model = BertForSequenceClassification(config).to(device)


def tokenize(rows):
    """Turn texts into tokens; the collator pads them to the longest of their batch."""
    return tokenizer(rows["text"], truncation=True, max_length=32)


collate = DataCollatorWithPadding(tokenizer)
train_set = reviews(240, seed=1).map(tokenize, batched=True, remove_columns=["text"])
eval_set = reviews(75, seed=2).map(tokenize, batched=True, remove_columns=["text"])
train_loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=collate)
train_loader = world.loader(train_loader, split_batch=True)
eval_loader = DataLoader(eval_set, args.batch_size, collate_fn=collate)

model = world.wrap(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
num_steps = args.epochs * len(train_loader)
scheduler = get_scheduler("linear", optimizer, int(args.warmup_ratio * num_steps), num_steps)

for epoch in range(args.epochs):
    model.train()
    for batch in train_loader:
        loss = model(**batch.to(device)).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    model.eval()
    correct = 0
    for batch, weights in rueda.data.EvalLoader(eval_loader):
        with torch.no_grad():
            predictions = model(**batch.to(device)).logits.argmax(-1)
        correct += ((predictions == batch["labels"]) * weights).sum()
    world.on_main(print, f"epoch {epoch}: accuracy {world.all_reduce(correct) / len(eval_set):.1%}")

world.on_main(world.unwrap(model).save_pretrained, args.output)
world.on_main(tokenizer.save_pretrained, args.output)
