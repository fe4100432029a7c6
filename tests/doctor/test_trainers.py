"""The loops of transformers and Lightning themselves under watch: accumulated gradients, evaluation in between."""

import warnings

import pytest
import torch
from torch import nn

from evenkeel.doctor import lightning_callback, transformers_callback

STEPS, EVERY = 20, 5
TRAINED, EVALUATED = 4, 6  # rows of a batch
MEASURED = [1, 5, 10, 15, 20]


def check(callback, page):
    """The steps of the optimizer are counted, and the batches of the training measured, those of the evaluation not."""
    report = callback.report
    assert f"{len(MEASURED)} of {STEPS} steps measured" in report.subject
    assert [step.step for step in report.measured.steps] == MEASURED
    assert report.measured.signals
    assert {(signal.training, signal.shape[0]) for signal in report.measured.signals} == {(True, TRAINED)}
    assert all(step.update > 0 for step in report.measured.steps[1:])
    assert all(max(step.gradient.values()) > 0 for step in report.measured.steps)
    assert report.ok
    assert page.stat().st_size > 1000
    return report


@pytest.mark.slow
def test_the_trainer_of_transformers(tmp_path):
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(**sizes, vocab_size=32, max_position_embeddings=16)
    )
    rows = [{"input_ids": torch.randint(32, (8,)), "labels": row % 2} for row in range(64)]
    page = tmp_path / "doctor.html"
    callback = transformers_callback(every=EVERY, page=page)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=TRAINED,
        per_device_eval_batch_size=EVALUATED,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:12], callbacks=[callback])
    trainer.train()
    report = check(callback, page)
    assert any(signal.site.endswith("LayerNorm") for signal in report.measured.signals)


@pytest.mark.slow
def test_the_trainer_of_lightning(tmp_path):
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

        def training_step(self, batch, _):
            return (self.body(batch) - 1).square().mean()

        def validation_step(self, batch, _):
            self.log("loss", (self.body(batch) - 1).square().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)

    torch.manual_seed(0)
    data = torch.randn(64, 4)
    page = tmp_path / "doctor.html"
    callback = lightning_callback(every=EVERY, page=page)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on loaders and loggers
        trainer = pl.Trainer(
            max_steps=STEPS,
            accumulate_grad_batches=2,
            val_check_interval=8,
            check_val_every_n_epoch=None,
            callbacks=[callback],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        loaders = [torch.utils.data.DataLoader(data, batch_size=rows) for rows in (TRAINED, EVALUATED)]
        trainer.fit(Model(), *loaders)
    report = check(callback, page)
    assert [signal.site for signal in report.measured.signals] == ["body.1"]
    assert all(step.loss > 0 for step in report.measured.steps)
