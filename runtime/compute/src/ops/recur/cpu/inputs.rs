//! The inputs of one state over a chunk, on a CPU.

use crate::cpu::{Shared, simd};

/// The columns of a buffer from a head's first column on.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub fn new(values: &'a [f32], stride: usize) -> Self {
        Rows { values, stride }
    }

    /// The rows from token t on, without the first `column` columns.
    #[inline(always)]
    pub fn from(&self, t: usize, column: usize) -> Self {
        Rows::new(&self.values[t * self.stride + column..], self.stride)
    }

    /// The first `width` columns of token t.
    #[inline(always)]
    pub fn get(&self, t: usize, width: usize) -> &'a [f32] {
        &self.values[t * self.stride..][..width]
    }
}

/// Where the outputs of a state lie: columns of each token's row.
pub(in crate::ops) struct Outputs<'a> {
    rows: &'a Shared<'a, f32>,
    start: usize,
    stride: usize,
    width: usize,
}

impl<'a> Outputs<'a> {
    /// Covers `width` columns from `start` on in each row of `stride` columns.
    ///
    /// # Safety
    /// While this exists, nothing else uses these columns of `rows`.
    #[inline(always)]
    pub unsafe fn new(
        rows: &'a Shared<'a, f32>,
        start: usize,
        stride: usize,
        width: usize,
    ) -> Self {
        Outputs {
            rows,
            start,
            stride,
            width,
        }
    }

    /// The outputs from token t on.
    #[inline(always)]
    pub fn from(&mut self, t: usize) -> Outputs<'_> {
        Outputs {
            start: self.start + t * self.stride,
            ..*self
        }
    }

    /// The outputs of token t.
    #[inline(always)]
    pub fn token(&mut self, t: usize) -> &mut [f32] {
        let start = self.start + t * self.stride;
        // SAFETY: the contract of `new`, and `self` is borrowed while the outputs are in use.
        unsafe { self.rows.part(start..start + self.width) }
    }
}

/// The inputs of one state over a chunk.
pub(in crate::ops) struct Inputs<'a> {
    /// Number of consecutive queries that read the state.
    pub queries: usize,
    pub dk: usize,
    pub dv: usize,
    pub q: Rows<'a>,
    pub k: Option<Rows<'a>>,
    pub v: Rows<'a>,
    pub decay: Decays<'a>,
    pub beta: Option<Rows<'a>>,
    /// The key of [`Write::Erase`].
    pub erase: Option<Rows<'a>>,
    pub removal: Option<Removal<'a>>,
    pub write_gate: Option<Rows<'a>>,
    pub read_gate: Option<Rows<'a>>,
    pub scale: f32,
}

/// The removal of [`Write::Replace`].
#[derive(Clone, Copy)]
pub(in crate::ops) struct Removal<'a> {
    pub key: Rows<'a>,
    pub rate: Rows<'a>,
}

/// How a state decays: by `exp` of these values, by one minus them (`Complement`), or by the values themselves (`Factors`).
pub(in crate::ops) enum Decays<'a> {
    None,
    Fixed(f32),
    Head(Rows<'a>),
    Step(Rows<'a>, f32),
    Key(Rows<'a>),
    Complement(Rows<'a>),
    Factors(Rows<'a>),
}

impl Inputs<'_> {
    /// Writes the factors by which the rows of the state decay before token t, `[dk]`.
    #[inline(always)]
    pub fn decay(&self, t: usize, decay: &mut [f32]) {
        match self.decay {
            Decays::None => decay.fill(1.0),
            Decays::Fixed(g) => decay.fill(simd::exp(g)),
            Decays::Head(g) => decay.fill(simd::exp(g.get(t, 1)[0])),
            Decays::Step(step, rate) => decay.fill(simd::exp(rate * step.get(t, 1)[0])),
            Decays::Key(g) => {
                for (decay, &g) in decay.iter_mut().zip(g.get(t, self.dk)) {
                    *decay = simd::exp(g);
                }
            }
            Decays::Factors(factors) => decay.copy_from_slice(factors.get(t, self.dk)),
            Decays::Complement(weights) => {
                for (decay, &weight) in decay.iter_mut().zip(weights.get(t, self.dk)) {
                    *decay = 1.0 - weight;
                }
            }
        }
    }

    /// Writes the key of token t, `[dk]`.
    #[inline(always)]
    pub fn key(&self, t: usize, decay: &[f32], key: &mut [f32]) {
        match self.k {
            Some(k) => key.copy_from_slice(k.get(t, self.dk)),
            None => {
                for (key, decay) in key.iter_mut().zip(decay) {
                    *key = 1.0 - decay;
                }
            }
        }
    }

    /// The write gate of token t.
    #[inline(always)]
    pub fn write_gate(&self, t: usize) -> f32 {
        self.write_gate.map_or(1.0, |gate| gate.get(t, 1)[0])
    }

    /// The factor of the state's output `query` at token t.
    #[inline(always)]
    pub(crate) fn read_factor(&self, t: usize, query: usize) -> f32 {
        let gate = self
            .read_gate
            .map_or(1.0, |gate| gate.get(t, query + 1)[query]);
        self.scale * gate
    }
}
