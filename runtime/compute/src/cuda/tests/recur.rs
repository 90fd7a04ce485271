//! Recurrences in matrix form: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::functions::Activation;
use crate::operands::View;
use crate::ops::rig::{noise, plan, side_by_side};
use crate::ops::{Decay, Finish, HeadGates, Key, Recur, Slots, Write};
use crate::state::{Kv, StateDtype};

/// How states decay.
#[derive(Clone, Copy, PartialEq)]
enum Decays {
    Fixed,
    Head,
    Rows,
    /// Decays by row; keys are one minus the decay.
    Complement,
}

/// The kind of write.
#[derive(Clone, Copy)]
enum Writes {
    Add,
    Delta,
    Replace,
    Erase,
}

/// Reads chunks of several blocks, of part of a block and of one token: `heads` that share `states`, with keys of `dk` and values of `dv`
/// columns. `gates`: whether heads and outputs are gated, and scaled values are added to the outputs.
fn compare(shape: [usize; 4], decays: Decays, writes: Writes, gates: bool) {
    compare_chunks(shape, decays, writes, gates, Some(&[150, 7, 64, 1]));
}

/// Like `compare`, for single tokens that ops of the decode kernel read.
fn compare_steps(shape: [usize; 4], decays: Decays, writes: Writes, gates: bool) {
    compare_chunks(shape, decays, writes, gates, None);
}

fn compare_chunks(
    [heads, states, dk, dv]: [usize; 4],
    decays: Decays,
    writes: Writes,
    gates: bool,
    chunks: Option<&[usize]>,
) {
    let Some(device) = device() else { return };
    let by_row = matches!(decays, Decays::Rows | Decays::Complement);
    let widths = [
        heads * dk,
        states * dk,
        states * dv,
        if by_row { states * dk } else { states },
        states,
        states,
        heads,
        states * dk,
        states * dk,
        heads * dv,
    ];
    let [q, k, v, decay, beta, write, read, removal, rate, gate] = side_by_side(widths);
    let stride = q.stride;
    let out = View::whole(1, heads * dv);
    let op = Recur {
        heads,
        states,
        dk,
        dv,
        q,
        k: match decays {
            Decays::Complement => Key::Complement,
            _ => Key::View(k),
        },
        v,
        decay: match decays {
            Decays::Fixed => Decay::Fixed((0..states).map(|i| -0.03 * i as f32).collect()),
            Decays::Head => Decay::Head(decay),
            Decays::Rows | Decays::Complement => Decay::Key(decay),
        },
        write: match writes {
            Writes::Add => Write::Add,
            Writes::Delta => Write::Delta(beta),
            Writes::Replace => Write::Replace { key: removal, rate },
            Writes::Erase => Write::Erase { key: removal },
        },
        gates: gates.then_some(HeadGates {
            write,
            read: Some(read),
        }),
        scale: 0.3,
        finish: if gates {
            Finish {
                skip: Some((0..heads * dv).map(noise).collect()),
                gate: Some((gate, Activation::Silu)),
            }
        } else {
            Finish::default()
        },
        state: 1,
        out,
    };
    let slots: [(StateDtype, &[usize]); 2] = [
        (StateDtype::U64, &[1]),
        (StateDtype::F32, &[states, dk, dv]),
    ];
    let comparison = Comparison {
        device: &device,
        op: &op,
        plan: &Arc::new(plan(&slots)),
        widths: &[stride, out.width, 1],
        output: 1,
        kv: Kv::F32,
        persistent: chunks.is_none(),
        tolerance: 1e-4,
    };
    comparison.read(chunks.unwrap_or(&[1; 12]), |buffer, values| {
        values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
        if buffer != 0 {
            return;
        }
        for (i, x) in values.iter_mut().enumerate() {
            let column = i % stride;
            // Keys of a length of about one. Some decays are slow, some steep, and some so steep that nothing is retained.
            if (k.start..v.start).contains(&column) || (removal.start..rate.start).contains(&column)
            {
                *x *= (3.0 / dk as f32).sqrt();
            } else if by_row && (decay.start..beta.start).contains(&column) {
                // Rows that retain everything, that decay in several tokens together or in one; tokens after which nothing is retained.
                *x = match (column % 5, (i / stride) % 37) {
                    (_, 5) => f32::NEG_INFINITY,
                    (0, _) => 0.0,
                    (1, 4..12) => -50.0,
                    (2, t) if t % 3 == 0 => -3000.0,
                    _ => -0.2 * x.abs(),
                };
            } else if (decay.start..beta.start).contains(&column) {
                *x = match (i / stride) % 29 {
                    5 => f32::NEG_INFINITY,
                    17 => -3000.0,
                    _ => -0.2 * x.abs(),
                };
            } else if (beta.start..gate.start).contains(&column) {
                *x = 0.5 + 0.5 * *x;
            }
        }
        // An erasing key is the key itself, gated by channel.
        if let Writes::Erase = writes {
            for row in values.chunks_exact_mut(stride) {
                for c in 0..k.width {
                    row[removal.start + c] = (0.5 + 0.5 * noise(c)) * row[k.start + c];
                }
            }
        }
    });
}

#[test]
fn the_delta_rule_in_matrix_form_is_that_of_the_cpu() {
    compare([2, 2, 64, 64], Decays::Head, Writes::Delta, false);
    compare([3, 3, 20, 37], Decays::Head, Writes::Delta, true);
    compare([4, 2, 100, 16], Decays::Fixed, Writes::Delta, false);
}

#[test]
fn additive_writes_in_matrix_form_are_those_of_the_cpu() {
    compare([2, 2, 64, 96], Decays::Fixed, Writes::Add, false);
    compare([6, 2, 17, 33], Decays::Head, Writes::Add, true);
}

#[test]
fn rows_that_decay_by_themselves_do_as_on_the_cpu() {
    compare([2, 2, 64, 96], Decays::Rows, Writes::Add, false);
    compare([2, 1, 8, 12], Decays::Complement, Writes::Add, false);
    compare([6, 2, 17, 33], Decays::Rows, Writes::Add, true);
    compare([1, 1, 256, 16], Decays::Complement, Writes::Add, true);
}

#[test]
fn the_delta_rule_on_rows_that_decay_by_themselves_is_that_of_the_cpu() {
    compare([2, 2, 64, 64], Decays::Rows, Writes::Delta, false);
    compare([3, 3, 20, 37], Decays::Rows, Writes::Delta, true);
    compare([4, 2, 130, 16], Decays::Rows, Writes::Delta, false);
}

#[test]
fn removals_in_matrix_form_are_those_of_the_cpu() {
    compare([2, 2, 64, 64], Decays::Rows, Writes::Replace, false);
    compare([6, 2, 17, 33], Decays::Rows, Writes::Replace, true);
    compare([1, 1, 130, 16], Decays::Rows, Writes::Replace, false);
}

#[test]
fn erasures_in_matrix_form_are_those_of_the_cpu() {
    compare([2, 2, 64, 64], Decays::Rows, Writes::Erase, false);
    compare([6, 2, 17, 33], Decays::Rows, Writes::Erase, true);
    compare([1, 1, 130, 16], Decays::Rows, Writes::Erase, false);
}

#[test]
fn steps_of_a_persistent_program_are_those_of_the_cpu() {
    compare_steps([2, 2, 64, 96], Decays::Fixed, Writes::Add, false);
    compare_steps([6, 2, 17, 33], Decays::Head, Writes::Add, true);
    compare_steps([2, 1, 300, 12], Decays::Complement, Writes::Add, false);
    compare_steps([3, 3, 20, 37], Decays::Head, Writes::Delta, true);
    compare_steps([6, 2, 256, 130], Decays::Rows, Writes::Delta, true);
    compare_steps([6, 2, 17, 34], Decays::Rows, Writes::Replace, true);
    compare_steps([6, 2, 17, 34], Decays::Rows, Writes::Erase, true);
    compare_steps([2, 2, 64, 96], Decays::Rows, Writes::Erase, false);
}

/// Like `compare`, for attention over slots: `heads` over `kv_heads`, slots, and the widths of keys and values.
fn compare_slots([heads, kv_heads, slots, dk, dv]: [usize; 5], scores: Option<Activation>) {
    let Some(device) = device() else { return };
    let widths = [heads * dk, kv_heads * dk, kv_heads * dv, kv_heads * slots];
    let [q, k, v, weights] = side_by_side(widths);
    let stride = q.stride;
    let out = View::whole(1, heads * dv);
    let op = Slots {
        heads,
        kv_heads,
        slots,
        q,
        k,
        v,
        weights,
        // With these scales, outputs are of order one.
        scale: if scores.is_some() { 0.05 } else { 0.7 },
        scores,
        keys: 1,
        values: 2,
        out,
    };
    let shapes = [
        (StateDtype::U64, &[1][..]),
        (StateDtype::F32, &[kv_heads, dk, slots]),
        (StateDtype::F32, &[kv_heads, slots, dv]),
    ];
    let comparison = Comparison {
        device: &device,
        op: &op,
        plan: &Arc::new(plan(&shapes)),
        widths: &[stride, out.width, 1],
        output: 1,
        kv: Kv::F32,
        persistent: false,
        tolerance: 1e-4,
    };
    comparison.read(&[150, 7, 64, 1], |buffer, values| {
        values.copy_from_slice(&numbers(buffer as u32 + 5, values.len()));
        if buffer != 0 {
            return;
        }
        for (i, x) in values.iter_mut().enumerate() {
            let (t, column) = (i / stride, i % stride);
            // Weights that replace a slot, weights that keep it, and some in between.
            if column >= weights.start {
                *x = match (column % 5, t % 23) {
                    (_, 7) | (1, 3..9) => 1.0,
                    (2, t) if t % 2 == 0 => 0.0,
                    (3, _) => 0.5 + 0.5 * *x,
                    _ => 0.02 * x.abs(),
                };
            }
        }
    });
}

#[test]
fn slots_in_matrix_form_are_those_of_the_cpu() {
    compare_slots([2, 2, 64, 32, 96], None);
    compare_slots([6, 2, 33, 70, 45], None);
    compare_slots([1, 1, 130, 9, 13], None);
    compare_slots([6, 2, 33, 70, 45], Some(Activation::Silu));
}
