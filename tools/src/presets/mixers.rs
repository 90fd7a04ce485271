//! Mixers with the options that the papers' configurations have, but for their sizes.

use std::sync::Arc;

use waterline::mixers::{
    Attention, GatedDeltaNet, Gla, Gsa, Hax, HeadGateInput, HeadMap, LinearAttention, Lte, Mamba,
    Mamba2, Mixer, Mom, NativeSparseAttention, RetNet, RouterScope, ScoreMap, Source, Sse,
    StateUpdate,
};
use waterline::stages::Activation;

/// Heads of linear attention.
#[derive(Clone, Copy)]
pub struct Heads {
    number: usize,
    head_dim: usize,
    value_dim: usize,
    weighted: bool,
}

impl Heads {
    /// As many, with keys and values of these widths.
    pub const fn new(number: usize, head_dim: usize, value_dim: usize) -> Self {
        Heads {
            number,
            head_dim,
            value_dim,
            weighted: false,
        }
    }

    /// The same with softmax over the heads.
    pub const fn weighted(self) -> Self {
        Heads {
            weighted: true,
            ..self
        }
    }

    fn linear(self) -> LinearAttention {
        LinearAttention {
            heads: self.number,
            kv_heads: self.number,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            feature_map: None,
            conv: None,
            gate: true,
            head_gates: self.weighted.then_some(HeadGateInput::Hidden),
            norm_eps: 1e-6,
        }
    }
}

pub fn gla(heads: Heads) -> Arc<dyn Mixer> {
    Arc::new(Gla {
        linear: heads.linear(),
        gate_rank: 16,
        gate_normalizer: 16.0,
        gate_min: None,
        written: None,
    })
}

pub fn retnet(heads: Heads) -> Arc<dyn Mixer> {
    Arc::new(RetNet {
        linear: heads.linear(),
        rope_theta: 10000.0,
    })
}

pub fn gsa(heads: usize, head_dim: usize, slots: usize) -> Arc<dyn Mixer> {
    Arc::new(Gsa {
        heads,
        kv_heads: heads,
        head_dim,
        value_dim: head_dim,
        slots,
        feature_map: Activation::Silu,
        learned_map: false,
        conv: None,
        gate_normalizer: 8.0,
        written: None,
    })
}

pub fn gated_deltanet(heads: usize, head_dim: usize) -> Arc<dyn Mixer> {
    Arc::new(gated_deltanet_of(heads, head_dim))
}

/// Gated DeltaNet with softmax over the heads.
pub fn softmax_gated_deltanet(heads: usize, head_dim: usize) -> Arc<dyn Mixer> {
    Arc::new(GatedDeltaNet {
        head_gates: Some(HeadGateInput::Hidden),
        ..gated_deltanet_of(heads, head_dim)
    })
}

fn gated_deltanet_of(heads: usize, head_dim: usize) -> GatedDeltaNet {
    GatedDeltaNet {
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
    }
}

pub fn attention(
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
) -> Attention {
    Attention {
        heads,
        kv_heads,
        head_dim,
        window,
        rope_theta: Some(10000.0),
        ..Attention::default()
    }
}

pub fn lte() -> Arc<dyn Mixer> {
    // The configuration's window_size is 768 keys besides the query's own.
    lte_of(attention(32, 8, 64, Some(769)), 512)
}

pub fn lte_tiny() -> Arc<dyn Mixer> {
    lte_of(attention(4, 2, 64, Some(64)), 32)
}

fn lte_of(attention: Attention, capacity: usize) -> Arc<dyn Mixer> {
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

pub fn nsa() -> Arc<dyn Mixer> {
    nsa_of(attention(32, 2, 64, None), 64, 16, 512)
}

pub fn nsa_tiny() -> Arc<dyn Mixer> {
    nsa_of(attention(16, 1, 32, None), 8, 4, 32)
}

fn nsa_of(
    attention: Attention,
    block_size: usize,
    block_count: usize,
    window: usize,
) -> Arc<dyn Mixer> {
    Arc::new(NativeSparseAttention {
        attention,
        block_size,
        block_count,
        window,
    })
}

/// Sparse state expansion with gated linear attention: `written` of `partitions`, besides the shared state.
pub fn sse(heads: usize, partitions: usize, written: usize) -> Arc<dyn Mixer> {
    let update = StateUpdate::Gla {
        rank: 16,
        normalizer: 16.0,
    };
    sse_of(heads, partitions, written, update, HeadMap::Softmax)
}

/// Sparse state expansion with Gated DeltaNet.
pub fn sse_gdn(heads: usize, partitions: usize, written: usize) -> Arc<dyn Mixer> {
    let update = StateUpdate::GatedDelta {
        negative_eigenvalues: false,
    };
    sse_of(heads, partitions, written, update, HeadMap::Silu)
}

fn sse_of(
    heads: usize,
    partitions: usize,
    written: usize,
    update: StateUpdate,
    key_map: HeadMap,
) -> Arc<dyn Mixer> {
    Arc::new(Sse {
        heads,
        value_heads: heads,
        head_dim: 128,
        value_dim: 128,
        partitions,
        writers: written,
        readers: written,
        update,
        query_map: HeadMap::Silu,
        key_map,
        weigh_queries: true,
        weigh_keys: true,
        lora_rank: Some(64),
        conv: None,
        gate_rank: Some(128),
        bias: false,
        norm_eps: 1e-6,
    })
}

/// Memories of Gated DeltaNet, of which a token uses two, besides the shared one.
pub fn mom(heads: usize, head_dim: usize, memories: usize) -> Arc<dyn Mixer> {
    Arc::new(Mom {
        heads,
        head_dim,
        value_dim: head_dim,
        memories,
        chosen: 2,
        shared: true,
        single: false,
        conv: 4,
        gate: true,
        norm_eps: 1e-6,
    })
}

pub fn mamba(hidden: usize, hax: Option<Hax>) -> Arc<dyn Mixer> {
    Arc::new(Mamba {
        inner: 2 * hidden,
        state: 16,
        rank: hidden / 16,
        conv: 4,
        conv_bias: true,
        bias: false,
        hax,
    })
}

pub fn mamba2(hidden: usize, hax: Option<Hax>) -> Arc<dyn Mixer> {
    Arc::new(Mamba2 {
        heads: 2 * hidden / 64,
        head_dim: 64,
        groups: 1,
        state: 128,
        conv: 4,
        conv_bias: true,
        bias: false,
        skip_per_channel: false,
        norm_groups: Some(1),
        norm_before_gate: false,
        norm_eps: 1e-5,
        step_min: 0.0,
        step_max: None,
        hax,
    })
}

/// Hashed and selected keys, as many of each.
pub fn hax(keys: usize, bins: usize) -> Hax {
    Hax {
        keys,
        sources: vec![Source::ArgmaxBins { bins }, Source::Best],
    }
}
