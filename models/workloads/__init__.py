"""The paper's four workloads, one builder per model family; every dimension is a parameter.

`WORKLOADS` is the registry: the command line, the tests and the documentation read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from slackswap.models.workloads.bert import BertParameters, build_bert
from slackswap.models.workloads.gpt import build_gpt
from slackswap.models.workloads.llama import build_llama
from slackswap.models.workloads.transformer import TransformerParameters
from slackswap.models.workloads.vgg import VggParameters, build_vgg
from slackswap.models.workloads.workload import Parameters, Workload

__all__ = ["WORKLOADS", "Parameters", "Workload"]

_PRESETS: tuple[Workload[Any], ...] = (
    Workload(
        "bert-large",
        "BERT-Large: 24 layers, hidden 1024, 32 x 512 tokens, masked-language-model head on 80 positions",
        BertParameters(layers=24, hidden=1024, heads=16, vocabulary=30522, sequence=512, batch=32, predictions=80),
        build_bert,
    ),
    Workload(
        "gpt2-xl",
        "GPT-2 XL: 48 layers, hidden 1600, 8 x 1024 tokens, dropout",
        TransformerParameters(layers=48, hidden=1600, heads=25, vocabulary=50257, sequence=1024, batch=8),
        build_gpt,
    ),
    Workload(
        "llama-7b",
        "Llama-2-7B style: 32 layers, hidden 4096, 2 x 4096 tokens, RMSNorm, SwiGLU, no dropout",
        TransformerParameters(layers=32, hidden=4096, heads=32, vocabulary=32000, sequence=4096, batch=2, ffn=11008),
        build_llama,
    ),
    Workload(
        "vgg-16",
        "VGG-16: 128 images of 224 x 224",
        VggParameters(batch=128),
        build_vgg,
    ),
)
WORKLOADS: Mapping[str, Workload[Any]] = MappingProxyType({preset.name: preset for preset in _PRESETS})
