//! The op on a CPU.

use half::f16;

use super::best::Best;
use super::task::{Notes, Phase, TOTALS, Task, Work};
use super::{AttendBlocks, BRANCHES};
use crate::cpu::{Frame, Shared};
use crate::ops::CpuOp;
use crate::ops::softmax::{Element, TILE};
use crate::state::StateDtype;

impl AttendBlocks {
    /// Parts of each step of a key and value head's query.
    fn parts(&self, threads: usize) -> usize {
        threads.div_ceil(self.kv_heads).min(self.group())
    }

    /// Floats of the notes that the steps of one query pass to one another: the totals of its heads, and for each part its best blocks.
    pub(super) fn notes(&self, parts: usize) -> usize {
        TOTALS * self.group() + parts * Best::floats(self.chosen)
    }

    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        {
            let out = Shared::new(&mut out);
            let state = frame.arena.shared();
            let task = Task::<E> {
                attend: self,
                buffers: frame.buffers,
                position: frame.position,
                rows: state.rows(self.keys),
                blocks: state.rows(self.mean_keys),
                out: &out,
                state: &state,
                element: std::marker::PhantomData,
            };
            let tokens = frame.tokens.len();
            let threads = frame.pool.threads();
            let parts = self.parts(threads);
            let fits = frame.position + tokens as u64 <= task.rows as u64;
            if fits && (parts == 1 || tokens * self.kv_heads >= threads) {
                // Nothing is overwritten: all tokens can be cached before the first query.
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    task.run(Work::Cache, head, 0..tokens, &mut scratch);
                });
                frame.pool.each(self.kv_heads * tokens, |worker, index| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    let (t, head) = (index / self.kv_heads, index % self.kv_heads);
                    task.run(Work::Query, head, t..t + 1, &mut scratch);
                });
            } else if parts == 1 {
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    task.run(Work::CacheAndQuery, head, 0..tokens, &mut scratch);
                });
            } else {
                let notes = Notes::new(self, parts, frame.common);
                for t in 0..tokens {
                    frame.pool.each(self.kv_heads, |worker, head| {
                        let mut scratch = frame.scratch[worker].lock().expect("scratch");
                        task.run(Work::Cache, head, t..t + 1, &mut scratch);
                    });
                    for step in Phase::ALL {
                        frame.pool.each(self.kv_heads * parts, |worker, index| {
                            let mut scratch = frame.scratch[worker].lock().expect("scratch");
                            let (head, part) = (index / parts, index % parts);
                            let work = Work::Phase(step, part, &notes);
                            task.run(work, head, t..t + 1, &mut scratch);
                        });
                    }
                }
            }
        }
        frame.buffers.put(self.out.buffer, out);
    }
}

impl CpuOp for AttendBlocks {
    fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().tensors()[self.keys].dtype {
            StateDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn scratch(&self, _chunk: usize) -> usize {
        let dim = self.head_dim();
        let running = (BRANCHES - 1) * self.group() * (dim + 2);
        running + 2 * TILE * dim + TILE + Best::floats(self.chosen) + self.notes(1)
    }

    fn common(&self, threads: usize) -> usize {
        self.kv_heads * self.notes(self.parts(threads))
    }
}
