"""Optimiser: Muon for the matrices of blocks, AdamW for all other parameters, over one flat shared vector.

Each worker updates its part of the vector, which also divides the optimiser's cost. The state is flat, too: a
checkpoint is four vectors.
"""
import torch


def orthogonal(g, steps=5):
    """Newton-Schulz iteration: approximates U V^T of (K, M, N) matrices (Jordan et al., Muon, 2024)."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()  # bf16 is precise enough and five times as fast
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x if wide else x.mT).float()


def is_matrix_of_a_block(name, p):
    return p.ndim == 2 and (".attention." in name or ".feed_forward." in name or ".self_attn." in name or ".mlp." in name)


class Layout:
    """Position of each trained parameter in the flat vector: Muon's first, then AdamW's."""

    def __init__(self, model, muon=True):
        last = f"text.layers.{len(model.text.layers) - 1}."  # unused: the pipeline reads hidden_states[-2]
        named = [(n, p) for n, p in model.named_parameters() if not n.startswith((last, "text.norm"))]
        chosen = [(n, p) for n, p in named if muon and is_matrix_of_a_block(n, p)]
        rest = [(n, p) for n, p in named if not (muon and is_matrix_of_a_block(n, p))]
        self.entries, offset = [], 0
        for n, p in chosen + rest:
            self.entries.append((n, offset, p.shape))
            offset += p.numel()
        self.n_muon, self.size = len(chosen), offset
        self.adam_start = self.entries[self.n_muon][1]

    def views(self, flat):
        return [flat[o:o + shape.numel()].view(shape) for _, o, shape in self.entries]

    def bind(self, model, flat, grad=None, fill=False):
        """Makes parameters (and gradients) views of the flat vectors; `fill` first copies the model's values there."""
        parameters = dict(model.named_parameters())
        for (name, _, _), view in zip(self.entries, self.views(flat)):
            if fill:
                view.copy_(parameters[name].data)
            parameters[name].data = view
        if grad is not None:
            for (name, _, _), view in zip(self.entries, self.views(grad)):
                parameters[name].grad = view


class Optimiser:
    def __init__(self, layout, flat, state, worker=0, workers=1, weight_decay=.02, beta=.95, betas=(.9, .98)):
        """state: (2, size): momentum; second moment of AdamW's part."""
        self.layout, self.beta, self.betas, self.weight_decay = layout, beta, betas, weight_decay
        by_shape = {}
        for i, (_, _, shape) in enumerate(layout.entries[:layout.n_muon]):
            by_shape.setdefault(tuple(shape), []).append(i)
        self.stacks = [mine for members in by_shape.values() if (mine := members[worker::workers])]
        length = layout.size - layout.adam_start
        self.slice = slice(layout.adam_start + length * worker // workers,
                           layout.adam_start + length * (worker + 1) // workers)
        self.flat, self.state = flat, state
        self.parameters, self.momenta = layout.views(flat), layout.views(state[0])

    def step(self, grads, rate, step):
        """One update. grads: flat gradients of all workers, summed here. step: from 1."""
        views = [self.layout.views(g) for g in grads]
        for members in self.stacks:
            g = torch.stack([sum(v[i] for v in views) for i in members])
            m = [self.momenta[i] for i in members]
            torch._foreach_lerp_(m, list(g.unbind()), 1 - self.beta)
            update = orthogonal(torch.lerp(g, torch.stack(m), self.beta))
            # Scales updates to AdamW's size (Liu et al., Muon is scalable, 2025), so both use one learning rate.
            scale = rate * .2 * max(update.shape[-2:]) ** .5
            p = [self.parameters[i] for i in members]
            torch._foreach_mul_(p, 1 - rate * self.weight_decay)
            torch._foreach_add_(p, list(update.unbind()), alpha=-scale)
        part = self.slice
        g = sum(grad[part] for grad in grads)
        m, v = self.state[0][part], self.state[1][part]
        m.lerp_(g, 1 - self.betas[0])
        v.lerp_(g * g, 1 - self.betas[1])
        denominator = (v / (1 - self.betas[1] ** step)).sqrt_().add_(1e-8)
        self.flat[part].addcdiv_(m, denominator, value=-rate / (1 - self.betas[0] ** step))
