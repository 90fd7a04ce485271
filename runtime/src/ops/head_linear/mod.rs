//! A matrix for each head: `y_h = x_h W_h`, behind which the last columns of a head may pass as they are.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// Products of heads with matrices of their own.
pub struct HeadLinear {
    /// Heads.
    pub heads: usize,
    /// Inputs of equal width for each head, of which the first `rows` are multiplied.
    pub x: View,
    /// `[heads, rows, cols]`; a head's input is a row vector on its left.
    pub weight: Vector,
    /// Columns of a head that are multiplied.
    pub rows: usize,
    /// Columns of a head's product.
    pub cols: usize,
    /// Columns of a head behind those that are multiplied, which stand behind its product.
    pub kept: usize,
    /// Results `[heads, cols + kept]`.
    pub out: View,
}

impl Op for HeadLinear {
    fn access(&self) -> Access {
        Access::default().reads([self.x]).writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("x", self.x, self.heads);
        rules.width("out", self.out, self.heads * (self.cols + self.kept));
    }

    fn weight_bytes(&self) -> usize {
        size_of_val(&self.weight[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rig::{Rig, noise};

    #[test]
    fn heads_are_multiplied_by_their_own_matrices() {
        let (heads, rows, cols, kept, tokens) = (3, 5, 7, 2, 19);
        let width = rows + kept + 1;
        let weight: Vec<f32> = (0..heads * rows * cols).map(noise).collect();
        let op = HeadLinear {
            heads,
            x: View::whole(0, heads * width),
            weight: weight.clone().into(),
            rows,
            cols,
            kept,
            out: View::whole(1, heads * (cols + kept)),
        };
        let x = |t: usize, i: usize| noise(t * 100 + i);
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, value) in row.iter_mut().enumerate() {
                *value = x(t, i);
            }
        };
        let widths = [heads * width, op.out.width];
        let mut rig = Rig::new(&op, &widths, &[]);
        for chunks in [vec![tokens], vec![1; tokens]] {
            let (found, _) = rig.read(&chunks, fill, op.out);
            for (i, found) in found.iter().enumerate() {
                let (t, column) = (i / op.out.width, i % op.out.width);
                let (head, column) = (column / (cols + kept), column % (cols + kept));
                let expected = match column.checked_sub(cols) {
                    Some(kept) => x(t, head * width + rows + kept),
                    None => (0..rows)
                        .map(|r| x(t, head * width + r) * weight[(head * rows + r) * cols + column])
                        .sum(),
                };
                assert!((found - expected).abs() < 1e-5, "{i}: {found} {expected}");
            }
        }
    }
}
