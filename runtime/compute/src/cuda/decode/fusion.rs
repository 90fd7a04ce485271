//! Merges neighbouring calls of a decode kernel; each merge saves a synchronization. Ops append their calls as if they were alone. Here the
//! product that computes a value also applies the tasks of `prepare` that need no other value; the recurrence that normalizes queries and
//! keys, or the attention that rotates them, does the rest. Attention does not store a score that the router has stored.

use std::collections::VecDeque;
use std::ops::Range;

use bytemuck::Zeroable;

use crate::cuda::driver::Address;
use crate::cuda::schedule::{
    Form, Gemv, Grid, MOST_GROUPS, MOST_TAPS, MapKind, Parameter, PrepareGroup, PrepareTasks,
    Queued, RotaryInputs, Rows, Take, overlap,
};

/// Merges the calls of a step. `read_once` returns, for the index of an op, whether at most one other op reads its output.
pub fn merge(calls: Vec<Queued>, read_once: impl Fn(usize) -> bool) -> Vec<Queued> {
    let mut rest = VecDeque::from(calls);
    let mut merged: Vec<Queued> = Vec::new();
    while let Some(mut queued) = rest.pop_front() {
        if matches!(queued.form, Form::Prepares) {
            if let Some(before) = merged.last_mut() {
                finish_in_product(before, &mut queued);
            }
            if queued.blocks() == 0 || hand_over(&queued, &mut rest, &read_once) {
                continue;
            }
        }
        leave_stored_score(&merged, &mut queued);
        merged.push(queued);
    }
    #[cfg(any(test, feature = "emulator"))]
    assert!(!merged.iter().any(Queued::exceeds_op));
    merged
}

/// Moves the tasks that a product's epilogue can do into the product.
fn finish_in_product(product: &mut Queued, prepare: &mut Queued) {
    let Form::Gemv(gemv) = &mut product.form else {
        return;
    };
    // A product has room for one set of tasks.
    if gemv.has_row_ops() {
        return;
    }
    let tasks: PrepareTasks = prepare.call.parameters[0].get();
    let [finished, mut left] = tasks.split(gemv);
    if !gemv.has_row_ops() {
        return;
    }
    product.call.parameters.push(Parameter::value(finished));
    product.also.extend(prepare.op());
    let [_, blocks] = left.number();
    prepare.call.parameters[0] = Parameter::value(left);
    prepare.call.grid = Grid::EachTile(blocks, 1);
    prepare.accesses = Some(left.accesses());
}

/// Hands all tasks of `prepare` over to the next op, if that op can do them; returns whether it did.
fn hand_over(
    prepare: &Queued,
    rest: &mut VecDeque<Queued>,
    read_once: impl Fn(usize) -> bool,
) -> bool {
    let tasks: PrepareTasks = prepare.call.parameters[0].get();
    let (Some(work), Some(memory)) = (tasks.only_work(), &prepare.of) else {
        return false;
    };
    let Some(next) = rest.front().and_then(Queued::op) else {
        return false;
    };
    let takes = |queued: &Queued| queued.takes.iter().any(|take| work.can_be_taken(take));
    if !read_once(memory.op) || !rest.front().is_some_and(takes) {
        return false;
    }
    let mut is_computed = false;
    for queued in rest
        .iter_mut()
        .take_while(|queued| queued.op() == Some(next))
    {
        if let Some(of) = &mut queued.of {
            of.accesses.reads.extend_from_slice(&memory.accesses.reads);
            of.accesses
                .writes
                .extend_from_slice(&memory.accesses.writes);
        }
        let Some(index) = queued.takes.iter().position(|take| work.can_be_taken(take)) else {
            continue;
        };
        let computes = match (queued.takes.swap_remove(index), &work) {
            (Take::UnitHeads { take, .. }, _) => {
                take(&mut queued.call);
                true
            }
            (
                Take::Rotation {
                    cached,
                    rotates,
                    take,
                    ..
                },
                Work::Rotation { from, .. },
            ) => {
                take(queued, *from, cached);
                rotates
            }
            _ => false,
        };
        if computes && !is_computed {
            queued.also.push(memory.op);
            is_computed = true;
        }
    }
    true
}

/// Makes a call that would store a score leave that out if an earlier call has stored the same score.
fn leave_stored_score(before: &[Queued], queued: &mut Queued) {
    let writes = |memory: &Range<Address>| {
        let accesses = before.iter().filter_map(|queued| queued.accesses.as_ref());
        accesses
            .flat_map(|accesses| &accesses.writes)
            .any(|written| written == memory)
    };
    let stored = queued.takes.iter().find_map(|taken| match taken {
        Take::Score { stored, take } if writes(stored) => Some((*take, stored.clone())),
        _ => None,
    });
    if let Some((take, stored)) = stored {
        take(queued, &stored);
    }
}

/// Work that the next op may do itself.
enum Work {
    /// The heads of queries and keys in these columns are scaled to unit length.
    UnitHeads([Rows; 2]),
    /// Heads of queries and keys are rotated by position into the first two of these columns; values are copied into the last.
    Rotation {
        columns: [Rows; 3],
        head_dim: i32,
        from: RotaryInputs,
    },
}

impl Work {
    /// Whether this is the work that a call can take over.
    fn can_be_taken(&self, take: &Take) -> bool {
        match (self, take) {
            (
                Work::UnitHeads(columns),
                Take::UnitHeads {
                    columns: wanted, ..
                },
            ) => columns == wanted,
            (
                Work::Rotation {
                    columns, head_dim, ..
                },
                Take::Rotation {
                    columns: wanted,
                    head_dim: wanted_dim,
                    ..
                },
            ) => columns == wanted && *head_dim as usize == *wanted_dim,
            _ => false,
        }
    }
}

impl PrepareTasks {
    /// Splits the tasks into those that a product's epilogue can do, which become row ops of the product, and the remaining ones.
    fn split(self, product: &mut Gemv) -> [Self; 2] {
        let mut left = PrepareTasks {
            groups: 0,
            gates: 0,
            ..self
        };
        let mut finished = PrepareTasks::zeroed();
        let sources: Vec<Range<Address>> = self.sources().map(Rows::bytes).collect();
        for (index, group) in self.groups().iter().enumerate() {
            let own = group.leading_activations();
            let possible = (own > 0 || group.weight != 0)
                && group.gate.first == 0
                && group.taps <= MOST_TAPS
                && !overlap(&sources, &[group.columns.bytes()]);
            let mut rest = *group;
            if possible && product.finish(group.columns, index) {
                finished.group[index] = PrepareGroup {
                    maps: own as i32,
                    ..*group
                };
                rest = group.after_maps(own);
            }
            if rest.maps > 0 || rest.weight != 0 {
                left.group[left.groups as usize] = rest;
                left.groups += 1;
            }
        }
        for (index, gate) in self.gates().iter().enumerate() {
            if gate.is_alone() && product.finish(gate.columns, MOST_GROUPS + index) {
                finished.gate[index] = *gate;
            } else {
                left.gate[left.gates as usize] = *gate;
                left.gates += 1;
            }
        }
        [finished, left]
    }

    /// Returns the work that the next op may do, if these tasks contain nothing else.
    fn only_work(&self) -> Option<Work> {
        if self.gates > 0 || self.groups().iter().any(|group| group.weight != 0) {
            return None;
        }
        let is_only =
            |group: &PrepareGroup, kind| matches!(group.maps(), [map] if map.kind == kind);
        let unit = |group| is_only(group, MapKind::L2Norm as i32);
        let copied = |group| is_only(group, MapKind::Copy as i32);
        let rotated = |group: &PrepareGroup| {
            let [copy, rope] = group.maps() else {
                return false;
            };
            (copy.kind, rope.kind) == (MapKind::Copy as i32, MapKind::Rope as i32)
        };
        match self.groups() {
            [q, k] if unit(q) && unit(k) => Some(Work::UnitHeads([q.columns, k.columns])),
            [q, k, v] if rotated(q) && rotated(k) && copied(v) && q.head_dim == k.head_dim => {
                Some(Work::Rotation {
                    columns: [q, k, v].map(|group| group.columns),
                    head_dim: q.head_dim,
                    from: RotaryInputs {
                        columns: [q, k, v].map(|group| group.at[0].source),
                        frequencies: self.frequencies,
                        pairs: self.pairs,
                        magnitude: self.magnitude,
                    },
                })
            }
            _ => None,
        }
    }
}

impl PrepareGroup {
    /// Returns what remains of the head group after the convolution and this many maps.
    fn after_maps(&self, maps: usize) -> Self {
        let mut rest = PrepareGroup {
            weight: 0,
            taps: 0,
            maps: self.maps - maps as i32,
            ..*self
        };
        rest.at.rotate_left(maps);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::schedule::{Accesses, Call, OpMemory};

    const ROWS: [Rows; 2] = [rows(16), rows(144)];

    const fn rows(first: Address) -> Rows {
        Rows {
            first,
            stride: 64,
            width: 16,
        }
    }

    fn queued(kernel: &str, op: usize, form: Form) -> Queued {
        let call = Call {
            source: &[],
            kernel: kernel.into(),
            grid: Grid::Blocks(4),
            threads: 32,
            shared: 0,
            parameters: vec![Parameter::value(0i32)],
        };
        Queued {
            of: Some(OpMemory {
                op,
                accesses: Accesses {
                    reads: ROWS.map(Rows::bytes).to_vec(),
                    writes: ROWS.map(Rows::bytes).to_vec(),
                },
                own: Vec::new(),
            }),
            ..Queued::new(call, form)
        }
    }

    /// Norms of the heads in both columns, and this many gates.
    fn prepare(gates: i32) -> Queued {
        let mut tasks = PrepareTasks {
            groups: 2,
            gates,
            ..PrepareTasks::zeroed()
        };
        for (group, columns) in tasks.group.iter_mut().zip(ROWS) {
            (group.columns, group.head_dim, group.maps) = (columns, 8, 1);
            group.at[0].kind = MapKind::L2Norm as i32;
        }
        let mut queued = queued("prepare", 0, Form::Prepares);
        queued.call.parameters[0] = Parameter::value(tasks);
        queued
    }

    fn recurrence(columns: [Rows; 2]) -> Queued {
        let mut queued = queued("recur", 1, Form::Waits);
        queued.takes.push(Take::UnitHeads {
            columns,
            take: |call| call.parameters[0] = Parameter::value(1i32),
        });
        queued
    }

    fn kernels(calls: &[Queued]) -> Vec<&str> {
        calls.iter().map(|queued| &*queued.call.kernel).collect()
    }

    #[test]
    fn the_only_reader_does_what_it_can() {
        let merged = merge(vec![prepare(0), recurrence(ROWS)], |_| true);
        assert_eq!(kernels(&merged), ["recur"]);
        assert_eq!(merged[0].also, [0]);
        assert_eq!(merged[0].call.parameters[0].get::<i32>(), 1);
    }

    #[test]
    fn other_work_stays_a_call() {
        let [q, k] = ROWS;
        for (prepare, reader, read_once) in [
            (prepare(0), recurrence(ROWS), false),
            (prepare(1), recurrence(ROWS), true),
            (prepare(0), recurrence([k, q]), true),
            (prepare(0), queued("recur", 1, Form::Waits), true),
        ] {
            let merged = merge(vec![prepare, reader], |_| read_once);
            assert_eq!(kernels(&merged), ["prepare", "recur"]);
            assert_eq!(merged[1].call.parameters[0].get::<i32>(), 0);
        }
    }

    #[test]
    fn a_score_is_stored_once() {
        let score = |written: u64| {
            let mut score = queued("score", 0, Form::Waits);
            let [q, _] = ROWS;
            score.accesses = Some(Accesses {
                reads: vec![q.bytes()],
                writes: vec![rows(written).bytes()],
            });
            score
        };
        for (written, left) in [(ROWS[0].first, 1), (ROWS[1].first, 0)] {
            let mut retain = queued("retain", 1, Form::Waits);
            retain.takes.push(Take::Score {
                stored: ROWS[0].bytes(),
                take: |queued, _| queued.call.parameters[0] = Parameter::value(1i32),
            });
            let merged = merge(vec![score(written), retain], |_| true);
            assert_eq!(merged[1].call.parameters[0].get::<i32>(), left);
        }
    }
}
