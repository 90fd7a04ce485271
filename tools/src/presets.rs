//! The shapes that `synth` can make.

use std::sync::Arc;

use waterline::mixers::{Attention, GatedDeltaNet, Lte, Mixer, RouterScope, ScoreMap};
use waterline::stages::Activation;
use waterline::{BlockSpec, MlpSpec, ModelSpec, NormKind};

/// A model's shape by name.
pub struct Preset {
    /// What `synth` calls it.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its dimensions.
    pub spec: fn() -> ModelSpec,
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "lalte-1.4b",
        about: "Gated DeltaNet and token eviction by turns, as in the laLTE paper",
        spec: lalte_large,
    },
    Preset {
        name: "gdn-1.3b",
        about: "Gated DeltaNet",
        spec: gdn_large,
    },
    Preset {
        name: "transformer-1.3b",
        about: "full attention",
        spec: transformer_large,
    },
    Preset {
        name: "lalte-tiny",
        about: "as lalte-1.4b, for tests",
        spec: lalte_tiny,
    },
    Preset {
        name: "gdn-tiny",
        about: "as gdn-1.3b, for tests",
        spec: gdn_tiny,
    },
    Preset {
        name: "transformer-tiny",
        about: "as transformer-1.3b, for tests",
        spec: transformer_tiny,
    },
];

/// The preset called `name`.
pub fn by_name(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// Blocks that take turns through `mixers`.
fn model(size: Size, blocks: usize, mixers: &[Arc<dyn Mixer>]) -> ModelSpec {
    let mlp = Some(MlpSpec {
        intermediate: size.intermediate,
    });
    let mixers = mixers.iter().cycle().take(blocks);
    ModelSpec {
        vocab: size.vocab,
        hidden: size.hidden,
        norm: NormKind::default(),
        norm_eps: 1e-6,
        embedding_norm: false,
        tied: size.tied,
        blocks: mixers
            .map(|mixer| BlockSpec {
                mixer: Arc::clone(mixer),
                mlp,
            })
            .collect(),
    }
}

struct Size {
    vocab: usize,
    hidden: usize,
    intermediate: usize,
    tied: bool,
}

const LARGE: Size = Size {
    vocab: 32000,
    hidden: 2048,
    intermediate: 5632,
    tied: false,
};
const TINY: Size = Size {
    vocab: 4096,
    hidden: 256,
    intermediate: 512,
    tied: true,
};

fn lalte_large() -> ModelSpec {
    // The configuration's window_size is 768 keys besides the query's own.
    let lte = lte(attention(32, 8, 64, Some(769)), 512);
    model(LARGE, 24, &[gated_deltanet(8, 256), lte])
}

fn gdn_large() -> ModelSpec {
    model(LARGE, 21, &[gated_deltanet(8, 256)])
}

fn transformer_large() -> ModelSpec {
    model(LARGE, 24, &[Arc::new(attention(32, 32, 64, None))])
}

fn lalte_tiny() -> ModelSpec {
    model(
        TINY,
        4,
        &[
            gated_deltanet(4, 64),
            lte(attention(4, 2, 64, Some(64)), 32),
        ],
    )
}

fn gdn_tiny() -> ModelSpec {
    model(TINY, 4, &[gated_deltanet(4, 64)])
}

fn transformer_tiny() -> ModelSpec {
    model(TINY, 4, &[Arc::new(attention(4, 2, 64, None))])
}

fn gated_deltanet(heads: usize, head_dim: usize) -> Arc<dyn Mixer> {
    Arc::new(GatedDeltaNet {
        heads,
        value_heads: heads,
        head_dim,
        value_dim: head_dim,
        conv: Some(4),
        conv_bias: false,
        gate: Some(Activation::Silu),
        negative_eigenvalues: false,
        decay: true,
        head_gates: None,
        norm_eps: 1e-6,
    })
}

fn attention(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        window,
        rope_theta: Some(10000.0),
        ..Attention::default()
    }
}

fn lte(attention: Attention, capacity: usize) -> Arc<dyn Mixer> {
    Arc::new(Lte {
        attention,
        capacity,
        sink: 4,
        router_taps: vec![3; 3],
        router_dilations: vec![2; 3],
        router_scope: RouterScope::Head,
        score: ScoreMap::Sigmoid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_sound_and_as_large_as_their_names_say() {
        for preset in PRESETS {
            let spec = (preset.spec)();
            spec.check(preset.name).unwrap();
            let billions = spec.parameters() as f64 / 1e9;
            match preset.name.rsplit_once('-') {
                Some((_, "tiny")) => assert!(billions < 0.01, "{}: {billions}", preset.name),
                Some((_, size)) => {
                    let said: f64 = size.trim_end_matches('b').parse().unwrap();
                    assert!((billions - said).abs() < 0.1, "{}: {billions}", preset.name);
                }
                None => panic!("{} has no size", preset.name),
            }
        }
    }
}
