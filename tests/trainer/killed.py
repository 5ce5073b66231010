"""A training that tests kill: ``python killed.py DIRECTORY KIND [asynchronous]``. Prints each step's loss, bit by bit."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import trainer_jobs as jobs

import oneflow as flow

ROWS, BATCH, EPOCHS = 150, 10, 4


def augmented(batch, rng):
    x, labels = batch
    return x + 0.1 * rng.standard_normal(x.shape, np.float32), labels


def data_of(kind):
    x, labels = jobs.data(ROWS)
    if kind == "arrays":
        return flow.data.ArrayLoader((x, labels), BATCH, shuffle=True, seed=2, transform=augmented, num_workers=2)
    import torch

    class Noisy(torch.utils.data.TensorDataset):
        def __getitem__(self, i):
            row, label = super().__getitem__(i)
            return row + 0.1 * torch.randn(4), label

    return torch.utils.data.DataLoader(Noisy(torch.from_numpy(x), torch.from_numpy(labels)), BATCH, shuffle=True)


def report(step, logs):
    print(step, logs["loss"].hex(), flush=True)


def main(directory, kind, asynchronous):
    saving = flow.callbacks.ModelCheckpoint(
        directory, monitor="val_loss", save_top_k=2, save_last=True, every_n_steps=4, asynchronous=asynchronous
    )
    trainer = flow.Trainer(
        max_epochs=EPOCHS,
        callbacks=[
            flow.callbacks.LambdaCallback(on_train_batch_end=report),
            flow.callbacks.EarlyStopping("val_loss", patience=1000),
            saving,
        ],
        logger=flow.loggers.CSVLogger(directory, version=0, flush_seconds=0.0),
        metrics=flow.metrics.Accuracy(),
        val_check_interval=0.4,
        log_every_n_steps=3,
        enable_progress_bar=False,
        seed=11,
    )
    history = trainer.fit(jobs.train_job(BATCH, dropout=True), data_of(kind), jobs.eval_job(), jobs.data(35, 1), ckpt_path="last")
    for row in history.rows:
        print("row", sorted((name, float(value).hex()) for name, value in row.items()), flush=True)
    print("best", saving.best_model_path, saving.best_model_score, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "asynchronous" in sys.argv[3:])
