"""Exports models of torchvision, timm, transformers and peft, one after another, and computes a step of each.

`florin-bench models --library` loads each model, takes the same step and compares the bits. A model is
exported in training mode with a free number of rows. Its loss for a row is the mean square of the distance of
its first output from 1, times SCALE: with this power of two the parameters after a step have the bits of the
gradients.

usage: PYTHONPATH=PACKAGES python3 library.py FOLDER --seed N [--only TEXT] [--list]

For each model FOLDER receives model.pt2 and model.safetensors (the rows, the losses, and each parameter and buffer
after a step), and a line of JSON is printed. The next model waits for a line of input.
"""

import argparse
import io
import json
import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch import nn

ROWS, RATE, SCALE = 4, 1.0, 2.0**40
SECONDS_MAX, BYTES_MAX = 180, 12 << 30
WORDS, TOKENS = 99, 16


def images(size, channels=3):
    return lambda: [torch.randn(ROWS, channels, size, size)]


def clips(frames, size):
    return lambda: [torch.randn(ROWS, 3, frames, size, size)]


def tokens(count=TOKENS, inputs=1):
    return lambda: [torch.randint(5, WORDS, (ROWS, count)) for _ in range(inputs)]


def numbers(*sizes):
    return lambda: [torch.randn(ROWS, *sizes)]


def vision(name, data, **more):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None, **more)

    return "torchvision", name, make, data, "pixels"


def fpn(kind, name, size):
    def make():
        from torchvision.models.detection import backbone_utils as utils

        build = getattr(utils, f"{kind}_fpn_backbone")
        return build(backbone_name=name, weights=None, trainable_layers=5)

    return "torchvision", f"{name}+fpn", make, images(size), "pixels"


def torchvision_cases():
    ten = {"num_classes": 10}
    sizes = {
        "alexnet": 96, "vgg11": 32, "squeezenet1_0": 64, "squeezenet1_1": 64, "googlenet": 64,
        "inception_v3": 299, "maxvit_t": 224, "swin_t": 64, "swin_v2_t": 64, "swin_s": 64, "convnext_tiny": 64,
        "convnext_small": 64, "densenet121": 64, "densenet169": 64, "efficientnet_v2_s": 64,
    }
    names = [
        "alexnet", "vgg11", "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
        "densenet121", "densenet169", "squeezenet1_0", "squeezenet1_1", "googlenet", "inception_v3", "mobilenet_v2",
        "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3",
        "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "efficientnet_b0",
        "efficientnet_b1", "efficientnet_b2", "efficientnet_v2_s", "regnet_x_400mf", "regnet_x_800mf",
        "regnet_y_400mf", "regnet_y_800mf", "regnet_y_1_6gf", "convnext_tiny", "convnext_small", "swin_t", "swin_s",
        "swin_v2_t", "maxvit_t",
    ]
    for name in names:
        more = {"init_weights": True, **ten} if name in ("googlenet", "inception_v3") else ten
        yield vision(name, images(sizes.get(name, 64)), **more)
    for name, patch in [("vit_b_16", 32), ("vit_b_32", 64)]:
        yield vision(name, images(patch), image_size=patch, **ten)
    for name in ["fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]:
        yield vision(name, images(64), weights_backbone=None, **ten)
    for name in ["r3d_18", "mc3_18", "r2plus1d_18"]:
        yield vision(name, clips(8, 32), **ten)
    yield vision("s3d", clips(16, 64), **ten)
    yield vision("mvit_v1_b", clips(8, 64), spatial_size=(64, 64), temporal_size=8, **ten)
    yield vision("mvit_v2_s", clips(8, 64), spatial_size=(64, 64), temporal_size=8, **ten)
    yield vision("swin3d_t", clips(4, 32), **ten)
    yield fpn("resnet", "resnet18", 64)
    yield fpn("mobilenet", "mobilenet_v3_large", 64)


# Name and image size. Models with a size of their own are built for it where they accept one.
TIMM = """
beit_base_patch16_224:32 halonet_h1:64 eca_botnext26ts_256:256 lambda_resnet26t:64 test_byobnet:64 mobileone_s1:64 repvgg_a0:64
cait_xxs24_224:64 coat_tiny:64 coat_lite_tiny:64 convit_tiny:224 convmixer_768_32:64 convnext_zepto_rms:64 test_convnext:64
test_convnext3:64 cpubone_nano:64 crossvit_tiny_240:240 cs3darknet_s:64 cspresnet50:64 darknet53:64 cspnext_tiny:64
davit_tiny:64 deit_tiny_patch16_224:64 deit_tiny_distilled_patch16_224:64 deit3_small_patch16_224:64 densenet121:64
densenetblur121d:64 dla46_c:64 dla34:64 dpn48b:64 edgenext_xx_small:64 efficientformer_l1:224 efficientformerv2_s0:224
mnasnet_small:64 mixnet_s:64 efficientnet_b0:64 tinynet_e:64 fbnetc_100:64 spnasnet_100:64 efficientnet_lite0:64
efficientvim_m1:224 efficientvit_b0:64 efficientvit_m0:224 eva02_tiny_patch14_224:56 vit_tiny_patch16_dinov3_qkvb:64
fasternet_t0:64 fastvit_t8:64 focalnet_tiny_srf:64 gcvit_xxtiny:224 ghostnet_050:64 ghostnetv2_100:64 ghostnetv3_050:64
hardcorenas_a:64 hgnetv2_b0:64 hgnet_tiny:64 hiera_tiny_224:224 hieradet_small:64 hrnet_w18_small:64 iformer_t:224
inception_next_atto:64 inception_resnet_v2:96 inception_v4:96 lcnetv2_small:64 levit_128s:224 levit_conv_128s:224
lowformer_b0:64 test_mambaout:64 mambaout_femto:64 test_coatnet:160 test_maxvit:160 coatnext_nano_rw_224:224
poolformer_s12:64 poolformerv2_s12:64 convformer_s18:64 caformer_s18:64 gmlp_ti16_224:64 gmixer_12_224:64 resmlp_12_224:64
mixer_s32_224:64 lcnet_035:64 mobilenetv3_small_050:64 mobilenetv4_conv_small_035:64 fbnetv3_b:64 mobilevit_xxs:64
mobilevitv2_050:64 mvitv2_tiny:224 naflexvit_base_patch16_gap:32 nest_tiny:224 nextvit_small:64 test_nfnet:64
nf_regnet_b0:64 dm_nfnet_f0:64 nf_resnet50:64 pit_ti_224:224 pit_ti_distilled_224:224 pvt_v2_b0:64 pvt_v2_b2_li:64
rdnet_tiny:64 regnetx_002:64 regnety_002:64 repghostnet_050:64 repvit_m0_9:64 res2net50_14w_8s:64 res2next50:64
resnest14d:64 resnet10t:64 resnetblur18:64 resnet26d:64 seresnet18:64 ecaresnet26t:64 resnetv2_18:64 resnetv2_50x1_bit:64
rexnet_100:64 selecsls42:64 legacy_seresnet18:64 sequencer2d_s:224 shvit_s1:64 skresnet18:64
starnet_s050:64 swiftformer_xs:224 swin_tiny_patch4_window7_224:224 swin_s3_tiny_224:224 swinv2_tiny_window8_256:64
swinv2_cr_tiny_224:64 tiny_vit_5m_224:224 tnt_s_patch16_224:64 twins_pcpvt_small:64 twins_svt_small:64 visformer_tiny:64
test_vit:160 test_vit2:160 test_vit3:160 vit_tiny_patch16_224:64 vit_tiny_r_s16_p8_224:64 test_vit_relpos:160
vit_relpos_small_patch16_224:64 volo_d1_224:224 xcit_nano_12_p16_224:64 xception41:64 xception71:64 gernet_s:64
vovnet39a:64 ese_vovnet19b_dw:64 legacy_xception:64 tf_efficientnet_b0:64 mobilenetv2_050:64 semnasnet_050:64
"""


def timm_cases():
    def case(name, size):
        def make():
            import timm

            for more in ({"img_size": size}, {}):
                try:
                    return timm.create_model(name, pretrained=False, num_classes=10, **more)
                except TypeError as error:
                    if not more:
                        raise error

        return "timm", name, make, images(size), "pixels"

    for word in TIMM.split():
        name, size = word.rsplit(":", 1)
        yield case(name, int(size))


TEXT = dict(
    vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)


def hugging(name, head, data, names="input_ids", family=None, **config):
    """A model of transformers; `head` is the end of its Auto class."""

    def make():
        import transformers

        built = transformers.AutoConfig.for_model(family or name, **config)
        head_class = getattr(transformers, head, None) or getattr(transformers, f"Auto{head}")
        from_config = getattr(head_class, "from_config", None) or getattr(head_class, "_from_config")
        return from_config(built)

    return "transformers", name, make, data, names


def text(name, head="ModelForCausalLM", data=tokens(), names="input_ids", family=None, without=(), **more):
    config = {key: value for key, value in TEXT.items() if key not in without}
    return hugging(name, head, data, names, family, **{**config, **more})


def decoder_cases():
    experts = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    heads = ("num_key_value_heads",)
    yield text("gpt2", without=heads)
    yield text("gpt_neo", without=heads, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]])
    yield text("gptj", without=heads, rotary_dim=8)
    yield text("gpt_neox", without=heads)
    yield text("gpt_bigcode", without=heads)
    yield text("llama")
    yield text("mistral")
    yield text("mixtral", **experts)
    yield text("qwen2")
    yield text("qwen2_moe", shared_expert_intermediate_size=32, **experts)
    yield text("qwen3", head_dim=16)
    yield text("qwen3_moe", head_dim=16, **experts)
    yield text("phi")
    yield text("phi3")
    yield text("phimoe", **experts)
    yield text("gemma", head_dim=16)
    yield text("gemma2", head_dim=16)
    yield text("gemma3_text", head_dim=16)
    yield text("opt", without=heads, word_embed_proj_dim=64, ffn_dim=128)
    yield text("bloom", without=heads, n_layer=2, n_head=4)
    yield text("falcon", without=heads)
    yield text("mpt", without=heads, d_model=64, n_heads=4, n_layers=2, max_seq_len=64)
    yield text("olmo")
    yield text("olmo2")
    yield text("olmo3")
    yield text("olmoe", **experts)
    yield text("mamba", without=heads, state_size=8)
    yield text("mamba2", without=heads, state_size=8, num_heads=8, head_dim=16, n_groups=1, chunk_size=8)
    yield text("falcon_mamba", without=heads, state_size=8)
    yield text("stablelm")
    yield text("codegen", without=heads, rotary_dim=8, n_positions=64)
    yield text("starcoder2")
    yield text("persimmon", without=heads)
    yield text("cohere")
    yield text("cohere2")
    yield text("granite")
    yield text("granitemoe", **experts)
    yield text("nemotron")
    yield text("glm", head_dim=16)
    yield text("glm4", head_dim=16)
    yield text("deepseek_v2", first_k_dense_replace=1, n_routed_experts=4, n_group=1, topk_group=1, q_lora_rank=16,
               kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_shared_experts=1, **{**experts, "num_key_value_heads": 4})
    yield text("deepseek_v3", first_k_dense_replace=1, n_routed_experts=4, n_group=1, topk_group=1, q_lora_rank=16,
               kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_shared_experts=1, **{**experts, "num_key_value_heads": 4})
    yield text("biogpt", without=heads)
    yield text("xglm", without=heads, d_model=64, num_layers=2, attention_heads=4, ffn_dim=128)
    yield text("ctrl", without=heads, n_embd=64, dff=128, n_layer=2, n_head=4, n_positions=64)
    yield text("openai-gpt", without=heads)
    yield text("rwkv", without=heads, attention_hidden_size=64, context_length=64)
    yield text("smollm3")
    yield text("exaone4", head_dim=16, sliding_window=8)
    yield text("ernie4_5", head_dim=16)
    yield text("helium", head_dim=16)
    yield text("arcee")
    yield text("seed_oss", head_dim=16)
    yield text("apertus")
    yield text("diffllama")
    yield text("recurrent_gemma", lru_width=64, block_types=("recurrent", "attention"), head_dim=16)
    yield text("jamba", **experts, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
               expert_layer_offset=1, use_mamba_kernels=False, mamba_d_state=8)
    yield text("lfm2", layer_types=["conv", "full_attention"])
    yield text("gpt_oss", head_dim=16, **experts)
    yield text("bitnet")
    yield text("xlnet", without=(*heads, "max_position_embeddings"), d_model=64, n_layer=2, n_head=4, d_inner=128)


def encoder_cases():
    heads = ("num_key_value_heads",)
    base, masked, classes = "Model", "ModelForMaskedLM", "ModelForSequenceClassification"
    for name in ["bert", "roberta", "electra", "ernie", "megatron-bert", "rembert", "roformer", "ibert", "layoutlm", "lilt"]:
        more = {"lilt": dict(hidden_size=96), "roformer": dict(embedding_size=64), "rembert": dict(input_embedding_size=64, output_embedding_size=64)}
        yield text(name, base, without=heads, type_vocab_size=2, **more.get(name, {}))
    yield text("distilbert", masked, without=heads, dim=64, n_heads=4, n_layers=2, hidden_dim=128)
    yield text("deberta", classes, without=heads, relative_attention=True, pos_att_type=["c2p", "p2c"])
    yield text("deberta-v2", classes, without=heads, relative_attention=True, pos_att_type=["c2p", "p2c"],
               position_buckets=8, norm_rel_ebd="layer_norm")
    yield text("albert", masked, without=heads, embedding_size=32)
    yield text("mpnet", masked, without=heads)
    yield text("modernbert", masked, without=heads, global_attn_every_n_layers=2, local_attention=8)
    yield text("nystromformer", masked, without=heads, num_landmarks=16, segment_means_seq_len=16)
    yield text("squeezebert", masked, without=heads, embedding_size=64)
    yield text("fnet", masked, without=heads)
    yield text("convbert", masked, without=heads, embedding_size=64)
    yield text("big_bird", masked, without=heads, attention_type="original_full")
    yield text("longformer", masked, without=heads, attention_window=8)
    yield text("funnel", masked, without=(*heads, "num_hidden_layers"), block_sizes=[1, 1], num_decoder_layers=1, d_model=64, n_head=4,
               d_head=16, d_inner=128)
    yield text("xlm", base, without=heads, emb_dim=64, n_layers=2, n_heads=4, n_words=WORDS)
    yield text("flaubert", base, without=heads, emb_dim=64, n_layers=2, n_heads=4, n_words=WORDS)
    yield text("mobilebert", base, without=heads, embedding_size=32, intra_bottleneck_size=32)
    yield text("esm", base, without=heads, position_embedding_type="rotary", mask_token_id=3, token_dropout=False)
    yield text("yoso", masked, without=heads, use_expectation=True)
    yield text("canine", base, without=heads, num_hash_buckets=64, local_transformer_stride=4,
               downsampling_rate=2, upsampling_kernel_size=2)
    yield text("xmod", base, without=heads, languages=["en_XX"], default_language="en_XX")
    yield text("luke", base, without=heads, entity_vocab_size=9, entity_emb_size=16)
    yield text("mra", masked, without=heads)
    yield text("reformer", "ReformerModel", without=heads, attn_layers=["local", "local"], axial_pos_shape=[4, 4],
               axial_pos_embds_dim=[32, 32], attention_head_size=16, local_attn_chunk_length=8, is_decoder=False)
    yield text("clip_text_model", base, without=heads, projection_dim=32)
    yield text("siglip_text_model", "SiglipTextModel", without=heads, projection_size=64)


def pair_cases():
    """Encoders of pairs of texts, and pairs: two inputs."""
    heads, both = ("num_key_value_heads",), "input_ids decoder_input_ids"
    masked = lambda: [*tokens()(), torch.ones(ROWS, TOKENS, dtype=torch.int64)]
    t5 = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4)
    for name, encoder in [("t5", "T5EncoderModel"), ("mt5", "MT5EncoderModel"), ("umt5", "UMT5EncoderModel"),
                          ("longt5", "LongT5EncoderModel"), ("switch_transformers", "SwitchTransformersEncoderModel")]:
        yield text(f"{name}-encoder", encoder, masked, "input_ids attention_mask", name, without=heads, **t5,
                   num_experts=4)
    for name in ["t5", "umt5"]:
        yield text(name, "ModelForSeq2SeqLM", tokens(inputs=2), both, without=heads, **t5)
    bart = dict(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, decoder_start_token_id=2,
    )
    for name in ["bart", "pegasus", "marian", "mbart", "blenderbot", "m2m_100", "pegasus_x"]:
        yield text(name, "Model", tokens(inputs=2), both, without=heads, **bart)
    yield text("led", "Model", tokens(inputs=2), both, without=heads, attention_window=8, **bart)
    yield text("prophetnet", "Model", tokens(inputs=2), both,
               without=(*heads, "num_hidden_layers", "num_attention_heads"), num_encoder_layers=2,
               num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, ngram=2)


def picture_cases():
    size = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32,
                num_labels=10)
    classes, base = "ModelForImageClassification", "Model"
    small = lambda name, head=classes, data=images(32), **more: hugging(name, head, data, "pixel_values", **{**size, **more})
    yield small("deit", "DeiTForImageClassification", patch_size=8)
    for name in ["vit", "beit", "data2vec-vision", "dinov2", "dinov2_with_registers", "vit_msn"]:
        yield small(name, patch_size=8)
    yield small("ijepa", base, patch_size=8)
    yield small("vitdet", base, patch_size=8, residual_block_indices=[], window_block_indices=[], window_size=0)
    yield small("dinov3_vit", base, patch_size=8)
    yield small("clip_vision_model", base, patch_size=8)
    yield small("siglip_vision_model", base, patch_size=8)
    yield small("yolos", base, patch_size=8, image_size=[32, 32], num_detection_tokens=4)
    yield small("hiera", embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], image_size=[64, 64], data=images(64))
    staged = dict(num_labels=10, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], image_size=64)
    plain = lambda name, head=classes, data=images(64), **more: hugging(name, head, data, "pixel_values", num_labels=10, **more)
    for name in ["convnext", "convnextv2", "resnet", "regnet", "dinov3_convnext", "bit"]:
        more = {"regnet": dict(groups_width=8, embedding_size=16), "resnet": dict(embedding_size=16),
                "bit": dict(embedding_size=16, num_groups=8)}
        head = base if name == "dinov3_convnext" else classes
        yield hugging(name, head, images(64), "pixel_values", **staged, **more.get(name, {}))
    for name in ["swin", "swinv2"]:
        yield plain(name, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4, image_size=32, data=images(32))
    yield plain("donut-swin", base, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4, image_size=32, data=images(32))
    yield plain("mobilenet_v1", depth_multiplier=0.25, image_size=64)
    yield plain("mobilenet_v2", depth_multiplier=0.35, image_size=64)
    yield plain("mobilevit", hidden_sizes=[32, 48, 64], neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 96], image_size=64)
    yield plain("mobilevitv2", width_multiplier=0.5, image_size=64)
    pvt = dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4])
    yield plain("pvt", image_size=64, sequence_reduction_ratios=[8, 4, 2, 1], **pvt)
    yield plain("pvt_v2", image_size=64, **pvt)
    yield plain("segformer", hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4])
    yield plain("levit", "LevitForImageClassification", image_size=64, hidden_sizes=[32, 64, 96], num_attention_heads=[2, 4, 6], depths=[1, 1, 1], key_dim=[16, 16, 16])
    yield plain("poolformer", hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1])
    yield plain("efficientnet", width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320, image_size=64)
    yield plain("focalnet", embed_dim=16, depths=[1, 1, 1, 1], image_size=64, focal_levels=[1, 1, 1, 1])
    yield plain("swiftformer", depths=[1, 1, 1, 1], embed_dims=[16, 32, 48, 64])
    yield plain("textnet")
    yield plain("swin2sr", base, embed_dim=24, depths=[1, 1], num_heads=[2, 2], window_size=4, image_size=32, data=images(32))
    yield small("glpn", base, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4], data=images(64))
    frames = lambda: [torch.randn(ROWS, 4, 3, 32, 32)]
    video = "ModelForVideoClassification"
    yield small("videomae", video, frames, patch_size=8, num_frames=4, tubelet_size=2)
    yield small("timesformer", video, frames, patch_size=8, num_frames=4)
    yield small("vivit", video, frames, num_frames=4, tubelet_size=[2, 8, 8])
    yield text("imagegpt", "ModelForImageClassification", without=("num_key_value_heads",), n_positions=64, num_labels=10)


def sound_cases():
    wave = dict(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=WORDS,
        conv_dim=[32, 32], conv_kernel=[10, 3], conv_stride=[5, 2], num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, layerdrop=0.0, apply_spec_augment=False,
        mask_time_prob=0.0, classifier_proj_size=32, num_labels=10,
    )
    for name in ["wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio", "wav2vec2-conformer"]:
        more = {"data2vec-audio": dict(conv_pos_kernel_size=3, num_conv_pos_embeddings=2)}
        yield hugging(name, "ModelForAudioClassification", numbers(400), "input_values", **{**wave, **more.get(name, {})})
    sew = dict(squeeze_factor=2)
    yield hugging("sew", "ModelForAudioClassification", numbers(400), "input_values", **wave, **sew)
    yield hugging("sew-d", "ModelForAudioClassification", numbers(400), "input_values", **wave, **sew)
    yield hugging("wav2vec2-bert", "ModelForAudioClassification", numbers(20, 16), "input_features", **wave,
                  feature_projection_input_dim=16)
    yield hugging("audio-spectrogram-transformer", "ModelForAudioClassification", numbers(64, 32), "input_values",
                  hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, max_length=64,
                  num_mel_bins=32, patch_size=16, num_labels=10)
    whisper = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                   decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=16,
                   max_source_positions=32, max_target_positions=64, vocab_size=WORDS, pad_token_id=0,
                   bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, num_labels=10)
    yield hugging("whisper-encoder", "ModelForAudioClassification", numbers(16, 64), "input_features", "whisper", **whisper)
    sounds = lambda: [torch.randn(ROWS, 16, 64), *tokens()()]
    yield hugging("whisper", "Model", sounds, "input_features decoder_input_ids", **whisper)
    spoken = lambda: [torch.randn(ROWS, 64, 16), *tokens()()]
    yield hugging("speech_to_text", "Model", spoken, "input_features decoder_input_ids",
                  **{**whisper, "input_feat_per_channel": 16, "conv_channels": 32})


def series_cases():
    small = dict(d_model=32, num_hidden_layers=2, num_layers=2, num_attention_heads=4, ffn_dim=64)
    yield hugging("patchtst", "PatchTSTForPrediction", numbers(64, 3), "past_values", num_input_channels=3,
                  context_length=64, prediction_length=8, patch_length=8, patch_stride=8, loss="mse", **small)
    yield hugging("patchtsmixer", "PatchTSMixerForPrediction", numbers(64, 3), "past_values", num_input_channels=3,
                  context_length=64, prediction_length=8, patch_length=8, patch_stride=8, **small)


def peft_cases():
    """Low-rank adapters by peft, of which the matrices B alone train."""

    def case(name, make, words, more):
        def adapted():
            import peft

            _, _, base, _, _ = make
            config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=words, **more)
            return peft.get_peft_model(base(), config)

        return "peft", name, adapted, tokens(), "input_ids", "*lora_B*"

    gpt2, llama = text("gpt2", without=("num_key_value_heads",)), text("llama")
    bert = text("bert", "ModelForSequenceClassification", without=("num_key_value_heads",))
    yield case("gpt2-lora", gpt2, ["c_attn"], dict(fan_in_fan_out=True))
    yield case("llama-lora", llama, ["q_proj", "v_proj"], {})
    yield case("bert-lora", bert, ["query", "value"], {})


def cases():
    from itertools import chain

    families = [torchvision_cases, timm_cases, decoder_cases, encoder_cases, pair_cases, picture_cases, sound_cases,
                series_cases, peft_cases]
    for case in chain.from_iterable(family() for family in families):
        library, name, make, data, names, *trained = case
        yield library, name, make, data, names.split(), trained[0] if trained else "*"


def first_tensor(found, rows):
    """The first tensor of a result that has the rows as its first dimension."""
    if isinstance(found, torch.Tensor):
        return found if found.ndim > 0 and found.shape[0] == rows and found.is_floating_point() else None
    if hasattr(found, "to_tuple"):
        found = found.to_tuple()
    elif isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (tuple, list)):
        return next((one for one in (first_tensor(each, rows) for each in found) if one is not None), None)
    return None


class Scored(nn.Module):
    """A model with the loss of each row as its output."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names
        self.is_named = hasattr(model, "config") and names != ["pixels"]

    def forward(self, *inputs):
        if self.is_named:
            found = self.model(**dict(zip(self.names, inputs)))
        else:
            found = self.model(*inputs)
        output = first_tensor(found, inputs[0].shape[0])
        return (output.flatten(1) - 1.0).square().mean(1) * SCALE


def prepared(make, names):
    """The model in training mode; constants among its parameters get noise, so that gradients reach everything."""
    model = make().train()
    if hasattr(model, "config") and hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return Scored(model, names).train()


def step(model, inputs, seed):
    """The losses of rows, and the tensors after a step."""
    start = {name: value.detach().clone() for name, value in model.named_parameters(remove_duplicate=False)}
    torch.manual_seed(seed)
    losses = model(*inputs)
    (losses.sum() * (1.0 / ROWS)).backward()
    tensors = {"losses": losses.detach()}
    # A tied weight has several names.
    for name, value in model.named_parameters(remove_duplicate=False):
        slope = torch.zeros_like(value) if value.grad is None else value.grad
        tensors[f"after.{name}"] = start[name].add(slope, alpha=-RATE)
    for name, value in model.named_buffers():
        if value.is_floating_point():
            tensors[f"after.{name}"] = value.detach()
    return tensors


def export(case, folder, seed):
    _, _, make, data, names, trained = case
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    inputs = data()
    model = prepared(make, names)
    if trained != "*":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_B" in name)
    rows = torch.export.Dim("rows", min=2, max=1024)
    shapes = (tuple({0: rows} for _ in inputs),)
    program = torch.export.export(model, tuple(inputs), dynamic_shapes=shapes)
    torch.export.save(program, folder / "model.pt2")
    del program
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if trained == "*" and not all(each.requires_grad for each in parameters.values()):
        patterns = [name for name, each in parameters.items() if each.requires_grad]
    else:
        patterns = [trained]
    tensors = step(model, inputs, seed)
    tensors["rows"] = torch.cat([one.flatten(1).float() for one in inputs], 1)
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, folder / "model.safetensors")
    return patterns


def why(error):
    """The reason of a failure in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def attempt(case, folder, seed, write):
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES_MAX, BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))
    try:
        trained = export(case, folder, seed)
        os.write(write, json.dumps({"exported": True, "trained": trained}).encode())
    except BaseException as error:
        if os.environ.get("LIBRARY_TRACE"):
            traceback.print_exc()
        os.write(write, json.dumps({"exported": False, "why": why(error)}).encode())


def in_child(case, folder, seed):
    """The result of one model, in a process of its own: a crash ends that model only, which has a second try."""
    found = once(case, folder, seed)
    return once(case, folder, seed) if found is None else found


def once(case, folder, seed):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        # Nothing but results goes to the output.
        os.dup2(2, 1)
        attempt(case, folder, seed, write)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        written = pipe.read()
    os.waitpid(child, 0)
    return json.loads(written) if written else None


def warm_up():
    """An export before the first process starts: all of them share the modules that it imports."""
    for _, name, make, data, names, _ in cases():
        if name in ("resnet18", "gpt2", "bert", "vit"):
            rows = torch.export.Dim("rows", min=2, max=1024)
            program = torch.export.export(prepared(make, names), tuple(data()), dynamic_shapes=(({0: rows},),))
            torch.export.save(program, io.BytesIO())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import timm  # noqa: F401, so that no child imports it again
    import torchvision  # noqa: F401
    import transformers

    transformers.logging.set_verbosity_error()
    warm_up()
    for case in cases():
        library, name, *_ = case
        if not any(part in f"{library}/{name}" for part in options.only.split(",")):
            continue
        begun = time.perf_counter()
        found = {} if options.list else in_child(case, options.folder, options.seed)
        found = {"exported": False, "why": "the process ended"} if found is None else found
        seconds = time.perf_counter() - begun
        print(json.dumps({"library": library, "name": name, "seconds": seconds, **found}), flush=True)
        if not options.list and not sys.stdin.readline():
            return


if __name__ == "__main__":
    main()
