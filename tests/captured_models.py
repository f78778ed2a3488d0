# mypy: disallow-subclassing-any=False
"""Small models to capture, built from `torch.nn` alone, and a count of what autograd saves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackswap.models.traces.capture.user_step import UserStep


def small_gpt(
    *, layers: int = 2, hidden: int = 32, heads: int = 4, sequence: int = 16, batch: int = 2, vocabulary: int = 64
) -> UserStep:
    """Embeddings, dropout, pre-norm blocks with fused attention (split, views, residual adds), cross entropy."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.fc_1, self.fc_2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            shape = (batch, sequence, heads, hidden // heads)
            query, key, value = (
                part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(hidden, dim=2)
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.dropout(self.projection(mixed.transpose(1, 2).reshape(x.shape)))
            return x + self.dropout(self.fc_2(functional.gelu(self.fc_1(self.norm_2(x)))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(sequence, hidden)
            self.dropout = nn.Dropout(0.1)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, vocabulary, bias=False)

        def forward(self, tokens: Any, targets: Any) -> Any:
            x = self.dropout(self.tokens(tokens) + self.positions(torch.arange(sequence, device=tokens.device)))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    words = torch.randint(0, vocabulary, (batch, sequence + 1))
    return Gpt(), (words[:, :-1].contiguous(), words[:, 1:].contiguous()), None


def small_resnet(*, width: int = 8, size: int = 32, batch: int = 4) -> UserStep:
    """Stem with max pool, residual blocks (in-place ReLU, batch norm, a strided shortcut), dropout, a linear head."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Residual(nn.Module):
        def __init__(self, n_in: int, n_out: int, stride: int) -> None:
            super().__init__()
            self.conv_1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
            self.conv_2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
            self.norm_1, self.norm_2 = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)
            self.relu = nn.ReLU(inplace=True)
            self.shortcut: nn.Module = nn.Identity()
            if stride > 1:
                self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

        def forward(self, x: Any) -> Any:
            y = self.norm_2(self.conv_2(self.relu(self.norm_1(self.conv_1(x)))))
            y += self.shortcut(x)
            return self.relu(y)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
            )
            self.pool = nn.MaxPool2d(3, 2, 1)
            self.layers = nn.Sequential(Residual(width, width, 1), Residual(width, 2 * width, 2))
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, 10))

        def forward(self, images: Any, labels: Any) -> Any:
            scores = self.head(self.layers(self.pool(self.stem(images))))
            return {"loss": functional.cross_entropy(scores, labels), "scores": scores}

    batched = {"images": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 10, (batch,))}
    return Classifier(), batched, None


def resnet_50(*, batch: int = 32) -> UserStep:
    """ResNet-50 with in-place ReLU, as a list of stages of blocks; the labels stand in the loss."""
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self, n_in: int, width: int, stride: int) -> None:
            super().__init__()
            n_out = 4 * width
            self.conv_1, self.norm_1 = nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv_2, self.norm_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv_3, self.norm_3 = nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out)
            self.relu = nn.ReLU(inplace=True)
            self.shortcut: nn.Module = nn.Identity()
            if n_in != n_out:
                self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norm_1(self.conv_1(x)))
            y = self.norm_3(self.conv_3(self.relu(self.norm_2(self.conv_2(y)))))
            y += self.shortcut(x)
            return self.relu(y)

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    n_in = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        later = [Bottleneck(4 * width, width, 1) for _ in range(count - 1)]
        layers.append(nn.Sequential(Bottleneck(n_in, width, stride), *later))
        n_in = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    labels = torch.randint(0, 1000, (batch,))
    return model, torch.randn(batch, 3, 224, 224), lambda y: nn.functional.cross_entropy(y, labels)


def perceptron() -> UserStep:
    """Two layers; the labels (8 x 4 floats) stand in the loss, so that they exist before the step."""
    import torch
    from torch import nn

    labels = torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    return model, torch.randn(8, 16), lambda output: nn.functional.mse_loss(output, labels)


def checkpointed() -> UserStep:
    """Three numbered blocks that recompute their activations in the backward pass."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16)) for _ in range(3)
            )

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return x

    return Checkpointed(), torch.randn(8, 16), lambda output: output.square().mean()


def scalars_and_gates() -> UserStep:
    """Arithmetic with numbers, an in-place SiLU that has to copy its input, autocast, an annotation of the user's own."""
    import torch
    from torch import nn

    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)
            self.norm, self.gate = nn.GroupNorm(2, 8), nn.SiLU(inplace=True)

        def forward(self, x: Any) -> Any:
            with torch.profiler.record_function("stage.0"):
                x = self.gate(self.norm(self.enter(x)))
            x = x * 2 + x.sigmoid() / 3 - x.pow(3)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.leave(x)

    return Gates(), torch.randn(2, 3, 16, 16), lambda output: output.float().square().sum()


def unstable() -> UserStep:
    """A model that runs one operator more in every third step."""
    import torch
    from torch import nn

    class Unstable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.steps = nn.Linear(4, 4), 0

        def forward(self, x: Any) -> Any:
            self.steps += 1
            x = self.layer(x)
            return x.exp() if self.steps % 3 == 0 else x

    return Unstable(), torch.randn(2, 4), lambda output: output.sum()


def saved_storage_bytes(step: UserStep) -> int:
    """Bytes of the storages that autograd saves in one forward pass and that are no parameter and no buffer."""
    import torch

    model, inputs, loss = step
    state = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if isinstance(inputs, dict):
            output = model(**{name: tensor.clone() for name, tensor in inputs.items()})
        else:
            output = model(*[tensor.clone() for tensor in (inputs if isinstance(inputs, tuple) else (inputs,))])
        scalar = output if loss is None else loss(output)
    del scalar, output
    return sum(storage.nbytes() for address, storage in kept.items() if address not in state)
