"""Records inputs and outputs of the reference's modules; measures distances of results."""

import diffusers
import transformers

for library in (diffusers, transformers):  # suppress the libraries' load reports
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()


def relative(a, b):
    """Returns the relative L2 distance of tensor a from the truth b."""
    a, b = a.double().flatten(), b.double().flatten()
    return float((a - b).norm() / b.norm())


def without_frame(t):
    """Removes a video's frame axis: returns [N, C, h, w] of its first frame."""
    return t[:, :, 0] if t.dim() == 5 else t


class Watch:
    """Records the first input and the output of modules during a forward pass."""

    def __init__(self, modules):
        self.modules, self.tensors, self.hooks = modules, {}, []

    def __enter__(self):
        for name, module in self.modules.items():
            def hook(_module, args, kwargs, out, name=name):
                value = args[0] if args else kwargs["hidden_states"]
                self.tensors[f"{name}.in"] = value.clone()
                self.tensors[f"{name}.out"] = (out[0] if isinstance(out, tuple) else out).clone()
            self.hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()
