//! Checks the recurrence in one chunk, in several chunks and token by token against its equations in f64.

use super::{Decay, Finish, HeadGates, Key, Recur, Write};
use crate::functions::Activation;
use crate::operands::View;
use crate::ops::rig::{Rig, noise, side_by_side};
use crate::state::StateDtype;

/// A case: the numbers of heads, and the variant of the recurrence.
#[derive(Clone, Copy)]
struct Case {
    heads: usize,
    states: usize,
    q_heads: usize,
    k_heads: usize,
    v_heads: usize,
    dk: usize,
    dv: usize,
    /// Heads of the decay, and its columns per head.
    decay: Option<(usize, usize)>,
    complement: bool,
    delta: bool,
    replace: bool,
    erase: bool,
    gates: bool,
    /// Whether values are added to outputs, and the outputs are gated.
    finish: bool,
}

const TOKENS: usize = 61;

impl Case {
    /// Columns of q, k, v, decay, beta, write gate, read gate, removed key, its rate, and gates of outputs.
    fn columns(&self) -> [View; 10] {
        let (decay_heads, per_head) = self.decay.unwrap_or((1, 1));
        let widths = [
            self.q_heads * self.dk,
            self.k_heads * self.dk,
            self.v_heads * self.dv,
            decay_heads * per_head,
            self.states,
            self.states,
            self.heads,
            self.states * self.dk,
            self.states * self.dk,
            self.heads * self.dv,
        ];
        side_by_side(widths)
    }

    fn input(&self, t: usize, column: usize) -> f32 {
        let [_, k, v, decay, beta, _, _, removed, rate, gate] = self.columns();
        let x = noise(t * 1000 + column);
        match column {
            _ if column < k.start => x,
            _ if column < v.start => x / (self.dk as f32).sqrt(),
            _ if column < decay.start => x,
            // None, slow, steep, and so steep that the factor is zero.
            _ if column < beta.start => match (t + column) % 7 {
                0 => -40.0 * x.abs(),
                2 => 0.0,
                1 if t.is_multiple_of(3) => -500.0,
                _ => -0.05 * x.abs(),
            },
            // An erasing key is the key itself, gated by channel.
            _ if self.erase && (removed.start..rate.start).contains(&column) => {
                (0.5 + 0.5 * x) * self.input(t, k.start + column - removed.start)
            }
            _ if (removed.start..rate.start).contains(&column) => x / (self.dk as f32).sqrt(),
            _ if column >= gate.start => x,
            _ => 0.5 + 0.5 * x,
        }
    }

    fn gain(column: usize) -> f32 {
        noise(7 * column)
    }

    fn op(&self, fixed: bool) -> Recur {
        let [q, k, v, decay, beta, write, read, removed, rate, gate] = self.columns();
        Recur {
            heads: self.heads,
            states: self.states,
            dk: self.dk,
            dv: self.dv,
            q,
            k: if self.complement {
                Key::Complement
            } else {
                Key::View(k)
            },
            v,
            decay: match self.decay {
                None => Decay::None,
                Some(_) if fixed => {
                    Decay::Fixed((0..decay.width).map(|i| -0.1 * i as f32).collect())
                }
                Some((_, 1)) => Decay::Head(decay),
                Some(_) => Decay::Key(decay),
            },
            write: match (self.delta, self.replace) {
                (true, _) => Write::Delta(beta),
                (_, true) => Write::Replace { key: removed, rate },
                _ if self.erase => Write::Erase { key: removed },
                _ => Write::Add,
            },
            gates: self.gates.then_some(HeadGates {
                write,
                read: Some(read),
            }),
            scale: 0.3,
            finish: if self.finish {
                Finish {
                    skip: Some((0..gate.width).map(Case::gain).collect()),
                    gate: Some((gate, Activation::Silu)),
                }
            } else {
                Finish::default()
            },
            state: 0,
            out: View::whole(1, self.heads * self.dv),
        }
    }

    /// Outputs of every token and the states at the end, by the equations in f64.
    fn plain(&self, fixed: bool) -> (Vec<f64>, Vec<f64>) {
        let [q, k, v, decay, beta, write, read, removed, rate, gate] = self.columns();
        let x = |t: usize, column: usize| f64::from(self.input(t, column));
        let (dk, dv) = (self.dk, self.dv);
        let mut out = vec![0.0; TOKENS * self.heads * dv];
        let mut states = vec![0.0; self.states * dk * dv];
        for h in 0..self.heads {
            let of = |heads: usize| h / (self.heads / heads);
            let mut state = vec![0.0f64; dk * dv];
            for t in 0..TOKENS {
                let decay = |c: usize| match self.decay {
                    None => 1.0,
                    Some((heads, _)) if fixed => (-0.1 * of(heads) as f64).exp(),
                    Some((heads, 1)) => x(t, decay.start + of(heads)).exp(),
                    Some((heads, _)) => x(t, decay.start + of(heads) * dk + c).exp(),
                };
                let key = |c: usize| {
                    if self.complement {
                        1.0 - decay(c)
                    } else {
                        x(t, k.start + of(self.k_heads) * dk + c)
                    }
                };
                let state_of = of(self.states);
                let removed = |c: usize| x(t, removed.start + state_of * dk + c);
                let held: Vec<f64> = (0..dv)
                    .map(|d| (0..dk).map(|c| removed(c) * state[c * dv + d]).sum())
                    .collect();
                for c in 0..dk {
                    let rate = x(t, rate.start + state_of * dk + c);
                    for d in 0..dv {
                        let s = &mut state[c * dv + d];
                        *s *= decay(c);
                        if self.replace {
                            *s -= rate * removed(c) * held[d];
                        }
                    }
                }
                for d in 0..dv {
                    let mut value = x(t, v.start + of(self.v_heads) * dv + d);
                    if self.gates {
                        value *= x(t, write.start + state_of);
                    }
                    if self.delta {
                        let held: f64 = (0..dk).map(|c| key(c) * state[c * dv + d]).sum();
                        value = x(t, beta.start + state_of) * (value - held);
                    }
                    if self.erase {
                        let held: f64 = (0..dk).map(|c| removed(c) * state[c * dv + d]).sum();
                        value -= held;
                    }
                    let mut sum = 0.0;
                    for c in 0..dk {
                        state[c * dv + d] += key(c) * value;
                        let query = x(t, q.start + of(self.q_heads) * dk + c);
                        sum += query * state[c * dv + d];
                    }
                    if self.gates {
                        sum *= x(t, read.start + h);
                    }
                    sum *= 0.3;
                    if self.finish {
                        let z = x(t, gate.start + h * dv + d);
                        let value = x(t, v.start + of(self.v_heads) * dv + d);
                        sum += f64::from(Case::gain(h * dv + d)) * value;
                        sum *= z / (1.0 + (-z).exp());
                    }
                    out[(t * self.heads + h) * dv + d] = sum;
                }
            }
            states[of(self.states) * dk * dv..][..dk * dv].copy_from_slice(&state);
        }
        (out, states)
    }

    fn check(&self, fixed: bool) {
        let (expected, expected_state) = self.plain(fixed);
        let op = self.op(fixed);
        let widths = [self.columns()[0].stride, self.heads * self.dv];
        let shape = [self.states, self.dk, self.dv];
        let slots = [(StateDtype::F32, &shape[..])];
        let mut rig = Rig::new(&op, &widths, &slots);
        let close = |name: &str, found: &[f32], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            let largest = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 3e-6 * largest, "{name} {i}: {found} {expected}");
            }
        };
        for chunks in [vec![TOKENS], vec![1; TOKENS], vec![7, 1, 17, 16, 20]] {
            let fill = |buffer: usize, t: usize, row: &mut [f32]| {
                for (column, x) in row.iter_mut().enumerate() {
                    *x = if buffer == 0 {
                        self.input(t, column)
                    } else {
                        f32::NAN
                    };
                }
            };
            let out = View::whole(1, self.heads * self.dv);
            let (out, state) = rig.read(&chunks, fill, out);
            close("output", &out, &expected);
            let values = state.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x));
            let state: Vec<f32> = values.take(expected_state.len()).collect();
            close("state", &state, &expected_state);
        }
    }
}

const PLAIN: Case = Case {
    heads: 3,
    states: 3,
    q_heads: 3,
    k_heads: 3,
    v_heads: 3,
    dk: 13,
    dv: 45,
    decay: None,
    complement: false,
    delta: false,
    replace: false,
    erase: false,
    gates: false,
    finish: false,
};

#[test]
fn decays_none_fixed_by_head_and_by_key() {
    PLAIN.check(false);
    for decay in [Some((3, 1)), Some((3, 13))] {
        for delta in [false, true] {
            Case {
                decay,
                delta,
                ..PLAIN
            }
            .check(false);
        }
    }
    Case {
        decay: Some((3, 1)),
        ..PLAIN
    }
    .check(true);
}

#[test]
fn a_key_removes_what_another_replaces() {
    let decay = Some((3, 13));
    let case = Case {
        decay,
        replace: true,
        ..PLAIN
    };
    case.check(false);
}

#[test]
fn a_key_erases_what_another_writes() {
    for gates in [false, true] {
        Case {
            decay: Some((3, 13)),
            erase: true,
            gates,
            ..PLAIN
        }
        .check(false);
    }
}

#[test]
fn keys_are_one_minus_the_decay() {
    let decay = Some((3, 13));
    Case {
        decay,
        complement: true,
        ..PLAIN
    }
    .check(false);
}

#[test]
fn heads_share_queries_keys_values_and_states() {
    // More value heads than query and key heads.
    Case {
        heads: 6,
        states: 6,
        v_heads: 6,
        decay: Some((6, 13)),
        delta: true,
        ..PLAIN
    }
    .check(false);
    // More query heads than key and value heads, with separate or shared states.
    let shared = Case {
        heads: 6,
        q_heads: 6,
        decay: Some((3, 13)),
        dv: 7,
        ..PLAIN
    };
    shared.check(false);
    Case {
        states: 6,
        decay: Some((6, 1)),
        gates: true,
        ..shared
    }
    .check(true);
}

#[test]
fn values_are_added_to_outputs_which_are_gated() {
    let case = Case {
        decay: Some((3, 1)),
        finish: true,
        ..PLAIN
    };
    case.check(false);
    // Heads that share values, with shared or separate states.
    for states in [3, 6] {
        Case {
            heads: 6,
            q_heads: 6,
            states,
            gates: true,
            dv: 7,
            ..case
        }
        .check(false);
    }
}

#[test]
fn heads_are_weighted() {
    for delta in [false, true] {
        Case {
            decay: Some((3, 1)),
            delta,
            gates: true,
            ..PLAIN
        }
        .check(false);
    }
}
