"""Padding in a batch of sequences changes BatchNorm's statistics. A mask keeps it out."""

import torch

import evenkeel as ek

torch.manual_seed(0)
CHANNELS = 8
lengths = torch.randint(5, 60, (32,))
sequences = [5.0 + 2.0 * torch.randn(CHANNELS, int(length)) for length in lengths]


def padded(to):
    """Return the sequences as one batch (32, channels, time) with zeros after their ends, and where they are valid."""
    batch = torch.stack([torch.nn.functional.pad(s, (0, to - s.shape[1])) for s in sequences])
    return batch, torch.arange(to) < lengths[:, None]


batch, mask = padded(60)
valid = torch.cat(sequences, dim=1)
print(f"{1 - mask.float().mean():.0%} of the batch is padding")
print(f"truth:             mean {valid.mean():.3f}, deviation {valid.std():.3f}")

# momentum=1: the running statistics are those of this batch
norms = {
    "torch.nn": torch.nn.BatchNorm1d(CHANNELS, momentum=1.0),
    "evenkeel with mask": ek.nn.BatchNorm1d(CHANNELS, momentum=1.0),
}
outputs = {
    "torch.nn": norms["torch.nn"](batch),
    "evenkeel with mask": norms["evenkeel with mask"](batch, mask=mask),
}
for name, norm in norms.items():
    print(f"{name + ':':18} mean {norm.running_mean.mean():.3f}, deviation {norm.running_var.mean().sqrt():.3f}")

# The same sequences with twice the padding: what is computed for them must not change.
longer, longer_mask = padded(120)
again = {
    "torch.nn": norms["torch.nn"](longer),
    "evenkeel with mask": norms["evenkeel with mask"](longer, mask=longer_mask),
}
for name in norms:
    change = (again[name][:, :, :60] - outputs[name]).transpose(1, 2)[mask].abs().max()
    print(f"{name}: twice the padding changes outputs by at most {change:.2g}")

assert not outputs["evenkeel with mask"].transpose(1, 2)[~mask].any()  # padding stays 0
