#!/usr/bin/env python3
"""Writes the table of runtime/docs/models.md: every family, with the results of `waterline verify` on its cases.

usage: models.py WATERLINE FIXTURES GGUF [--speeds FILE] [--device cuda]

FIXTURES holds cases of Hugging Face directories (config.json, case.safetensors), GGUF holds cases of llama.cpp's files (model.gguf,
expect.json). A cell is the largest difference of a logit, as a percentage of the tolerance that the case declares. FILE is the output of
speeds.py: tokens per second of a prompt and of a generation, for each family's preset.
"""
import argparse
import json
import subprocess
from pathlib import Path

TESTS = Path(__file__).parent.parent.parent / "tests"

# Family, published models, cases of Hugging Face directories, cases of GGUF files; PRESETS has the preset of a row.
FAMILIES = [
    ("Qwen3.5 text, dense", "Qwen/Qwen3.5-0.8B to 27B", ["hf_qwen3_5_text"], ["qwen35-f16", "qwen35-q4_k_m"]),
    ("Qwen3.5 mixtures", "Qwen/Qwen3.5-35B-A3B", ["hf_qwen3_5_moe_e6k2", "hf_qwen3_5_moe_fused"], ["qwen35moe-q8_0"]),
    ("Qwen3-Next", "Qwen/Qwen3-Next-80B-A3B", ["hf_qwen3_next_dense", "hf_qwen3_next_e7k3"], ["qwen3next-q8_0"]),
    ("LFM2, LFM2.5", "LiquidAI/LFM2-350M to 2.6B", ["hf_lfm2"], ["lfm2-q8_0", "lfm2-q4_k_m"]),
    ("LFM2 mixtures", "LiquidAI/LFM2-8B-A1B", ["hf_lfm2_moe"], ["lfm2moe-q8_0"]),
    ("LFM3", "LiquidAI/LFM3-1.7B", ["hf_lfm3"], []),
    ("Nemotron-H", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", ["hf_nemotron_h"], ["nemotron_h-f16", "nemotron_h-q4_k_m"]),
    ("Nemotron-3 mixtures", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B", ["hf_nemotron_h_moe"], ["nemotron_h_moe-q8_0"]),
    ("Granite, dense", "ibm-granite/granite-3.3-8b-instruct", ["hf_granite"], []),
    ("Granite with windows", "Granite-Swash-2B", ["hf_granite_swa", "hf_granitemoe_swa"], ["granite-swa-f16", "granitemoe-swa-q8_0"]),
    ("Granite 4.0-H, dense", "ibm-granite/granite-4.0-h-350m, -1b, -micro", ["hf_granite_dense_nope"], ["granitehybrid-q8_0"]),
    ("Granite 4.0-H mixtures", "ibm-granite/granite-4.0-h-tiny, -small", ["hf_granite_moe_rope"], ["granitehybrid-moe-q4_k_m"]),
    ("Bamba", "ibm-ai-platform/Bamba-9B", ["hf_bamba"], []),
    ("Falcon-H1", "tiiuae/Falcon-H1-0.5B to 34B", ["hf_falcon_h1_plain", "hf_falcon_h1_norm_first"], ["falcon-h1-f16"]),
    ("Falcon-Mamba", "tiiuae/falcon-mamba-7b", ["hf_falcon_mamba"], []),
    ("Mamba, Mamba-2", "state-spaces/mamba-130m-hf, mistralai/Mamba-Codestral-7B", ["hf_mamba", "hf_mamba2", "hf_mamba2_g8"], ["mamba-f16"]),
    ("RWKV-6", "RWKV/rwkv-6-world-1b6", ["rwkv6"], ["rwkv6-f32"]),
    ("RWKV-7", "fla-hub/rwkv7-0.4B-world", ["rwkv7_plain"], ["rwkv7-f16"]),
    ("ARWKV", "RWKV-Red-Team/ARWKV-7B-Preview-0.1", [], ["arwkv7-f32"]),
    ("Kimi Linear", "moonshotai/Kimi-Linear-48B-A3B", ["hf_kimi_linear"], ["kimi-linear-f16"]),
    ("Ling 3.0", "inclusionAI/Ling-3.0-tiny", ["hf_bailing_hybrid"], ["bailingmoe3-f32"]),
    ("Lara 4", "translated/Lara-4-Mini-Base", ["hf_lara_mini"], []),
    ("MiniCPM-SALA", "openbmb/MiniCPM-SALA", ["minicpm_sala"], []),
    ("OLMo hybrid", "allenai/Olmo-Hybrid-7B", ["hf_olmo_hybrid"], []),
    ("Jamba", "ai21labs/AI21-Jamba-Reasoning-3B", ["hf_jamba_moe"], ["jamba-q4_k_m"]),
    ("MiniMax-01", "MiniMaxAI/MiniMax-Text-01-hf", ["hf_minimax"], ["minimax-01-f32"]),
    ("RecurrentGemma", "google/recurrentgemma-2b", ["hf_recurrent_gemma"], []),
    ("Gemma 3 text", "google/gemma-3-1b-it", ["hf_gemma3"], []),
    ("Gemma 4 text", "google/gemma-4-E2B-it to 31B", ["hf_gemma4_dense", "hf_gemma4_e", "hf_gemma4_moe"], ["gemma4-dense-f16", "gemma4-e-f16", "gemma4-moe-all-q8_0"]),
    ("Llama, Qwen2, Qwen3, SmolLM3", "HuggingFaceTB/SmolLM3-3B", ["hf_llama", "hf_qwen3", "hf_smollm3"], []),
    ("Mistral, Ministral 3", "mistralai/Ministral-3-3B-Instruct-2512", ["hf_mistral_swa", "hf_ministral3"], ["ministral3-f16"]),
    ("gpt-oss", "openai/gpt-oss-20b, -120b", ["hf_gpt_oss", "hf_gpt_oss_mxfp4"], ["gpt-oss-f16", "gpt-oss-mxfp4"]),
    ("Laguna", "poolside/Laguna-XS.2", ["hf_laguna", "hf_laguna_elem"], ["laguna-f16"]),
    ("Muse Glimmer", "Muse-Glimmer-30B", ["hf_muse_glimmer"], ["muse-glimmer-f16"]),
    ("Qwen3 mixtures, Mellum 2", "Qwen/Qwen3-30B-A3B", ["hf_mellum_mtp"], ["mellum-f16"]),
    ("Zamba2", "Zyphra/Zamba2-1.2B", ["hf_zamba2", "hf_zamba2_bias"], []),
]

PRESETS = {
    "Qwen3.5 text, dense": "qwen3.5-0.8b",
    "Qwen3.5 mixtures": "qwen3.5-moe-3b",
    "LFM2, LFM2.5": "lfm2-1.2b",
    "LFM3": "lfm3-1.7b",
    "Nemotron-H": "nemotron-3-nano-4b",
    "Granite 4.0-H, dense": "granite-4.0-h-1.5b",
    "Falcon-H1": "falcon-h1-0.5b",
    "Mamba, Mamba-2": "mamba2-1.3b",
    "RWKV-7": "rwkv7-1.5b",
    "Kimi Linear": "kimi-linear-4.6b",
    "Jamba": "jamba-5b",
    "RecurrentGemma": "recurrentgemma-2.7b",
    "Zamba2": "zamba2-2.7b",
    "Llama, Qwen2, Qwen3, SmolLM3": "transformer-1.3b",
}


def verify(waterline, case, device):
    command = [waterline, "verify", "--json", *device, str(case)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2:
        return "not yet"
    result = json.loads(done.stdout)
    text = f"{100 * result['worst'] / result['tolerance']:.0f}%"
    return text if done.returncode == 0 else f"**{text}**"


def speed(speeds, family):
    """Returns the cell of a family's speeds: prompt and generation on a CPU, then on a GPU."""
    preset = PRESETS.get(family)
    measured = speeds.get(preset, {})
    texts = [f"{prompt:.0f}/{generation:.0f}" for _, (prompt, generation) in sorted(measured.items())]
    return "<br>".join([f"`{preset}`", *texts]) if texts else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("waterline")
    parser.add_argument("fixtures", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--speeds", type=argparse.FileType())
    parser.add_argument("--device")
    args = parser.parse_args()
    device = ["--device", args.device] if args.device else []
    speeds = json.load(args.speeds) if args.speeds else {}
    columns = ["family", "such as", "Hugging Face directory", "GGUF file", *(["preset, prompt/generation tokens/s on CPU, GPU"] if speeds else [])]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for family, hub, directories, files in FAMILIES:
        cells = []
        for folder, own, cases in ((args.fixtures, "fixtures", directories), (args.gguf, "gguf", files)):
            # Cases of the repository may be missing from the folders.
            places = [(case, folder / case) for case in cases]
            places = [(case, place if place.exists() else TESTS / own / case) for case, place in places]
            texts = [f"`{case}` {verify(args.waterline, place, device)}" for case, place in places]
            cells.append("<br>".join(texts))
        if speeds:
            cells.append(speed(speeds, family))
        print(f"| {family} | {hub} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
