//! Recurrences in partitions, in matrix form where that is covered: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::operands::View;
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{Decay, Finish, Key, Partitions, Recur, Write};
use crate::state::{Kv, StateDtype};

const HEADS: usize = 2;
const PARTITIONS: usize = 4;
const USED: usize = 2;

/// Parameters that vary from case to case.
#[derive(Clone, Copy)]
struct Case {
    dk: usize,
    dv: usize,
    writers: usize,
    readers: usize,
    own_columns: bool,
    delta: bool,
    row_decays: bool,
    add: bool,
}

/// Reads chunks of several blocks, of part of a block and of one token. One partition takes most tokens, one takes few and one none.
fn compare(case: Case) {
    let Some(device) = device() else { return };
    let Case { dk, dv, .. } = case;
    let parts = if case.own_columns { PARTITIONS } else { 1 };
    let decays = if case.row_decays { dk } else { 1 };
    let widths = [dk, dk, dv, decays, 1].map(|width| parts * HEADS * width);
    let [q, k, v, decay, beta] = side_by_side(widths);
    let stride = q.stride;
    let out = View::whole(1, HEADS * dv);
    let op = Partitions {
        recur: Recur {
            heads: HEADS,
            states: HEADS,
            dk,
            dv,
            q,
            k: Key::View(k),
            v,
            decay: if case.row_decays {
                Decay::Key(decay)
            } else {
                Decay::Head(decay)
            },
            write: if case.delta {
                Write::Delta(beta)
            } else {
                Write::Add
            },
            gates: None,
            scale: 0.3,
            finish: Finish::default(),
            state: 1,
            out,
        },
        partitions: PARTITIONS,
        route: View::whole(2, 2 * USED),
        writers: case.writers,
        readers: case.readers,
        weigh_queries: true,
        weigh_keys: !case.delta,
        unit_length: case.delta,
        own_columns: case.own_columns,
        add: case.add,
    };
    let state: &[usize] = &[PARTITIONS, HEADS, dk, dv];
    let slots = [(StateDtype::U64, &[1][..]), (StateDtype::F32, state)];
    let comparison = Comparison {
        device: &device,
        op: &op,
        plan: &Arc::new(plan(&slots)),
        widths: &[stride, out.width, 2 * USED],
        output: 1,
        kv: Kv::F32,
        persistent: false,
        tolerance: 1e-4,
    };
    comparison.read(&[190, 7, 64, 1], |buffer, values| {
        values.copy_from_slice(&numbers(buffer as u32 + 3, values.len()));
        if buffer == 2 {
            for (t, row) in values.chunks_exact_mut(2 * USED).enumerate() {
                let few = if t % 7 == 3 { 1.0 } else { 3.0 };
                let order = if t % 3 == 0 { [few, 0.0] } else { [0.0, few] };
                row.copy_from_slice(&[order[0], order[1], 0.7, 0.3]);
            }
        }
        if buffer != 0 {
            return;
        }
        for (i, x) in values.iter_mut().enumerate() {
            let column = i % stride;
            if (k.start..v.start).contains(&column) {
                *x *= (3.0 / dk as f32).sqrt();
            } else if (decay.start..beta.start).contains(&column) {
                *x = if (i / stride) % 29 == 5 {
                    -3000.0
                } else {
                    -0.2 * x.abs()
                };
            } else if column >= beta.start {
                *x = 0.5 + 0.5 * *x;
            }
        }
    });
}

const DELTA: Case = Case {
    dk: 64,
    dv: 64,
    writers: 2,
    readers: 2,
    own_columns: false,
    delta: true,
    row_decays: false,
    add: true,
};

#[test]
fn the_delta_rule_in_partitions_is_that_of_the_cpu() {
    compare(DELTA);
    compare(Case {
        dk: 20,
        dv: 37,
        own_columns: true,
        add: false,
        ..DELTA
    });
    compare(Case {
        writers: 1,
        dk: 100,
        dv: 16,
        ..DELTA
    });
}

#[test]
fn additive_writes_in_partitions_are_those_of_the_cpu() {
    let added = Case {
        delta: false,
        ..DELTA
    };
    compare(Case {
        readers: 1,
        dv: 96,
        ..added
    });
    compare(Case {
        row_decays: true,
        writers: 1,
        ..added
    });
    compare(Case {
        row_decays: true,
        own_columns: true,
        ..added
    });
}
