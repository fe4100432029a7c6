"""What is learned: a text as bytes or token ids, in two parts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evenkeel._options.study import BYTES


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training and validation text, as bytes or as token ids.

    Attributes:
        source: where it came from, in words.
        train: what is to be learned, in the narrowest unsigned dtype of the vocabulary: uint8 for bytes.
        validation: what is held out, likewise.
        train_files: number of files in `train`.
        validation_files: number of files in `validation`; both are 1 when one file was split by position.
        skipped_files: files of a directory left out because they are empty, unreadable or not UTF-8 text.
        duplicate_files: files of a directory left out because another has exactly their content.
        frequency_loss: nats per unit on the validation part of a guess from the training part's frequencies alone; a
            model that does no better has learned nothing from context.
        digest: SHA-256 of both parts, and of the vocabulary of tokens, by which a resumed study recognises its text.
        unit: ``byte`` or ``token``.
        vocabulary: how many different bytes or tokens there can be.

    Example:
        >>> import tempfile, pathlib
        >>> from evenkeel.lab import load_corpus
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text = pathlib.Path(folder, "poem.txt")
        ...     _ = text.write_text("all work and no play " * 50)
        ...     corpus = load_corpus(text, context=16)
        >>> len(corpus.train), len(corpus.validation)
        (945, 105)
    """

    source: str
    train: Tensor
    validation: Tensor
    train_files: int
    validation_files: int
    skipped_files: int
    duplicate_files: int
    frequency_loss: float
    digest: str
    unit: str = "byte"
    vocabulary: int = BYTES

    def describe(self) -> dict[str, str | int | float]:
        """Return what the summary says about the text."""
        return {
            "source": self.source,
            "train_files": self.train_files,
            "validation_files": self.validation_files,
            "skipped_files": self.skipped_files,
            "duplicate_files": self.duplicate_files,
            f"train_{self.unit}s": len(self.train),
            f"validation_{self.unit}s": len(self.validation),
            "frequency_loss": self.frequency_loss,
            "digest": self.digest,
            "unit": self.unit,
            "vocabulary": self.vocabulary,
        }
