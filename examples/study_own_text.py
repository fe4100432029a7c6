"""Compare norms and placements on your own text: python study_own_text.py [file or folder]."""

import sys
from pathlib import Path

from evenkeel import lab

text = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs"

# A small model at one learning rate, so that this ends within a minute on two idle cores; the default is four.
result = lab.study(
    text=text,
    arms=["none", "post-layer", "pre-layer", "pre-rms"],
    depth=6,
    width=48,
    context=48,
    batch=8,
    steps=120,
    lr=5e-3,
    seeds=1,
    progress=False,
)

corpus = result.summary["corpus"]
print(f"{corpus['train_bytes'] / 1e6:.1f} MB to learn from, of {text.name}; loss in nats per byte, lower is better\n")
print(result.table())
for finding in result.findings()[:3]:
    print(f"- {finding.title}.")

# result.page() is the report, result.figures() its figures; out="runs/mine" keeps everything and resumes.
print("\nfigures:", ", ".join(result.figures()))
