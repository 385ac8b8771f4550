"""A few steps on images that any network can tell apart: a pattern for each class, or two of them added."""

import torch


def losses_on_separable_data(model, shape, num_classes, pairs, steps, learning_rate):
    labels = torch.arange(10) % num_classes
    patterns = torch.randn(num_classes, *shape)
    images = patterns[labels]
    if pairs:
        other = (labels + 1) % num_classes
        images, labels = images + patterns[other], torch.stack([labels, other], dim=1).sort(dim=1).values
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    for _ in range(steps):
        loss = sum(model.loss(model(images), images, labels).values())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
