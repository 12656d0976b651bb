"""Exact parameter counts of published models.

``HUB``: the total of the safetensors files as the model page on Hugging Face states it (parameters
of the repository named as the first alias of the catalog entry). ``PAPER``: a paper or a README.
"""

from math import ceil

import pytest

from meshwright.catalog.models import load_model
from meshwright.graph.parameters import count_parameters

HUB = {
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "bloom-560m": 559_214_592,
    "bloom-1.1b": 1_065_314_304,
    "bloom-1.7b": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-7.1b": 7_069_016_064,
    "mpt-7b": 6_649_286_656,
    "llama1-7b": 6_738_415_616,
    "llama1-33b": 32_528_943_616,
    "llama1-65b": 65_285_660_672,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "glm4-9b": 9_399_951_360,
    "glm4-9b-0414": 9_400_279_040,
    "granite3.1-2b": 2_533_531_648,
    "granite3.1-1b-a400m": 1_334_628_352,
    "granite4-micro": 3_402_836_480,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi4-mini": 3_836_021_760,
    "phi4-14b": 14_659_507_200,
    "phi3.5-mini": 3_821_079_552,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
    "codellama-7b": 6_738_546_688,
    "codellama-13b": 13_016_028_160,
    "codellama-34b": 33_743_970_304,
    "yi-34b": 34_388_917_248,
    "mistral-7b-v0.2": 7_241_732_096,
    "ministral-8b": 8_019_808_256,
    "glm4-32b-0414": 32_566_081_536,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
}

TRANSFORMERS = {
    # Numbers that the classes of transformers 5.23 hold when built from their configurations.
    "smollm3-3b": 3_075_098_624,
    "ernie4.5-21b-a3b": 21_825_437_888,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "solar-open-100b": 102_651_799_552,
    "olmo-hybrid-7b": 7_430_870_688,
    "cwm-32b": 32_581_097_472,
    "ministral3-8b": 8_489_553_920,
    "command-r-35b": 34_980_831_232,
    "minimax-m2": 228_689_764_864,
}

PAPER = {
    # Biderman et al. 2023 (arXiv 2304.01373): totals in the README of EleutherAI/pythia.
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    # Black et al. 2022 (arXiv 2204.06745), section 2.
    "gpt-neox-20b": 20_554_567_680,
    # BigScience 2022 (arXiv 2211.05100): 176,247,271,424 parameters.
    "bloom-176b": 176_247_271_424,
}


@pytest.mark.parametrize(("name", "published"), [*(HUB | TRANSFORMERS | PAPER).items()])
def test_count_is_the_published_one(name, published):
    assert count_parameters(load_model(name)).num_params == published


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        # Safetensors totals of repositories that store the tied head as well.
        ("qwen3-0.6b", 751_632_384),
        ("qwen3-1.7b", 2_031_739_904),
        ("falcon-7b", 7_217_189_760),
        ("falcon-180b", 179_522_565_120),
    ],
)
def test_stored_tied_head_makes_up_the_difference(name, stored):
    counts = count_parameters(load_model(name))
    assert counts.num_params + counts.repeated_head == stored


def siglip_parameters():
    """The tower of Gemma 3: SigLIP, 27 layers of 1152 / 4304, patches of 14 in 896 pixels."""
    width, ffn, patches = 1152, 4304, (896 // 14) ** 2
    layer = 4 * (width * width + width) + (2 * width * ffn + ffn + width) + 4 * width
    return 3 * 14 * 14 * width + width + patches * width + 27 * layer + 2 * width


@pytest.mark.parametrize(
    ("name", "published"),
    [("gemma3-4b", 4_300_079_472), ("gemma3-12b", 12_187_325_040), ("gemma3-27b", 27_432_406_640)],
)
def test_gemma3_text_and_vision_sum_to_the_published_total(name, published):
    model = load_model(name)
    projector = 1152 * model.hidden_size + 1152
    vision = siglip_parameters() + projector
    assert count_parameters(model).num_params + vision == published


@pytest.mark.parametrize(
    ("name", "published"), [("qwen2-vl-2b", 2_208_985_600), ("qwen2-vl-7b", 8_291_375_616)]
)
def test_qwen2_vl_text_and_vision_sum_to_the_published_total(name, published):
    # 32 layers of 1280 / 5120 with biases, patches of 14 x 14 x 2; four patches side by side are
    # normalised and projected to the text model.
    model, width, ffn = load_model(name), 1280, 5120
    layer = 4 * (width * width + width) + (2 * width * ffn + ffn + width) + 4 * width
    merged = 4 * width
    merger = 2 * width + merged * merged + merged + merged * model.hidden_size + model.hidden_size
    vision = 3 * 14 * 14 * 2 * width + 32 * layer + merger
    assert count_parameters(model).num_params + vision == published


def test_qwen2_5_vl_text_and_vision_sum_to_the_published_total():
    # 32 layers of 1280 / 3420, gated, with biases and RMSNorm; else as Qwen2-VL.
    model, width, ffn = load_model("qwen2.5-vl-7b"), 1280, 3420
    layer = 4 * (width * width + width) + (3 * width * ffn + 2 * ffn + width) + 2 * width
    merged = 4 * width
    merger = width + merged * merged + merged + merged * model.hidden_size + model.hidden_size
    vision = 3 * 14 * 14 * 2 * width + 32 * layer + merger
    assert count_parameters(model).num_params + vision == 8_292_166_656


@pytest.mark.parametrize(
    ("name", "published"), [("glm4.5-air", 110_468_824_832), ("glm4.5", 358_337_791_296)]
)
def test_glm_with_experts_and_its_prediction_layer_is_the_published_total(name, published):
    # The repository stores embedding and head of the prediction layer again.
    counts = count_parameters(load_model(name))
    assert (
        counts.num_params + counts.prediction + counts.parts["embedding"] + counts.parts["head"]
        == published
    )


def llama4_vision_parameters():
    """34 layers of 1408 / 5632, patches of 14 in 336 pixels, pixel shuffle, projector to 5120."""
    width, ffn, patches = 1408, 5632, (336 // 14) ** 2
    layer = 4 * (width * width + width) + (2 * width * ffn + ffn + width) + 4 * width
    edges = 3 * 14 * 14 * width + width + (patches + 1) * width + 2 * 2 * width
    return edges + 34 * layer + (ffn * 4096 + 4096 * 4096) + 4096 * 5120


@pytest.mark.parametrize(
    ("name", "published"),
    [("llama4-scout", 108_641_793_536), ("llama4-maverick", 401_583_781_376)],
)
def test_llama4_text_and_vision_sum_to_the_published_total(name, published):
    counted = count_parameters(load_model(name)).num_params
    assert counted + llama4_vision_parameters() == published


def test_deepseek_v3_with_prediction_copies_and_scales_is_the_published_total():
    # The repository stores embedding and head of the prediction layer again, and one scale for
    # each block of 128 x 128 of an fp8 matrix; its safetensors total is 684,531,386,000.
    def scales(rows, columns):
        return ceil(rows / 128) * ceil(columns / 128)

    def network(width):
        return 2 * scales(width, 7168) + scales(7168, width)

    attention = scales(1536, 7168) + scales(24576, 1536) + scales(576, 7168)
    attention += scales(32768, 512) + scales(7168, 16384)
    all_scales = 3 * (attention + network(18432)) + 59 * (attention + 257 * network(2048))
    counts = count_parameters(load_model("deepseek-v3"))
    assert counts.num_params == 671_026_419_200
    stored_again = 2 * 129_280 * 7168
    assert counts.num_params + counts.prediction + stored_again + all_scales == 684_531_386_000


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # OpenAI, gpt-oss model card (arXiv 2508.10925), table 1: total and active; the active
        # count leaves the embedding out.
        ("gpt-oss-120b", (116.83, 5.13)),
        ("gpt-oss-20b", (20.91, 3.61)),
    ],
)
def test_gpt_oss_is_the_model_card(name, billions):
    counts = count_parameters(load_model(name))
    assert round(counts.num_params / 1e9, 2) == billions[0]
    assert round((counts.num_active_params - counts.parts["embedding"]) / 1e9, 2) == billions[1]


@pytest.mark.parametrize(
    ("name", "billions", "digits"),
    [
        ("mixtral-8x7b", 12.9, 1),  # Jiang et al. 2024 (arXiv 2401.04088): 13B active
        ("mixtral-8x22b", 39, 0),  # announcement of Mixtral 8x22B: 39B active
        ("deepseek-v2", 21, 0),  # arXiv 2405.04434: 21B activated
        ("deepseek-v3", 38, 0),  # README: 36.7B of the main model, without its 0.9B embedding
        ("qwen3-235b-a22b", 22, 0),  # arXiv 2505.09388, table 2
        ("qwen3-30b-a3b", 3, 0),  # README: 3.3B activated
        ("llama4-scout", 17, 0),  # model card: 17B activated
        ("llama4-maverick", 17, 0),
        ("qwen2-57b-a14b", 14, 0),  # arXiv 2407.10671, table 1
    ],
)
def test_active_count_is_the_published_one(name, billions, digits):
    active = count_parameters(load_model(name)).num_active_params
    assert round(active / 1e9, digits) == billions


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "billions"),
    [
        # Narayanan et al. 2021 (arXiv 2104.04473), table 1.
        ("megatron-1.7b", 24, 2304, 1.7),
        ("megatron-3.6b", 30, 3072, 3.6),
        ("megatron-7.5b", 36, 4096, 7.5),
        ("megatron-18b", 40, 6144, 18.4),
        ("megatron-39b", 48, 8192, 39.1),
        ("gpt3-76b", 60, 10240, 76.1),
        ("megatron-145b", 80, 12288, 145.6),
        ("megatron-310b", 96, 16384, 310.1),
        ("megatron-530b", 105, 20480, 529.6),
        ("megatron-1t", 128, 25600, 1008.0),
        ("gpt3-175b", 96, 12288, 174.6),
    ],
)
def test_megatron_series_is_equation_2_of_its_paper(name, layers, hidden, billions):
    # P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), to which the final norm adds 2 h.
    equation = 12 * layers * hidden**2 + 13 * layers * hidden + (51_200 + 2_048) * hidden
    counted = count_parameters(load_model(name)).num_params
    assert counted == equation + 2 * hidden
    assert abs(counted / 1e9 - billions) < 0.1


def test_grok_1_is_the_stated_size():
    # By hand: 64 layers of (8 experts of 3 x 6144 x 32768, attention 6144 x (2 x 6144 + 2 x 1024),
    # router 6144 x 8, four norms), tied embedding of 131072 x 6144, final norm.
    layer = 8 * 3 * 6144 * 32768 + 6144 * (2 * 6144 + 2 * 1024) + 6144 * 8 + 4 * 6144
    expected = 64 * layer + 131_072 * 6144 + 6144
    counted = count_parameters(load_model("grok-1")).num_params
    assert counted == expected == 315_684_820_992
    assert abs(counted / 314e9 - 1) < 0.006  # README of xai-org/grok-1: 314B


def test_gpt3_504b_has_the_stated_size():
    assert abs(count_parameters(load_model("gpt3-504b")).num_params / 504e9 - 1) < 0.01


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "billions"),
    [
        # Zhang et al. 2022 (arXiv 2205.01068), table 1; feed-forward 4 h, vocabulary 50272.
        ("opt-125m", 768, 12, 0.125),
        ("opt-1.3b", 2048, 24, 1.316),
        ("opt-6.7b", 4096, 32, 6.658),
        ("opt-13b", 5120, 40, 12.853),
        ("opt-30b", 7168, 48, 29.975),
        ("opt-66b", 9216, 64, 65.720),
        ("opt-175b", 12288, 96, 174.604),
    ],
)
def test_opt_is_the_sum_of_its_parts(name, hidden, layers, billions):
    # 12 h^2 + 13 h in a layer; 2048 + 2 positions; final norm; tied head.
    by_hand = layers * (12 * hidden**2 + 13 * hidden) + (50_272 + 2_050) * hidden + 2 * hidden
    counted = count_parameters(load_model(name)).num_params
    assert counted == by_hand
    assert round(counted / 1e9, 3) == billions
