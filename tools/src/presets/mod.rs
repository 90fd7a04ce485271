//! The shapes that `synth` can make.
//!
//! They are the configurations of the papers and of the models published with them. Where a paper's table does not
//! say all, the comment says what was taken instead.

mod mixers;

use std::sync::Arc;

use waterline::mixers::Mixer;
use waterline::{BlockSpec, MlpSpec, ModelSpec, NormKind};

use mixers::Heads;

/// A model's shape by name.
pub struct Preset {
    /// What `synth` calls it: the model and its number of parameters, or `tiny`.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its dimensions.
    pub spec: fn() -> ModelSpec,
}

impl Preset {
    const fn new(name: &'static str, about: &'static str, spec: fn() -> ModelSpec) -> Self {
        Preset { name, about, spec }
    }
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    // idiap/hybrid-linear-sparse-attention, configs/*_1.4B.json (arXiv 2510.20787). With fewer blocks than its 24
    // where the name says 1.3b.
    Preset::new(
        "lalte-1.4b",
        "Gated DeltaNet and learned token eviction by turns",
        || LARGE.model(24, &[mixers::gated_deltanet(8, 256), mixers::lte()]),
    ),
    Preset::new(
        "lansa-1.4b",
        "Gated DeltaNet and native sparse attention by turns",
        || LARGE.model(24, &[mixers::gated_deltanet(8, 256), mixers::nsa()]),
    ),
    Preset::new(
        "gdn-swa-1.4b",
        "Gated DeltaNet and sliding-window attention by turns",
        || {
            let window = Arc::new(mixers::attention(32, 8, 64, Some(1024)));
            LARGE.model(24, &[mixers::gated_deltanet(8, 256), window])
        },
    ),
    Preset::new("lte-1.3b", "learned token eviction alone", || {
        LARGE.model(24, &[mixers::lte()])
    }),
    Preset::new("nsa-1.3b", "native sparse attention alone", || {
        LARGE.model(24, &[mixers::nsa()])
    }),
    Preset::new("gdn-1.3b", "Gated DeltaNet", || {
        LARGE.model(21, &[mixers::gated_deltanet(8, 256)])
    }),
    // No paper has it: the 1.3B model's heads at the widths of a 7B Llama.
    Preset::new("gdn-7b", "Gated DeltaNet", || {
        let size = LARGE.widths(4096, 11008);
        size.model(32, &[mixers::gated_deltanet(16, 256)])
    }),
    Preset::new("transformer-1.3b", "full attention", || {
        LARGE.model(24, &[Arc::new(mixers::attention(32, 32, 64, None))])
    }),
    Preset::new("swa-1.3b", "sliding-window attention alone", || {
        LARGE.model(24, &[Arc::new(mixers::attention(32, 8, 64, Some(1024)))])
    }),
    // fla-hub/gla-1.3B-100B, retnet-1.3B-100B; gsa-2.7B-100B with the widths of the 1.3B models (arXiv 2409.07146).
    Preset::new("gla-1.3b", "gated linear attention", || {
        LARGE.model(24, &[mixers::gla(GLA_HEADS)])
    }),
    Preset::new("retnet-1.3b", "retention", || {
        let size = LARGE.widths(2048, 2816);
        size.model(24, &[mixers::retnet(RETNET_HEADS)])
    }),
    Preset::new("gsa-1.3b", "gated slot attention", || {
        LARGE.model(24, &[mixers::gsa(4, 512, 64)])
    }),
    // The bases with gates of their heads (arXiv 2602.01744).
    Preset::new("sla-gla-1.3b", "softmax linear attention on GLA", || {
        LARGE.model(24, &[mixers::gla(GLA_HEADS.weighted())])
    }),
    Preset::new(
        "sla-retnet-1.3b",
        "softmax linear attention on RetNet",
        || {
            let size = LARGE.widths(2048, 2816);
            size.model(24, &[mixers::retnet(RETNET_HEADS.weighted())])
        },
    ),
    Preset::new("sla-gdn-1.3b", "softmax linear attention on GDN", || {
        LARGE.model(21, &[mixers::softmax_gated_deltanet(8, 256)])
    }),
    // Sparse state expansion (arXiv 2507.16577). The paper's sizes are 600M and 2B; what was seen of it does not give
    // their widths. The 4B model published later has those of Qwen3-4B, so these have those of Qwen3-0.6B and 1.7B (heads as wide as the model).
    // The 1.3B models have the widths of the other 1.3B models, to be compared with them.
    Preset::new(
        "sse-n4k1-1.3b",
        "sparse state expansion, 1 of 4 partitions",
        || LARGE.model(22, &[mixers::sse(16, 4, 1)]),
    ),
    Preset::new(
        "sse-n16k1-1.3b",
        "sparse state expansion, 1 of 16 partitions",
        || LARGE.model(22, &[mixers::sse(16, 16, 1)]),
    ),
    Preset::new(
        "sse-gdn-n4k1-1.3b",
        "sparse state expansion of GDN, 1 of 4 partitions",
        || LARGE.model(22, &[mixers::sse_gdn(16, 4, 1)]),
    ),
    Preset::new(
        "sse-600m",
        "sparse state expansion, 1 of 4 partitions",
        || QWEN_SMALL.model(28, &[mixers::sse(8, 4, 1)]),
    ),
    Preset::new(
        "sse-2b",
        "sparse state expansion, 1 of 4 partitions",
        || QWEN_LARGE.model(28, &[mixers::sse(16, 4, 1)]),
    ),
    // One attention layer in four, as in the published 4B models.
    Preset::new(
        "sse-h-600m",
        "three SSE layers to one of full attention",
        || QWEN_SMALL.model(28, &sse_hybrid(8, 4)),
    ),
    Preset::new(
        "sse-h-2b",
        "three SSE layers to one of full attention",
        || QWEN_LARGE.model(28, &sse_hybrid(16, 8)),
    ),
    // The order of its layers is the paper's, the widths were chosen to make 12B.
    Preset::new(
        "sse-12b",
        "SSE, window, SSE, window, full attention by turns",
        || {
            let size = QWEN_LARGE.widths(5120, 13824);
            size.model(40, &sse_windows(40, 8, 1024))
        },
    ),
    // The defaults of flash-linear-attention's MomConfig (arXiv 2502.13685), and the same with four times the memories: a
    // token of both touches as much.
    Preset::new("mom-m4k2-1.6b", "mixture of memories, 2 of 4", || {
        LARGE.model(24, &[mixers::mom(4, 256, 4)])
    }),
    Preset::new("mom-m16k2-2.8b", "mixture of memories, 2 of 16", || {
        LARGE.model(24, &[mixers::mom(4, 256, 16)])
    }),
    // state-spaces/mamba-790m, mamba-1.4b and mamba2-1.3b on Hugging Face.
    Preset::new("mamba-1.4b", "Mamba", || {
        mamba_size(2048).model(48, &[mixers::mamba(2048, None)])
    }),
    Preset::new("mamba2-1.3b", "Mamba-2", || {
        MAMBA2.model(48, &[mixers::mamba2(2048, None)])
    }),
    // Beside those, hashed and selected keys, half of 64 each, and 64 bins (arXiv 2507.00449).
    Preset::new("hax-mamba-790m", "HAX on Mamba", || {
        mamba_size(1536).model(48, &[mixers::mamba(1536, Some(mixers::hax(32, 64)))])
    }),
    Preset::new("hax-mamba2-790m", "HAX on Mamba-2", || {
        MAMBA2
            .widths(1536, 0)
            .model(48, &[mixers::mamba2(1536, Some(mixers::hax(32, 64)))])
    }),
    // One of each kind for tests.
    Preset::new("lalte-tiny", "as lalte-1.4b, for tests", || {
        TINY.model(4, &[mixers::gated_deltanet(4, 64), mixers::lte_tiny()])
    }),
    Preset::new("lansa-tiny", "as lansa-1.4b, for tests", || {
        TINY.model(4, &[mixers::gated_deltanet(4, 64), mixers::nsa_tiny()])
    }),
    Preset::new("gdn-tiny", "as gdn-1.3b, for tests", || {
        TINY.model(4, &[mixers::gated_deltanet(4, 64)])
    }),
    Preset::new("transformer-tiny", "as transformer-1.3b, for tests", || {
        TINY.model(4, &[Arc::new(mixers::attention(4, 2, 64, None))])
    }),
    Preset::new("swa-tiny", "as swa-1.3b, for tests", || {
        TINY.model(4, &[Arc::new(mixers::attention(4, 2, 64, Some(64)))])
    }),
    Preset::new("gla-tiny", "as gla-1.3b, for tests", || {
        TINY.model(4, &[mixers::gla(TINY_HEADS)])
    }),
    Preset::new("retnet-tiny", "as retnet-1.3b, for tests", || {
        TINY.model(4, &[mixers::retnet(TINY_HEADS)])
    }),
    Preset::new("gsa-tiny", "as gsa-1.3b, for tests", || {
        TINY.model(4, &[mixers::gsa(4, 64, 16)])
    }),
    Preset::new("sla-gla-tiny", "as sla-gla-1.3b, for tests", || {
        TINY.model(4, &[mixers::gla(TINY_HEADS.weighted())])
    }),
    Preset::new("sla-retnet-tiny", "as sla-retnet-1.3b, for tests", || {
        TINY.model(4, &[mixers::retnet(TINY_HEADS.weighted())])
    }),
    Preset::new("sla-gdn-tiny", "as sla-gdn-1.3b, for tests", || {
        TINY.model(4, &[mixers::softmax_gated_deltanet(4, 64)])
    }),
    Preset::new("sse-tiny", "as sse-n4k1-1.3b, for tests", || {
        TINY.model(4, &[mixers::sse(2, 4, 1)])
    }),
    Preset::new("sse-gdn-tiny", "as sse-gdn-n4k1-1.3b, for tests", || {
        TINY.model(4, &[mixers::sse_gdn(2, 4, 1)])
    }),
    Preset::new("sse-h-tiny", "as sse-h-2b, for tests", || {
        TINY.model(4, &sse_hybrid(2, 1))
    }),
    Preset::new("sse-windows-tiny", "as sse-12b, for tests", || {
        TINY.model(5, &sse_windows(2, 1, 64))
    }),
    Preset::new("mom-tiny", "as mom-m4k2-1.6b, for tests", || {
        TINY.model(4, &[mixers::mom(2, 64, 4)])
    }),
    Preset::new("mamba-tiny", "as mamba-1.4b, for tests", || {
        TINY.of_mamba().model(4, &[mixers::mamba(256, None)])
    }),
    Preset::new("mamba2-tiny", "as mamba2-1.3b, for tests", || {
        TINY.of_mamba().model(4, &[mixers::mamba2(256, None)])
    }),
    Preset::new("hax-mamba-tiny", "as hax-mamba-790m, for tests", || {
        let hax = Some(mixers::hax(8, 8));
        TINY.of_mamba().model(4, &[mixers::mamba(256, hax)])
    }),
    Preset::new("hax-mamba2-tiny", "as hax-mamba2-790m, for tests", || {
        let hax = Some(mixers::hax(8, 8));
        TINY.of_mamba().model(4, &[mixers::mamba2(256, hax)])
    }),
];

/// The preset called `name`.
pub fn by_name(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// What a model has beside its mixers.
#[derive(Clone, Copy)]
struct Size {
    vocab: usize,
    hidden: usize,
    /// Width of the feed-forward networks; zero: none.
    intermediate: usize,
    tied: bool,
    norm_eps: f32,
}

impl Size {
    const fn widths(self, hidden: usize, intermediate: usize) -> Self {
        Size {
            hidden,
            intermediate,
            ..self
        }
    }

    /// The same without feed-forward networks, and with Mamba's epsilon.
    const fn of_mamba(self) -> Self {
        Size {
            norm_eps: MAMBA2.norm_eps,
            ..self.widths(self.hidden, 0)
        }
    }

    /// `blocks` blocks that take turns through `mixers`.
    fn model(self, blocks: usize, mixers: &[Arc<dyn Mixer>]) -> ModelSpec {
        let mlp = (self.intermediate > 0).then_some(MlpSpec {
            intermediate: self.intermediate,
        });
        let block = |mixer: &Arc<dyn Mixer>| BlockSpec {
            mixer: Arc::clone(mixer),
            mlp,
        };
        ModelSpec {
            vocab: self.vocab,
            hidden: self.hidden,
            norm: NormKind::default(),
            norm_eps: self.norm_eps,
            embedding_norm: false,
            tied: self.tied,
            blocks: mixers.iter().cycle().take(blocks).map(block).collect(),
        }
    }
}

const LARGE: Size = Size {
    vocab: 32000,
    hidden: 2048,
    intermediate: 5632,
    tied: false,
    norm_eps: 1e-6,
};
const QWEN_SMALL: Size = Size {
    vocab: 151936,
    hidden: 1024,
    intermediate: 3072,
    tied: true,
    norm_eps: 1e-6,
};
const QWEN_LARGE: Size = QWEN_SMALL.widths(2048, 6144);
/// The vocabulary is padded to a multiple of 16.
const MAMBA2: Size = Size {
    vocab: 50288,
    hidden: 2048,
    intermediate: 0,
    tied: true,
    norm_eps: 1e-5,
};
const TINY: Size = Size {
    vocab: 4096,
    hidden: 256,
    intermediate: 512,
    tied: true,
    norm_eps: 1e-6,
};

/// Mamba's vocabulary is padded to a multiple of 8.
const fn mamba_size(hidden: usize) -> Size {
    Size {
        vocab: 50280,
        ..MAMBA2.widths(hidden, 0)
    }
}

const GLA_HEADS: Heads = Heads::new(4, 256, 512);
const RETNET_HEADS: Heads = Heads::new(8, 256, 512);
const TINY_HEADS: Heads = Heads::new(4, 32, 64);

/// Three layers of sparse state expansion and one of full attention.
fn sse_hybrid(heads: usize, kv_heads: usize) -> [Arc<dyn Mixer>; 4] {
    let sse = || mixers::sse(heads, 4, 1);
    let attention = Arc::new(mixers::attention(heads, kv_heads, 128, None));
    [sse(), sse(), sse(), attention]
}

/// Sparse state expansion, a window, sparse state expansion, a window, full attention.
fn sse_windows(heads: usize, kv_heads: usize, window: usize) -> [Arc<dyn Mixer>; 5] {
    let sse = || mixers::sse(heads, 4, 1);
    let attention =
        |window| -> Arc<dyn Mixer> { Arc::new(mixers::attention(heads, kv_heads, 128, window)) };
    let window = || attention(Some(window));
    [sse(), window(), sse(), window(), attention(None)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_sound_and_as_large_as_their_names_say() {
        for preset in PRESETS {
            let spec = (preset.spec)();
            spec.check(preset.name).unwrap();
            let parameters = spec.parameters() as f64;
            let (_, size) = preset.name.rsplit_once('-').unwrap();
            if size == "tiny" {
                assert!(parameters < 1e7, "{}: {parameters}", preset.name);
                continue;
            }
            let (digits, unit) = size.split_at(size.len() - 1);
            let said = digits.parse::<f64>().unwrap() * if unit == "b" { 1e9 } else { 1e6 };
            let off = parameters / said - 1.0;
            assert!(off.abs() < 0.12, "{}: {parameters}", preset.name);
        }
    }

    #[test]
    fn names_are_unique() {
        for preset in PRESETS {
            let namesakes = PRESETS.iter().filter(|other| other.name == preset.name);
            assert_eq!(namesakes.count(), 1, "{}", preset.name);
        }
    }
}
