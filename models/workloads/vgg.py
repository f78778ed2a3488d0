"""VGG image classifiers: five stages of 3 x 3 convolutions, a max-pool after each, three fully connected layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Rebuild
from slackswap.models.workloads.declarations import metadata
from slackswap.models.workloads.recorder import IterationRecorder
from slackswap.models.workloads.workload import Parameters

# Table 1 of the VGG paper: convolutions per stage.
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
STAGE_WIDTHS = (1, 2, 4, 8, 8)
INPUT_CHANNELS = 3
HEURISTICS = (
    "ReLU is a kernel of its own that rewrites its convolution's output in place: one saved tensor per convolution",
    "ReLU and dropout of a fully connected layer are one kernel that rewrites its output in place",
    "ReLU and dropout share the layer of what they follow, in both passes: no per-layer barrier parts them",
)
LEFT_OUT = (
    "pool indices: the backward pass finds the maxima again from input and output",
    "convolution workspaces",
    "copying the input batch to the GPU",
    "parameters, their gradients and the optimizer, which stay on the GPU outside the budget",
)


@dataclass(frozen=True, kw_only=True)
class VggParameters(Parameters):
    """Dimensions of a VGG network.

    Attributes
    ----------
    depth : int
        Layers with weights: 11, 13, 16 or 19.
    width : int
        Channels of the first stage; the others have 2, 4, 8 and 8 times as many.
    image : int
        Height and width of an input image, at least 32.
    hidden, classes : int
        Units of the first two fully connected layers, and of the last.
    """

    depth: int = 16
    width: int = 64
    image: int = 224
    hidden: int = 4096
    classes: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth not in STAGES:
            raise InputError(f"is one of {', '.join(map(str, STAGES))}, not {self.depth}", place="depth")
        if self.image < 1 << len(STAGE_WIDTHS):
            raise InputError(f"five pools need images of at least 32 pixels, not {self.image}", place="image")


@dataclass(frozen=True)
class Activation:
    """One saved activation on its way through the forward pass: tensor index, bytes, channels (or units)."""

    tensor: int
    size_bytes: int
    channels: int


def build_vgg(name: str, parameters: VggParameters, hardware: Hardware) -> Problem:
    """Return one training iteration of a VGG network; refuse a dtype that the GPU lacks (InputError)."""
    dtype = parameters.dtype_on(hardware.gpu)
    recorder = IterationRecorder(hardware, dtype)
    tape = VggTape(recorder, parameters)
    tape.forward()
    recorder.start_backward()
    for backward in reversed(tape.backward):
        backward()
    return recorder.problem(name, metadata(parameters, dtype, heuristics=HEURISTICS, left_out=LEFT_OUT))


@dataclass(frozen=True)
class VggTape:
    """Records the forward pass, and keeps per layer the function that records its backward pass, as autograd does.

    Workspace of a backward operator is the gradients that it reads and writes.
    """

    recorder: IterationRecorder
    parameters: VggParameters
    backward: list[Callable[[], None]] = field(default_factory=list)

    def forward(self) -> None:
        """Record the forward pass; nothing rebuilds the input batch."""
        p, image = self.parameters, self.parameters.image
        self.recorder.given("batch")
        size_bytes = self._bytes(INPUT_CHANNELS, image)
        x = Activation(self.recorder.saved("batch", size_bytes), size_bytes, INPUT_CHANNELS)
        for stage, (convolutions, factor) in enumerate(zip(STAGES[p.depth], STAGE_WIDTHS, strict=True)):
            for i in range(convolutions):
                x = self._convolution(f"{stage + 1}_{i + 1}", stage, x, factor * p.width, image)
            image //= 2
            x = self._pool(f"pool{stage + 1}", x, image)
        x = Activation(x.tensor, x.size_bytes, x.channels * image * image)
        for name in ("6", "7"):
            x = self._dropout(name, self._fully_connected(name, x, p.hidden, dropped=True))
        self._loss(self._fully_connected("8", x, p.classes, dropped=False))

    def _convolution(self, name: str, stage: int, x: Activation, channels: int, image: int) -> Activation:
        recorder = self.recorder
        flops = 2 * self.parameters.batch * x.channels * channels * 9 * image * image
        size_bytes = self._bytes(channels, image)
        seconds = recorder.convolution(f"conv{name}", flops, rectified_bytes=size_bytes, reads=[x.tensor])
        y = recorder.saved(f"conv{name}", size_bytes, block=stage, rebuild=Rebuild(seconds, (x.tensor,)))
        # The first layer needs no gradient of the batch.
        gradients, gradient_bytes = (2, x.size_bytes) if self.backward else (1, 0)

        def backward() -> None:
            recorder.memory_bound(f"relu{name}'", "elementwise", 3 * size_bytes, reads=[y], workspace_bytes=size_bytes)
            recorder.join_layer()
            recorder.convolution_backward(
                f"conv{name}'",
                flops,
                gradients=gradients,
                reads=[x.tensor],
                workspace_bytes=size_bytes + gradient_bytes,
            )

        self.backward.append(backward)
        return Activation(y, size_bytes, channels)

    def _pool(self, name: str, x: Activation, image: int) -> Activation:
        recorder, size_bytes = self.recorder, self._bytes(x.channels, image)
        seconds = recorder.memory_bound(name, "other", x.size_bytes + size_bytes, reads=[x.tensor])
        # No block: what a stage is recomputed from stays.
        y = recorder.saved(name, size_bytes, rebuild=Rebuild(seconds, (x.tensor,)))

        def backward() -> None:
            both_bytes = x.size_bytes + size_bytes
            recorder.memory_bound(f"{name}'", "other", 2 * both_bytes, reads=[x.tensor, y], workspace_bytes=both_bytes)

        self.backward.append(backward)
        return Activation(y, size_bytes, x.channels)

    def _fully_connected(self, name: str, x: Activation, units: int, *, dropped: bool) -> Activation:
        recorder, outputs = self.recorder, self.parameters.batch * units
        flops, size_bytes = 2 * outputs * x.channels, recorder.element_bytes * outputs
        seconds = recorder.gemm(f"fc{name}", flops, reads=[x.tensor])
        if dropped:
            seconds += recorder.memory_bound_s(2 * size_bytes + outputs)
        y = recorder.saved(f"fc{name}", size_bytes, rebuild=Rebuild(seconds, (x.tensor,)))

        def backward() -> None:
            if dropped:
                recorder.join_layer()
            recorder.gemm_backward(f"fc{name}'", flops, reads=[x.tensor], workspace_bytes=size_bytes + x.size_bytes)

        self.backward.append(backward)
        return Activation(y, size_bytes, units)

    def _dropout(self, name: str, x: Activation) -> Activation:
        recorder, mask_bytes = self.recorder, self.parameters.batch * x.channels
        recorder.join_layer()
        recorder.memory_bound(f"dropout{name}", "dropout", 2 * x.size_bytes + mask_bytes, reads=[x.tensor])
        rebuild = Rebuild(recorder.memory_bound_s(mask_bytes))
        mask = recorder.saved(f"mask{name}", mask_bytes, rebuild=rebuild)

        def backward() -> None:
            recorder.memory_bound(
                f"dropout{name}'",
                "dropout",
                3 * x.size_bytes + mask_bytes,
                reads=[x.tensor, mask],
                workspace_bytes=x.size_bytes,
            )

        self.backward.append(backward)
        return x

    def _loss(self, x: Activation) -> None:
        self.recorder.memory_bound("loss", "loss", x.size_bytes, reads=[x.tensor])

        def backward() -> None:
            self.recorder.memory_bound(
                "loss'", "loss", 2 * x.size_bytes, reads=[x.tensor], workspace_bytes=x.size_bytes
            )

        self.backward.append(backward)

    def _bytes(self, channels: int, image: int) -> int:
        return self.recorder.element_bytes * self.parameters.batch * channels * image * image
