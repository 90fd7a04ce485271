//! A matrix for each head: `y_h = W_h x_h`, optionally followed by an unchanged copy of the head's last columns.

mod cpu;
mod launch;

use waterline_quant::Matrix;

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;

/// Products of heads with one matrix per head.
pub struct HeadLinear {
    /// Heads.
    pub heads: usize,
    /// Inputs of equal width for each head. A matrix multiplies the first columns of its head.
    pub x: View,
    /// `[heads * rows, cols]`: the heads' matrices, one after another.
    pub matrix: Matrix,
    /// Columns of a head after the multiplied ones, which are copied after its product.
    pub copied: usize,
    /// Results `[heads, rows + copied]`.
    pub out: View,
}

/// Inputs of products are padded to a multiple of this.
const PAD: usize = 256;

impl HeadLinear {
    /// Width that the inputs of products need for heads with matrices of `cols` columns.
    pub fn inputs_width(heads: usize, cols: usize) -> usize {
        heads * cols.next_multiple_of(PAD)
    }

    /// Rows of a head's matrix.
    fn rows(&self) -> usize {
        self.matrix.rows() / self.heads
    }
}

impl Op for HeadLinear {
    fn access(&self) -> Access {
        Access::default().reads([self.x]).writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("x", self.x, self.heads);
        let rows = self.matrix.rows();
        rules.equal("the matrices' rows", self.rows() * self.heads, rows);
        let width = self.x.width / self.heads;
        let used = self.matrix.cols() + self.copied;
        rules.equal("a head's used columns", used.min(width), used);
        rules.width("out", self.out, self.heads * (self.rows() + self.copied));
    }

    fn weight_bytes(&self) -> usize {
        self.matrix.bytes().len()
    }
}

#[cfg(test)]
mod tests {
    use waterline_quant::{Bytes, F32, Format, Q8_0};

    use super::*;
    use crate::ops::rig::{Rig, noise};

    #[test]
    fn heads_are_multiplied_by_their_own_matrices() {
        let formats: [(&'static Format, usize); 2] = [(&F32, 5), (&Q8_0, 64)];
        for (format, cols) in formats {
            compare(format, cols);
        }
    }

    /// Compares with the equations, on inputs that 8 bits represent exactly.
    fn compare(format: &'static Format, cols: usize) {
        let (heads, rows, copied, tokens) = (3, 70, 2, 83);
        let width = cols + copied + 1;
        let values: Vec<f32> = (0..heads * rows * cols).map(noise).collect();
        let shape = [heads * rows, cols];
        let mut bytes = vec![0; format.tensor_bytes(&shape).expect("whole blocks")];
        format.encode(&values, &mut bytes);
        let matrix = Matrix::new(format, shape[0], cols, Bytes::from_vec(bytes));
        let op = HeadLinear {
            heads,
            x: View::whole(0, heads * width),
            matrix: matrix.expect("a matrix"),
            copied,
            out: View::whole(1, heads * (rows + copied)),
        };
        let weights: Vec<Vec<f32>> = (0..heads * rows)
            .map(|row| {
                let mut weights = vec![0.0; cols];
                op.matrix.decode_row(row, &mut weights);
                weights
            })
            .collect();
        // Every block of 32 has the largest code, and f16 represents its scale exactly.
        let x = |t: usize, i: usize| match i % width % 32 {
            0 => 127.0 / 64.0,
            _ => (noise(t * 1000 + i) * 100.0).round() / 64.0,
        };
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, value) in row.iter_mut().enumerate() {
                *value = x(t, i);
            }
        };
        let inputs = HeadLinear::inputs_width(heads, cols);
        let widths = [heads * width, op.out.width, inputs];
        let mut rig = Rig::new(&op, &widths, &[]);
        for chunks in [vec![tokens], vec![1; tokens]] {
            let (found, _) = rig.read(&chunks, fill, op.out);
            for (i, found) in found.iter().enumerate() {
                let (t, column) = (i / op.out.width, i % op.out.width);
                let (head, column) = (column / (rows + copied), column % (rows + copied));
                let expected: f32 = match column.checked_sub(rows) {
                    Some(copied) => x(t, head * width + cols + copied),
                    None => (0..cols)
                        .map(|c| x(t, head * width + c) * weights[head * rows + column][c])
                        .sum(),
                };
                let difference = (found - expected).abs();
                assert!(difference < 1e-4, "{format} {i}: {found} {expected}");
            }
        }
    }
}
