//! The recurrence in matrix form, for chunks. In a block of C tokens, S is the state before the block, and
//! `F_ij = a_{j+1} * ... * a_i` is the decay from token j to token i (one factor for each key channel; j = 0 is before the
//! block):
//!
//! ```text
//! u_i = beta_i (v_i - (k_i F_i0) S - sum_{j<i} (k_i . F_ij k_j) u_j)     the delta rule; else u_i = v_i
//!       (an erasing key e_i replaces k_i on the left of F, and beta_i is one)
//! o_i = scale ((q_i F_i0) S + sum_{j<=i} (q_i . F_ij k_j) u_j)
//! S  <- F_C0 S + sum_j (F_Cj k_j)^T u_j
//! ```
//!
//! Where a token removes what its key r_i reads, with the rates b_i, there is a second write `w_i` under the key
//! `b_i r_i`: `w_i = -(r_i F_{i-1,0}) S - sum_{j<i} (r_i . F_{i-1,j} k_j) u_j - sum_{j<i} (r_i . F_{i-1,j} b_j r_j) w_j`.
//!
//! The usual `F_ij = e^{G_i} / e^{G_j}` overflows where a channel decays fast. Here a tile holds the block's keys, which decay
//! with every token as the state would: this needs only products of factors of at most one, and one exponential for each factor.

use super::{Inputs, Outputs, Rows, uniform_decay};
use crate::cpu::simd::{axpy, gemm, multiply, scale, vectorize};

/// Tokens per block, adjacent in a row of the tile. A longer block passes over the state less often, but its triangles cost more.
pub(super) const BLOCK: usize = 16;

/// Floats of scratch.
pub(super) fn scratch(dk: usize, dv: usize) -> usize {
    BLOCK * (7 * dk + 3 * dv + 2 * BLOCK)
}

/// Runs `tokens` tokens on one state.
#[inline(always)]
pub(super) fn run(
    inputs: &Inputs,
    tokens: usize,
    state: &mut [f32],
    out: &mut Outputs,
    scratch: &mut [f32],
) {
    for first in (0..tokens).step_by(BLOCK) {
        let length = (tokens - first).min(BLOCK);
        match uniform_decay::Recurrence::new(inputs) {
            Some(recurrence) => recurrence.block(first, length, state, out, scratch),
            None => block(inputs, first, length, state, out, scratch),
        }
    }
}

#[inline(always)]
fn block(
    inputs: &Inputs,
    first: usize,
    n: usize,
    state: &mut [f32],
    out: &mut Outputs,
    scratch: &mut [f32],
) {
    let (dk, dv) = (inputs.dk, inputs.dv);
    let (decays, rest) = scratch.split_at_mut(n * dk);
    let (reach, rest) = rest.split_at_mut(n * dk);
    let (keys, rest) = rest.split_at_mut(n * dk);
    let (probe, rest) = rest.split_at_mut(n * dk);
    let (tile, rest) = rest.split_at_mut(BLOCK * dk);
    let (weights, rest) = rest.split_at_mut(n * BLOCK);
    let (u, rest) = rest.split_at_mut(n * dv);
    let (o, rest) = rest.split_at_mut(n * dv);
    // Data of the removal: its keys, their tile, the values read, the weights.
    let (removals, rest) = rest.split_at_mut(n * dk);
    let (removal_tile, rest) = rest.split_at_mut(BLOCK * dk);
    let (w, rest) = rest.split_at_mut(n * dv);
    let removal_weights = &mut rest[..n * BLOCK];

    for i in 0..n {
        let decay = &mut decays[i * dk..][..dk];
        inputs.decay(first + i, decay);
        inputs.key(first + i, decay, &mut keys[i * dk..][..dk]);
        // F_i0
        let (before, rest) = reach.split_at_mut(i * dk);
        rest[..dk].copy_from_slice(decay);
        if i > 0 {
            multiply(&before[(i - 1) * dk..], &mut rest[..dk]);
        }
        let u = &mut u[i * dv..][..dv];
        u.copy_from_slice(inputs.v.get(first + i, dv));
        scale(inputs.write_gate(first + i), u);
    }

    if inputs.beta.is_some() || inputs.erase.is_some() {
        let readers = match inputs.erase {
            Some(erase) => erase.from(first, 0),
            None => Rows::new(keys, dk),
        };
        triangle(n, readers, keys, decays, tile, weights);
        for (i, probe) in probe.chunks_exact_mut(dk).enumerate() {
            probe.copy_from_slice(readers.get(i, dk));
        }
        multiply(reach, probe);
        scale(-1.0, probe);
        gemm([n, dv, dk], probe, [dk, 1], state, dv, u, dv);
        for i in 0..n {
            let (before, rest) = u.split_at_mut(i * dv);
            let row = &mut rest[..dv];
            for (weight, earlier) in weights[i * BLOCK..].iter().zip(before.chunks_exact(dv)) {
                axpy(-weight, earlier, row);
            }
            if let Some(beta) = inputs.beta {
                scale(beta.get(first + i, 1)[0], row);
            }
        }
    }

    if let Some(removal) = inputs.removal {
        // Removal i + 1 reads before its token decays the state, as query i does, so row i is its probe.
        probe.fill(0.0);
        o.fill(0.0);
        for i in 0..n {
            let key = removal.key.get(first + i, dk);
            let place = &mut removals[i * dk..][..dk];
            place.copy_from_slice(key);
            multiply(removal.rate.get(first + i, dk), place);
            if i > 0 {
                probe[(i - 1) * dk..][..dk].copy_from_slice(key);
            }
        }
        let readers = Rows::new(probe, dk);
        triangle(n, readers, keys, decays, tile, weights);
        triangle(n, readers, removals, decays, removal_tile, removal_weights);
        multiply(reach, probe);
        let key = removal.key.get(first, dk);
        gemm([1, dv, dk], key, [dk, 1], state, dv, o, dv);
        gemm([n - 1, dv, dk], probe, [dk, 1], state, dv, &mut o[dv..], dv);
        for i in 0..n {
            let (before, rest) = w.split_at_mut(i * dv);
            let row = &mut rest[..dv];
            row.copy_from_slice(&o[i * dv..][..dv]);
            let written = |weights: &[f32], values: &[f32], row: &mut [f32]| {
                if i > 0 {
                    let weights = &weights[(i - 1) * BLOCK..][..i];
                    for (weight, earlier) in weights.iter().zip(values.chunks_exact(dv)) {
                        axpy(*weight, earlier, row);
                    }
                }
            };
            written(weights, u, row);
            written(removal_weights, before, row);
            scale(-1.0, row);
        }
    }

    for query in 0..inputs.queries {
        let q = inputs.q.from(first, query * dk);
        triangle(n, q, keys, decays, tile, weights);
        if inputs.removal.is_some() {
            triangle(n, q, removals, decays, removal_tile, removal_weights);
        }
        for (i, probe) in probe.chunks_exact_mut(dk).enumerate() {
            probe.copy_from_slice(q.get(i, dk));
        }
        multiply(reach, probe);
        o.fill(0.0);
        gemm([n, dv, dk], probe, [dk, 1], state, dv, o, dv);
        gemm([n, dv, n], weights, [BLOCK, 1], u, dv, o, dv);
        if inputs.removal.is_some() {
            gemm([n, dv, n], removal_weights, [BLOCK, 1], w, dv, o, dv);
        }
        for i in 0..n {
            let factor = inputs.read_factor(first + i, query);
            let out = &mut out.token(first + i)[query * dv..][..dv];
            for (out, o) in out.iter_mut().zip(&o[i * dv..][..dv]) {
                *out = factor * o;
            }
        }
    }

    // The tile is now decayed to the end of the block.
    for (row, decay) in state.chunks_exact_mut(dv).zip(&reach[(n - 1) * dk..]) {
        scale(*decay, row);
    }
    gemm([dk, dv, n], tile, [BLOCK, 1], u, dv, state, dv);
    if inputs.removal.is_some() {
        gemm([dk, dv, n], removal_tile, [BLOCK, 1], w, dv, state, dv);
    }
}

/// `weights[i, j] = probe_i . F_ij k_j` for j up to i, else 0; leaves the keys `[dk, BLOCK]` in the tile, decayed to the last
/// token. Not inlined, as it has five call sites.
#[inline(never)]
fn triangle(
    n: usize,
    probe: Rows,
    keys: &[f32],
    decays: &[f32],
    tile: &mut [f32],
    weights: &mut [f32],
) {
    vectorize(
        #[inline(always)]
        || weigh(n, probe, keys, decays, tile, weights),
    );
}

#[inline(always)]
fn weigh(
    n: usize,
    probe: Rows,
    keys: &[f32],
    decays: &[f32],
    tile: &mut [f32],
    weights: &mut [f32],
) {
    let tile = tile.as_chunks_mut::<BLOCK>().0;
    let dk = tile.len();
    for (c, row) in tile.iter_mut().enumerate() {
        row.fill(0.0);
        for (x, key) in row.iter_mut().zip(keys.chunks_exact(dk)) {
            *x = key[c];
        }
    }
    for i in 0..n {
        let (probe, decay) = (probe.get(i, dk), &decays[i * dk..][..dk]);
        let mut sums = [0.0f32; BLOCK];
        for ((row, &probe), &decay) in tile.iter_mut().zip(probe).zip(decay) {
            for l in 0..BLOCK {
                row[l] *= if l < i { decay } else { 1.0 };
                sums[l] += probe * row[l];
            }
        }
        sums[i + 1..].fill(0.0);
        weights[i * BLOCK..][..BLOCK].copy_from_slice(&sums);
    }
}
