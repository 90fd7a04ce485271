//! Selects the tokens that stay when they leave a window.

use crate::operands::{Access, View};
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Retention of tokens beyond the window, in a set of capped size.
pub struct Eviction {
    /// Which tokens stay.
    pub policy: Policy,
    /// Number of first tokens, which are always retained.
    pub sink: usize,
    /// The state tensor of the retained keys `[kv_heads, capacity, head_dim]`.
    pub set_keys: usize,
    /// The state tensor of the retained values, of the same shape.
    pub set_values: usize,
    /// The state tensor of the number of retained tokens `[kv_heads]`.
    pub set_counts: usize,
    /// The state tensor of the position of each retained token plus one, `[kv_heads, capacity]`; 0 marks an empty row. Nothing
    /// is computed from it.
    pub set_positions: usize,
}

/// Which tokens stay when a set is full.
pub enum Policy {
    /// The tokens with the highest learned scores above zero (learnable token eviction).
    Learned {
        /// Scores `[kv_heads]`; row t is the score of the token `margin` before the chunk's token t.
        router: View,
        /// Tokens between a token and the moment when its score is known.
        margin: usize,
        /// State tensors of the scores.
        scores: ScoreTensors,
    },
    /// The tokens to which the last query paid most attention, on average over the heads that share them (TOVA, arXiv 2401.06104).
    Attention(ScoreTensors),
    /// Every n-th token that leaves the window.
    Stride(usize),
}

/// State tensors of scores.
pub struct ScoreTensors {
    /// Scores of the window's tokens, `[kv_heads, rows]`.
    pub window: usize,
    /// Scores of the retained tokens, `[kv_heads, capacity]`.
    pub set: usize,
}

impl Eviction {
    /// Adds the operands of the retention to `access`.
    pub(super) fn access(&self, access: Access) -> Access {
        let access = access.state([
            self.set_keys,
            self.set_values,
            self.set_counts,
            self.set_positions,
        ]);
        match &self.policy {
            Policy::Learned { router, scores, .. } => {
                access.reads([*router]).state([scores.window, scores.set])
            }
            Policy::Attention(scores) => access.state([scores.window, scores.set]),
            Policy::Stride(_) => access,
        }
    }

    /// Checks the shapes of the state tensors.
    pub(super) fn check(&self, rules: &mut Rules, heads: Option<usize>, dim: Option<usize>) {
        rules.state(self.set_keys, &[heads, None, dim]);
        rules.state(self.set_values, &[heads, None, dim]);
        rules.state(self.set_counts, &[heads]);
        rules.state(self.set_positions, &[heads, None]);
        if let Policy::Learned { scores, .. } | Policy::Attention(scores) = &self.policy {
            rules.state(scores.window, &[heads, None]);
            rules.state(scores.set, &[heads, None]);
        }
    }

    /// The parts of the set that are accessed when a token evicts the token at `leaving` from the window.
    pub(super) fn touched(&self, plan: &StatePlan, leaving: Option<u64>) -> Vec<Touched> {
        let capacity = plan.tensors()[self.set_keys].shape[1];
        let kept = leaving.map_or(0, |left| left.min(capacity as u64) as usize);
        let one = usize::from(leaving.is_some());
        let rows = |tensor, read, written| Touched::rows(plan, tensor, read, written);
        let mut all = vec![
            rows(self.set_keys, kept, one),
            rows(self.set_values, kept, one),
            Touched {
                written: one * plan.tensors()[self.set_counts].bytes,
                ..Touched::whole(plan, self.set_counts)
            },
            rows(self.set_positions, 0, one),
        ];
        match &self.policy {
            Policy::Learned { scores, .. } => {
                all.push(rows(scores.window, one, 1));
                all.push(rows(scores.set, kept, one));
            }
            Policy::Attention(scores) => {
                all.push(rows(scores.window, one, 1));
                all.push(rows(scores.set, kept, kept + one));
            }
            Policy::Stride(_) => {}
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Attend;
    use crate::ops::rig::{Rig, noise, plan, side_by_side};
    use crate::state::StateDtype;

    const DIM: usize = 5;

    fn op(heads: usize, kv_heads: usize, policy: Policy, sink: usize) -> Attend {
        let width = heads * DIM;
        let [q, k, v] = side_by_side([width, kv_heads * DIM, kv_heads * DIM]);
        Attend {
            heads,
            kv_heads,
            q,
            k,
            v,
            scale: 1.5,
            keys: 0,
            values: 1,
            caches: true,
            sinks: None,
            eviction: Some(Eviction {
                policy,
                sink,
                set_keys: 2,
                set_values: 3,
                set_counts: 4,
                set_positions: 7,
            }),
            out: View::whole(1, width),
        }
    }

    /// Compares with `keeps(kept, position, weight)`, which decides whether the token leaving the window enters the set `kept`,
    /// given the last query's weight of each visible position; it may change `kept`.
    fn check(
        [heads, kv_heads, window, capacity]: [usize; 4],
        policy: Policy,
        sink: usize,
        keeps: impl Fn(&mut Vec<usize>, usize, &dyn Fn(usize) -> f64),
    ) {
        const TOKENS: usize = 80;
        let op = op(heads, kv_heads, policy, sink);
        let (width, stride) = (heads * DIM, (heads + 2 * kv_heads) * DIM);
        let ring: &[usize] = &[kv_heads, window, DIM];
        let set: &[usize] = &[kv_heads, capacity, DIM];
        let tensors = [
            (StateDtype::F32, ring),
            (StateDtype::F32, ring),
            (StateDtype::F32, set),
            (StateDtype::F32, set),
            (StateDtype::U32, &set[..1]),
            (StateDtype::F32, &ring[..2]),
            (StateDtype::F32, &set[..2]),
            (StateDtype::U64, &set[..2]),
        ];
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = noise(t * stride + i);
            }
        };
        let out = View::whole(1, width);
        let widths = [stride, width];
        let mut rig = Rig::new(&op, &widths, &tensors);
        let (whole, state) = rig.read(&[TOKENS], fill, out);
        for chunks in [&[1; TOKENS][..], &[3, 17, 1, 40, 19]] {
            let (split, split_state) = rig.read(chunks, fill, out);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(whole.iter().zip(&split).all(close));
            let floats = |bytes: &[u8]| -> Vec<f32> {
                let numbers = bytes.as_chunks().0.iter();
                numbers.map(|&b| f32::from_le_bytes(b)).collect()
            };
            let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 1e-5;
            assert!(floats(&state).iter().zip(&floats(&split_state)).all(same));
        }

        let plan = plan(&tensors);
        let positions = &plan.tensors()[7];
        let stored = &state[positions.offset..positions.offset + positions.bytes];
        let value = |t: usize, column: usize| f64::from(noise(t * stride + column));
        for kv_head in 0..kv_heads {
            let group = heads / kv_heads;
            let mut kept: Vec<usize> = Vec::new();
            let mut weights: Vec<(usize, f64)> = Vec::new();
            for t in 0..TOKENS {
                if let Some(leaving) = t.checked_sub(window) {
                    let weight = |p| weights.iter().find(|(q, _)| *q == p).expect("in view").1;
                    keeps(&mut kept, leaving, &weight);
                }
                let recent = (t + 1).saturating_sub(window)..t + 1;
                let seen: Vec<usize> = kept.iter().copied().chain(recent).collect();
                weights = seen.iter().map(|&p| (p, 0.0)).collect();
                for g in 0..group {
                    let head = kv_head * group + g;
                    let key = |p: usize, i: usize| value(p, width + kv_head * DIM + i);
                    let score = |p: usize| {
                        (0..DIM)
                            .map(|i| value(t, head * DIM + i) * key(p, i))
                            .sum::<f64>()
                    };
                    let shares: Vec<f64> = seen.iter().map(|&p| (1.5 * score(p)).exp()).collect();
                    let sum: f64 = shares.iter().sum();
                    for ((_, weight), share) in weights.iter_mut().zip(&shares) {
                        *weight += share / sum;
                    }
                    for i in 0..DIM {
                        let column = width + (kv_heads + kv_head) * DIM + i;
                        let values = seen.iter().zip(&shares);
                        let expected: f64 = values.map(|(&p, s)| s / sum * value(p, column)).sum();
                        let found = f64::from(whole[t * width + head * DIM + i]);
                        assert!((found - expected).abs() < 1e-5, "token {t} head {head}");
                    }
                }
            }
            let entries = stored
                .as_chunks::<8>()
                .0
                .iter()
                .map(|&b| u64::from_le_bytes(b));
            let of_head = entries.skip(kv_head * capacity).take(capacity);
            let mut found: Vec<usize> =
                of_head.filter(|&p| p > 0).map(|p| p as usize - 1).collect();
            found.sort_unstable();
            kept.sort_unstable();
            assert_eq!(found, kept, "positions of head {kv_head}");
        }
    }

    #[test]
    fn tova_drops_the_least_attended_token() {
        for shape in [[4, 2, 6, 5], [3, 1, 1, 9], [2, 2, 33, 4], [6, 2, 3, 1]] {
            for sink in [0, 1] {
                let capacity = shape[3];
                let scores = ScoreTensors { window: 5, set: 6 };
                check(
                    shape,
                    Policy::Attention(scores),
                    sink,
                    |kept, leaving, weight| {
                        kept.push(leaving);
                        if kept.len() > capacity {
                            let least = kept.iter().copied().filter(|&p| p >= sink);
                            let least = least.min_by(|&a, &b| weight(a).total_cmp(&weight(b)));
                            kept.retain(|&p| Some(p) != least);
                        }
                    },
                );
            }
        }
    }

    #[test]
    fn a_stride_keeps_every_so_many_token() {
        for (shape, sink, every) in [
            ([4, 2, 6, 5], 2, 3),
            ([3, 1, 1, 9], 0, 1),
            ([2, 2, 33, 4], 4, 2),
        ] {
            let capacity = shape[3];
            check(shape, Policy::Stride(every), sink, |kept, leaving, _| {
                if leaving < sink {
                    kept.push(leaving);
                } else if (leaving - sink).is_multiple_of(every) && capacity > sink {
                    kept.push(leaving);
                    if kept.len() > capacity {
                        kept.remove(sink);
                    }
                }
            });
        }
    }
}
