//! Attention with every policy of retention on the emulator, or on a GPU where there is one, against the CPU's.

use std::sync::{Arc, Mutex};

use waterline_quant::Activations;

use super::driver::Memory;
use super::launches::{Launches, Weights};
use super::source::Source;
use super::tests::{device, numbers};
use crate::cpu::{Buffers, Frame, Pool};
use crate::program::View;
use crate::stages::{Attend, Eviction, Policy, ScoreSlots, Stage};
use crate::state::{Arena, Kv, SlotDtype, SlotKind, SlotPlan, StatePlan};

const DIM: usize = 12;
const TOKENS: usize = 70;

/// Slot 0 is the position; then keys, values, those of the set, its counts, scores of the window and of the set.
fn plan(kv: Kv, kv_heads: usize, window: usize, capacity: usize) -> StatePlan {
    let cached = if kv == Kv::F16 {
        SlotDtype::F16
    } else {
        SlotDtype::F32
    };
    let ring: &[usize] = &[kv_heads, window, DIM];
    let set: &[usize] = &[kv_heads, capacity, DIM];
    let slots: [(SlotDtype, usize, &[usize]); 8] = [
        (SlotDtype::U64, 8, &[1]),
        (cached, 4, ring),
        (cached, 4, ring),
        (cached, 4, set),
        (cached, 4, set),
        (SlotDtype::U32, 4, &set[..1]),
        (SlotDtype::F32, 4, &ring[..2]),
        (SlotDtype::F32, 4, &set[..2]),
    ];
    let mut plan = StatePlan {
        slots: Vec::new(),
        bytes: 0,
    };
    for (dtype, size, shape) in slots {
        let size = if dtype == SlotDtype::F16 { 2 } else { size };
        let bytes = shape.iter().product::<usize>() * size;
        plan.slots.push(SlotPlan {
            block: None,
            name: "slot".into(),
            kind: SlotKind::Matrix,
            dtype,
            shape: shape.to_vec(),
            offset: plan.bytes,
            bytes,
        });
        plan.bytes = (plan.bytes + bytes).next_multiple_of(64);
    }
    plan
}

/// Reads the tokens on both, in chunks of these lengths, and compares outputs and the state.
fn compare(kv: Kv, [heads, kv_heads, window, capacity]: [usize; 4], eviction: Option<Eviction>) {
    let Some(device) = device() else { return };
    let (width, stride) = (heads * DIM, (heads + 2 * kv_heads) * DIM);
    let columns = |start, width| View {
        buffer: 0,
        start,
        width,
        stride,
    };
    let stage = Stage::Attend(Attend {
        heads,
        kv_heads,
        q: columns(0, width),
        k: columns(width, kv_heads * DIM),
        v: columns(width + kv_heads * DIM, kv_heads * DIM),
        scale: 1.5,
        keys: 1,
        values: 2,
        eviction,
        out: View::whole(1, width),
    });
    let plan = Arc::new(plan(kv, kv_heads, window, capacity));
    let widths = [stride, width, kv_heads];
    let inputs = widths.map(|width| numbers(width as u32, width * TOKENS));
    for chunks in [&[1; TOKENS][..], &[3, 17, 1, 40, 9]] {
        let most = chunks.iter().copied().max().expect("chunks");
        let queue = Arc::clone(device.driver()).queue().expect("a queue");
        let memory = |bytes: usize| Memory::new(device.driver(), bytes).expect("memory");
        let buffers = widths.map(|width| memory(width * most * size_of::<f32>()));
        let state = memory(plan.bytes);
        queue.clear(state.address(), plan.bytes).expect("zeros");
        let weights = Weights::new(Arc::clone(device.driver()));
        let mut scratch = Vec::new();
        let mut launches = Launches {
            tokens: most,
            plan: &plan,
            arena: state.address(),
            ids: 0,
            buffers: &buffers,
            weights: &weights,
            queue: &*queue,
            kv,
            processors: 4,
            tensor_cores: false,
            bf16: None,
            scratch: &mut scratch,
            persistent: false,
            calls: Vec::new(),
        };
        stage.launch(&mut launches).expect("launches");
        let calls = launches.calls;
        let source = Source::of(&calls.iter().collect::<Vec<_>>());
        let kernels = device.kernels(&source).expect("kernels");

        let pool = Pool::new(1);
        let room = Mutex::new(vec![f32::NAN; stage.scratch(most)]);
        let mut arena = Arena::new(Arc::clone(&plan));
        let mut rounded = Activations::new(most, stride);
        let mut cpu = Buffers::new(&widths, most);
        let mut position = 0;
        for &chunk in chunks {
            queue
                .write(state.address(), &(position as u64).to_le_bytes())
                .expect("a copy");
            arena.bytes_mut()[..8].copy_from_slice(&(position as u64).to_le_bytes());
            for (buffer, &width) in widths.iter().enumerate() {
                let rows = &inputs[buffer][position * width..][..chunk * width];
                let place = buffers[buffer].address();
                queue
                    .write(place, bytemuck::cast_slice(rows))
                    .expect("a copy");
                cpu.get_mut(buffer)[..rows.len()].copy_from_slice(rows);
            }
            for (queued, &kernel) in calls.iter().zip(&source.of_call) {
                let launch = queued.launch(kernels[kernel], chunk);
                queue.launch(&launch).expect("a launch");
            }
            stage.run(&mut Frame {
                pool: &pool,
                buffers: &mut cpu,
                inputs: &mut rounded,
                scratch: std::slice::from_ref(&room),
                arena: &mut arena,
                tokens: &vec![0; chunk],
                position: position as u64,
            });
            let mut found = vec![0.0f32; chunk * width];
            let place = buffers[1].address();
            queue
                .read(place, bytemuck::cast_slice_mut(&mut found))
                .expect("a copy");
            for (i, (found, expected)) in found.iter().zip(cpu.get(1)).enumerate() {
                let (t, column) = (position + i / width, i % width);
                assert!(
                    (found - expected).abs() < 1e-5,
                    "token {t}, column {column}: {found}, on the CPU {expected}"
                );
            }
            position += chunk;
        }
        let mut found = vec![0; plan.bytes];
        queue.read(state.address(), &mut found).expect("a copy");
        for (number, slot) in plan.slots.iter().enumerate() {
            let bytes = slot.offset..slot.offset + slot.bytes;
            let (found, expected) = (&found[bytes.clone()], &arena.bytes()[bytes]);
            if slot.dtype != SlotDtype::F32 {
                assert_eq!(found, expected, "slot {number}");
                continue;
            }
            let floats = |bytes: &[u8]| -> Vec<f32> {
                let numbers = bytes.as_chunks().0.iter();
                numbers.map(|&b| f32::from_le_bytes(b)).collect()
            };
            for (found, expected) in floats(found).iter().zip(&floats(expected)) {
                let same = found == expected || (found - expected).abs() < 1e-5;
                assert!(same, "slot {number}: {found}, on the CPU {expected}");
            }
        }
    }
}

fn retained(policy: Policy, sink: usize) -> Option<Eviction> {
    Some(Eviction {
        policy,
        sink,
        set_keys: 3,
        set_values: 4,
        set_counts: 5,
    })
}

const SCORES: ScoreSlots = ScoreSlots { window: 6, set: 7 };

#[test]
fn windows_are_those_of_the_cpu() {
    compare(Kv::F32, [4, 2, 6, 1], None);
    compare(Kv::F16, [3, 3, 1, 1], None);
    compare(Kv::F16, [5, 1, 600, 1], None);
}

#[test]
fn learned_retention_is_that_of_the_cpu() {
    for (shape, sink, margin) in [([4, 2, 6, 5], 2, 3), ([3, 1, 33, 9], 0, 10)] {
        let policy = Policy::Learned {
            router: View::whole(2, shape[1]),
            margin,
            scores: SCORES,
        };
        compare(Kv::F16, shape, retained(policy, sink));
    }
}

#[test]
fn retention_by_attention_is_that_of_the_cpu() {
    compare(
        Kv::F32,
        [4, 2, 6, 5],
        retained(Policy::Attention(SCORES), 1),
    );
    compare(
        Kv::F32,
        [3, 1, 1, 9],
        retained(Policy::Attention(SCORES), 0),
    );
}

#[test]
fn retention_by_stride_is_that_of_the_cpu() {
    compare(Kv::F16, [4, 2, 6, 5], retained(Policy::Stride(3), 2));
    compare(Kv::F32, [2, 2, 33, 4], retained(Policy::Stride(2), 4));
}
