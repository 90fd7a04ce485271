//! The recurrence in matrix form, for chunks. With G the running sum of the decays' logarithms inside a block of C
//! tokens and S the state before it (Gated Delta Networks, arXiv 2412.06464, section 3.3):
//!
//! ```text
//! u_i = beta_i (v_i - e^{G_i} k_i S - sum_{j<i} e^{G_i - G_j} (k_i k_j) u_j)     the delta rule; else u_i = v_i
//! o_i = scale (e^{G_i} q_i S + sum_{j<=i} e^{G_i - G_j} (q_i k_j) u_j)
//! S  <- e^{G_C} S + sum_j e^{G_C - G_j} k_j^T u_j
//! ```
//!
//! Every exponent is at most zero, so nothing overflows.

use super::recur::Head;
use crate::cpu::simd::{axpy, dot, exp, gemm, scale};

/// Tokens of a block: the triangles cost C per token, the passes over the state 1 / C.
const BLOCK: usize = 64;

/// Floats of scratch for chunks of up to `chunk` tokens.
pub(super) fn scratch(chunk: usize, dk: usize, dv: usize) -> usize {
    let block = chunk.min(BLOCK);
    block * (2 * dv + dk + block + 1)
}

/// Runs `tokens` tokens of one head; `out(t)` is the place of an output `[dv]`.
#[inline(always)]
pub(super) fn run<'o>(
    head: &Head,
    tokens: usize,
    state: &mut [f32],
    out: &mut impl FnMut(usize) -> &'o mut [f32],
    scratch: &mut [f32],
) {
    let mut first = 0;
    while first < tokens {
        let length = (tokens - first).min(BLOCK);
        block(head, first, length, state, out, scratch);
        first += length;
    }
}

#[inline(always)]
fn block<'o>(
    head: &Head,
    first: usize,
    length: usize,
    state: &mut [f32],
    out: &mut impl FnMut(usize) -> &'o mut [f32],
    scratch: &mut [f32],
) {
    let Head { dk, dv, .. } = *head;
    let [q_stride, k_stride, v_stride] = head.stride;
    let (q, k, v) = (
        &head.q[first * q_stride..],
        &head.k[first * k_stride..],
        &head.v[first * v_stride..],
    );
    let key = |i: usize| &k[i * k_stride..][..dk];
    let (sums, rest) = scratch.split_at_mut(length);
    let (u, rest) = rest.split_at_mut(length * dv);
    let (o, rest) = rest.split_at_mut(length * dv);
    let (faded, rest) = rest.split_at_mut(length * dk);
    let weights = &mut rest[..length * length];

    let mut sum = 0.0;
    for (i, g) in sums.iter_mut().enumerate() {
        sum += head
            .decay
            .map_or(0.0, |(g, stride)| g[(first + i) * stride]);
        *g = sum;
    }

    match head.beta {
        None => {
            for i in 0..length {
                u[i * dv..][..dv].copy_from_slice(&v[i * v_stride..][..dv]);
            }
        }
        Some((beta, stride)) => {
            u.fill(0.0);
            gemm([length, dv, dk], k, [k_stride, 1], state, dv, u, dv);
            for i in 0..length {
                let beta = beta[(first + i) * stride];
                let (before, rest) = u.split_at_mut(i * dv);
                let row = &mut rest[..dv];
                let read = exp(sums[i]);
                for (u, v) in row.iter_mut().zip(&v[i * v_stride..][..dv]) {
                    *u = beta * (v - read * *u);
                }
                for (j, earlier) in before.chunks_exact(dv).enumerate() {
                    axpy(
                        -beta * exp(sums[i] - sums[j]) * dot(key(i), key(j)),
                        earlier,
                        row,
                    );
                }
            }
        }
    }

    o.fill(0.0);
    gemm([length, dv, dk], q, [q_stride, 1], state, dv, o, dv);
    for i in 0..length {
        scale(exp(sums[i]), &mut o[i * dv..][..dv]);
        let query = &q[i * q_stride..][..dk];
        for j in 0..length {
            weights[i * length + j] = if j <= i {
                exp(sums[i] - sums[j]) * dot(query, key(j))
            } else {
                0.0
            };
        }
    }
    gemm([length, dv, length], weights, [length, 1], u, dv, o, dv);
    for i in 0..length {
        for (out, o) in out(first + i).iter_mut().zip(&o[i * dv..][..dv]) {
            *out = head.scale * o;
        }
    }

    for j in 0..length {
        let fade = exp(sum - sums[j]);
        for (faded, k) in faded[j * dk..][..dk].iter_mut().zip(key(j)) {
            *faded = fade * k;
        }
    }
    scale(exp(sum), state);
    gemm([dk, dv, length], faded, [1, dk], u, dv, state, dv);
}
