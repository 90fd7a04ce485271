//! The matrix form of [`super::chunk`] where all rows of the state decay alike: the decays are then factors outside the products
//! of keys and queries, which become plain matrix products. With `F_ij = a_{j+1} * ... * a_i`, one number each:
//!
//! ```text
//! u_i = beta_i (v_i - F_i0 (k_i S) - sum_{j<i} F_ij (k_i . k_j) u_j)     the delta rule; else u_i = v_i
//! o_i = scale (F_i0 (q_i S) + sum_{j<=i} F_ij (q_i . k_j) u_j)
//! S  <- F_C0 S + sum_j k_j^T (F_Cj u_j)
//! ```

use super::chunk::BLOCK;
use super::{Decays, Inputs, Outputs, Rows};
use crate::cpu::simd::{axpy, gemm, scale, scaled_gemm};

/// The inputs of a recurrence whose state rows decay alike.
pub(super) struct Recurrence<'a> {
    inputs: &'a Inputs<'a>,
    keys: Rows<'a>,
}

impl<'a> Recurrence<'a> {
    /// Returns `None` if rows decay separately, or if a token removes the value under a key other than its own.
    #[inline(always)]
    pub fn new(inputs: &'a Inputs<'a>) -> Option<Self> {
        let alike = match inputs.decay {
            Decays::None | Decays::Fixed(_) | Decays::Head(_) | Decays::Step(..) => true,
            Decays::Key(_) | Decays::Complement(_) | Decays::Factors(_) => false,
        };
        let own = alike && inputs.erase.is_none() && inputs.removal.is_none();
        let keys = inputs.k.filter(|_| own)?;
        Some(Recurrence { inputs, keys })
    }

    /// Runs the tokens `first..first + n`, at most [`BLOCK`], like [`super::chunk::run`].
    #[inline(always)]
    pub fn block(
        &self,
        first: usize,
        n: usize,
        state: &mut [f32],
        out: &mut Outputs,
        scratch: &mut [f32],
    ) {
        let (inputs, dk, dv) = (self.inputs, self.inputs.dk, self.inputs.dv);
        let keys = self.keys.from(first, 0);
        let (tile, rest) = scratch.split_at_mut(BLOCK * dk);
        let (weights, rest) = rest.split_at_mut(BLOCK * BLOCK);
        let (u, rest) = rest.split_at_mut(n * dv);
        let o = &mut rest[..n * dv];

        let span = Span::new(inputs, first, n);
        // The keys as columns, so that a row of products is a sum of rows.
        let columns = tile.as_chunks_mut::<BLOCK>().0;
        for j in 0..n {
            for (column, &x) in columns.iter_mut().zip(keys.get(j, dk)) {
                column[j] = x;
            }
        }
        for (i, u) in u.chunks_exact_mut(dv).enumerate() {
            u.copy_from_slice(inputs.v.get(first + i, dv));
            scale(inputs.write_gate(first + i), u);
        }

        if let Some(beta) = inputs.beta {
            span.weigh(keys, [n, dk], tile, weights);
            o.fill(0.0);
            gemm([n, dv, dk], keys.values, [keys.stride, 1], state, dv, o, dv);
            for i in 0..n {
                let (before, rest) = u.split_at_mut(i * dv);
                let row = &mut rest[..dv];
                axpy(-span.before[i], &o[i * dv..][..dv], row);
                for (weight, earlier) in weights[i * BLOCK..].iter().zip(before.chunks_exact(dv)) {
                    axpy(-weight, earlier, row);
                }
                scale(beta.get(first + i, 1)[0], row);
            }
        }

        for query in 0..inputs.queries {
            let q = inputs.q.from(first, query * dk);
            span.weigh(q, [n, dk], tile, weights);
            o.fill(0.0);
            gemm([n, dv, dk], q.values, [q.stride, 1], state, dv, o, dv);
            for (row, before) in o.chunks_exact_mut(dv).zip(span.before) {
                scale(before, row);
            }
            gemm([n, dv, n], weights, [BLOCK, 1], u, dv, o, dv);
            for i in 0..n {
                let factor = inputs.read_factor(first + i, query);
                let out = &mut out.token(first + i)[query * dv..][..dv];
                for (out, o) in out.iter_mut().zip(&o[i * dv..][..dv]) {
                    *out = factor * o;
                }
            }
        }

        for (u, &left) in u.chunks_exact_mut(dv).zip(&span.between[n - 1]) {
            scale(left, u);
        }
        let size = [dk, dv, n];
        let keep = span.before[n - 1];
        let transposed = (keys.values, [1, keys.stride]);
        scaled_gemm(size, keep, transposed, (u, dv), (state, dv));
    }
}

/// The decays within a block.
struct Span {
    /// `F_i0`.
    before: [f32; BLOCK],
    /// `F_ij`, zero above the diagonal.
    between: [[f32; BLOCK]; BLOCK],
}

impl Span {
    #[inline(always)]
    fn new(inputs: &Inputs, first: usize, n: usize) -> Self {
        let mut span = Span {
            before: [1.0; BLOCK],
            between: [[0.0; BLOCK]; BLOCK],
        };
        for i in 0..n {
            let mut decay = [1.0];
            inputs.decay(first + i, &mut decay);
            span.before[i] = decay[0];
            if i > 0 {
                span.before[i] *= span.before[i - 1];
                for j in 0..i {
                    span.between[i][j] = decay[0] * span.between[i - 1][j];
                }
            }
            span.between[i][i] = 1.0;
        }
        span
    }

    /// `weights[i, j] = F_ij (reader_i . k_j)` for j up to i, else 0; the tile holds the keys `[dk, BLOCK]`.
    #[inline(always)]
    fn weigh(&self, readers: Rows, [n, dk]: [usize; 2], tile: &[f32], weights: &mut [f32]) {
        weights.fill(0.0);
        let steps = [readers.stride, 1];
        gemm(
            [n, n, dk],
            readers.values,
            steps,
            tile,
            BLOCK,
            weights,
            BLOCK,
        );
        for (weights, between) in weights.chunks_exact_mut(BLOCK).zip(&self.between) {
            for (weight, decay) in weights.iter_mut().zip(between) {
                *weight *= decay;
            }
        }
    }
}
