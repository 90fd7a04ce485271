//! One token on the CPU: the plain equations.

use super::Inputs;
use crate::cpu::simd;

/// Processes one token: writes the state and reads it with every query.
#[inline(always)]
pub(super) fn step(
    inputs: &Inputs,
    t: usize,
    state: &mut [f32],
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let (decay, rest) = scratch.split_at_mut(inputs.dk);
    let key = &mut rest[..inputs.dk];
    inputs.decay(t, decay);
    inputs.key(t, decay, key);
    let token = Token {
        decay,
        key,
        value: inputs.v.get(t, inputs.dv),
        beta: inputs.beta.map(|beta| beta.get(t, 1)[0]),
        erase: inputs.erase.map(|erase| erase.get(t, inputs.dk)),
        removal: inputs.removal.map(|removal| {
            let (key, rate) = (
                removal.key.get(t, inputs.dk),
                removal.rate.get(t, inputs.dk),
            );
            (key, rate)
        }),
        gate: inputs.write_gate(t),
        dv: inputs.dv,
    };
    for query in 0..inputs.queries {
        let q = &inputs.q.get(t, inputs.queries * inputs.dk)[query * inputs.dk..][..inputs.dk];
        let out = &mut out[query * inputs.dv..][..inputs.dv];
        let mut column = 0;
        while column < inputs.dv {
            // The first query reads while the state is written. Each group of columns is as wide as possible: a large state
            // comes from memory, which is fastest in sequential order.
            column += match (query, inputs.dv - column) {
                (0, 256..) => token.write::<256>(column, q, state, out),
                (0, 128..) => token.write::<128>(column, q, state, out),
                (0, 32..) => token.write::<32>(column, q, state, out),
                (0, 8..) => token.write::<8>(column, q, state, out),
                (0, _) => token.write::<1>(column, q, state, out),
                (_, 128..) => token.read::<128>(column, q, state, out),
                (_, 32..) => token.read::<32>(column, q, state, out),
                (_, 8..) => token.read::<8>(column, q, state, out),
                (_, _) => token.read::<1>(column, q, state, out),
            };
        }
        simd::scale(inputs.read_factor(t, query), out);
    }
}

/// The inputs of one token. The columns of the state are independent of each other: each group fits in registers while the rows
/// stream past.
struct Token<'a> {
    decay: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    beta: Option<f32>,
    erase: Option<&'a [f32]>,
    removal: Option<(&'a [f32], &'a [f32])>,
    gate: f32,
    dv: usize,
}

impl Token<'_> {
    /// Writes and reads `N` columns of the state.
    #[inline(always)]
    fn write<const N: usize>(
        &self,
        column: usize,
        q: &[f32],
        state: &mut [f32],
        out: &mut [f32],
    ) -> usize {
        let value: &[f32; N] = self.value[column..].first_chunk().expect("columns of v");
        let mut write = value.map(|v| self.gate * v);
        let rows = self.key.iter().zip(self.decay);
        // The key that reads the decayed state, and the write strength.
        let corrected = match (self.beta, self.erase) {
            (Some(beta), _) => Some((beta, self.key)),
            (None, Some(erase)) => Some((1.0, erase)),
            (None, None) => None,
        };
        if let Some((beta, keys)) = corrected {
            let mut read = [0.0f32; N];
            let rows = keys.iter().zip(self.decay);
            for (row, (key, decay)) in state.chunks_exact(self.dv).zip(rows) {
                let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
                let key = key * decay;
                for l in 0..N {
                    read[l] += key * row[l];
                }
            }
            for l in 0..N {
                write[l] = beta * (write[l] - read[l]);
            }
        }
        let mut sums = [0.0f32; N];
        if let Some((keys, rates)) = self.removal {
            let mut read = [0.0f32; N];
            for (row, key) in state.chunks_exact(self.dv).zip(keys) {
                let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
                for l in 0..N {
                    read[l] += key * row[l];
                }
            }
            let removal = keys.iter().zip(rates).map(|(key, rate)| key * rate);
            let state = state.chunks_exact_mut(self.dv).zip(removal);
            for (((row, removed), (key, decay)), q) in state.zip(rows).zip(q) {
                let row: &mut [f32; N] = row[column..].first_chunk_mut().expect("columns of a row");
                for l in 0..N {
                    row[l] = decay * row[l] + key * write[l] - removed * read[l];
                    sums[l] += q * row[l];
                }
            }
            out[column..column + N].copy_from_slice(&sums);
            return N;
        }
        for ((row, (key, decay)), q) in state.chunks_exact_mut(self.dv).zip(rows).zip(q) {
            let row: &mut [f32; N] = row[column..].first_chunk_mut().expect("columns of a row");
            for l in 0..N {
                row[l] = decay * row[l] + key * write[l];
                sums[l] += q * row[l];
            }
        }
        out[column..column + N].copy_from_slice(&sums);
        N
    }

    /// Reads `N` columns of the state.
    #[inline(always)]
    fn read<const N: usize>(
        &self,
        column: usize,
        q: &[f32],
        state: &[f32],
        out: &mut [f32],
    ) -> usize {
        let mut sums = [0.0f32; N];
        for (row, q) in state.chunks_exact(self.dv).zip(q) {
            let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
            for l in 0..N {
                sums[l] += q * row[l];
            }
        }
        out[column..column + N].copy_from_slice(&sums);
        N
    }
}
