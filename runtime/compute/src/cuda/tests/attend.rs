//! Attention with every retention policy: the emulator, or a GPU if there is one, against the CPU.

use std::sync::Arc;

use crate::cpu::Frame;
use crate::cuda::decode::fuse::rewrite;
use crate::cuda::tests::rig::Comparison;
use crate::cuda::tests::{device, numbers};
use crate::cuda::{Launches, Queued};
use crate::error::Result;
use crate::operands::{Access, View};
use crate::ops::rig::{plan, side_by_side};
use crate::ops::{
    Attend, CpuOp, DeviceOp, Eviction, HeadGroup, HeadOp, Op, Policy, Prepare, Rope, ScoreTensors,
};
use crate::state::{Kv, StateDtype, StatePlan};

const DIM: usize = 12;
const TOKENS: usize = 70;

/// State tensor 0 is the position. Then come keys, values, the set's keys and values, its counts, scores of the window and of the set, and
/// the set's positions.
fn slots(kv: Kv, kv_heads: usize, window: usize, capacity: usize) -> StatePlan {
    let cached = if kv == Kv::F16 {
        StateDtype::F16
    } else {
        StateDtype::F32
    };
    let ring: &[usize] = &[kv_heads, window, DIM];
    let set: &[usize] = &[kv_heads, capacity, DIM];
    plan(&[
        (StateDtype::U64, &[1]),
        (cached, ring),
        (cached, ring),
        (cached, set),
        (cached, set),
        (StateDtype::U32, &set[..1]),
        (StateDtype::F32, &ring[..2]),
        (StateDtype::F32, &set[..2]),
        (StateDtype::U64, &set[..2]),
    ])
}

/// Reads the tokens on the device and on the CPU, in steps and in chunks.
fn compare(kv: Kv, sizes: [usize; 4], eviction: Option<Eviction>) {
    compare_with(kv, sizes, eviction, [false, true]);
}

/// Like [`compare`], with a sink for each query head if `sinks`, and without writing the cache unless `caches`.
fn compare_with(
    kv: Kv,
    [heads, kv_heads, window, capacity]: [usize; 4],
    eviction: Option<Eviction>,
    [sinks, caches]: [bool; 2],
) {
    let Some(device) = device() else { return };
    let (width, stride) = (heads * DIM, (heads + 2 * kv_heads) * DIM);
    let [q, k, v] = side_by_side([width, kv_heads * DIM, kv_heads * DIM]);
    let op = Attend {
        heads,
        kv_heads,
        q,
        k,
        v,
        scale: 1.5,
        keys: 1,
        values: 2,
        caches,
        sinks: sinks.then(|| numbers(7, heads).into()),
        eviction,
        out: View::whole(1, width),
    };
    let plan = Arc::new(slots(kv, kv_heads, window, capacity));
    // On tensor cores, operands have 16 bits of fraction.
    let steps = &[1; TOKENS][..];
    for (chunks, persistent, tolerance) in [
        (steps, false, 1e-5),
        (steps, true, 1e-5),
        (&[3, 17, 1, 40, 9], false, 1e-4),
    ] {
        Comparison {
            device: &device,
            op: &op,
            plan: &plan,
            widths: &[stride, width, kv_heads],
            output: 1,
            kv,
            persistent,
            tolerance,
        }
        .read(chunks, |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32, values.len()))
        });
    }
}

#[test]
fn attention_whose_tokens_a_later_op_caches_leaves_the_state_alone() {
    for (kv, window) in [(Kv::F32, 9), (Kv::F16, 40), (Kv::F32, 600)] {
        compare_with(kv, [6, 2, window, 1], None, [false, false]);
    }
}

/// Attention that caches its tokens, of heads of `dim` columns; those of 72 have sinks.
fn heads_of(dim: usize, [heads, kv_heads]: [usize; 2]) -> Attend {
    let [q, k, v] = side_by_side([heads * dim, kv_heads * dim, kv_heads * dim]);
    Attend {
        heads,
        kv_heads,
        q,
        k,
        v,
        scale: 1.0 / (dim as f32).sqrt(),
        keys: 1,
        values: 2,
        caches: true,
        sinks: (dim == 72).then(|| numbers(7, heads).into()),
        eviction: None,
        out: View::whole(1, heads * dim),
    }
}

/// Reads chunks with heads that `attend_chunk` supports, of one and of several blocks of columns.
#[test]
fn chunks_over_a_cache_in_f16_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (dim, window, eviction) in [
        (16, 600, None),
        (72, 600, None),
        (136, 30, None),
        (64, 600, None),
        (192, 200, None),
        (256, 600, None),
        (16, 6, retained(Policy::Stride(3), 2)),
    ] {
        let (heads, kv_heads, capacity) = (2, 1, 40);
        let op = Attend {
            eviction,
            ..heads_of(dim, [heads, kv_heads])
        };
        let ring: &[usize] = &[kv_heads, window, dim];
        let set: &[usize] = &[kv_heads, capacity, dim];
        let plan = Arc::new(plan(&[
            (StateDtype::U64, &[1]),
            (StateDtype::F16, ring),
            (StateDtype::F16, ring),
            (StateDtype::F16, set),
            (StateDtype::F16, set),
            (StateDtype::U32, &set[..1]),
            (StateDtype::F32, &ring[..2]),
            (StateDtype::F32, &set[..2]),
            (StateDtype::U64, &set[..2]),
        ]));
        Comparison {
            device: &device,
            op: &op,
            plan: &plan,
            widths: &[op.q.stride, heads * dim, kv_heads],
            output: 1,
            kv: Kv::F16,
            persistent: false,
            // Queries and weights are rounded to f16, like keys and values.
            tolerance: 5e-4,
        }
        .read(&[3, 17, 1, 200, 150, 40], |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32, values.len()))
        });
    }
}

/// Reads single tokens of few keys and, by `attend_step`, of many; the last ones after tokens have left the window.
#[test]
fn steps_over_a_long_cache_in_f16_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (dim, [heads, kv_heads], caches) in
        [(64, [8, 2], true), (72, [3, 1], false), (256, [2, 1], true)]
    {
        let op = Attend {
            caches,
            ..heads_of(dim, [heads, kv_heads])
        };
        let ring: &[usize] = &[kv_heads, 2048, dim];
        let plan = Arc::new(plan(&[
            (StateDtype::U64, &[1]),
            (StateDtype::F16, ring),
            (StateDtype::F16, ring),
        ]));
        for (cached, persistent) in [(1021, true), (5000, false)] {
            Comparison {
                device: &device,
                op: &op,
                plan: &plan,
                widths: &[op.q.stride, heads * dim, kv_heads],
                output: 1,
                kv: Kv::F16,
                persistent,
                tolerance: 1e-5,
            }
            .read_after(cached, &[1; 5], |buffer, values| {
                // Large queries weigh few of the keys.
                let scaled = numbers(buffer as u32, values.len()).into_iter();
                (values.iter_mut().zip(scaled)).for_each(|(value, x)| *value = 4.0 * x);
            });
        }
    }
}

/// Reads chunks with heads that are longer than `attend_tiles` supports, and whose keys are their values.
#[test]
fn long_latent_heads_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let (heads, dim, stride) = (3, 288, 4 * 288);
    let [q, k] = side_by_side([heads * dim, dim]);
    for (kv, window) in [(Kv::F16, 600), (Kv::F32, 50)] {
        let op = Attend {
            heads,
            kv_heads: 1,
            q,
            k,
            v: k,
            scale: 0.1,
            keys: 1,
            values: 1,
            caches: true,
            sinks: (kv == Kv::F32).then(|| numbers(7, heads).into()),
            eviction: None,
            out: View::whole(1, heads * dim),
        };
        let cached = match kv {
            Kv::F16 => StateDtype::F16,
            _ => StateDtype::F32,
        };
        let plan = Arc::new(plan(&[
            (StateDtype::U64, &[1]),
            (cached, &[1, window, dim]),
        ]));
        Comparison {
            device: &device,
            op: &op,
            plan: &plan,
            widths: &[stride, heads * dim],
            output: 1,
            kv,
            persistent: false,
            tolerance: 1e-4,
        }
        .read(&[3, 40, 1, 90], |buffer, values| {
            values.copy_from_slice(&numbers(buffer as u32, values.len()))
        });
    }
}

fn retained(policy: Policy, sink: usize) -> Option<Eviction> {
    Some(Eviction {
        policy,
        sink,
        set_keys: 3,
        set_values: 4,
        set_counts: 5,
        set_positions: 8,
    })
}

const SCORES: ScoreTensors = ScoreTensors { window: 6, set: 7 };

#[test]
fn windows_are_those_of_the_cpu() {
    compare(Kv::F32, [4, 2, 6, 1], None);
    compare(Kv::F16, [3, 3, 1, 1], None);
    compare(Kv::F16, [5, 1, 600, 1], None);
}

#[test]
fn sinks_are_those_of_the_cpu() {
    compare_with(Kv::F32, [4, 2, 6, 1], None, [true, true]);
    // Enough keys for splitting to pay.
    compare_with(Kv::F16, [5, 1, 600, 1], None, [true, true]);
    let stride = retained(Policy::Stride(3), 2);
    compare_with(Kv::F16, [4, 2, 6, 5], stride, [true, true]);
    let attention = retained(Policy::Attention(SCORES), 1);
    compare_with(Kv::F32, [4, 2, 6, 5], attention, [true, true]);
}

#[test]
fn learned_retention_is_that_of_the_cpu() {
    // The last case has enough keys for splitting to pay. The one before has a full set of more rows than a warp has lanes.
    for (shape, sink, margin) in [
        ([4, 2, 6, 5], 2, 3),
        ([3, 1, 33, 9], 0, 10),
        ([4, 2, 6, 5], 2, 0),
        ([3, 1, 6, 37], 22, 3),
        ([4, 1, 6, 600], 2, 3),
    ] {
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

/// Attention after an op that copies and rotates its columns.
struct Rotated {
    prepare: Prepare,
    attend: Attend,
}

impl CpuOp for Rotated {
    fn run(&self, frame: &mut Frame) {
        self.prepare.run(frame);
        self.attend.run(frame);
    }

    fn scratch(&self, chunk: usize) -> usize {
        self.prepare.scratch(chunk).max(self.attend.scratch(chunk))
    }

    fn common(&self, threads: usize) -> usize {
        self.prepare
            .common(threads)
            .max(self.attend.common(threads))
    }
}

impl DeviceOp for Rotated {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        launches.begin(0, &self.prepare.access());
        self.prepare.launch(launches)?;
        launches.begin(1, &self.attend.access());
        self.attend.launch(launches)?;
        if launches.persistent {
            launches.calls = rewrite(std::mem::take(&mut launches.calls), |_| true);
            let prepares = |queued: &Queued| queued.call.kernel.starts_with("prepare");
            assert!(!launches.calls.iter().any(prepares));
        }
        Ok(())
    }
}

impl Op for Rotated {
    fn access(&self) -> Access {
        self.attend.access()
    }
}

#[test]
fn a_step_rotates_its_queries_and_key() {
    let Some(device) = device() else { return };
    // The second case has enough keys for splitting to pay, and rotates only some of a head's values.
    for ([heads, kv_heads, window, capacity], rotated) in
        [([4, 2, 6, 5], DIM), ([4, 1, 6, 600], DIM - 4)]
    {
        let widths = [heads * DIM, kv_heads * DIM, kv_heads * DIM];
        let raw = side_by_side(widths);
        let columns = raw.map(|view| View { buffer: 3, ..view });
        let [q, k, v] = columns;
        let maps = |source, rotates: bool| {
            let rope = rotates.then_some(HeadOp::Rope);
            [HeadOp::Copy(source)].into_iter().chain(rope).collect()
        };
        let group = |place: usize| HeadGroup {
            view: columns[place],
            head_dim: DIM,
            conv: None,
            maps: maps(raw[place], place < 2),
        };
        let scores = SCORES;
        let op = Rotated {
            prepare: Prepare {
                groups: (0..3).map(group).collect(),
                rope: Some(Rope::new(100.0, None, View::whole(4, rotated))),
                gates: Vec::new(),
            },
            attend: Attend {
                heads,
                kv_heads,
                q,
                k,
                v,
                scale: 1.5,
                keys: 1,
                values: 2,
                caches: true,
                sinks: None,
                eviction: retained(
                    Policy::Learned {
                        router: View::whole(2, kv_heads),
                        margin: 3,
                        scores,
                    },
                    2,
                ),
                out: View::whole(1, heads * DIM),
            },
        };
        let stride = q.stride;
        for persistent in [false, true] {
            Comparison {
                device: &device,
                op: &op,
                plan: &Arc::new(slots(Kv::F32, kv_heads, window, capacity)),
                widths: &[stride, heads * DIM, kv_heads, stride, rotated],
                output: 1,
                kv: Kv::F32,
                persistent,
                tolerance: 1e-5,
            }
            .read(&[1; TOKENS], |buffer, values| {
                values.copy_from_slice(&numbers(buffer as u32, values.len()))
            });
        }
    }
}
