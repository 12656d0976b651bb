"""The import door on public programs: which are read, and whether products are those of PyTorch.

    python benchmarks/import_campaign.py [--out TABLE.md] [--only NAME ...]

Models of torchvision and timm are built without memory, those of transformers small (2 layers), all
without weights; each is exported by ``torch.export`` and read, and the FLOPs of its products are
compared with ``torch.utils.flop_counter``, which counts a forward pass. Some are written as ONNX
files by ``torch.onnx`` too, and read from there. Rows of StableHLO come from
``import_stablehlo.py``. Needs timm (not one of the test dependencies; ``--rows`` keeps its rows),
torchvision, transformers and onnxscript.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree
from torch.utils.flop_counter import FlopCounterMode

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "tests")]
import public_models  # noqa: E402  (makes torchvision importable beside a CPU build)
import transformers  # noqa: E402
from torchvision import models as vision  # noqa: E402

from meshwright.catalog.graphs.onnx_files import import_onnx  # noqa: E402
from meshwright.catalog.graphs.torch_export import import_torch  # noqa: E402
from meshwright.graph.kernels.declared import to_graph  # noqa: E402
from meshwright.graph.kernels.kernel import Unit  # noqa: E402
from meshwright.spec.graph import GraphSpec  # noqa: E402

PAGE = """# Public models through the import door

Models of torchvision, timm and transformers without weights, read, and the FLOPs of the products of
one forward pass beside those of another count. Written by
`python benchmarks/import_campaign.py --rows ROWS.tsv --out docs/results/imports.md`, its rows of
StableHLO by `python benchmarks/import_stablehlo.py --rows ROWS.tsv`. Rows of timm, which no test
needs, are of an earlier run.
"""
DOORS = {
    "onnx": (
        "ONNX files",
        "The same models, written by `torch.onnx`; beside `torch.utils.flop_counter` of the model.",
    ),
    "stablehlo": (
        "StableHLO texts",
        "Programs that JAX lowers; beside a count of the products in its jaxpr.",
    ),
}
PROGRAMS = ("Programs of PyTorch", "Exported by `torch.export`; beside `torch.utils.flop_counter`.")
Built = tuple[torch.nn.Module, tuple, dict]
VISION = """
alexnet vgg11 vgg16_bn resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121
squeezenet1_1 googlenet inception_v3 shufflenet_v2_x1_0 mobilenet_v2 mobilenet_v3_small
mobilenet_v3_large mnasnet1_0 efficientnet_b0 efficientnet_v2_s regnet_y_400mf regnet_x_400mf
convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t fcn_resnet50 deeplabv3_resnet50
lraspp_mobilenet_v3_large r3d_18 mc3_18 r2plus1d_18 s3d mvit_v1_b mvit_v2_s swin3d_t
"""
VIDEO = {"r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_t"}
TIMM = """
beit_base_patch16_224 botnet26t_256 cait_xxs24_224 coat_tiny coatnet_0_224 convit_tiny
convmixer_768_32 convnextv2_atto crossvit_9_240 cspresnet50 davit_tiny deit_tiny_patch16_224
dla34 dm_nfnet_f0 dpn68 eca_botnext26ts_256 edgenext_small efficientformer_l1
efficientformerv2_s0 efficientvit_b0 eva02_tiny_patch14_224 fastvit_t8 fbnetc_100
focalnet_tiny_srf gcvit_xxtiny ghostnet_100 gmlp_s16_224 halonet26t hardcorenas_a hgnet_tiny
hiera_tiny_224 hrnet_w18 inception_resnet_v2 inception_next_tiny lambda_resnet26t lcnet_050
levit_128s maxvit_tiny_tf_224 mixer_s16_224 mobilenetv4_conv_small mobileone_s0 mobilevit_s
mobilevitv2_050 mvitv2_tiny nest_tiny nf_resnet50 nfnet_l0 pit_ti_224 poolformer_s12 pvt_v2_b0
regnetz_b16 repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_26w_4s resmlp_12_224 resnest14d
rexnet_100 sequencer2d_s skresnet18 starnet_s1 swinv2_tiny_window8_256
swin_tiny_patch4_window7_224 tf_efficientnet_lite0 tiny_vit_5m_224 tinynet_a
tnt_s_legacy_patch16_224 tresnet_m twins_pcpvt_small vgg11 visformer_tiny vit_tiny_patch16_224
volo_d1_224 vovnet39a xception41 xcit_nano_12_p16_224
"""
TEXT = """
Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Phi Phi3 GPT2 GPTNeoX GPTJ Falcon Bloom OPT Mpt Cohere
StableLm Starcoder2 Olmo Olmo2 Granite Persimmon CodeGen BioGpt XGLM Mixtral Qwen2Moe Qwen3Moe
GptOss DeepseekV3 Glm Glm4 Nemotron Ernie4_5 SmolLM3 Mamba Arcee Apertus Exaone4 Cohere2 SeedOss
Lfm2 HunYuanDenseV1 Doge DiffLlama Bamba FalconMamba GPTBigCode XLNet Jais2 Ministral Olmo3
GraniteMoe Olmoe Phimoe Glm4Moe Ernie4_5_Moe
"""
ENCODERS = """
Bert Roberta DistilBert Albert Electra Deberta DebertaV2 MPNet Camembert XLMRoberta ConvBert
SqueezeBert MobileBert ModernBert RoFormer FNet Nystromformer Ernie Data2VecText
MegatronBert Splinter Yoso RemBert Luke IBert Canine
"""
ONNX = """
alexnet vgg11 resnet18 resnet50 resnext50_32x4d densenet121 squeezenet1_1 googlenet
shufflenet_v2_x1_0 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet1_0 efficientnet_b0
regnet_y_400mf regnet_x_400mf convnext_tiny vit_b_16 swin_t fcn_resnet50
lraspp_mobilenet_v3_large
Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Phi Phi3 GPT2 GPTNeoX OPT Bloom Cohere StableLm Olmo2
Granite Bert Roberta DistilBert Albert Electra MPNet
"""
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 500, "n_embd": 64, "n_head": 4, "n_layer": 2, "dim": 64, "hidden_dim": 96,
    "n_heads": 4, "n_layers": 2, "d_model": 64, "ffn_dim": 96, "num_layers": 2, "head_dim": 16,
    "attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 48,
    "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "embedding_size": 64,
    "rotary_dim": 8, "word_embed_proj_dim": 64, "pad_token_id": 0, "use_cache": False,
    "shared_expert_intermediate_size": 80, **public_models.LATENT,
}  # fmt: skip


def torchvision_model(name: str) -> Built:
    """Return a model of torchvision and an image or a film."""
    options = {"weights": None, **public_models.IMAGE_OPTIONS.get(name, {})}
    if name.startswith(("fcn", "deeplab", "lraspp")):
        options["weights_backbone"] = None
    if name == "googlenet":
        options["init_weights"] = False
    shape = (1, 3, 16, 224, 224) if name in VIDEO else (1, 3, 224, 224)
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        return vision.get_model(name, **options).eval(), (torch.zeros(shape),), {}


def timm_model(name: str) -> Built:
    """Return a model of timm and an image of its own size."""
    import timm

    with torch.device("meta"):
        found = timm.create_model(name, pretrained=False).eval()
        return found, (torch.zeros(1, *found.default_cfg["input_size"]),), {}


def language_model(name: str) -> Built:
    """Return a small model of transformers and tokens.

    Experts are a loop over them: the counter knows no other form.
    """
    made = getattr(transformers, f"{name}Config")
    if name in public_models.EXPERTS:
        return public_models.language_model(name)
    known, own = made(), ("head_dim",) if name == "Falcon" else ()
    config = made(
        **{key: value for key, value in SMALL.items() if key not in own and hasattr(known, key)}
    )
    ending = "Model" if name in ENCODERS.split() else "ForCausalLM"
    kind = getattr(transformers, f"{name}{ending}", None) or getattr(
        transformers, f"{name}LMHeadModel"
    )
    tokens = 4 if name == "Mamba" else 16
    with_loops = (
        {"experts_implementation": "eager"} if hasattr(known, "num_experts_per_tok") else {}
    )
    model = kind._from_config(config, **with_loops).eval()
    return model, (torch.zeros(2, tokens, dtype=torch.int64),), {}


BUILD: dict[str, Callable[[], Built]] = {
    **{f"torchvision {name}": lambda name=name: torchvision_model(name) for name in VISION.split()},
    **{f"timm {name}": lambda name=name: timm_model(name) for name in TIMM.split()},
    **{f"transformers {name}": lambda name=name: language_model(name)
       for name in (*TEXT.split(), *ENCODERS.split())},
    **{f"transformers {name}": build
       for name, build in (("T5", public_models.t5), ("Whisper", public_models.whisper))},
}  # fmt: skip


def onnx_model(name: str) -> Built:
    """Return a model with weights."""
    return public_models.image_model(name) if name in VISION.split() else language_model(name)


BUILD |= {f"onnx {name}": lambda name=name: onnx_model(name) for name in ONNX.split()}


def read(door: str, built: Built) -> GraphSpec:
    """Return the graph of a program, or of the ONNX file of it."""
    module, arguments, keywords = built
    if door != "onnx":
        return import_torch(module, arguments, keywords, name="model")
    with TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        torch.onnx.export(module, arguments, dynamo=True, verbose=False).save(str(path))
        return import_onnx(path)


def counted(built: Built) -> int:
    """Return the FLOPs of products that PyTorch counts in a forward pass."""
    module, arguments, keywords = built
    if isinstance(arguments[0], torch.Tensor) and arguments[0].dim() >= 4:  # no number matters
        module, arguments = module.to("meta"), tuple(image.to("meta") for image in arguments)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        _pytree.tree_leaves(module(*arguments, **keywords))
    return counter.get_total_flops()


def row(name: str) -> tuple[str, str, str, str, str]:
    """Return a row of the table: name, kernels, FLOPs read and counted, verdict."""
    try:
        built = BUILD[name]()
    except Exception as error:  # not a matter of the door
        return name, "", "", "", f"not built: {type(error).__name__} {str(error)[:60]}"
    try:
        graph = to_graph(read(name.partition(" ")[0], built))
    except Exception as error:
        return name, "", "", "", " ".join(f"not read: {error}".split())[:150]
    flops = sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)
    try:
        expected = counted(built)
    except Exception as error:
        return name, str(len(graph.kernels)), f"{flops:,.0f}", "", f"not counted: {error}"[:90]
    verdict = "equal" if flops == expected else f"{flops / max(expected, 1):.4f}"
    return name, str(len(graph.kernels)), f"{flops:,.0f}", f"{expected:,}", verdict


def tables(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of the page: a table for each door."""
    by_door = {door: [] for door in (None, *DOORS)}
    for name, *cells in rows:
        door, _, rest = name.partition(" ")
        by_door[door if door in DOORS else None].append((rest if door in DOORS else name, *cells))
    for door, own in by_door.items():
        title, about = PROGRAMS if door is None else DOORS[door]
        equal, known = sum(cells[-1] == "equal" for cells in own), sum(bool(c[1]) for c in own)
        yield f"\n## {title}\n\n{about}"
        yield f"{known} of {len(own)} are read, {equal} with equal products.\n"
        yield "| model | kernels | FLOPs of products | counted | |"
        yield "|---|---|---|---|---|"
        yield from (f"| {' | '.join(cells)} |" for cells in own)


def main() -> None:
    """Read all models, print a line for each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="rows so far, which are kept and not read again")
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[tuple[str, ...]] = []
    if asked.rows and asked.rows.is_file():
        found = [tuple(line.split("\t")) for line in asked.rows.read_text().splitlines()]
    known = {cells[0] for cells in found}
    for name in BUILD:
        if name in known or (asked.only and not any(word in name for word in asked.only)):
            continue
        start = time.process_time()
        found.append(row(name))
        if asked.rows:
            with asked.rows.open("a") as kept:
                kept.write("\t".join(found[-1]) + "\n")
        print(*found[-1], f"{time.process_time() - start:.1f} s", flush=True)
    equal = sum(cells[-1] == "equal" for cells in found)
    known = sum(bool(cells[1]) for cells in found)
    print(f"{known} of {len(found)} read, {equal} with equal products")
    if asked.out:
        order = {name: place for place, name in enumerate(BUILD)}
        found.sort(key=lambda cells: order.get(cells[0], len(order)))
        asked.out.write_text(PAGE + "\n".join(tables(found)) + "\n")


if __name__ == "__main__":
    main()
