//! Linear recurrences on matrix states. For each head, with state S `[dk, dv]`:
//! `S <- decay S + k^T write`, `o = scale q S`, the read after the write of the same token.

use super::recur_chunk;
use crate::cpu::{Frame, Shared, simd};
use crate::program::View;

/// How a state fades before a write.
pub enum Decay {
    /// Not at all.
    None,
    /// By `exp` of one value for each head and token.
    Head(View),
}

/// What is written.
pub enum Write {
    /// `v`.
    Add,
    /// The delta rule: `beta (v - k S)`, S already faded; `beta` is one value for each head and token.
    Delta(View),
}

/// A recurrence over heads. Value head h reads and writes with key head `h / (heads / key_heads)`.
pub struct Recur {
    /// Value heads.
    pub heads: usize,
    /// Query and key heads.
    pub key_heads: usize,
    /// Queries `[key_heads, dk]`.
    pub q: View,
    /// Keys `[key_heads, dk]`.
    pub k: View,
    /// Values `[heads, dv]`.
    pub v: View,
    /// The decay.
    pub decay: Decay,
    /// The write.
    pub write: Write,
    /// Multiplies the output.
    pub scale: f32,
    /// The slot of the states `[heads, dk, dv]`.
    pub slot: usize,
    /// Outputs `[heads, dv]`.
    pub out: View,
}

/// One head's inputs over a chunk: value row `t` of each stands at `t * stride`.
pub(super) struct Head<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// Row length of the buffer that holds q, k and v.
    pub stride: [usize; 3],
    /// Logarithm of the decay and its row length.
    pub decay: Option<(&'a [f32], usize)>,
    /// Write strength and its row length.
    pub beta: Option<(&'a [f32], usize)>,
    pub dk: usize,
    pub dv: usize,
    pub scale: f32,
}

/// Whether the matrix form pays for a chunk of this many tokens: below, its triangles cost more than they save.
fn in_matrix_form(tokens: usize) -> bool {
    tokens >= 8
}

impl Recur {
    fn dk(&self) -> usize {
        self.k.width / self.key_heads
    }

    fn dv(&self) -> usize {
        self.v.width / self.heads
    }

    pub(crate) fn scratch(&self, chunk: usize) -> usize {
        if in_matrix_form(chunk) {
            recur_chunk::scratch(chunk, self.dk(), self.dv())
        } else {
            self.dv()
        }
    }

    pub(crate) fn run(&self, frame: &mut Frame) {
        let (dk, dv, tokens) = (self.dk(), self.dv(), frame.tokens.len());
        let mut out = frame.buffers.take(self.out.buffer);
        let out_width = self.out.stride;
        let states = Shared::new(frame.arena.slot_mut::<f32>(self.slot));
        {
            let out = Shared::new(&mut out);
            let columns = |view: &View, start: usize| {
                (
                    &frame.buffers.get(view.buffer)[view.start + start..],
                    view.stride,
                )
            };
            frame.pool.each(self.heads, |worker, h| {
                let key_head = h / (self.heads / self.key_heads);
                let (q, q_stride) = columns(&self.q, key_head * dk);
                let (k, k_stride) = columns(&self.k, key_head * dk);
                let (v, v_stride) = columns(&self.v, h * dv);
                let head = Head {
                    q,
                    k,
                    v,
                    stride: [q_stride, k_stride, v_stride],
                    decay: match &self.decay {
                        Decay::None => None,
                        Decay::Head(view) => Some(columns(view, h)),
                    },
                    beta: match &self.write {
                        Write::Add => None,
                        Write::Delta(view) => Some(columns(view, h)),
                    },
                    dk,
                    dv,
                    scale: self.scale,
                };
                // SAFETY: each task has its own head's state and output columns.
                let state = unsafe { states.part(h * dk * dv..(h + 1) * dk * dv) };
                let start = self.out.start + h * dv;
                // SAFETY: as above.
                let mut row = |t: usize| unsafe {
                    out.part(t * out_width + start..t * out_width + start + dv)
                };
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                simd::vectorize(|| {
                    if in_matrix_form(tokens) {
                        recur_chunk::run(&head, tokens, state, &mut row, &mut scratch);
                    } else {
                        for t in 0..tokens {
                            step(&head, t, state, row(t), &mut scratch[..dv]);
                        }
                    }
                });
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }
}

/// One token: the equations as they stand.
#[inline(always)]
fn step(head: &Head, t: usize, state: &mut [f32], out: &mut [f32], write: &mut [f32]) {
    let q = &head.q[t * head.stride[0]..][..head.dk];
    let k = &head.k[t * head.stride[1]..][..head.dk];
    let v = &head.v[t * head.stride[2]..][..head.dv];
    let decay = head
        .decay
        .map_or(1.0, |(g, stride)| simd::exp(g[t * stride]));
    let beta = head.beta.map(|(beta, stride)| beta[t * stride]);
    let mut column = 0;
    while column < head.dv {
        match head.dv - column {
            32.. => columns::<32>(
                column, head.dv, q, k, v, decay, beta, head.scale, state, out, write,
            ),
            8.. => columns::<8>(
                column, head.dv, q, k, v, decay, beta, head.scale, state, out, write,
            ),
            _ => columns::<1>(
                column, head.dv, q, k, v, decay, beta, head.scale, state, out, write,
            ),
        }
        column += match head.dv - column {
            32.. => 32,
            8.. => 8,
            _ => 1,
        };
    }
}

/// `N` columns of the state: they depend on no others, and fit in registers while the rows pass.
#[inline(always)]
fn columns<const N: usize>(
    column: usize,
    dv: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    decay: f32,
    beta: Option<f32>,
    scale: f32,
    state: &mut [f32],
    out: &mut [f32],
    write: &mut [f32],
) {
    let write: &mut [f32; N] = write[column..]
        .first_chunk_mut()
        .expect("columns of a head");
    write.copy_from_slice(&v[column..column + N]);
    if let Some(beta) = beta {
        let mut read = [0.0f32; N];
        for (row, k) in state.chunks_exact(dv).zip(k) {
            let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
            for l in 0..N {
                read[l] += k * row[l];
            }
        }
        for l in 0..N {
            write[l] = beta * (write[l] - decay * read[l]);
        }
    }
    let mut sums = [0.0f32; N];
    for ((row, k), q) in state.chunks_exact_mut(dv).zip(k).zip(q) {
        let row: &mut [f32; N] = row[column..].first_chunk_mut().expect("columns of a row");
        for l in 0..N {
            row[l] = decay * row[l] + k * write[l];
            sums[l] += q * row[l];
        }
    }
    for l in 0..N {
        out[column + l] = scale * sums[l];
    }
}
