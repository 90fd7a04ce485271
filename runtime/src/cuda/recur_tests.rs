//! Recurrences in matrix form on the emulator, or on a GPU where there is one, against the CPU's.

use std::sync::Arc;

use super::stage_rig::Comparison;
use super::tests::{device, numbers};
use crate::program::View;
use crate::stages::rig::{plan, side_by_side};
use crate::stages::{Decay, HeadGates, Key, Recur, Stage, Write};
use crate::state::{Kv, SlotDtype};

/// Reads chunks of several blocks, of a part of one and of one token: `heads` that share `states`, keys of `dk` and values of `dv`
/// columns.
fn compare([heads, states, dk, dv]: [usize; 4], fixed: bool, delta: bool, gates: bool) {
    let Some(device) = device() else { return };
    let widths = [
        heads * dk,
        states * dk,
        states * dv,
        states,
        states,
        states,
        heads,
    ];
    let [q, k, v, decay, beta, write, read] = side_by_side(widths);
    let stride = q.stride;
    let out = View::whole(1, heads * dv);
    let stage = Stage::Recur(Recur {
        heads,
        states,
        dk,
        dv,
        q,
        k: Key::View(k),
        v,
        decay: match fixed {
            true => Decay::Fixed((0..states).map(|i| -0.03 * i as f32).collect()),
            false => Decay::Head(decay),
        },
        write: match delta {
            true => Write::Delta(beta),
            false => Write::Add,
        },
        gates: gates.then_some(HeadGates {
            write,
            read: Some(read),
        }),
        scale: 0.3,
        slot: 1,
        out,
    });
    let slots: [(SlotDtype, &[usize]); 2] =
        [(SlotDtype::U64, &[1]), (SlotDtype::F32, &[states, dk, dv])];
    let comparison = Comparison {
        device: &device,
        stage: &stage,
        plan: &Arc::new(plan(&slots)),
        widths: [stride, out.width, 1],
        kv: Kv::F32,
        tolerance: 1e-4,
    };
    comparison.read(&[150, 7, 64, 1], |buffer, values| {
        values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
        if buffer != 0 {
            return;
        }
        for (i, x) in values.iter_mut().enumerate() {
            let column = i % stride;
            // Keys of a length of about one. Fades that are slow, steep, and so steep that nothing stays.
            if (k.start..v.start).contains(&column) {
                *x *= (3.0 / dk as f32).sqrt();
            } else if (decay.start..beta.start).contains(&column) {
                *x = match (i / stride) % 29 {
                    5 => f32::NEG_INFINITY,
                    17 => -3000.0,
                    _ => -0.2 * x.abs(),
                };
            } else if column >= beta.start {
                *x = 0.5 + 0.5 * *x;
            }
        }
    });
}

#[test]
fn the_delta_rule_in_matrix_form_is_that_of_the_cpu() {
    compare([2, 2, 64, 64], false, true, false);
    compare([3, 3, 20, 37], false, true, true);
    compare([4, 2, 100, 16], true, true, false);
}

#[test]
fn additive_writes_in_matrix_form_are_those_of_the_cpu() {
    compare([2, 2, 64, 96], true, false, false);
    compare([6, 2, 17, 33], false, false, true);
}
