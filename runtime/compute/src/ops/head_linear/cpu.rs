//! The op on a CPU.

use super::HeadLinear;
use crate::cpu::{Frame, Shared};
use crate::ops::CpuOp;
use crate::ops::frame::load;

/// Rows of a head's matrix per task.
const ROWS: usize = 64;

/// Tokens that a task multiplies at once.
const BATCH: usize = 64;

impl CpuOp for HeadLinear {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        let (rows, cols, width) = (self.rows(), self.matrix.cols(), self.x.width / self.heads);
        let mut out = frame.buffers.take(self.out.buffer);
        let buffers = &*frame.buffers;
        let of_head = |t: usize, head: usize| &self.x.token(buffers, t)[head * width..][..width];
        // A head of a token is a row of the inputs.
        load(
            frame.pool,
            frame.inputs,
            [self.heads * tokens, cols],
            self.matrix.format().rounding(),
            |row, to| to.copy_from_slice(&of_head(row % tokens, row / tokens)[..cols]),
        );
        let inputs = &*frame.inputs;
        {
            let out = Shared::new(&mut out);
            let pieces = rows.div_ceil(ROWS);
            frame.pool.each(self.heads * pieces, |worker, task| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let (head, piece) = (task / pieces, task % pieces);
                let piece = piece * ROWS..rows.min((piece + 1) * ROWS);
                let place = self.out.start + head * (rows + self.copied);
                for first in (0..tokens).step_by(BATCH) {
                    let count = BATCH.min(tokens - first);
                    let picked: [u32; BATCH] =
                        std::array::from_fn(|i| (head * tokens + first + i) as u32);
                    let range = head * rows + piece.start..head * rows + piece.end;
                    self.matrix
                        .mul_picked(range, inputs, &picked[..count], &mut scratch, ROWS);
                    for (i, product) in scratch.chunks_exact(ROWS).take(count).enumerate() {
                        let start = (first + i) * self.out.stride + place;
                        let columns = start + piece.start..start + piece.end;
                        // SAFETY: each task writes its rows of one head, which are columns of the output (rules: widths,
                        // disjoint writes).
                        unsafe { out.part(columns) }.copy_from_slice(&product[..piece.len()]);
                        if piece.start == 0 {
                            let copied = start + rows..start + rows + self.copied;
                            // SAFETY: as above; only one task of a head has these columns.
                            let copied = unsafe { out.part(copied) };
                            copied
                                .copy_from_slice(&of_head(first + i, head)[cols..][..self.copied]);
                        }
                    }
                }
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        BATCH * ROWS
    }
}
